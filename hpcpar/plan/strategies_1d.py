"""Strategies that cut every layer along one kind of axis (ParaDL), and data + spatial.

Those that cut output channels are in `hpcpar.plan.strategies_15d`: they are grids with one row or
one column.
"""

from __future__ import annotations

import numpy as np

from hpcpar.errors import InputError
from hpcpar.plan.image_cuts import image_degrees
from hpcpar.plan.stages import stages
from hpcpar.plan.strategy_request import Configs, StrategyRequest, assign, sections


def data(request: StrategyRequest) -> Configs:
    """Every layer by samples (Eq 4)."""
    return assign(request.layers, request.config(n=request.ranks))


def channel(request: StrategyRequest) -> Configs:
    """Every layer by input channels, with partial sums added (ParaDL's channel).

    The first layer is cut by output channels, because images have few input channels. A lazy
    gather scatters the sums over the channels. An eager gather gives all of them to every rank
    (ParaDL's allreduce forward and allgather backward).
    """
    split = request.config(c=request.ranks)
    whole = request.config(replicas=request.ranks)
    partial = request.config(k=request.ranks, scatter=request.lazy)
    configs: Configs = {}
    cut = False  # the activations so far are cut by channels
    for layer in request.layers:
        if layer.is_matmul:
            reduces = cut and getattr(layer, "groups", 1) == 1
            configs[layer.name] = partial if reduces else split
            cut = True
        elif not cut or layer.gathers_channels:
            configs[layer.name] = whole
        else:
            configs[layer.name] = split if request.lazy else whole
    return configs


def data_spatial(request: StrategyRequest) -> Configs:
    """P1 groups of samples, each of P2 image parts; then features by samples (ParaDL)."""
    images, features = sections(request.network)
    sample_groups, image_parts = request.grid
    cut = request.config(n=sample_groups, **image_degrees(request.network, image_parts))
    return assign(images, cut) | assign(features, request.config(n=request.ranks))


def spatial(request: StrategyRequest) -> Configs:
    """Images by rows (and columns), then features by samples (Eq 7; ParaDL's spatial)."""
    return data_spatial(request.on_grid(1, request.ranks))


def pipeline(request: StrategyRequest) -> Configs:
    """Contiguous stages of layers (ParaDL's pipeline, GPipe), each data-parallel on its ranks."""
    count, stage_ranks = request.grid
    if isinstance(count, np.ndarray) or isinstance(stage_ranks, np.ndarray):
        raise InputError("pipelines are planned one at a time")
    of_stage = [request.config(n=stage_ranks, first=stage * stage_ranks) for stage in range(count)]
    return {name: of_stage[stage] for name, stage in stages(request.network, count).items()}
