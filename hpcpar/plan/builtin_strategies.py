"""Entries of the built-in strategies, in the order in which `auto` prices them.

Equations refer to Gholami et al. In a 1.5D grid, Pr parts cut the weights (output channels) or the
image, and Pc parts cut the samples.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hpcpar.errors import InputError
from hpcpar.plan.channel_cuts import channel_split, input_channel_split
from hpcpar.plan.image_cuts import first_images, image_cut
from hpcpar.plan.stages import stages
from hpcpar.plan.strategy import (
    Configs,
    Grid,
    Strategy,
    StrategyOptions,
    StrategyRequest,
    assign,
    grids,
    mixed,
    sections,
    several,
)

#: Most ranks for one weird trick with one FC pass per rank; with more, passes become too short.
MOST_FC_PASSES = 16


# -- options that strategies fix -------------------------------------------------------------------
def _microbatches(ranks: int, batch: int, grid: Grid) -> StrategyOptions:
    """Four micro-batches per stage, which keep GPipe's bubble small."""
    count, stage_ranks = grid or (ranks, 1)
    return {"microbatches": max(1, min(4 * count, batch // stage_ranks)) if count > 1 else 1}


def _fc_passes(switch: str) -> Callable[[int, int, Grid], StrategyOptions]:
    """One FC pass per rank."""
    def options(ranks: int, batch: int, grid: Grid) -> StrategyOptions:
        return {"fc_passes": ranks, "switch": switch} if ranks > 1 else {}

    return options


def _up_to_most_passes(ranks: int) -> list[Grid]:
    return several(ranks) if ranks <= MOST_FC_PASSES else []


# -- entries ---------------------------------------------------------------------------------------
@Strategy("data", "data parallel", "every layer by samples (Eq 4)", grids=lambda ranks: [()])
def data(request: StrategyRequest) -> Configs:
    return assign(request.layers, request.config(n=request.ranks))


@Strategy("filter", "filter parallel", "every layer by output channels (Eq 3; ParaDL)",
          grids=several, cuts=("filters",))
def filters(request: StrategyRequest) -> Configs:
    return channel_split(request, request.layers, request.ranks, 1)


@Strategy("spatial", "spatially parallel",
          "images by rows (and columns), then features by samples (Eq 7; ParaDL)",
          grids=several, needs=("images",), cuts=("pixels",))
def spatial(request: StrategyRequest) -> Configs:
    return data_spatial(request.on_grid(1, request.ranks))


@Strategy("owt", "one weird trick", "convolutions by samples, fully connected layers by channels "
          "(Krizhevsky, scheme a)", grids=several, needs=("images", "features"))
def one_weird_trick(request: StrategyRequest) -> Configs:
    return grid_fc(request.on_grid(request.ranks, 1))


@Strategy("grid:PRxPC", "1.5D grid", "every layer by PR channel parts times PC sample parts (Eq 8)",
          grids=mixed, cuts=("samples", "filters"))
def grid(request: StrategyRequest) -> Configs:
    return channel_split(request, request.layers, *request.grid)


@Strategy("grid-fc:PRxPC", "data parallel with a grid of fully connected layers",
          "convolutions by samples over all ranks, fully connected layers on the grid (Fig 7)",
          grids=mixed, needs=("images", "features"))
def grid_fc(request: StrategyRequest) -> Configs:
    images, features = sections(request.network)
    by_samples = request.config(n=request.ranks)
    configs = assign(images, by_samples) | channel_split(request, features, *request.grid)
    if images and features:
        # flattening moves nothing; the gather comes just before the first linear layer
        configs[features[0].name] = by_samples
    return configs


@Strategy("domain:PRxPC[+PRxPC]", "domain and data parallel",
          "convolutions by PR image parts, fully connected layers by PR channel parts, both times "
          "PC sample parts (Eq 9); a second grid is for the fully connected layers (Fig 10)",
          grids=grids, needs=("images", "features"), cuts=("samples", "pixels"))
def domain(request: StrategyRequest) -> Configs:
    images, features = sections(request.network)
    cut = image_cut(request, *request.grid[:2])
    return assign(images, cut) | channel_split(request, features, *request.grid[-2:])


@Strategy("ds:P1xP2[+L]", "data and spatially parallel",
          "P1 groups of samples, each of P2 image parts (ParaDL's data + spatial); with L, only up "
          "to the L-th convolution, and then every rank of a group has whole images",
          grids=mixed, needs=("images",), cuts=("samples", "pixels"))
def data_spatial(request: StrategyRequest) -> Configs:
    images, features = sections(request.network)
    sample_groups, image_parts, *first = request.grid
    if first:
        images = first_images(request.network, first[0])
        by_group = request.config(n=sample_groups, replicas=image_parts)
        return assign(request.layers, by_group) | assign(
            images, image_cut(request, image_parts, sample_groups, images=images))
    cut = image_cut(request, image_parts, sample_groups)
    return assign(images, cut) | assign(features, request.config(n=request.ranks))


@Strategy("df:P1xP2", "data and filter parallel",
          "P1 groups of samples, each of P2 channel parts (ParaDL's data + filter); as grid, with "
          "the numbers swapped", cuts=("samples", "filters"))
def data_filter(request: StrategyRequest) -> Configs:
    sample_groups, channel_parts = request.grid
    return channel_split(request, request.layers, channel_parts, sample_groups)


@Strategy("channel", "channel parallel",
          "every layer by input channels, partial sums added (ParaDL)",
          grids=several, cuts=("channels",))
def channel(request: StrategyRequest) -> Configs:
    return input_channel_split(request)


Strategy("owt-b", "one weird trick, scheme b", "as owt, with one pass of the fully connected "
         "layers per rank, over that rank's samples", grids=_up_to_most_passes,
         needs=("features",), fixes=_fc_passes("one"))(one_weird_trick)
Strategy("owt-c", "one weird trick, scheme c", "as owt, with one pass of the fully connected "
         "layers per rank, over some samples of every rank", grids=_up_to_most_passes,
         needs=("features",), fixes=_fc_passes("each"))(one_weird_trick)


@Strategy("pipeline[:SxN]", "pipeline parallel",
          "S stages of layers, with micro-batches (GPipe); N ranks per stage (default: one)",
          grids=grids, cuts=("stages",), fixes=_microbatches, outer=False, pipeline=True)
def pipeline(request: StrategyRequest) -> Configs:
    count, stage_ranks = request.grid
    if isinstance(count, np.ndarray) or isinstance(stage_ranks, np.ndarray):
        raise InputError("pipelines are planned one at a time")
    configs = [request.config(n=stage_ranks, first=stage * stage_ranks) for stage in range(count)]
    return {name: configs[stage] for name, stage in stages(request.network, count).items()}
