"""Named strategies: functions that fill in a configuration for every layer, nothing more.

===================  ==========================================================================================
``data``             every layer by samples (Eq 4)
``filter``           every layer by output channels (Eq 3; ParaDL's filter)
``spatial``          convolutions by image rows (and columns), then fully connected layers by samples (Eq 7, ParaDL)
``grid:PRxPC``       every layer by PR channel parts times PC sample parts: the 1.5D products of Eq 8
``grid-fc:PRxPC``    convolutions by samples over all ranks, fully connected layers on the grid (integrated, Fig 7)
``domain:PRxPC``     convolutions by PR parts of the image, fully connected by channels, both times PC sample parts (Eq 9)
``df:P1xP2``         P1 groups of samples, each of P2 channel parts (ParaDL's data + filter)
``ds:P1xP2``         P1 groups of samples, each of P2 image parts (ParaDL's data + spatial)
``owt``              convolutions by samples, fully connected by channels (one weird trick, scheme a)
===================  ==========================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable

from hpcpar.errors import InputError, unknown
from hpcpar.network.graph import Network
from hpcpar.network.layers import Flatten, Input, Layer, LogisticCrossEntropy
from hpcpar.plan.config import Config

Configs = dict[str, Config]

#: When a channel-split activation is gathered: ``late`` just before a layer needs it whole (pooled, so smaller; the backward
#: pass is then a reduce-scatter), ``layer`` right after the layer that made it (the accounting of Eq 3, 8 and 9).
GATHERS = ("late", "layer")


def grid_sizes(ranks: int) -> list[tuple[int, int]]:
    """All (Pr, Pc) with Pr * Pc = ranks, by growing Pr."""
    return [(r, ranks // r) for r in range(1, ranks + 1) if ranks % r == 0]


def _sections(network: Network) -> tuple[list[Layer], list[Layer]]:
    """Layers on images (with the input) and layers on features (from the flatten on)."""
    at = next((i for i, layer in enumerate(network.layers) if isinstance(layer, Flatten)), len(network.layers))
    return list(network.layers[:at]), list(network.layers[at:])


def _by_channels(layers: list[Layer], model: int, batch: int, gather: str) -> Configs:
    """Weighted layers by channel; between them channels stay split (late) or are gathered and replicated (layer)."""
    out: Configs = {}
    split, whole = Config(n=batch, c=model), Config(n=batch, replicas=model)
    made = False
    for layer in layers:
        if layer.has_weights:
            made = True
            out[layer.name] = split
        elif isinstance(layer, Input) or not made:
            out[layer.name] = whole
        elif isinstance(layer, LogisticCrossEntropy):
            out[layer.name] = split if gather == "late" else whole
        else:
            needs_all = layer.kind == "softmax_cross_entropy"
            out[layer.name] = split if gather == "late" and not needs_all else whole
    return out


def _all(layers: list[Layer], config: Config) -> Configs:
    return {layer.name: config for layer in layers}


def image_parts(network: Network, parts: int) -> tuple[int, int]:
    """(h, w) degrees for cutting images: rows only (contiguous halos) while every layer has enough, else rows times columns.

    The most rows that no image layer runs out of win; where nothing fits, the least columns.
    """
    images, _ = _sections(network)
    least = min(network.shapes[layer.name][1] for layer in images)
    choices = [(h, parts // h) for h in range(parts, 0, -1) if parts % h == 0]
    return next(((h, w) for h, w in choices if h <= least), choices[0])


def _data(network: Network, ranks: int, grid: tuple[int, int] | None, gather: str) -> Configs:
    return _all(list(network.layers), Config(n=ranks))


def _filter(network: Network, ranks: int, grid: tuple[int, int] | None, gather: str) -> Configs:
    return _by_channels(list(network.layers), ranks, 1, gather)


def _grid(network: Network, ranks: int, grid: tuple[int, int] | None, gather: str) -> Configs:
    assert grid is not None
    return _by_channels(list(network.layers), grid[0], grid[1], gather)


def _grid_fc(network: Network, ranks: int, grid: tuple[int, int] | None, gather: str) -> Configs:
    assert grid is not None
    images, features = _sections(network)
    out = _all(images, Config(n=ranks)) | _by_channels(features, grid[0], grid[1], gather)
    if features:
        out[features[0].name] = Config(n=ranks)  # flattening moves nothing: gather what the first linear layer needs
    return out


def _domain(network: Network, ranks: int, grid: tuple[int, int] | None, gather: str) -> Configs:
    assert grid is not None
    images, features = _sections(network)
    h, w = image_parts(network, grid[0])
    return _all(images, Config(n=grid[1], h=h, w=w)) | _by_channels(features, grid[0], grid[1], gather)


def _ds(network: Network, ranks: int, grid: tuple[int, int] | None, gather: str) -> Configs:
    assert grid is not None
    images, features = _sections(network)
    h, w = image_parts(network, grid[1])
    return _all(images, Config(n=grid[0], h=h, w=w)) | _all(features, Config(n=ranks))


def _spatial(network: Network, ranks: int, grid: tuple[int, int] | None, gather: str) -> Configs:
    return _ds(network, ranks, (1, ranks), gather)


def _df(network: Network, ranks: int, grid: tuple[int, int] | None, gather: str) -> Configs:
    assert grid is not None
    return _by_channels(list(network.layers), grid[1], grid[0], gather)


def _owt(network: Network, ranks: int, grid: tuple[int, int] | None, gather: str) -> Configs:
    return _grid_fc(network, ranks, (ranks, 1), gather)


_Fill = Callable[[Network, int, "tuple[int, int] | None", str], Configs]
#: name -> (fill, whether it takes a grid)
STRATEGIES: dict[str, tuple[_Fill, bool]] = {
    "data": (_data, False),
    "filter": (_filter, False),
    "spatial": (_spatial, False),
    "grid": (_grid, True),
    "grid-fc": (_grid_fc, True),
    "domain": (_domain, True),
    "df": (_df, True),
    "ds": (_ds, True),
    "owt": (_owt, False),
}


def parse(strategy: str) -> tuple[str, tuple[int, int] | None]:
    """Split ``name`` or ``name:AxB`` and check it.

    Raises
    ------
    InputError
        Unknown name (with the nearest), or a missing, malformed or superfluous grid.
    """
    name, _, rest = strategy.partition(":")
    if name not in STRATEGIES:
        raise unknown("strategy", name, STRATEGIES)
    if not STRATEGIES[name][1]:
        if rest:
            raise InputError(f"strategy '{name}' takes no grid; write just '{name}'")
        return name, None
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", rest)
    if match is None:
        raise InputError(f"strategy '{strategy}': '{name}' needs a grid of two whole numbers, as in '{name}:2x4'")
    return name, (int(match[1]), int(match[2]))


def configurations(network: Network, strategy: str, ranks: int, gather: str = "late") -> Configs:
    """The configuration of every layer under a named strategy.

    Raises
    ------
    InputError
        Unknown strategy, or a grid whose product is not `ranks`.
    """
    name, grid = parse(strategy)
    if gather not in GATHERS:
        raise unknown("gather", gather, GATHERS)
    if ranks < 1:
        raise InputError(f"{ranks} ranks: give a whole number of at least 1")
    if grid is not None and grid[0] * grid[1] != ranks:
        fits = ", ".join(f"{name}:{a}x{b}" for a, b in grid_sizes(ranks))
        raise InputError(f"strategy '{strategy}' is for {grid[0] * grid[1]} ranks, not {ranks}; use one of {fits}")
    return STRATEGIES[name][0](network, ranks, grid, gather)


def named(ranks: int) -> list[str]:
    """Every named strategy on this number of ranks, without writing one configuration twice under two names."""
    grids = [(a, b) for a, b in grid_sizes(ranks) if a > 1]
    out = ["data"]
    if ranks == 1:
        return out
    out += ["filter", "spatial", "owt"]
    out += [f"grid:{a}x{b}" for a, b in grids if b > 1]
    out += [f"grid-fc:{a}x{b}" for a, b in grids if b > 1]
    out += [f"domain:{a}x{b}" for a, b in grids]
    out += [f"ds:{b}x{a}" for a, b in grids if b > 1]
    return out
