"""Decides where a step's messages lie on one rank: in tensors themselves, or in a wire buffer."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hpcpar.plan.boxes import local
from hpcpar.schedule.algorithms.base import SCATTERED, slots_of
from hpcpar.schedule.algorithms.registry import ALGORITHMS
from hpcpar.schedule.exchange import Exchange, Kept, Piece
from hpcpar.schedule.steps import Comm, Kind


@dataclass
class Wire:
    """The pieces of a step's messages.

    Attributes
    ----------
    views : list
        (start, stop, flat array) for each piece sent from or received into a tensor itself.
    packs : list
        (array, piece) for each array that is copied to the wire.
    unpacks : list
        In unpacking order: (array, piece, None) to copy or add from the wire, or (array, None,
        source) for a box that stays on this rank.
    items : int
        Size of the wire buffer; 0 if `views` hold all pieces.
    """

    views: list[tuple[int, int, NDArray[np.float64]]] = field(default_factory=list)
    packs: list[tuple[NDArray[np.float64], Piece]] = field(default_factory=list)
    unpacks: list[tuple[NDArray[np.float64], Piece | None, NDArray[np.float64] | None]] = field(
        default_factory=list)
    items: int = 0

    @property
    def pieces(self) -> list[Piece]:
        """The pieces that are copied to or from the wire."""
        return [p for _, p in self.packs] + [p for _, p, _ in self.unpacks if p]


def wire(step: Comm, ex: Exchange, rank: int, held: NDArray[np.float64],
         wanted: NDArray[np.float64], on_host: bool) -> Wire:
    """The wire of a step that moves the array `held` to `wanted`."""
    if step.kind is Kind.ALLREDUCE:
        return Wire()
    out, held_box, wanted_box = Wire(), step.source_box(rank), step.destination_box(rank)
    # a message of several blocks needs them side by side in the wire
    separate = step.kind in SCATTERED and ALGORITHMS[step.algorithm].block_by_block
    may_view = on_host and (step.group is None or separate)
    for p in ex.pack:
        view = held[local(p.box, held_box)]
        if may_view and view.flags.c_contiguous:
            out.views.append((p.start, p.stop, view.reshape(-1)))
        else:
            out.packs.append((view, p))
    if step.kind is Kind.REDUCE_SCATTER and out.views and out.packs:
        # sums travel through the wire, so either all blocks are views or none are
        out.packs, out.views = [(held[local(p.box, held_box)], p) for p in ex.pack], []
    for u in ex.unpack:
        if isinstance(u, Kept):
            out.unpacks.append((wanted[local(u.wanted, wanted_box)], None,
                                held[local(u.held, held_box)]))
            continue
        target = wanted[local(u.box, wanted_box)]
        # a message from another pipeline stage may arrive while the previous micro-batch still
        # uses the array
        if may_view and not step.reduce and not step.between and target.flags.c_contiguous:
            out.views.append((u.start, u.stop, target.reshape(-1)))
        else:
            out.unpacks.append((target, u, None))
    in_place = {(a, b) for a, b, _ in out.views}
    if out.packs or any((p.start, p.stop) not in in_place for p in out.pieces):
        out.items = ex.wire_items
    return out


def landing_slots(step: Comm, ex: Exchange) -> dict[int, int]:
    """Sizes (items) of the landing buffers, whose contents are added on arrival, by slot."""
    if ALGORITHMS[step.algorithm].library and len(ex.peers) > 1:
        own = ex.unpack[0] if step.kind is Kind.REDUCE_SCATTER else None
        return {0: own.stop - own.start} if isinstance(own, Piece) else {}
    return slots_of(ex.rounds, step.segments)
