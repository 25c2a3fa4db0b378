"""A layer's configuration: degrees of parallelism of its output, and the rank of every part."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpcpar.errors import InputError
from hpcpar.io.schema import Count, Extent

# One value, or an array with one entry per plan of a family that is lowered and priced together.
# Files contain single plans, so their schema uses the types in the else branch.
if TYPE_CHECKING:
    Ints: TypeAlias = int | NDArray[np.integer]
    Degree: TypeAlias = Ints
    Names: TypeAlias = str | NDArray[np.str_]
else:
    Ints, Degree, Names = Count, Extent, str
Floats: TypeAlias = float | NDArray[np.floating]
Numbers: TypeAlias = Ints | Floats
Flags: TypeAlias = bool | np.bool_ | NDArray[np.bool_]

#: Axes from the slowest to the fastest varying over ranks: model groups (c, k, then replicas) are
#: on neighboring ranks.
ORDER = ("n", "d", "h", "w", "c", "k", "replicas")
#: Order of the axes by placement. ``inner`` puts model and image parts on neighboring ranks (inside
#: a node), ``outer`` puts sample parts there.
PLACEMENTS = {"inner": ORDER, "outer": (*ORDER[1:], "n")}


def value_key(value: Ints | Names) -> Hashable:
    """A dictionary key for a number, a name or an array; equal values have equal keys."""
    return (value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value


@dataclass(frozen=True)
class MeshAxis:
    """A coordinate of a rank: ``rank // stride % size``."""

    stride: Ints
    size: Ints

    def of(self, rank: Ints) -> Ints:
        return rank // self.stride % self.size


@dataclass(frozen=True)
class MergedAxis(MeshAxis):
    """Several coordinates merged into one; the first varies slowest, and the last sets `stride`."""

    parts: tuple[MeshAxis, ...] = ()

    def of(self, rank: Ints) -> Ints:
        index: Ints = 0
        for mesh_axis in self.parts:
            index = index * mesh_axis.size + mesh_axis.of(rank)
        return index


#: No cut: a single part.
ONE = MeshAxis(1, 1)


@dataclass(frozen=True)
class Config:
    """Degrees of parallelism of one layer (OptCNN's configuration).

    In a family of plans, degrees are arrays with one entry per plan.

    Attributes
    ----------
    n, c, d, h, w : int
        Parts of the output in sample, channel, depth, height and width.
    k : int
        Parts of the reduction over input channels (ParaDL's channel strategy). Each of k ranks
        computes a partial sum of the same outputs.
    scatter : bool
        True: a reduce-scatter of the partial sums gives each of the k ranks a part of the channels.
        False: an allreduce gives every rank the total.
    replicas : int
        Number of ranks that compute each part redundantly (ParaDL's redundant compute).
    first : int
        The lowest rank of the layer; the layer occupies `ranks` ranks, possibly fewer than the
        plan has.
    placement : str
        A key of `PLACEMENTS`.
    """

    n: Degree = 1
    c: Degree = 1
    h: Degree = 1
    w: Degree = 1
    replicas: Degree = 1
    d: Degree = 1
    k: Degree = 1
    scatter: bool = True
    first: Ints = 0
    placement: Names = "inner"

    def __post_init__(self) -> None:
        for name in ORDER:
            value = getattr(self, name)
            if not isinstance(value, np.ndarray) and (not isinstance(value, int) or value < 1):
                raise InputError(f"configuration degree {name}={value!r}: give a whole number of "
                                 "at least 1")
        if not isinstance(self.placement, np.ndarray) and str(self.placement) not in PLACEMENTS:
            raise InputError(f"placement '{self.placement}': use one of {', '.join(PLACEMENTS)}")

    @classmethod
    def family(cls, configs: Sequence[Config]) -> Config:
        """Joins one layer's configurations in several plans.

        Plans with partial sums must all scatter them, or none.
        """
        degrees = {name: np.array([getattr(c, name) for c in configs]) for name in ORDER}
        first = np.array([c.first for c in configs])
        placement = np.array([c.placement for c in configs])
        return cls(
            **degrees,
            first=int(first[0]) if (first == first[0]).all() else first,
            placement=str(placement[0]) if (placement == placement[0]).all() else placement,
            scatter=all(c.scatter for c in configs if c.reduces),
        )

    def holds(self, rank: int) -> bool:
        """True if the layer runs on `rank`."""
        return bool(self.first <= rank < self.first + self.ranks)

    @cached_property
    def parts(self) -> Ints:
        """Number of distinct parts of the work."""
        return self.n * self.c * self.d * self.h * self.w * self.k

    @cached_property
    def reduces(self) -> bool:
        """True if the reduction is cut (k) in some plan of the family."""
        return bool(np.any(np.greater(self.k, 1)))

    @cached_property
    def cuts_channels(self) -> bool:
        """True if output or input channels are cut (c, k) in some plan of the family."""
        return self.reduces or bool(np.any(np.greater(self.c, 1)))

    @cached_property
    def ranks(self) -> Ints:
        """Number of ranks on which the layer runs."""
        return self.parts * self.replicas

    @property
    def outer(self) -> bool:
        """True if sample parts are on neighboring ranks and other parts further apart.

        With only one kind of parts, both placements are the same.
        """
        return bool(self.placement == "outer" and 1 < self.n < self.ranks)

    @cached_property
    def mesh_axes(self) -> dict[str, MeshAxis]:
        """Coordinates of a rank, counted from `first`, along each axis."""
        if not isinstance(self.placement, np.ndarray):
            return self._placed(PLACEMENTS[self.placement])
        inner, outer = (self._placed(order) for order in PLACEMENTS.values())
        is_outer = self.placement == "outer"
        return {name: MeshAxis(np.where(is_outer, outer[name].stride, mesh_axis.stride),
                               mesh_axis.size)
                for name, mesh_axis in inner.items()}

    def _placed(self, order: tuple[str, ...]) -> dict[str, MeshAxis]:
        mesh_axes: dict[str, MeshAxis] = {}
        stride: Ints = 1
        for name in reversed(order):
            mesh_axes[name] = MeshAxis(stride, getattr(self, name))
            stride = stride * getattr(self, name)
        return mesh_axes

    @cached_property
    def key(self) -> Hashable:
        """A dictionary key; equal configurations have equal keys."""
        values = (getattr(self, name) for name in (*ORDER, "first", "placement"))
        return (*map(value_key, values), self.scatter)

    def reshaped(self, shape: tuple[int, ...]) -> Config:
        """The family with its plans in another array shape, for broadcasting."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, value in values.items():
            if isinstance(value, np.ndarray):
                values[name] = value.reshape(shape)
        return Config(**values)

    def coordinate(self, axis: str, rank: int) -> int:
        """Index of the part along `axis` that `rank` holds."""
        return int(self.mesh_axes[axis].of(rank - self.first))

    def __str__(self) -> str:
        words = [f"{a}={getattr(self, a)}" for a in ("n", "c", "d", "h", "w", "k")
                 if getattr(self, a) > 1]
        if self.replicas > 1:
            words.append(f"x{self.replicas}")
        if self.outer:
            words.append("outer")
        return "{" + ", ".join(words) + "}"
