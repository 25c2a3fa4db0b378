"""The machine as the cost model sees it: one device per rank, and levels of interconnect around
groups of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Annotated, overload

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from hpcpar.errors import InputError, unknown
from hpcpar.machine.cores import NodeCores
from hpcpar.machine.measured import Measured
from hpcpar.schema import Bytes, Capacity, Count, NotNegative, Positive, Share

#: 90% interval of measured over predicted times.
Ratios = tuple[Positive, Positive]
#: Most levels of interconnect: arrays choose among them.
MOST_LEVELS = 32


@dataclass(frozen=True)
class Device:
    """The device that one rank computes on.

    Attributes
    ----------
    memory_bytes : int
        Memory that one rank may use.
    flops_per_s : float
        Rate that large float32 convolutions reach on one rank; float64 is taken as half of it.
    bandwidth_bytes_per_s : float
        Memory bandwidth of one rank.
    launch_s : float
        Fixed overhead of a kernel.
    peak_flops_per_s : float
        The data sheet's float32 rate of one rank, for comparison only; 0 where not given.
    name : str
        Entry of the catalogue (`hpcpar.machine.devices`) that the figures come from; empty: none.
    multiprocessors, lanes : int
        Multiprocessors of one rank, and float32 lanes of each. Where they are given, the model of
        kernels (`hpcpar.cost.compute.kernel_model`) prices computing; rate and bandwidth are then
        the data sheet's. 0: `flops_per_s` prices it.
    software_year : float
        Year of the library of convolutions; older ones are slower in the model of kernels.
    rates : mapping
        Number format (``tf32``, ``float16``, ``bfloat16``, ...) -> the data sheet's rate of
        products in it (flop/s).
    """

    memory_bytes: Capacity
    flops_per_s: Positive
    bandwidth_bytes_per_s: Positive
    launch_s: NotNegative = 0.0
    peak_flops_per_s: NotNegative = 0.0
    name: str = ""
    multiprocessors: Count = 0
    lanes: Count = 0
    software_year: NotNegative = 2026.0
    rates: Mapping[str, Positive] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if (self.multiprocessors > 0) != (self.lanes > 0):
            raise InputError("'multiprocessors' and 'lanes' belong together; give both, or name a "
                             "device of the catalogue")

    def rate_of(self, formats: Collection[str]) -> float:
        """The fastest rate of products in one of these formats; 0 where none is known."""
        return max((rate for name, rate in self.rates.items() if name in formats), default=0.0)

    @property
    def has_tf32(self) -> bool:
        """Tensor cores that multiply float32 numbers, as from 2020 on."""
        return "tf32" in self.rates

    @property
    def of_doubles(self) -> Device:
        """The device as float64 finds it: half of the rate."""
        return replace(self, flops_per_s=self.flops_per_s / 2)


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
    ratios : (float, float) or None
        90% interval of measured over predicted times of communication that crosses it.
    load : float
        Share of every link's bandwidth that other jobs take (ParaDL, section 5.3.1).
    """

    name: str
    ranks: Count
    alpha_s: NotNegative
    beta_s_per_byte: Positive
    small_alpha_s: NotNegative | None = None
    small_bytes: Bytes = 0
    links: NotNegative = 0.0
    oversubscription: NotNegative = 1.0
    ratios: Ratios | None = None
    load: Annotated[float, Meta(ge=0, lt=1)] = 0.0

    def __post_init__(self) -> None:
        if self.oversubscription < 1:
            raise InputError(
                f"level '{self.name}': 'oversubscription' = {self.oversubscription:g} must be at "
                "least 1; it is what the links below could carry over what this level can, 3 for "
                "1:3; leave it out where the level carries all")
        if self.oversubscription > 1 and not self.links:
            raise InputError(
                f"level '{self.name}': 'oversubscription' = {self.oversubscription:g} divides "
                "nothing without 'links'; add links = <links by which one unit of the level inside "
                "is attached>")

    @property
    def shared_links(self) -> float:
        """Links of one unit of the level inside, less oversubscription; infinity: not shared."""
        return self.links / self.oversubscription if self.links else math.inf

    @property
    def loaded_beta_s_per_byte(self) -> float:
        """Inverse bandwidth of what others leave of a link (s/byte)."""
        return self.beta_s_per_byte / (1 - self.load)

    def latency_s(self, message_bytes: float) -> float:
        """Latency of a message of this size."""
        if self.small_alpha_s is not None and message_bytes <= self.small_bytes:
            return self.small_alpha_s
        return self.alpha_s

    def message_s(self, message_bytes: float) -> float:
        """Seconds of one message (Hockney): alpha + beta * bytes."""
        return self.latency_s(message_bytes) + self.loaded_beta_s_per_byte * message_bytes


@dataclass(frozen=True)
class Factors:
    """Measured time of a collective or of direct messages over the time that alpha and beta give.

    Attributes
    ----------
    level, kind, algorithm : str
        Name of the level that its groups cross, and of collective and algorithm
        (`hpcpar.schedule.steps`); ``direct`` of halos and redistributions.
    bytes : tuple of float
        Sizes of the whole buffer, growing; for direct messages the bytes that the busiest rank
        sends or receives.
    factors : tuple of float
        Ratio at each size; interpolated by the logarithm of the size, constant beyond the ends.
    """

    level: str
    kind: str
    algorithm: str
    bytes: tuple[Positive, ...]
    factors: tuple[Positive, ...]

    def __post_init__(self) -> None:
        growing = list(self.bytes) == sorted(set(self.bytes))
        if not self.bytes or len(self.bytes) != len(self.factors) or not growing:
            raise InputError("'bytes' and 'factors' must be equally many numbers, bytes growing; "
                             "write them with: hpcpar calibrate")


@dataclass(frozen=True)
class Machine:
    """The machine of a plan; unit u of a level holds the ranks from u * level.ranks on.

    Attributes
    ----------
    levels : tuple of Level
        From the inside out.
    add_s_per_byte : float
        Cost of adding a received byte to a local one.
    copy_s_per_byte : float
        Cost of copying a byte between a tensor and a wire buffer.
    overlap : float
        Part of a communication, 0 to 1, that computing can hide: below 1 where ranks drive their
        messages themselves.
    progress : float
        Progress rate of that part during compute, relative to waiting, above 0 to 1: below 1 where
        messages stand still until a rank polls them.
    cores_per_node : int
        Cores that the ranks of one unit of the innermost level share; 0 where unknown, as in
        presets. No price depends on it.
    compute : mapping
        The calibrated table: key of a piece of work (`hpcpar.cost.compute.work`) -> measured
        seconds.
    kinds : mapping
        Kind of work (``conv2d.forward float32``) -> measured time over the roofline's, of the
        table's entries of that kind: for work that the table lacks.
    collectives : tuple of Factors
    notes : str
        Where the numbers come from.
    processor : str
        A rank's processor in words, for people: GPU, node or core; rank where unknown.
    compute_ratios, estimate_ratios : (float, float) or None
        90% intervals of measured over predicted times of the computing that the table has, and of
        other computing.
    trusts_estimates : bool
        Work that the table lacks counts as measured, so that a search takes it where it seems fast:
        for a search whose choice is measured next.
    quality : mapping
        Confidence, origin and sources of the numbers (`hpcpar.calibrate.provenance`): for people,
        no price depends on it.
    """

    name: str
    device: Device
    levels: tuple[Level, ...]
    add_s_per_byte: NotNegative = 0.0
    copy_s_per_byte: NotNegative = 0.0
    overlap: Share = 1.0
    compute: Mapping[str, NotNegative] = field(default_factory=dict, hash=False)
    notes: str = ""
    quality: Mapping[str, object] = field(default_factory=dict, hash=False)
    collectives: tuple[Factors, ...] = ()
    kinds: Mapping[str, NotNegative] = field(default_factory=dict, hash=False)
    progress: Annotated[float, Meta(gt=0, le=1)] = 1.0
    cores_per_node: Count = 0
    processor: str = "rank"
    compute_ratios: Ratios | None = None
    estimate_ratios: Ratios | None = None
    trusts_estimates: bool = False

    def __post_init__(self) -> None:
        if len(self.levels) > MOST_LEVELS:
            raise InputError(f"machine '{self.name}': {len(self.levels)} [[levels]]; give at most "
                             f"{MOST_LEVELS}, with ranks that grow from one to the next")
        if not self.levels:
            raise InputError(f"machine '{self.name}': no [[levels]]; give at least one level of "
                             "the interconnect with name, ranks, alpha_s, beta_s_per_byte")
        for inner, level in pairwise(self.levels):
            if inner.ranks == 0 or level.ranks % inner.ranks:
                raise InputError(
                    f"level '{level.name}' ({level.ranks} ranks) must hold whole units of the "
                    f"level inside it ('{inner.name}', {inner.ranks} ranks); list levels from the "
                    "inside out, only the last with ranks = 0")

    def loaded(self, shares: Mapping[str, float]) -> Machine:
        """The machine with these loads by level.

        Raises
        ------
        InputError
            A level is unknown.
        """
        names = [level.name for level in self.levels]
        for name in shares:
            if name not in names:
                raise unknown("level", name, names)
        return replace(self, levels=tuple(
            replace(level, load=shares.get(level.name, level.load)) for level in self.levels))

    @property
    def kind(self) -> str:
        """``gpu`` or ``cpu`` where the file or its calibration says so; else empty."""
        origin = self.quality.get("origin")
        told = origin.get("device") if isinstance(origin, Mapping) else self.quality.get("device")
        return str(told or "")

    def node_cores(self, ranks: int) -> NodeCores:
        """Ranks and cores of a node of a job of so many ranks."""
        return NodeCores(min(ranks, self.levels[0].ranks or ranks), self.cores_per_node)

    def caution(self, ranks: int) -> str:
        """A line on why times of so many ranks are less certain; empty where they are not."""
        if "outdated" in self.quality:
            return f"{self.name} was {self.quality['outdated']}"
        node = self.node_cores(ranks)
        return str(node) if node.shared else ""

    @cached_property
    def measured(self) -> Measured:
        """The calibrated table, with interpolation to other numbers of samples."""
        return Measured(self.compute, self.device.launch_s)

    @overload
    def level_index_for(self, block: int, ranks: int) -> int: ...

    @overload
    def level_index_for(
        self, block: NDArray[np.int64], ranks: int | NDArray[np.int64]
    ) -> NDArray[np.intp]: ...

    @overload
    def level_index_for(self, block: int, ranks: NDArray[np.int64]) -> NDArray[np.intp]: ...

    def level_index_for(
        self, block: int | NDArray[np.int64], ranks: int | NDArray[np.int64]
    ) -> int | NDArray[np.intp]:
        """Index of the innermost level whose units hold every group of ranks in aligned blocks.

        Such a group begins anywhere in its aligned block of ``stride * size`` ranks (of its widest
        axis), and over all groups every boundary inside a block is crossed by one of them. So all
        groups lie within units exactly when blocks tile the units (or one unit holds all ranks).

        Parameters
        ----------
        block : int or array of int
            Ranks of an aligned block: ``stride * size`` of the widest axis in which members differ;
            1 for a rank alone.
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
        shape = np.broadcast_shapes(np.shape(block), np.shape(ranks))
        out = np.full(shape, len(self.levels) - 1, dtype=np.intp)
        for i in reversed(range(len(self.levels) - 1)):
            unit = self.levels[i].ranks
            out[(unit >= ranks) | (unit % block == 0)] = i
        return out

    def all_alike(self, ranks: int) -> bool:
        """True where one unit of the innermost level holds all ranks."""
        return self.level_index_for(ranks, ranks) == 0

    def inner_ranks(self, index: int) -> int:
        """Ranks that share the `Level.links` of level `index`: those of a unit inside it."""
        return self.levels[index - 1].ranks if index > 0 else 1

    def level_between(self, a: int, b: int) -> Level:
        """The innermost level whose unit holds both ranks."""
        for level in self.levels:
            if level.ranks == 0 or a // level.ranks == b // level.ranks:
                return level
        return self.levels[-1]
