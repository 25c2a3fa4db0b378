"""Seconds of collectives in the alpha-beta model.

Each algorithm's entry (`hpcpar.schedule.algorithms`) has its formula, or is priced by its table of
messages. Where a machine was measured to take other times, those count
(`hpcpar.machine.model.Factors`). Arguments may be arrays with an entry for each case of a family of
plans.
"""

from __future__ import annotations

from hpcpar.cost.network.contention import Links, Route
from hpcpar.plan.config import Floats, Ints, Numbers
from hpcpar.schedule.algorithms.powers import log2_ceil
from hpcpar.schedule.algorithms.registry import ALGORITHMS
from hpcpar.schedule.steps import Kind


def collective_s(kind: Kind, algorithm: str, n_bytes: Numbers, segments: Ints, route: Route,
                 add_s_per_byte: float = 0.0) -> Floats:
    """Seconds of a collective.

    Parameters
    ----------
    n_bytes : float
        Allgather and reduce-scatter: all members' blocks together; else the buffer.
    segments : int
        Pieces of a message, where the algorithm cuts messages.
    route : Route
        The links that the group's messages cross.
    add_s_per_byte : float
        Cost of adding received bytes; a ring of several segments hides it behind the transfer of
        the next segment.
    """
    return ALGORITHMS[algorithm].priced_s(kind, n_bytes, segments, route, add_s_per_byte)


def paper_s(kind: Kind, p: Ints, n_bytes: Numbers, links: Links) -> Floats:
    """The accounting of Gholami et al. (Eq 3 to 9).

    ceil(log2 p) alpha + (p - 1) / p n beta; twice that for an allreduce.
    """
    once = links.alpha_s * log2_ceil(p) + links.beta_s_per_byte * (p - 1) / p * n_bytes
    return 2 * once if kind is Kind.ALLREDUCE else once
