"""Decides what all ranks sum beside gradients: the loss, and votes on the loss scale of float16."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hpcpar.schedule.buckets import Pending
from hpcpar.schedule.overlap import Emitter
from hpcpar.schedule.steps import Comm, Op, Phase

#: Numbers summed over ranks in the loss's allreduce: the loss, the number of correct samples, and
#: the ranks' requests to each other (`hpcpar.train.rank_requests.Ask`).
LOSS_SUMS = 3


def unscale(b: Emitter, pending: Sequence[Pending],
            add_votes: Callable[[], Comm | None] | None) -> None:
    """Unscale each summed gradient. Ranks where one is not finite vote against all updates, which
    wait for the sum of the votes; `add_votes` is None where the search prices one layer's steps.
    """
    for p in pending:
        b.wait(p.move)
        b.compute(Phase.UPDATE, p.layer, Op.UNSCALE, 1)
    if add_votes is not None:
        b.wait(add_votes())
