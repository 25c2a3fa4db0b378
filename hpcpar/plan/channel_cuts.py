"""Configurations that cut output channels, input channels, or either channels or the image."""

from __future__ import annotations

from collections.abc import Collection

from hpcpar.network.layers import Layer
from hpcpar.plan.config import Config
from hpcpar.plan.image_cuts import image_cut
from hpcpar.plan.strategy import Configs, StrategyRequest


def channel_split(request: StrategyRequest, layers: list[Layer], channel_parts: int,
                  sample_parts: int) -> Configs:
    """Cuts layers by output channels and samples.

    A lazy gather leaves activations split between weighted layers. An eager gather replicates
    every activation right after the layer that computes it.
    """
    split = request.config(n=sample_parts, c=channel_parts)
    whole = request.config(n=sample_parts, replicas=channel_parts)
    configs: Configs = {}
    cut = False  # whether the current activations are cut by channels
    for layer in layers:
        weights = layer.has_weights and layer.splits_channels
        if layer.is_matmul or (weights and (cut or request.lazy)):
            cut = cut or layer.is_matmul
            configs[layer.name] = split
        else:
            configs[layer.name] = _between(layer, cut and request.lazy, split, whole)
    return configs


def input_channel_split(request: StrategyRequest) -> Configs:
    """Cuts layers by input channels; ranks add up partial sums.

    The first layer is cut by output channels, because images have few input channels. A lazy
    gather scatters the sums over the channels. An eager gather gives every rank all sums (ParaDL's
    allreduce forward and allgather backward).
    """
    split = request.config(c=request.ranks)
    whole = request.config(replicas=request.ranks)
    partial = request.config(k=request.ranks, scatter=request.lazy)
    configs: Configs = {}
    cut = False  # whether the current activations are cut by channels
    for layer in request.layers:
        if layer.is_matmul:
            reduces = cut and getattr(layer, "groups", 1) == 1
            configs[layer.name] = partial if reduces else split
            cut = True
        else:
            configs[layer.name] = _between(layer, cut and request.lazy, split, whole)
    return configs


def integrated(request: StrategyRequest, by_domain: Collection[str]) -> Configs:
    """Cuts convolutions in `by_domain` by image parts, all other products by channels (Eq 9).

    A layer without a product is cut like the layer before it.
    """
    network, (channel_parts, sample_parts) = request.network, request.grid
    cut = image_cut(request, channel_parts, sample_parts)
    split = request.config(n=sample_parts, c=channel_parts)
    whole = request.config(n=sample_parts, replicas=channel_parts)
    configs: Configs = {}
    for layer in network.layers:
        first = layer if layer.inputs else network.matmul_layers[0]
        before = configs[layer.inputs[0]] if layer.inputs else None
        if first.is_matmul:
            by_image = first.name in by_domain
            configs[layer.name] = cut if by_image else split if layer.inputs else whole
        elif before is cut:
            configs[layer.name] = cut if len(network.shapes[layer.name]) > 1 else whole
        elif layer.has_weights and layer.splits_channels and (request.lazy or before is split):
            configs[layer.name] = split
        else:
            configs[layer.name] = _between(layer, before is split and request.lazy, split, whole)
    return configs


def _between(layer: Layer, keep_split: bool, split: Config, whole: Config) -> Config:
    """Configuration of a layer without weights."""
    return split if keep_split and not layer.gathers_channels else whole
