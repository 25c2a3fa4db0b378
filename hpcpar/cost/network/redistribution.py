"""Redistributions: any movement from rank to rank between two layouts, in seconds and items of the
busiest rank.

It is worked out on a few ranks spread over all of them, in closed form: what a rank wants less what
it holds, and what others want of what it holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcpar.cost.network.contention import Links, Wires
from hpcpar.cost.network.paired import Amounts, amounts
from hpcpar.plan.config import Ints
from hpcpar.plan.layout import Layout
from hpcpar.schedule.outline_steps import Move
from hpcpar.schedule.steps import Kind


@dataclass(frozen=True)
class Direct:
    """A point-to-point step on its busiest rank.

    Attributes
    ----------
    seconds : float
        Sending and receiving at once, then summing and copying.
    messages, items : int
        Sent.
    through : int
        Items, sent and received, that go through the buffers of the rank with most of them.
    level : int
        Index of the machine's level that it crosses.
    """

    seconds: Any
    messages: Any
    items: Any
    through: Any
    level: Any


def redistribution(step: Move, wires: Wires, ranks: Any) -> Direct:
    """Any movement between two layouts, on its busiest rank."""
    holder, wanter, size = step.holder, step.wanter, step.item_bytes
    found = amounts(holder, wanter, ranks)
    if np.all(np.equal(holder.config.first, wanter.config.first)):
        sending, receiving = (spread(found.block, layout.config.ranks, wires, ranks)
                              for layout in (holder, wanter))
        level = wires.index(found.block, ranks)
    else:
        sending, receiving = (_apart(holder, wanter, layout.config.ranks, wires)
                              for layout in (holder, wanter))
        level = wires.between(*_ends(holder, wanter))
    per_byte = wires.machine.add_s_per_byte if step.pattern.adds else wires.machine.copy_s_per_byte
    seconds = redistribution_s(found, sending, receiving, size, per_byte, wires)
    out, into = (np.round(items).astype(np.int64) for items in (found.out, found.into))
    return Direct(seconds, np.ceil(found.out_count).astype(np.int64), out, out + into, level)


def redistribution_s(found: Amounts, sending: Spread, receiving: Spread, item_bytes: Ints,
                     s_per_byte: Any, wires: Wires) -> Any:
    """Seconds of sending and receiving at once, then of handling what came (`s_per_byte`) and,
    before, packing what goes.
    """
    out, into = found.out * item_bytes, found.into * item_bytes
    seconds = np.maximum(sending.seconds(out, found.out_count),
                         receiving.seconds(into, found.into_count))
    seconds = seconds + into * s_per_byte + out * wires.machine.copy_s_per_byte
    return seconds * wires.factor(sending.level, Kind.REDISTRIBUTE, "direct", np.maximum(out, into))


@dataclass(frozen=True)
class Spread:
    """What messages to ranks spread over a block cost in the mean.

    Attributes
    ----------
    alpha_s, s_per_byte : float
        Latency of a message, and inverse bandwidth.
    level : int
        Index of the outermost level that they cross.
    savings : tuple of (float, float)
        (Seconds less, for messages of up to so many bytes), where small messages have a latency of
        their own.
    """

    alpha_s: Any
    s_per_byte: Any
    level: Any
    savings: tuple[tuple[Any, Any], ...] = ()

    @classmethod
    def of(cls, parts: Sequence[tuple[Any, Links]], level: Any) -> Spread:
        """The mean over links that each take a part of the messages."""
        savings = tuple((part * (x.alpha_s - x.small_alpha_s), x.small_bytes) for part, x in parts
                        if x.small_alpha_s is not x.alpha_s)
        return cls(sum(part * x.alpha_s for part, x in parts),
                   sum(part * x.beta_s_per_byte for part, x in parts), level, savings)

    def seconds(self, n_bytes: Any, count: Any) -> Any:
        """Seconds of `count` messages of `n_bytes` in all."""
        latency = self.alpha_s
        if self.savings:
            each = n_bytes / np.maximum(count, 1)
            for saved, small_bytes in self.savings:
                latency = latency - saved * (each <= small_bytes)
        return count * latency + n_bytes * (self.s_per_byte * (count > 0))

    def at(self, places: Any) -> Spread:
        """Those of some cases."""
        savings = tuple((saved[places], np.broadcast_to(small, saved.shape)[places])
                        for saved, small in self.savings)
        return Spread(self.alpha_s[places], self.s_per_byte[places],
                      self.level[places] if np.ndim(self.level) else self.level, savings)


def spread(block: Any, active: Any, wires: Wires, ranks: Any) -> Spread:
    """The links of messages between ranks of a block.

    Parameters
    ----------
    active : int
        Ranks that send (or receive) at the same time.
    """
    index = np.asarray(wires.index(block, ranks))
    unit = np.minimum(wires.inner[index], block)
    # part of the other ranks that lies outside the unit
    away = (block - unit) / np.maximum(block - 1, 1)
    far = wires.links(index, lambda u: np.minimum(u, active) * (1 - np.minimum(u, block) / block))
    close = wires.links(np.maximum(index - 1, 0), lambda u: np.minimum(u, active))
    return Spread.of(((away, far), (np.where(unit > 1, 1 - away, 0.0), close)), index)


def _ends(holder: Layout, wanter: Layout) -> tuple[Any, Any]:
    """The first and the last rank of both."""
    a, b = holder.config, wanter.config
    return np.minimum(a.first, b.first), np.maximum(a.first + a.ranks, b.first + b.ranks) - 1


def _apart(holder: Layout, wanter: Layout, active: Any, wires: Wires) -> Spread:
    """The links of messages between two stages that live on different ranks."""
    level = wires.between(*_ends(holder, wanter))
    return Spread.of(((1.0, wires.links(level, lambda unit: np.minimum(unit, active))),), level)
