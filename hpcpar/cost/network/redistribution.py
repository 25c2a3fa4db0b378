"""The price of a redistribution: any movement from rank to rank between two layouts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpcpar.cost.network.contention import Links, NetworkModel
from hpcpar.cost.network.volumes import Volumes, ends, volumes
from hpcpar.plan.config import Floats, Ints, Numbers
from hpcpar.plan.layout import Layout
from hpcpar.schedule.outline_steps import Move
from hpcpar.schedule.steps import Kind


@dataclass(frozen=True)
class PointToPoint:
    """A point-to-point step on its busiest rank.

    Attributes
    ----------
    seconds : float
        Packing, sending and receiving at once, then copying or adding.
    messages, items : int
        Sent.
    through_items : int
        Sent and received, of the rank with most of them: the size of its buffers, at most.
    level : int
        Index of the machine's level that it crosses.
    """

    seconds: Floats
    messages: Ints
    items: Ints
    through_items: Numbers
    level: Ints


def redistribution(step: Move, network_model: NetworkModel, ranks: int) -> PointToPoint:
    """The price of a redistribution on its busiest rank."""
    source, destination = step.source, step.destination
    found = volumes(source, destination, ranks)
    if np.all(np.equal(source.config.first, destination.config.first)):
        sending, receiving = (spread(found.span, layout.config.ranks, network_model, ranks)
                              for layout in (source, destination))
        level = network_model.index(found.span, ranks)
    else:
        sending, receiving = (_between_stages(source, destination, layout.config.ranks,
                                              network_model)
                              for layout in (source, destination))
        level = network_model.between(*ends(source, destination))
    machine = network_model.machine
    per_byte = machine.add_s_per_byte if step.pattern.adds else machine.copy_s_per_byte
    seconds = redistribution_s(found, sending, receiving, step.item_bytes, per_byte, network_model)
    sent = np.round(found.sent).astype(np.int64)
    messages = np.ceil(found.messages_sent).astype(np.int64)
    # an item goes to each of the ranks that want it, and comes once, or as parts of a sum
    out = _copies(destination) * source.largest_items
    back = (_copies(source) if step.pattern.adds else 1) * destination.largest_items
    return PointToPoint(seconds, messages, sent, out + back, level)


def _copies(layout: Layout) -> Ints:
    """Ranks that hold the same item, at most."""
    whole = math.prod(a.extent for a in layout.axes)
    held = layout.config.ranks * layout.largest_items
    return np.ceil(held / np.maximum(whole, 1)).astype(np.int64)


def redistribution_s(found: Volumes, sending: Spread, receiving: Spread, item_bytes: Ints,
                     s_per_byte: Floats, network_model: NetworkModel) -> Floats:
    """Seconds of packing what goes, sending and receiving at once, and handling what came.

    Parameters
    ----------
    s_per_byte : float
        Handling: copying or adding.
    """
    sent, received = found.sent * item_bytes, found.received * item_bytes
    seconds = np.maximum(sending.seconds(sent, found.messages_sent),
                         receiving.seconds(received, found.messages_received))
    seconds = seconds + received * s_per_byte + sent * network_model.machine.copy_s_per_byte
    most = np.maximum(sent, received)
    return seconds * network_model.factor(sending.level, Kind.REDISTRIBUTE, "direct", most)


@dataclass(frozen=True)
class Spread:
    """The mean price of messages to ranks spread over a block.

    Attributes
    ----------
    alpha_s, s_per_byte : float
        Latency of a message, and inverse bandwidth.
    level : int
        Index of the outermost level that they cross.
    savings : tuple of (float, float)
        (Seconds saved by messages of up to this many bytes, bytes), where small messages have a
        latency of their own.
    """

    alpha_s: Floats
    s_per_byte: Floats
    level: Ints
    savings: tuple[tuple[Floats, Numbers], ...] = ()

    @classmethod
    def of(cls, shares: Sequence[tuple[Floats, Links]], level: Ints) -> Spread:
        """The mean over links that each take a share of the messages."""
        savings = tuple((share * (x.alpha_s - x.small_alpha_s), x.small_bytes)
                        for share, x in shares if x.small_alpha_s is not x.alpha_s)
        alpha_s = sum(share * x.alpha_s for share, x in shares)
        return cls(alpha_s, sum(share * x.beta_s_per_byte for share, x in shares), level, savings)

    def seconds(self, n_bytes: Numbers, count: Numbers) -> Floats:
        """Seconds of `count` messages of `n_bytes` in all."""
        latency = self.alpha_s
        each = n_bytes / np.maximum(count, 1)
        for saved, small_bytes in self.savings:
            latency = latency - saved * (each <= small_bytes)
        return count * latency + n_bytes * (self.s_per_byte * (count > 0))


def spread(block: Ints, active: Ints, network_model: NetworkModel, ranks: int) -> Spread:
    """The links of messages between ranks of a block.

    Parameters
    ----------
    active : int
        Ranks that send (or receive) at the same time.
    """
    index = np.asarray(network_model.index(block, ranks))
    unit = np.minimum(network_model.inner[index], block)
    # share of the other ranks that lie outside the unit
    away = (block - unit) / np.maximum(block - 1, 1)
    far = network_model.links(index,
                              lambda u: np.minimum(u, active) * (1 - np.minimum(u, block) / block))
    close = network_model.links(np.maximum(index - 1, 0), lambda u: np.minimum(u, active))
    return Spread.of(((away, far), (np.where(unit > 1, 1 - away, 0.0), close)), index)


def _between_stages(source: Layout, destination: Layout, active: Ints,
                    network_model: NetworkModel) -> Spread:
    """The links of messages between two stages that live on different ranks."""
    level = network_model.between(*ends(source, destination))
    links = network_model.links(level, lambda unit: np.minimum(unit, active))
    return Spread.of(((1.0, links),), level)
