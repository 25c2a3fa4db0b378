"""The machine as the cost model sees it: one device per rank, and levels of interconnect around
groups of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from hpcpar.machine.measured import Measured

#: A coordinate of a rank, ``rank // stride % size``, as (stride, size).
Place = tuple[int, int]


@dataclass(frozen=True)
class Device:
    """What one rank computes on.

    Attributes
    ----------
    memory_bytes : int
        Memory that one rank may use.
    flops_per_s : float
        Rate that large float32 convolutions really reach on one rank (this prices); float64 is
        taken as half of it.
    bandwidth_bytes_per_s : float
        Memory bandwidth of one rank.
    launch_s : float
        Fixed overhead of a kernel.
    peak_flops_per_s : float
        The data sheet's float32 rate of one rank, for comparison only; 0 where not given.
    at_once : float
        So many ranks of a node compute at their full rate at the same time (the time of its cores
        that they get, where there are fewer cores than ranks); more than that take turns. 0: all of
        them.
    """

    memory_bytes: int
    flops_per_s: float
    bandwidth_bytes_per_s: float
    launch_s: float = 0.0
    peak_flops_per_s: float = 0.0
    at_once: float = 0.0


@dataclass(frozen=True)
class Level:
    """Links between the ranks of one unit of the machine (a node, a rack, everything).

    Attributes
    ----------
    ranks : int
        Ranks that a unit holds; 0 for the outermost level, which holds any number.
    alpha_s : float
        Latency of a message (s).
    beta_s_per_byte : float
        Inverse bandwidth of one link (s/byte).
    small_alpha_s : float or None
        Latency of messages of up to `small_bytes` bytes, where it differs (the library's eager
        protocol).
    links : float
        Parallel links by which one unit of the level inside (a rank, for the innermost level) is
        attached to this one: its ranks share them. 0: every rank has a link of its own, and nobody
        shares.
    oversubscription : float
        How many times what the attached links could carry exceeds what the level can carry (1: it
        carries all of it).
    """

    name: str
    ranks: int
    alpha_s: float
    beta_s_per_byte: float
    small_alpha_s: float | None = None
    small_bytes: int = 0
    links: float = 0.0
    oversubscription: float = 1.0

    @property
    def shared_links(self) -> float:
        """Effective number of links of one unit of the level inside; infinity where nobody shares.
        """
        return self.links / self.oversubscription if self.links else math.inf

    def latency_s(self, message_bytes: float) -> float:
        """Latency of a message of this size."""
        return self.small_alpha_s if self.small_alpha_s is not None and message_bytes <= self.small_bytes else self.alpha_s

    def message_s(self, message_bytes: float) -> float:
        """Seconds of one message (Hockney): alpha + beta * bytes."""
        return self.latency_s(message_bytes) + self.beta_s_per_byte * message_bytes


@dataclass(frozen=True)
class Factors:
    """What an algorithm of a collective, or direct messages, take on a level beside what alpha and
    beta say.

    Attributes
    ----------
    level, kind, algorithm : str
        Name of the level that its groups cross, and of collective and algorithm
        (`hpcpar.schedule.steps`); ``direct`` of halos and redistributions.
    bytes : tuple of float
        Sizes of the whole buffer, growing; of direct messages what the busiest rank sends or
        receives.
    factors : tuple of float
        How many times as long it takes, at each size; between them by the logarithm of the size,
        beyond them as at the last.
    """

    level: str
    kind: str
    algorithm: str
    bytes: tuple[float, ...]
    factors: tuple[float, ...]


@dataclass(frozen=True)
class Machine:
    """Where a plan runs. Ranks are placed in order: unit u of a level holds ranks u * level.ranks
    and up.

    Attributes
    ----------
    levels : tuple of Level
        From the inside out.
    add_s_per_byte : float
        Cost of adding a received byte to a local one.
    copy_s_per_byte : float
        Cost of copying a byte between a tensor and a wire buffer.
    overlap : float
        Part of a communication, 0 to 1, that computing really hides: below 1 where ranks drive
        their messages themselves.
    progress : float
        How fast that part goes on while ranks compute, of how fast it does while they wait, above 0
        to 1: below 1 where messages stand still until a rank looks after them.
    late : tuple of (float, float)
        Where ranks take turns on cores: after computing for so long they are late for a message by
        so much (s, s), on the lines between these, from nothing on, and beyond the last as there.
        Empty where every rank has a core.
    relay : tuple of (float, float)
        Where ranks take turns on cores and half of them hand a message to the other half: after
        computing for so long, all on a core together, it takes the core so much longer (s, s), on
        the lines between these. Empty where every rank has a core.
    compute : mapping
        The calibrated table: key of a piece of work (`hpcpar.cost.compute.work`) -> measured
        seconds.
    kinds : mapping
        Kind of work (``conv2d.forward float32``) -> how many times as long as their rooflines say
        those of the table took: for pieces of work that it does not know.
    collectives : tuple of Factors
    notes : str
        Where the numbers come from.
    quality : mapping
        How sure they are, and what they were measured on and refined with
        (`hpcpar.calibrate.provenance`): for people, no price depends on it.
    """

    name: str
    device: Device
    levels: tuple[Level, ...]
    add_s_per_byte: float = 0.0
    copy_s_per_byte: float = 0.0
    overlap: float = 1.0
    compute: Mapping[str, float] = field(default_factory=dict, hash=False)
    notes: str = ""
    quality: Mapping[str, Any] = field(default_factory=dict, hash=False)
    collectives: tuple[Factors, ...] = ()
    kinds: Mapping[str, float] = field(default_factory=dict, hash=False)
    progress: float = 1.0
    late: tuple[tuple[float, float], ...] = ()
    relay: tuple[tuple[float, float], ...] = ()

    def late_s(self, computing_s: Any) -> Any:
        """How late ranks that take turns on cores are for a message of all of them, after each has
        computed for so long (s).
        """
        if not self.late:
            return 0.0
        computed_s, late_s = zip((0.0, 0.0), *self.late, strict=True)
        return np.interp(computing_s, computed_s, late_s)

    def relay_s(self, computing_s: Any) -> Any:
        """What a core needs beyond computing where half of its ranks, having computed for so long
        together, hand on to the others (s).
        """
        if not self.relay:
            return 0.0
        computed_s, beyond_s = zip(*self.relay, strict=True)
        return np.interp(computing_s, computed_s, beyond_s)

    def crowding(self, ranks: Any) -> Any:
        """How many times as long `ranks` neighbouring ranks take for what one of them could do
        alone: those of a node take turns.
        """
        if not self.device.at_once:
            return 1.0
        inside = self.levels[0].ranks
        return np.maximum(1.0, (np.minimum(ranks, inside) if inside else ranks)
                          / self.device.at_once)

    @cached_property
    def measured(self) -> Measured:
        """The calibrated table with what follows from it for other numbers of samples."""
        return Measured(self.compute, self.device.launch_s)

    def level_for(self, places: Iterable[Place], ranks: int) -> Level:
        """The innermost level whose units hold every group of ranks that differ in the given places
        only.

        Such a group begins anywhere in its aligned block of ``stride * size`` ranks (of its widest
        place), and over all groups every boundary inside a block is crossed by one of them. So all
        groups lie within units exactly when blocks tile the units (or one unit holds all ranks).

        Parameters
        ----------
        places : iterable of (stride, size)
            Coordinates in which the group's members differ.
        ranks : int
            Ranks in all.
        """
        block = max((stride * size for stride, size in places if size > 1), default=1)
        return self.levels[self.level_index_for(block, ranks)]

    @overload
    def level_index_for(self, block: int, ranks: int) -> int: ...

    @overload
    def level_index_for(self, block: NDArray[Any],
                        ranks: int | NDArray[Any]) -> NDArray[np.intp]: ...

    @overload
    def level_index_for(self, block: int, ranks: NDArray[Any]) -> NDArray[np.intp]: ...

    def level_index_for(self, block: int | NDArray[Any],
                        ranks: int | NDArray[Any]) -> int | NDArray[np.intp]:
        """Index of the innermost level that holds every group of ranks within aligned blocks; the
        rule of `level_for`.

        Parameters
        ----------
        block : int or array of int
            Ranks of an aligned block: ``stride * size`` of the widest place in which members
            differ; 1 for a rank alone.
        ranks : int or array of int
            Ranks in all; broadcast against `block`.

        Returns
        -------
        int or array of int
            An int for two ints (or NumPy scalars), else an array of the broadcast shape.
        """
        if np.ndim(block) == 0 and np.ndim(ranks) == 0:
            for i, level in enumerate(self.levels):
                if level.ranks == 0 or level.ranks >= ranks or level.ranks % block == 0:
                    return i
            return len(self.levels) - 1
        out: Any = np.full(np.broadcast_shapes(np.shape(block), np.shape(ranks)),
                           len(self.levels) - 1, dtype=np.intp)
        for i in reversed(range(len(self.levels))):
            unit = self.levels[i].ranks
            if unit:
                out = np.where((unit >= ranks) | (unit % block == 0), i, out)
            else:
                out[...] = i
        return out

    def all_alike(self, ranks: int) -> bool:
        """True where all ranks lie in one unit of the innermost level: any two of them are equally
        far apart.
        """
        return self.level_index_for(ranks, ranks) == 0

    def inner_ranks(self, index: int) -> int:
        """Ranks of one unit of the level inside level `index`: those that share its `Level.links`
        (1 for the innermost).
        """
        return self.levels[index - 1].ranks if index > 0 else 1

    def level_between(self, a: int, b: int) -> Level:
        """The innermost level whose unit holds both ranks."""
        for level in self.levels:
            if level.ranks == 0 or a // level.ranks == b // level.ranks:
                return level
        return self.levels[-1]
