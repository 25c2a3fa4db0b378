"""Who sends how much to whom in a point-to-point step: the exchange's messages without its boxes, and much faster on many ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, partial

from hpcpar.network.relation import Same
from hpcpar.plan.layout import Axis, Layout
from hpcpar.schedule.exchange import make_exchange
from hpcpar.schedule.steps import Comm

#: Up to so many ranks a redistribution, where all may talk to all, is walked on every rank asked for; beyond on so few of them.
EVERY = 64
FEW = 8


@dataclass(frozen=True)
class Flow:
    """Messages of one rank as (peer, items)."""

    sends: tuple[tuple[int, int], ...]
    recvs: tuple[tuple[int, int], ...]


def flow(step: Comm, rank: int) -> Flow:
    """The messages of `rank` in a point-to-point step."""
    rounds = make_exchange(step, rank).rounds  # not kept: boxes of many ranks would fill the memory
    return Flow(
        tuple((m.peer, m.stop - m.start) for r in rounds for m in r.sends),
        tuple((m.peer, m.stop - m.start) for r in rounds for m in r.recvs),
    )


def _one_sample(layout: Layout) -> Layout:
    axes = tuple(Axis("n", 1, 1) if a.name == "n" else a for a in layout.axes)
    return Layout(replace(layout.config, n=1), axes)


def _by_samples(step: Comm) -> bool:
    """True where the step cuts samples alike before and after, so that nothing crosses from one sample part to another."""
    return all(
        layout.config.n == step.holder.config.n and layout.axes[0].name == "n" and isinstance(layout.axes[0].relation, Same)
        for layout in (step.holder, step.wanter)
    )


@lru_cache(maxsize=4096)
def _slice_flow(step: Comm, place: int) -> Flow:
    return flow(step, place)


def _distance(rank: int, entry: tuple[int, Flow]) -> int:
    return abs(entry[0] - rank)


def flows(step: Comm, ranks: list[int]) -> list[Flow]:
    """The messages of each of `ranks`.

    Sample parts that do not talk to each other all do the same, in proportion to their samples: one is worked out, with a single sample.
    """
    if not _by_samples(step):
        if step.holder.config.ranks <= EVERY:
            return [flow(step, rank) for rank in ranks]
        few = {ranks[i * (len(ranks) - 1) // (FEW - 1)] for i in range(FEW)} if len(ranks) > FEW else set(ranks)
        found = {rank: flow(step, rank) for rank in sorted(few)}
        return [min(found.items(), key=partial(_distance, rank))[1] for rank in ranks]
    digit = step.holder.config.digits["n"]  # the slowest varying: a part's ranks are neighbours
    one = replace(step, index=0, needed_by=0, layer="", tensor="", holder=_one_sample(step.holder), wanter=_one_sample(step.wanter))
    known = {place: _slice_flow(one, place) for place in {rank % digit.stride for rank in ranks}}
    samples = step.holder.axes[0]
    out = []
    for rank in ranks:
        part = digit.of(rank)
        base = part * digit.stride
        start, stop = samples.interval(digit.size, part)
        n = stop - start
        f = known[rank % digit.stride]
        out.append(Flow(*(tuple((base + p, n * i) for p, i in side if n) for side in (f.sends, f.recvs))))
    return out
