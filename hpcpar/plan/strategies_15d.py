"""The 1.5D product strategies: a Pr x Pc grid of ranks (Gholami et al., Eq 8 and 9).

Pr parts cut the weights (output channels) or the image, Pc parts cut the samples. ``grid`` puts
every layer on the grid (Eq 8). ``grid-fc`` keeps convolutions data-parallel and puts the fully
connected layers on the grid (Fig 7). ``domain`` cuts convolutions by Pr parts of the image and
fully connected layers by Pr channel parts (Eq 9).

Krizhevsky's "one weird trick" is ``grid-fc`` on the grid P x 1. ParaDL's filter strategy is
``grid`` on P x 1, its data + filter strategy is ``grid`` with the two numbers exchanged.
"""

from __future__ import annotations

from collections.abc import Collection

from hpcpar.network.layers import Layer
from hpcpar.plan.config import Config, Ints
from hpcpar.plan.image_cuts import image_degrees
from hpcpar.plan.strategy_request import Configs, StrategyRequest, assign, sections


def grid(request: StrategyRequest) -> Configs:
    """Every layer by Pr channel parts times Pc sample parts (Eq 8)."""
    return channel_split(request, request.layers, *request.grid)


def grid_fc(request: StrategyRequest) -> Configs:
    """Convolutions by samples over all ranks, fully connected layers on the grid (Fig 7)."""
    images, features = sections(request.network)
    by_samples = request.config(n=request.ranks)
    configs = assign(images, by_samples) | channel_split(request, features, *request.grid)
    if images and features:
        # flattening moves nothing: the gather happens in front of the first linear layer
        configs[features[0].name] = by_samples
    return configs


def domain(request: StrategyRequest) -> Configs:
    """Convolutions by image parts, fully connected layers by channels, both by samples (Eq 9)."""
    images, features = sections(request.network)
    cut = _image_cut(request)
    return assign(images, cut) | channel_split(request, features, *request.grid[-2:])


def integrated(request: StrategyRequest, by_domain: Collection[str]) -> Configs:
    """Convolutions in `by_domain` by image parts, all other products by channels (Eq 9).

    A layer without a product is cut as the layer before it.
    """
    network, cut = request.network, _image_cut(request)
    channel_parts, sample_parts = request.grid
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
        elif layer.has_weights and (request.lazy or before is split):
            configs[layer.name] = split
        else:
            configs[layer.name] = _between(layer, before is split and request.lazy, split, whole)
    return configs


def _image_cut(request: StrategyRequest) -> Config:
    """Image parts times sample parts."""
    image_parts, sample_parts = request.grid[:2]
    return request.config(n=sample_parts, **image_degrees(request.network, image_parts))


def filters(request: StrategyRequest) -> Configs:
    """Every layer by output channels (Eq 3; ParaDL's filter)."""
    return channel_split(request, request.layers, request.ranks, 1)


def data_filter(request: StrategyRequest) -> Configs:
    """P1 groups of samples, each of P2 channel parts (ParaDL's data + filter)."""
    sample_groups, channel_parts = request.grid
    return channel_split(request, request.layers, channel_parts, sample_groups)


def one_weird_trick(request: StrategyRequest) -> Configs:
    """Convolutions by samples, fully connected layers by channels (Krizhevsky 2014)."""
    return grid_fc(request.on_grid(request.ranks, 1))


def channel_split(request: StrategyRequest, layers: list[Layer], channel_parts: Ints,
                  sample_parts: Ints) -> Configs:
    """Cuts layers by output channels and samples.

    A lazy gather leaves activations split between weighted layers. An eager gather replicates
    every activation right after the layer that computes it.
    """
    split = request.config(n=sample_parts, c=channel_parts)
    whole = request.config(n=sample_parts, replicas=channel_parts)
    configs: Configs = {}
    cut = False  # the activations so far are cut by channels
    for layer in layers:
        if layer.is_matmul or (layer.has_weights and (cut or request.lazy)):
            cut = cut or layer.is_matmul
            configs[layer.name] = split
        else:
            configs[layer.name] = _between(layer, cut and request.lazy, split, whole)
    return configs


def _between(layer: Layer, keep_split: bool, split: Config, whole: Config) -> Config:
    """Configuration of a layer without weights."""
    return split if keep_split and not layer.gathers_channels else whole
