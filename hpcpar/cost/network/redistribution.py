"""Decides how long a redistribution takes: point-to-point messages between two layouts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpcpar.cost.network.contention import Links, NetworkModel
from hpcpar.cost.network.volumes import Volumes, ends, volumes
from hpcpar.plan.config import Floats, Ints, Numbers
from hpcpar.plan.layout import Layout
from hpcpar.schedule.steps import Comm, Kind


@dataclass(frozen=True)
class PointToPoint:
    """A point-to-point step on its busiest rank.

    Attributes
    ----------
    seconds : float
        Time of packing, of concurrent sending and receiving, and of copying or adding.
    messages, items : int
        Messages and items sent.
    through_items : int
        Upper bound of the items that one rank sends and receives: the size of its buffers.
    level : int
        Index of the machine's level that the messages cross.
    """

    seconds: Floats
    messages: Ints
    items: Ints
    through_items: Numbers
    level: Ints


def redistribution(step: Comm, network_model: NetworkModel, ranks: int) -> PointToPoint:
    """The price of a redistribution on its busiest rank."""
    source, destination = step.source, step.destination
    volume = volumes(source, destination, ranks)
    if np.all(np.equal(source.config.first, destination.config.first)):
        sending, receiving = (spread(volume.span, layout.config.ranks, network_model, ranks)
                              for layout in (source, destination))
        level = network_model.index(volume.span, ranks)
    else:
        sending, receiving = (_between_stages(source, destination, layout.config.ranks,
                                              network_model)
                              for layout in (source, destination))
        level = network_model.between(*ends(source, destination))
    machine = network_model.machine
    per_byte = machine.add_s_per_byte if step.pattern.adds else machine.copy_s_per_byte
    seconds = redistribution_s(volume, sending, receiving, step.item_bytes, per_byte, network_model)
    sent = np.round(volume.sent).astype(np.int64)
    messages = np.ceil(volume.messages_sent).astype(np.int64)
    # each item is sent to every rank that needs it, and received once or as partial sums
    most_sent = _copies(destination) * source.largest_items
    most_received = (_copies(source) if step.pattern.adds else 1) * destination.largest_items
    return PointToPoint(seconds, messages, sent, most_sent + most_received, level)


def _copies(layout: Layout) -> Ints:
    """Upper bound of the number of ranks that hold the same item."""
    whole = math.prod(a.extent for a in layout.axes)
    held = layout.config.ranks * layout.largest_items
    return np.ceil(held / np.maximum(whole, 1)).astype(np.int64)


def redistribution_s(volume: Volumes, sending: Spread, receiving: Spread, item_bytes: Ints,
                     s_per_byte: Floats, network_model: NetworkModel) -> Floats:
    """Seconds of packing, of concurrent sending and receiving, and of unpacking.

    Parameters
    ----------
    s_per_byte : float
        Time of unpacking a byte: copying or adding.
    """
    sent, received = volume.sent * item_bytes, volume.received * item_bytes
    seconds = np.maximum(sending.seconds(sent, volume.messages_sent),
                         receiving.seconds(received, volume.messages_received))
    seconds = seconds + received * s_per_byte + sent * network_model.machine.copy_s_per_byte
    n_bytes = np.maximum(sent, received)
    return seconds * network_model.factor(sending.level, Kind.REDISTRIBUTE, "direct", n_bytes)


@dataclass(frozen=True)
class Spread:
    """The mean price of messages to ranks that are spread over a block.

    Attributes
    ----------
    alpha_s, s_per_byte : float
        Latency of a message, and inverse bandwidth.
    level : int
        Index of the outermost level that the messages cross.
    savings : tuple of (float, float)
        (Latency saved, largest message that saves it in bytes), where small messages have a lower
        latency.
    """

    alpha_s: Floats
    s_per_byte: Floats
    level: Ints
    savings: tuple[tuple[Floats, Numbers], ...] = ()

    @classmethod
    def of(cls, shares: Sequence[tuple[Floats, Links]], level: Ints) -> Spread:
        """The mean over links, each with its share of the messages."""
        savings = tuple((share * (x.alpha_s - x.small_alpha_s), x.small_bytes)
                        for share, x in shares if x.small_alpha_s is not x.alpha_s)
        alpha_s = sum(share * x.alpha_s for share, x in shares)
        return cls(alpha_s, sum(share * x.beta_s_per_byte for share, x in shares), level, savings)

    def seconds(self, n_bytes: Numbers, count: Numbers) -> Floats:
        """Seconds of `count` messages with `n_bytes` in total."""
        latency = self.alpha_s
        message_bytes = n_bytes / np.maximum(count, 1)
        for saved, small_bytes in self.savings:
            latency = latency - saved * (message_bytes <= small_bytes)
        return count * latency + n_bytes * (self.s_per_byte * (count > 0))


def spread(block: Ints, active: Ints, network_model: NetworkModel, ranks: int) -> Spread:
    """The price of messages between the ranks of a block.

    Parameters
    ----------
    active : int
        Ranks that send (or receive) at the same time.
    """
    index = np.asarray(network_model.index(block, ranks))
    unit = np.minimum(network_model.inner[index], block)
    # share of the other ranks outside a rank's unit
    away = (block - unit) / np.maximum(block - 1, 1)
    far = network_model.links(index,
                              lambda u: np.minimum(u, active) * (1 - np.minimum(u, block) / block))
    close = network_model.links(np.maximum(index - 1, 0), lambda u: np.minimum(u, active))
    return Spread.of(((away, far), (np.where(unit > 1, 1 - away, 0.0), close)), index)


def _between_stages(source: Layout, destination: Layout, active: Ints,
                    network_model: NetworkModel) -> Spread:
    """The price of messages between two stages on different ranks."""
    level = network_model.between(*ends(source, destination))
    links = network_model.links(level, lambda unit: np.minimum(unit, active))
    return Spread.of(((1.0, links),), level)
