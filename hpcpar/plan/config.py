"""A layer's configuration: by how much its output is cut along each axis, and which rank computes
which part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from hpcpar.errors import InputError

#: A whole number, or an array of them: one for each case of a family of plans that are lowered and
#: priced together.
Ints: TypeAlias = Any

#: Axes from slowest to fastest varying over ranks: model groups (c, k, then replicas) sit on
#: neighbouring ranks.
ORDER = ("n", "d", "h", "w", "c", "k", "replicas")
#: How parts are placed on ranks: ``inner`` puts model and image parts on neighbouring ranks (inside
#: a node), ``outer`` sample parts.
PLACEMENTS = {"inner": ORDER, "outer": (*ORDER[1:], "n")}




def value_key(value: Any) -> Any:
    """A number, a name, or an array of them as a dictionary's key, equal for equal values."""
    return (value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value


@dataclass(frozen=True)
class Digit:
    """A coordinate of a rank: ``rank // stride % size``."""

    stride: Ints
    size: Ints

    def of(self, rank: Any) -> Any:
        return rank // self.stride % self.size


@dataclass(frozen=True)
class Merged(Digit):
    """Several coordinates as one, the first the slowest; `stride` is that of the last."""

    parts: tuple[Digit, ...] = ()

    def of(self, rank: Any) -> Any:
        out: Any = 0
        for d in self.parts:
            out = out * d.size + d.of(rank)
        return out


@dataclass(frozen=True)
class Config:
    """Degrees of parallelism of a layer's output (OptCNN's configuration) in sample, channel,
    depth, height and width.

    In a family of plans, degrees are arrays with an entry for each case.

    Attributes
    ----------
    k : int
        Parts of the reduction (input channels): each of k ranks computes a partial sum of the same
        outputs (ParaDL's channel).
    scatter : bool
        Partial sums are reduced and scattered, so that each of the k ranks owns a part of the
        channels; else all own the total.
    replicas : int
        Ranks that compute each part redundantly and identically (ParaDL's redundant compute; the
        paper's accounting of a gathered activation).
    first : int
        The first of the `ranks` ranks that hold the layer: the product of all degrees may be less
        than the plan's ranks.
    placement : str
        One of `PLACEMENTS`; in a family it may be an array of them.
    """

    n: Ints = 1
    c: Ints = 1
    h: Ints = 1
    w: Ints = 1
    replicas: Ints = 1
    d: Ints = 1
    k: Ints = 1
    scatter: bool = True
    first: Ints = 0
    placement: Any = "inner"

    def __post_init__(self) -> None:
        for name in ORDER:
            value = getattr(self, name)
            if not isinstance(value, np.ndarray) and (not isinstance(value, int) or value < 1):
                raise InputError(f"configuration degree {name}={value!r}: every degree is a whole number of at least 1")
        if not isinstance(self.placement, np.ndarray) and str(self.placement) not in PLACEMENTS:
            raise InputError(f"placement '{self.placement}': use one of {', '.join(PLACEMENTS)}")

    @classmethod
    def family(cls, each: Sequence[Config]) -> Config:
        """Configurations of single plans as one; partial sums are scattered in all of them or in
        none.
        """
        found: dict[str, Any] = {name: np.array([getattr(c, name) for c in each])
                                 for name in (*ORDER, "first", "placement")}
        for name in ("first", "placement"):  # a number or a name where it is the same in all
            if (found[name] == found[name][0]).all():
                found[name] = found[name].tolist()[0]
        return cls(**found, scatter=all(c.scatter for c in each if c.reduces))

    @cached_property
    def parts(self) -> Ints:
        """Number of distinct parts of the work."""
        return self.n * self.c * self.d * self.h * self.w * self.k

    @cached_property
    def reduces(self) -> bool:
        """True where a reduction is cut (k), in some case."""
        return bool(np.any(np.greater(self.k, 1)))

    @cached_property
    def cuts_channels(self) -> bool:
        """True where output or input channels are cut (c, k), in some case."""
        return self.reduces or bool(np.any(np.greater(self.c, 1)))

    @cached_property
    def ranks(self) -> Ints:
        return self.parts * self.replicas

    @property
    def outer(self) -> bool:
        """True where samples lie on neighbouring ranks, other parts further apart; of one kind of
        parts both placements are the same.
        """
        return self.placement == "outer" and bool(1 < self.n < self.ranks)

    @cached_property
    def digits(self) -> dict[str, Digit]:
        """Where each axis lies in the rank (counted from `first`)."""
        if not isinstance(self.placement, np.ndarray):
            return self._placed(PLACEMENTS[self.placement])
        inner, outer = (self._placed(order) for order in PLACEMENTS.values())
        return {name: Digit(np.where(self.placement == "outer", outer[name].stride, d.stride),
                            d.size) for name, d in inner.items()}

    def _placed(self, order: tuple[str, ...]) -> dict[str, Digit]:
        out: dict[str, Digit] = {}
        stride: Ints = 1
        for name in reversed(order):
            out[name] = Digit(stride, getattr(self, name))
            stride = stride * getattr(self, name)
        return out

    @cached_property
    def key(self) -> Any:
        """Equal for equal configurations, single or of families."""
        values = (getattr(self, name) for name in (*ORDER, "first", "placement"))
        return (*map(value_key, values), self.scatter)

    def reshaped(self, shape: tuple[int, ...]) -> Config:
        """The same family with its cases laid out in another shape, to be broadcast."""
        arrays: dict[str, Any] = {f.name: getattr(self, f.name).reshape(shape) for f in fields(self)
                                  if isinstance(getattr(self, f.name), np.ndarray)}
        return replace(self, **arrays)

    def coordinate(self, axis: str, rank: int) -> int:
        """Index of the part along `axis` that `rank` holds."""
        return int(self.digits[axis].of(rank - self.first))

    def __str__(self) -> str:
        cut = [f"{a}={getattr(self, a)}" for a in ("n", "c", "d", "h", "w", "k")
               if getattr(self, a) > 1]
        if self.replicas > 1:
            cut.append(f"x{self.replicas}")
        if self.outer:
            cut.append("outer")
        return "{" + ", ".join(cut) + "}"
