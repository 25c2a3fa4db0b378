"""A layer's configuration: by how much its output is cut along each axis, and which rank computes which part."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from hpcpar.errors import InputError

#: Axes from slowest to fastest varying over ranks: model groups (c, then replicas) sit on neighbouring ranks.
ORDER = ("n", "h", "w", "c", "replicas")


@dataclass(frozen=True)
class Digit:
    """A coordinate of a rank: ``rank // stride % size``."""

    stride: int
    size: int

    def of(self, rank: int) -> int:
        return rank // self.stride % self.size

    def overlaps(self, other: Digit) -> bool:
        """True where the two depend on common factors of the rank."""
        return self.stride < other.stride * other.size and other.stride < self.stride * self.size


@dataclass(frozen=True)
class Config:
    """Degrees of parallelism of a layer's output (OptCNN's configuration) in sample, channel, height and width.

    `replicas` ranks compute each part redundantly and identically (ParaDL's redundant compute; the paper's accounting of a
    gathered activation). The product is the number of ranks.
    """

    n: int = 1
    c: int = 1
    h: int = 1
    w: int = 1
    replicas: int = 1

    def __post_init__(self) -> None:
        for name in ORDER:
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise InputError(f"configuration degree {name}={getattr(self, name)!r}: every degree is a whole number of at least 1")

    @property
    def parts(self) -> int:
        """Number of distinct parts."""
        return self.n * self.c * self.h * self.w

    @property
    def ranks(self) -> int:
        return self.parts * self.replicas

    @cached_property
    def digits(self) -> dict[str, Digit]:
        """Where each axis lies in the rank."""
        out: dict[str, Digit] = {}
        stride = 1
        for name in reversed(ORDER):
            out[name] = Digit(stride, getattr(self, name))
            stride *= getattr(self, name)
        return out

    def coordinate(self, axis: str, rank: int) -> int:
        """Index of the part along `axis` that `rank` holds."""
        return self.digits[axis].of(rank)

    def __str__(self) -> str:
        cut = [f"{a}={getattr(self, a)}" for a in ("n", "c", "h", "w") if getattr(self, a) > 1]
        if self.replicas > 1:
            cut.append(f"x{self.replicas}")
        return "{" + ", ".join(cut) + "}"
