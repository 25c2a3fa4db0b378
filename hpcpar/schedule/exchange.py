"""Decides what an exchange holds: one rank's pack, messages and unpack in a communication step."""

from __future__ import annotations

from dataclasses import dataclass

from hpcpar.plan.boxes import Box
from hpcpar.schedule.algorithms.base import Round


@dataclass(frozen=True)
class Piece:
    """A box (global indices) and its span `start:stop` of the wire buffer."""

    box: Box
    start: int
    stop: int


@dataclass(frozen=True)
class Kept:
    """A box that stays on its rank, in the indices of the held and of the wanted array."""

    held: Box
    wanted: Box


@dataclass(frozen=True)
class Exchange:
    """One rank's part in a communication step: pack, rounds of messages, unpack.

    Attributes
    ----------
    wire_items : int
        Size of the wire buffer; 0 for an allreduce, whose wire is the tensor itself.
    pack : tuple of Piece
        Boxes that are copied from the held array into the wire.
    peers : tuple of int
        Ranks, by the member index that messages use.
    unpack : tuple of Piece or Kept
        A `Piece` is copied from the wire into the wanted array, or added where the step reduces. A
        `Kept` box is copied from the held array without a message. All replicas unpack in the same
        order, so their sums are equal.
    in_flight : int
        Rounds that may be in flight: round i starts once round ``i - in_flight`` is complete.
    """

    wire_items: int
    pack: tuple[Piece, ...]
    peers: tuple[int, ...]
    rounds: tuple[Round, ...]
    unpack: tuple[Piece | Kept, ...]
    in_flight: int = 1


NOTHING = Exchange(0, (), (), (), ())
