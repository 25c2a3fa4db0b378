"""Single communication steps on real ranks: random layouts, boxes of one's own choice, and how to
execute a step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hpcpar.comm.communicator import Communicator
from hpcpar.network.receptive_field import (
    Interpolated,
    Periodic,
    Relation,
    Transposed,
    Window,
)
from hpcpar.plan.axis import Axis
from hpcpar.plan.boxes import Box, contains, intersect, items, local, shape
from hpcpar.plan.config import PLACEMENTS, Config
from hpcpar.plan.layout import Layout
from hpcpar.schedule.messages import counts
from hpcpar.schedule.steps import Comm, Kind, Pattern, Phase, Role, TensorRef
from tests.collectives import BY_KIND

TENSOR = TensorRef("test", Role.OUTPUT)


@dataclass(frozen=True)
class Boxes:
    """A layout of any boxes, one per rank: sizes that the block rule would never give."""

    boxes: tuple[Box, ...]

    def box(self, rank: int) -> Box:
        return self.boxes[rank]

    def items(self, rank: int) -> int:
        return items(self.boxes[rank])

    @property
    def config(self) -> Config:
        """Every rank has its part in the step, be its box empty."""
        return Config(replicas=len(self.boxes))

    def holds(self, rank: int) -> bool:
        return rank < len(self.boxes)


def step(pattern: Pattern, source: Layout | Boxes, destination: Layout | Boxes,
         index: int = 0) -> Comm:
    """The communication step of a pattern, in float64."""
    assert pattern.kind is not None
    algorithm = BY_KIND.get(pattern.kind, ("direct",))[0] if pattern.group else "direct"
    return Comm(Phase.FORWARD, "test", TENSOR, pattern, source, destination, 8,
                algorithm=algorithm, index=index, needed_by=index + 1)


def variants(base: Comm) -> list[Comm]:
    """The step with every algorithm that its kind may use, rings in 1 to 4 segments."""
    if base.algorithm == "direct":
        return [base]
    rooted = base.kind in (Kind.REDUCE, Kind.BROADCAST)
    out = [] if rooted else [replace(base, algorithm="mpi")]
    for algorithm in BY_KIND[base.kind]:
        out += [replace(base, algorithm=algorithm, segments=s)
                for s in ((1, 2, 3, 4) if algorithm == "ring" else (1,))]
    assert base.group is not None
    p = base.group.size
    for algorithm in ("halving", "leaders"):  # the same order on every rank
        if algorithm in BY_KIND[base.kind]:
            out += [replace(base, algorithm=algorithm, inner=inner)  # whether or not ranks lie so
                    for inner in range(2, p) if p % inner == 0]
    return out


def arrays(s: Comm, rank: int, values: np.ndarray, shared: bool) -> tuple[np.ndarray, np.ndarray]:
    """(held with `values`, wanted without any). `shared`: one is a view in the other where training
    keeps them so.
    """
    mine, target = s.source_box(rank), s.destination_box(rank)
    if s.kind is Kind.ALLREDUCE:
        both = values.copy()
        return both, both
    views = shared and s.kind in (Kind.HALO,
                                  Kind.ALLGATHER) and items(mine) > 0 and items(target) > 0
    if views and not s.reduce and contains(target, mine):
        wanted = np.full(shape(target), np.nan)
        held = wanted[local(mine, target)]
        held[...] = values
        return held, wanted
    held = values.copy()
    if views and s.reduce and contains(mine, target):
        return held, held[local(target, mine)]
    return held, np.full(shape(target), np.nan)


def move(communicator: Communicator, s: Comm, values: np.ndarray,
         shared: bool = False) -> np.ndarray:
    """Execute one step on `values` and return the result; checks the bytes sent."""
    rank = communicator.world.rank
    held, wanted = arrays(s, rank, values, shared)
    transfer = communicator.bind(s, held, wanted)
    communicator.trace.clear()
    communicator.start(transfer)
    communicator.wait(transfer)
    assert communicator.trace.of(s.index) == counts(s, rank)
    return wanted


def stay(source: Layout, destination: Layout, rank: int, values: np.ndarray) -> np.ndarray:
    """The wanted values where nothing moves: the common part, and zero (no gradient) elsewhere."""
    mine, target = source.box(rank), destination.box(rank)
    out = np.zeros(shape(target))
    common = intersect(mine, target)
    if common is not None:
        out[local(common, target)] = values[local(common, mine)]
    return out


def layouts(
    owned: Config, needed: Config, extents: tuple[int, ...],
    related: dict[str, tuple[int, Relation]] | None = None
) -> tuple[Layout, Layout]:
    """Owned and needed boxes of an N C H W (or N C D H W) tensor; `related` gives the axes that
    outputs read by a relation, with the number of outputs.
    """
    have = tuple(Axis(a, e, e) for a, e in zip("nchw" if len(extents) == 4 else "ncdhw", extents,
                                               strict=True))
    related = related or {}
    want = tuple(Axis(a.name, a.extent, related[a.name][0], 1, related[a.name][1])
                 if a.name in related else a for a in have)
    return Layout(owned, have), Layout(needed, want)


def window(rng: np.random.Generator, extent: int) -> tuple[int, Relation]:
    """A random window that fits, with its number of outputs. Wide ones over short blocks reach past
    the nearest neighbor.
    """
    while True:
        kernel, stride, dilation = int(rng.integers(1, 6)), int(rng.integers(1, 4)), int(
            rng.integers(1, 3))
        out = Window(kernel, stride, int(rng.integers(0, kernel)), dilation)
        room = extent + 2 * out.padding - out.span
        if room >= 0:
            return room // stride + 1, out


def enlarging(rng: np.random.Generator, extent: int) -> tuple[int, Relation]:
    """A random relation of a layer that enlarges or pads images, with its number of outputs."""
    while True:
        k, s, d, p = (int(n) for n in rng.integers(1, 5, 4))
        size = (extent - 1) * s - 2 * (p - 1) + d * (k - 1) + 1
        if size > 0:
            break
    before, after = (int(n) for n in rng.integers(0, extent + 1, 2))
    choices: list[tuple[int, Relation]] = [
        (size, Transposed(k, s, p - 1, d)),
        (extent * s, Interpolated(1, s, taps=1)),
        (extent * s, Interpolated(2, 2 * s, 1 - s)),
        (before + extent + after, Periodic(before)),
        (before + extent + after, Window(1, 1, before)),
    ]
    return choices[int(rng.integers(len(choices)))]


def degrees(rng: np.random.Generator, ranks: int, first: int = 0, axes: str = "nchw") -> Config:
    """A random configuration on `ranks` ranks from `first` on: every prime factor cuts some axis or
    makes replicas.
    """
    out = dict.fromkeys((*axes, "replicas"), 1)
    for prime in (2, 3, 5, 7):
        while ranks % prime == 0:
            ranks //= prime
            out[str(rng.choice(list(out)))] *= prime
    assert ranks == 1
    return Config(**out, first=first, placement=str(rng.choice(list(PLACEMENTS))))


def some_ranks(rng: np.random.Generator, ranks: int) -> tuple[int, int]:
    """How many of the ranks, and the first of them."""
    used = int(rng.integers(1, ranks + 1))
    return used, int(rng.integers(0, ranks - used + 1))


def pairs(ranks: int) -> list[tuple[int, int]]:
    """All (a, b) with a * b = ranks."""
    return [(a, ranks // a) for a in range(1, ranks + 1) if ranks % a == 0]
