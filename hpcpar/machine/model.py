"""The machine in the cost model: one device per rank, and nested levels of interconnect."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Annotated, NamedTuple, overload

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from hpcpar.errors import InputError, unknown
from hpcpar.io.schema import Bytes, Capacity, Count, NotNegative, Positive, Share
from hpcpar.machine.anchored import NOT_ANCHORED, Anchoring, TimeFactors
from hpcpar.machine.host import Host
from hpcpar.machine.measured import Factors, Measured

#: 90% interval of the ratio of measured to predicted times.
Ratios = tuple[Positive, Positive]
#: Kinds of devices; empty if unknown.
DEVICE_KINDS = ("gpu", "cpu", "")
#: Most levels of interconnect.
MOST_LEVELS = 32


class NodeCores(NamedTuple):
    """Ranks and cores of a node; `cores` is 0 if unknown."""

    ranks: int = 0
    cores: int = 0

    @property
    def shared(self) -> bool:
        """True if the node is known to have fewer cores than ranks."""
        return self.ranks > self.cores > 0

    def __str__(self) -> str:
        cores = "1 core" if self.cores == 1 else f"{self.cores} cores"
        return f"{self.ranks} ranks share {cores}: times are less certain"


@dataclass(frozen=True)
class Device:
    """The device on which one rank computes.

    Attributes
    ----------
    memory_bytes : int
        Memory that one rank may use.
    flops_per_s : float
        Rate of large float32 convolutions on one rank; float64 has half this rate.
    bandwidth_bytes_per_s : float
        Memory bandwidth of one rank.
    launch_s : float
        Fixed overhead of a kernel.
    submit_s : float
        Host time to submit a step of the schedule, while the device works on earlier ones; 0 where
        the host computes, or replays whole iterations.
    peak_flops_per_s : float
        Data sheet float32 rate of one rank, for comparison only; 0 if unknown.
    name : str
        Catalog entry (`hpcpar.machine.devices`) with the figures; may be empty.
    vendor, kind : str
        Maker, and ``gpu`` or ``cpu``; empty if unknown. They select the interval of predictions
        from a data sheet, and the kernel model prices CPUs as CPUs.
    multiprocessors, lanes : int
        Multiprocessors of one rank, and float32 lanes of each. If given, the kernel model
        (`hpcpar.cost.compute.kernel_model`) prices computing, and rate and bandwidth are data sheet
        figures; if 0, `flops_per_s` prices computing.
    software_year : float
        Year of the convolution library; older ones are slower in the kernel model.
    rates : mapping
        Number format (``tf32``, ``float16``, ``bfloat16``, ...) -> data sheet rate of products in
        that format (flop/s).
    sheet : str
        Catalog entry that prices formats of `rates` which this device lacks; may be empty.
    """

    memory_bytes: Capacity
    flops_per_s: Positive
    bandwidth_bytes_per_s: Positive
    launch_s: NotNegative = 0.0
    submit_s: NotNegative = 0.0
    peak_flops_per_s: NotNegative = 0.0
    name: str = ""
    multiprocessors: Count = 0
    lanes: Count = 0
    software_year: NotNegative = 2026.0
    rates: Mapping[str, Positive] = field(default_factory=dict, hash=False)
    vendor: str = ""
    kind: str = ""
    sheet: str = ""

    def __post_init__(self) -> None:
        if self.kind not in DEVICE_KINDS:
            raise InputError(f"'kind' = '{self.kind}' of a device must be gpu or cpu")
        if (self.multiprocessors > 0) != (self.lanes > 0):
            raise InputError("'multiprocessors' and 'lanes' belong together; give both, or name a "
                             "device from the catalog")

    def rate_of(self, formats: Collection[str]) -> float:
        """The fastest product rate among these formats (flop/s); 0 if none is known."""
        return max((rate for name, rate in self.rates.items() if name in formats), default=0.0)

    @property
    def has_tf32(self) -> bool:
        """True if tensor cores multiply float32 numbers, as on GPUs since 2020."""
        return "tf32" in self.rates

    @property
    def of_doubles(self) -> Device:
        """The device for float64, with half the rate."""
        return replace(self, flops_per_s=self.flops_per_s / 2)


@dataclass(frozen=True)
class Level:
    """Links between the ranks of one unit of the machine (a node, a rack, everything).

    Attributes
    ----------
    ranks : int
        Ranks in a unit; 0 for the outermost level, which holds any number.
    alpha_s : float
        Latency of a message.
    beta_s_per_byte : float
        Inverse bandwidth of one link.
    small_alpha_s : float or None
        Latency of messages of up to `small_bytes` bytes, if it differs (eager protocol).
    links : float
        Parallel links that attach one unit of the next inner level (a rank, for the innermost
        level) to this level and that the unit's ranks share; 0 if each rank has its own link.
    oversubscription : float
        Total bandwidth of the attached links over the level's own bandwidth (at least 1).
    ratios : (float, float) or None
        90% interval of measured over predicted times of communication across this level.
    load : float
        Share of every link's bandwidth that other jobs use (ParaDL, section 5.3.1).
    reached : float
        Share of the bandwidth that large messages reach; 1 for a measured bandwidth, about 0.75 for
        a data sheet's.
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
    reached: Annotated[float, Meta(gt=0, le=1)] = 1.0

    def __post_init__(self) -> None:
        if self.oversubscription < 1:
            raise InputError(
                f"level '{self.name}': 'oversubscription' = {self.oversubscription:g} must be at "
                "least 1; it is the ratio of bandwidths below and at this level, 3 for 3:1; leave "
                "it out if the level has full bandwidth")
        if self.oversubscription > 1 and not self.links:
            raise InputError(
                f"level '{self.name}': 'oversubscription' = {self.oversubscription:g} needs "
                "'links'; add links = <links that attach one unit of the next inner level>")

    @property
    def shared_links(self) -> float:
        """Effective links of one unit of the next inner level; infinity if links are not shared."""
        return self.links / self.oversubscription if self.links else math.inf

    @property
    def loaded_beta_s_per_byte(self) -> float:
        """Inverse of the bandwidth that messages reach beside other jobs."""
        return self.beta_s_per_byte / self.reached / (1 - self.load)

    def latency_s(self, message_bytes: float) -> float:
        """Latency of a message of this size."""
        if self.small_alpha_s is not None and message_bytes <= self.small_bytes:
            return self.small_alpha_s
        return self.alpha_s

    def times(self, alpha: float, beta: float) -> Level:
        """The level with this multiple of its latencies, and of its inverse bandwidth."""
        small_s = None if self.small_alpha_s is None else self.small_alpha_s * alpha
        return replace(self, alpha_s=self.alpha_s * alpha, small_alpha_s=small_s,
                       beta_s_per_byte=self.beta_s_per_byte * beta)

    def message_s(self, message_bytes: float) -> float:
        """Time of one message (Hockney): alpha + beta * bytes."""
        return self.latency_s(message_bytes) + self.loaded_beta_s_per_byte * message_bytes


@dataclass(frozen=True)
class Machine:
    """A machine; unit u of a level holds the ranks u * level.ranks to (u + 1) * level.ranks - 1.

    Attributes
    ----------
    levels : tuple of Level
        From the innermost to the outermost.
    add_s_per_byte : float
        Cost of adding a received byte to a local one.
    copy_s_per_byte : float
        Cost of copying a byte between a tensor and a message buffer.
    overlap : float
        Share of a communication, 0 to 1, that computing can hide; below 1 if ranks drive their own
        messages.
    progress : float
        Progress rate of that share during compute relative to waiting, above 0 to 1; below 1 if
        messages stall until a rank polls them.
    cores_per_node : int
        Cores that the ranks of one innermost unit share; 0 if unknown, as in presets. It affects no
        price.
    compute : mapping
        Calibrated table: key of a piece of work (`hpcpar.cost.compute.work`) -> measured seconds.
    kinds : mapping
        Kind of work (``conv2d.forward float32``) -> ratio of measured to roofline times in the
        table, which prices work that the table lacks.
    notes : str
        Sources of the numbers.
    processor : str
        Word for a rank's processor: GPU, node or core; rank if unknown.
    compute_ratios, estimate_ratios : (float, float) or None
        90% intervals of measured over predicted times of computing in the table and outside it.
    trusts_estimates : bool
        Whether work that the table lacks counts as measured, so that a search may choose it; for
        searches whose choice is measured next.
    host : Host or None
        The host of the devices, where it is apart from them and known; prices `server-host`.
    quality : mapping
        Confidence, origin and sources of the numbers (`hpcpar.calibrate.provenance`), for display.
    anchored : Anchoring or None
        Measured iterations that correct the times (`hpcpar.cost.anchors`).
    convolutions : mapping
        Library of each kind of convolution when this machine was calibrated, one of
        `hpcpar.kernels.conv_choice.LIBRARIES`; empty if unknown.
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
    host: Host | None = None
    anchored: Anchoring | None = None
    convolutions: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if len(self.levels) > MOST_LEVELS:
            raise InputError(f"machine '{self.name}': {len(self.levels)} [[levels]]; give at most "
                             f"{MOST_LEVELS}, with increasing ranks")
        if not self.levels:
            raise InputError(f"machine '{self.name}': no [[levels]]; give at least one level of "
                             "the interconnect with name, ranks, alpha_s, beta_s_per_byte")
        for inner, level in pairwise(self.levels):
            if inner.ranks == 0 or level.ranks % inner.ranks:
                raise InputError(
                    f"level '{level.name}' ({level.ranks} ranks) must hold whole units of the "
                    f"next inner level ('{inner.name}', {inner.ranks} ranks); list levels from the "
                    "inside out, and only the last with ranks = 0")
        held = self.host.ranks if self.host else 0
        for level in self.levels if held else ():
            if level.ranks % held and held % max(level.ranks, 1):
                raise InputError(f"machine '{self.name}': a [host] of {held} ranks does not fit "
                                 f"level '{level.name}' of {level.ranks}; give a divisor or a "
                                 "multiple of it")

    def loaded(self, shares: Mapping[str, float]) -> Machine:
        """The machine with other jobs' shares of bandwidth, by level."""
        names = [level.name for level in self.levels]
        for name in shares:
            if name not in names:
                raise unknown("level", name, names)
        return replace(self, levels=tuple(
            replace(level, load=shares.get(level.name, level.load)) for level in self.levels))

    @property
    def factors(self) -> TimeFactors:
        """The factors that the times contain."""
        return NOT_ANCHORED if self.anchored is None else self.anchored.applied

    @property
    def kind(self) -> str:
        """``gpu`` or ``cpu`` if the file or its calibration says so, else empty."""
        origin = self.quality.get("origin")
        stated = origin if isinstance(origin, Mapping) else self.quality
        return str(stated.get("device") or self.device.kind)

    @property
    def on_hosts(self) -> bool:
        """True if ranks are known to compute on hosts: on CPUs."""
        return self.host is None and (self.kind == "cpu" or self.processor in ("core", "node"))

    @property
    def ranks_of_node(self) -> int:
        """Ranks per node, from the level named ``node``; 0 if all ranks are in one node.

        Without such a level, a rank is a node if the machine's processor is ``node``.
        """
        for level in self.levels:
            if level.name == "node":
                return level.ranks
        return int(self.processor == "node")

    def node_cores(self, ranks: int) -> NodeCores:
        """Ranks and cores of a node in a job with this number of ranks."""
        return NodeCores(min(ranks, self.levels[0].ranks or ranks), self.cores_per_node)

    def caution(self, ranks: int) -> str:
        """Why times with this number of ranks are less certain than usual, if so; else empty."""
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
        """Index of the innermost level whose units contain all groups of ranks.

        Each group lies in an aligned block of ``stride * size`` ranks (of its widest axis), and
        every boundary inside a block is crossed by some group. Therefore all groups lie within
        units if and only if blocks tile the units (or one unit holds all ranks).

        Parameters
        ----------
        block : int or array of int
            Ranks of an aligned block: ``stride * size`` of the widest axis along which members
            differ; 1 for a single rank.
        ranks : int or array of int
            Total number of ranks, which broadcasts against `block`.

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
        """True if one unit of the innermost level holds all ranks."""
        return self.level_index_for(ranks, ranks) == 0

    def inner_ranks(self, index: int) -> int:
        """Ranks per unit of the next inner level; they share the `Level.links` of level `index`."""
        return self.levels[index - 1].ranks if index > 0 else 1

    def level_between(self, a: int, b: int) -> Level:
        """The innermost level with a unit that holds both ranks."""
        for level in self.levels:
            if level.ranks == 0 or a // level.ranks == b // level.ranks:
                return level
        return self.levels[-1]
