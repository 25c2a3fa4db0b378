"""Named strategies: functions that fill in a configuration for every layer, nothing more.

===================
========================================================================================== ``data``
every layer by samples (Eq 4) ``filter``           every layer by output channels (Eq 3; ParaDL's
filter) ``channel``          every layer by input channels, partial sums added (ParaDL's channel)
``spatial``          images by rows (and columns), then features by samples (Eq 7, ParaDL)
``pipeline``         stages of layers, one rank each, and micro-batches (ParaDL's pipeline, GPipe);
``pipeline:SxN``: N ranks each ``grid:PRxPC``       every layer by PR channel parts times PC sample
parts: the 1.5D products of Eq 8 ``grid-fc:PRxPC``    convolutions by samples over all ranks, fully
connected layers on the grid (integrated, Fig 7) ``domain:PRxPC``     convolutions by PR parts of
the image, fully connected by channels, both times PC sample parts (Eq 9) ``df:P1xP2``         P1
groups of samples, each of P2 channel parts (ParaDL's data + filter) ``ds:P1xP2``         P1 groups
of samples, each of P2 image parts (ParaDL's data + spatial) ``owt``              convolutions by
samples, fully connected by channels (one weird trick, scheme a) ``owt-b, owt-c``     the same with
fully connected layers in turns, of one rank's samples (b) or of some of each rank's (c)
===================
==========================================================================================

Behind ``/outer`` model groups lie across nodes and sample groups inside (``df:4x2/outer``);
``/inner``, the default, is the other way round. Numbers of ranks and parts may be arrays, with an
entry for each case of a family of plans.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcpar.errors import InputError, unknown
from hpcpar.network.graph import Network
from hpcpar.network.layers import Concat, Input, Layer, SoftmaxCrossEntropy
from hpcpar.plan.config import PLACEMENTS, Config, Ints
from hpcpar.plan.stages import stages

Configs = dict[str, Config]

#: When a channel-split activation is gathered: ``late`` just before a layer needs it whole (pooled,
#: so smaller; the backward pass is then a reduce-scatter), ``layer`` right after the layer that
#: made it (the accounting of Eq 3, 8 and 9).
GATHERS = ("late", "layer")


#: One weird trick takes a turn for each rank: on more ranks than this, turns are too short to be
#: worth trying.
MOST_TURNS = 16


def grid_sizes(ranks: int) -> list[tuple[int, int]]:
    """All (Pr, Pc) with Pr * Pc = ranks, by growing Pr."""
    return [(r, ranks // r) for r in range(1, ranks + 1) if ranks % r == 0]


def sections(network: Network) -> tuple[list[Layer], list[Layer]]:
    """Layers on images (with the input) and layers on features (from the flatten or global pooling
    on).
    """
    images = [layer for layer in network.layers if len(network.shapes[layer.name]) > 1]
    return images, [layer for layer in network.layers if len(network.shapes[layer.name]) == 1]


@dataclass(frozen=True)
class Wish:
    """What a strategy has to fill in.

    Attributes
    ----------
    grid : tuple of int
        The two numbers of ``name:AxB``; (ranks, 1) where none are given.
    """

    network: Network
    ranks: Ints
    grid: tuple[Ints, Ints]
    gather: str
    placement: str

    def config(self, **degrees: Any) -> Config:
        return Config(placement=self.placement, **degrees)

    def all(self, layers: Iterable[Layer], config: Config) -> Configs:
        return {layer.name: config for layer in layers}

    @property
    def layers(self) -> list[Layer]:
        return list(self.network.layers)


def _by_channels(wish: Wish, layers: list[Layer], model: Ints, batch: Ints) -> Configs:
    """Weighted layers by channel; between them channels stay split (late) or are gathered and
    replicated (layer).
    """
    out: Configs = {}
    split, whole = wish.config(n=batch, c=model), wish.config(n=batch, replicas=model)
    made = False
    for layer in layers:
        if layer.is_matmul or (layer.has_weights and (made or wish.gather == "late")):
            made = made or layer.is_matmul
            out[layer.name] = split
        elif isinstance(layer, Input) or not made or isinstance(layer, SoftmaxCrossEntropy):
            out[layer.name] = whole
        elif isinstance(layer, Concat):
            out[layer.name] = whole  # its readers need all channels: gathered once for all of them
        else:
            out[layer.name] = split if wish.gather == "late" else whole
    return out


def _channel(wish: Wish) -> Configs:
    """The first layer by output channels (images have few input channels), the others by input
    channels.

    Partial sums are scattered over the channels (late), or every rank gets all of them (layer:
    ParaDL's allreduce forward and allgather backward).
    """
    late = wish.gather == "late"
    split, whole = wish.config(c=wish.ranks), wish.config(replicas=wish.ranks)
    parts = wish.config(k=wish.ranks, scatter=late)
    out: Configs = {}
    made = False
    for layer in wish.layers:
        if layer.is_matmul:
            out[layer.name] = parts if made and getattr(layer, "groups", 1) == 1 else split
            made = True
        elif not made or isinstance(layer, SoftmaxCrossEntropy | Input | Concat):
            out[layer.name] = whole
        else:
            out[layer.name] = split if late else whole
    return out


def image_parts(network: Network, parts: int) -> dict[str, int]:
    """Degrees for cutting images: rows only (contiguous halos) while every layer has enough, else
    rows times columns.

    The most parts along the first axes that no image layer runs out of win; where nothing fits, all
    along the first axis.
    """
    images, _ = sections(network)
    extents = np.array([network.shapes[layer.name][1:] for layer in images]).min(axis=0)
    axes = "dhw"[3 - len(extents):]

    def fill(left: int, at: int) -> list[int] | None:
        if at == len(extents) - 1:
            return [left] if left <= extents[at] else None
        for d in range(min(left, int(extents[at])), 0, -1):
            rest = fill(left // d, at + 1) if left % d == 0 else None
            if rest is not None:
                return [d, *rest]
        return None

    found = fill(parts, 0) or [parts] + [1] * (len(extents) - 1)
    return dict(zip(axes, found, strict=True))


def _image_degrees(network: Network, parts: Ints) -> dict[str, Ints]:
    """`image_parts` for every case."""
    if not isinstance(parts, np.ndarray):
        return dict(image_parts(network, parts))
    values, at = np.unique(parts, return_inverse=True)
    found = [image_parts(network, int(v)) for v in values]
    return {axis: np.array([f[axis] for f in found])[at.reshape(parts.shape)] for axis in found[0]}


def _data(wish: Wish) -> Configs:
    return wish.all(wish.layers, wish.config(n=wish.ranks))


def _filter(wish: Wish) -> Configs:
    return _by_channels(wish, wish.layers, wish.ranks, 1)


def _grid(wish: Wish) -> Configs:
    return _by_channels(wish, wish.layers, *wish.grid)


def _grid_fc(wish: Wish) -> Configs:
    images, features = sections(wish.network)
    by_samples = wish.config(n=wish.ranks)
    out = wish.all(images, by_samples) | _by_channels(wish, features, *wish.grid)
    if images:
        # flattening moves nothing: gather what the first linear layer needs
        out[features[0].name] = by_samples
    return out


def _domain(wish: Wish) -> Configs:
    images, features = sections(wish.network)
    cut = wish.config(n=wish.grid[1], **_image_degrees(wish.network, wish.grid[0]))
    return wish.all(images, cut) | _by_channels(wish, features, *wish.grid)


def _ds(wish: Wish) -> Configs:
    images, features = sections(wish.network)
    cut = wish.config(n=wish.grid[0], **_image_degrees(wish.network, wish.grid[1]))
    return wish.all(images, cut) | wish.all(features, wish.config(n=wish.ranks))


def _spatial(wish: Wish) -> Configs:
    return _ds(Wish(wish.network, wish.ranks, (1, wish.ranks), wish.gather, wish.placement))


def _df(wish: Wish) -> Configs:
    return _by_channels(wish, wish.layers, wish.grid[1], wish.grid[0])


def _owt(wish: Wish) -> Configs:
    return _grid_fc(Wish(wish.network, wish.ranks, (wish.ranks, 1), wish.gather, wish.placement))


def _pipeline(wish: Wish) -> Configs:
    count, each = wish.grid
    if isinstance(count, np.ndarray) or isinstance(each, np.ndarray):
        raise InputError("pipelines are planned one at a time")
    made = {stage: wish.config(n=each, first=stage * each) for stage in range(count)}
    return {name: made[stage] for name, stage in stages(wish.network, count).items()}


_Fill = Callable[[Wish], Configs]
#: name -> (fill, whether it takes a grid: ``no``, ``yes`` or ``may``)
STRATEGIES: dict[str, tuple[_Fill, str]] = {
    "data": (_data, "no"),
    "filter": (_filter, "no"),
    "channel": (_channel, "no"),
    "spatial": (_spatial, "no"),
    "pipeline": (_pipeline, "may"),
    "grid": (_grid, "yes"),
    "grid-fc": (_grid_fc, "yes"),
    "domain": (_domain, "yes"),
    "df": (_df, "yes"),
    "ds": (_ds, "yes"),
    "owt": (_owt, "no"),
    "owt-b": (_owt, "no"),
    "owt-c": (_owt, "no"),
}


def placement_of(strategy: str) -> tuple[str, str]:
    """Split ``strategy/placement``; without one it is ``inner``."""
    name, _, placement = strategy.partition("/")
    if placement and placement not in PLACEMENTS:
        raise unknown("placement", placement, PLACEMENTS)
    return name, placement or "inner"


def parse(strategy: str) -> tuple[str, tuple[int, int] | None]:
    """Split ``name`` or ``name:AxB`` (a placement left aside) and check it.

    Raises
    ------
    InputError
        Unknown name (with the nearest), or a missing, malformed or superfluous grid or placement.
    """
    strategy, _ = placement_of(strategy)
    name, _, rest = strategy.partition(":")
    if name not in STRATEGIES:
        raise unknown("strategy", name, STRATEGIES)
    takes = STRATEGIES[name][1]
    if takes == "no" and rest:
        raise InputError(f"strategy '{name}' takes no grid; write just '{name}'")
    if takes == "no" or (takes == "may" and not rest):
        return name, None
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", rest)
    if match is None:
        raise InputError(f"strategy '{strategy}': '{name}' needs a grid of two whole numbers, as in '{name}:2x4'")
    return name, (int(match[1]), int(match[2]))


def fill(
    network: Network, name: str, ranks: Ints, grid: tuple[Ints, Ints] | None = None, gather: str = "late", placement: str = "inner"
) -> Configs:
    """The configuration of every layer; `ranks` and `grid` may be arrays, for a family of plans."""
    if gather not in GATHERS:
        raise unknown("gather", gather, GATHERS)
    return STRATEGIES[name][0](Wish(network, ranks, (ranks, 1) if grid is None else grid, gather,
                                    placement))


def configurations(network: Network, strategy: str, ranks: int, gather: str = "late") -> Configs:
    """The configuration of every layer under a named strategy.

    Raises
    ------
    InputError
        Unknown strategy, or a grid whose product is not `ranks`.
    """
    name, grid = parse(strategy)
    if ranks < 1:
        raise InputError(f"{ranks} ranks: give a whole number of at least 1")
    if grid is not None and grid[0] * grid[1] != ranks:
        fits = ", ".join(f"{name}:{a}x{b}" for a, b in grid_sizes(ranks))
        raise InputError(f"strategy '{strategy}' is for {grid[0] * grid[1]} ranks, not {ranks}; use one of {fits}")
    return fill(network, name, ranks, grid, gather, placement_of(strategy)[1])


def together(plans: Sequence[Configs]) -> Configs:
    """The configurations of several plans as a family; layers that share one in each of them share
    one here too.
    """
    known: dict[Any, Config] = {}
    out = {}
    for name in plans[0]:
        each = [configs[name] for configs in plans]
        key = tuple(c.key for c in each)
        if key not in known:
            known[key] = Config.family(each)
        out[name] = known[key]
    return out


def plan_options(strategy: str, ranks: int, batch: int) -> dict[str, Any]:
    """What a strategy fixes of a plan beside the configurations: micro-batches of a pipeline, turns
    of one weird trick.
    """
    name, grid = parse(strategy)
    if name == "pipeline":
        count, each = (ranks, 1) if grid is None else grid
        # GPipe: four micro-batches a stage and more leave a small bubble
        return {"microbatches": max(1, min(4 * count, batch // each)) if count > 1 else 1}
    if name in ("owt-b", "owt-c") and ranks > 1:
        return {"turns": ranks, "switch": "one" if name == "owt-b" else "each"}
    return {}


def named(ranks: int) -> list[str]:
    """Every named strategy on this number of ranks, without writing one configuration twice under
    two names.
    """
    grids = [(a, b) for a, b in grid_sizes(ranks) if a > 1]
    out = ["data"]
    if ranks == 1:
        return out
    out += ["filter", "spatial", "owt"]
    out += [f"grid:{a}x{b}" for a, b in grids if b > 1]
    out += [f"grid-fc:{a}x{b}" for a, b in grids if b > 1]
    out += [f"domain:{a}x{b}" for a, b in grids]
    out += [f"ds:{b}x{a}" for a, b in grids if b > 1]
    turns = ["owt-b", "owt-c"] if ranks <= MOST_TURNS else []
    return [*out, "channel", *turns, *(f"pipeline:{a}x{b}" for a, b in grids)]
