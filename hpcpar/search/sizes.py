"""Decides from which size of images on cutting them pays, and which sizes ranks hold whole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from hpcpar.cost.ratios import Ratio
from hpcpar.errors import InputError
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.network.layers import Shape
from hpcpar.network.layers.base import shape_text
from hpcpar.plan.plan import NetworkSpec
from hpcpar.search import auto
from hpcpar.search.candidates import Candidate
from hpcpar.search.choice import SIMPLEST, chosen, compared, times_as_fast


@dataclass(frozen=True)
class SizeCase:
    """The plans of one size of images.

    Attributes
    ----------
    shape : tuple of int
        Shape of a sample.
    whole : Candidate
        Data parallelism: images whole, on as many ranks as have samples.
    best : Candidate
        The choice among this and all plans on all ranks.
    """

    shape: Shape
    whole: Candidate
    best: Candidate

    @property
    def cuts(self) -> bool:
        """True if the choice cuts images in some layer."""
        return any(c.d * c.h * c.w > 1 for c in self.best.plan.configs.values())

    @property
    def gain(self) -> Ratio:
        """Samples per second of the choice, relative to whole images."""
        return times_as_fast(self.best, self.whole)

    def to_json(self) -> dict[str, Any]:
        """The case as JSON data."""
        return {"shape": list(self.shape), "whole_ranks": self.whole.task.ranks,
                "whole_s": self.whole.iteration_s, "whole_fits": self.whole.fits,
                "whole_memory_bytes": self.whole.memory_bytes,
                "strategy": self.best.strategy, "ranks": self.best.task.ranks,
                "iteration_s": self.best.iteration_s, "fits": self.best.fits,
                "memory_bytes": self.best.memory_bytes} | self.gain.to_json("gain")


def case_of(network: Network, spec: NetworkSpec, ranks: int, batch: int, machine: Machine,
            **options: Any) -> SizeCase:
    """The plans of a network, with the options of `hpcpar.search.auto.task`."""
    whole = auto.price_named(network, spec, SIMPLEST, min(ranks, batch), batch, machine,
                             **options).exact()
    found = auto.best(network, spec, ranks, batch, machine, **options)
    return SizeCase(network.image_shape, whole, chosen([whole, *compared(found)]))


def scaled(shape: Shape, width: int) -> Shape:
    """The shape of images of this width in the same proportions; extents of 1 stay.

    Raises
    ------
    InputError
        An extent would not be whole.
    """
    extents = [n if n == 1 else Fraction(n * width, shape[-1]) for n in shape[1:]]
    if any(n.denominator > 1 for n in extents):
        raise InputError(f"images {shape_text(shape)} have no whole extents at width {width}; "
                         f"give multiples of {shape[-1] // math.gcd(*shape[1:])}")
    return shape[0], *map(int, extents)


def pays_from(cases: Sequence[SizeCase]) -> SizeCase | None:
    """The smallest size from which on all sizes are cut; None if the largest is not.

    `cases` are in ascending order.
    """
    first = None
    for case in reversed(cases):
        if not case.cuts:
            break
        first = case
    return first


def largest_whole(cases: Sequence[SizeCase]) -> SizeCase | None:
    """The largest size whose whole images fit in a rank's memory."""
    return next((case for case in reversed(cases) if case.whole.fits), None)
