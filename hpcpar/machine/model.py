"""The machine as the cost model sees it: one device per rank, and levels of interconnect around groups of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

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
        Achieved rate of float32 matrix products of one rank; float64 is taken as half of it.
    bandwidth_bytes_per_s : float
        Memory bandwidth of one rank.
    launch_s : float
        Fixed overhead of a kernel.
    """

    memory_bytes: int
    flops_per_s: float
    bandwidth_bytes_per_s: float
    launch_s: float = 0.0


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
        Inverse bandwidth of a rank's link (s/byte).
    small_alpha_s : float or None
        Latency of messages of up to `small_bytes` bytes, where it differs (the library's eager protocol).
    """

    name: str
    ranks: int
    alpha_s: float
    beta_s_per_byte: float
    small_alpha_s: float | None = None
    small_bytes: int = 0

    def latency_s(self, message_bytes: float) -> float:
        """Latency of a message of this size."""
        return self.small_alpha_s if self.small_alpha_s is not None and message_bytes <= self.small_bytes else self.alpha_s

    def message_s(self, message_bytes: float) -> float:
        """Seconds of one message (Hockney): alpha + beta * bytes."""
        return self.latency_s(message_bytes) + self.beta_s_per_byte * message_bytes


@dataclass(frozen=True)
class Machine:
    """Where a plan runs. Ranks are placed in order: unit u of a level holds ranks u * level.ranks and up.

    Attributes
    ----------
    levels : tuple of Level
        From the inside out.
    add_s_per_byte : float
        Cost of adding a received byte to a local one.
    copy_s_per_byte : float
        Cost of copying a byte between a tensor and a wire buffer.
    overlap : float
        Part of a communication, 0 to 1, that computing really hides: below 1 where ranks drive their messages themselves.
    compute : mapping
        The calibrated table: key of a piece of work (`hpcpar.cost.work`) -> measured seconds.
    notes : str
        Where the numbers come from.
    """

    name: str
    device: Device
    levels: tuple[Level, ...]
    add_s_per_byte: float = 0.0
    copy_s_per_byte: float = 0.0
    overlap: float = 1.0
    compute: Mapping[str, float] = field(default_factory=dict, hash=False)
    notes: str = ""

    def level_for(self, places: Iterable[Place], ranks: int) -> Level:
        """The innermost level whose units hold every group of ranks that differ in the given places only.

        Such a group begins anywhere in its aligned block of ``stride * size`` ranks (of its widest place), and over all groups
        every boundary inside a block is crossed by one of them. So all groups lie within units exactly when blocks
        tile the units (or one unit holds all ranks).

        Parameters
        ----------
        places : iterable of (stride, size)
            Coordinates in which the group's members differ.
        ranks : int
            Ranks in all.
        """
        block = max((stride * size for stride, size in places if size > 1), default=1)
        for level in self.levels:
            if level.ranks == 0 or level.ranks >= ranks or level.ranks % block == 0:
                return level
        return self.levels[-1]

    def level_between(self, a: int, b: int) -> Level:
        """The innermost level whose unit holds both ranks."""
        for level in self.levels:
            if level.ranks == 0 or a // level.ranks == b // level.ranks:
                return level
        return self.levels[-1]
