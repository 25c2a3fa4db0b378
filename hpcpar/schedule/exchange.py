"""An exchange: what one rank packs, sends, receives and unpacks in a communication step."""

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
    """A box that stays on its rank: in the held array, and in the wanted one."""

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
        Boxes of the held array that are copied into the wire.
    peers : tuple of int
        Ranks, by the member index that messages name.
    rounds : tuple of Round
    unpack : tuple of Piece or Kept
        A Piece is copied (added, where the step reduces) from the wire into the wanted array. What
        is Kept is copied from the held array without a message. The order is that of the parts, so
        that replicas add in the same order.
    in_flight : int
        A round starts when the one so many before it is complete.
    """

    wire_items: int
    pack: tuple[Piece, ...]
    peers: tuple[int, ...]
    rounds: tuple[Round, ...]
    unpack: tuple[Piece | Kept, ...]
    in_flight: int = 1


NOTHING = Exchange(0, (), (), (), ())
