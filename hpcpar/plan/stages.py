"""Cutting a network into contiguous stages of nearly equal work, for pipelines."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from hpcpar.errors import InputError
from hpcpar.network.graph import Network

#: Flops that take as long as moving one activation, on today's devices: layers without products are
#: bound by memory.
FLOPS_PER_ITEM = 30.0


def cuts(network: Network) -> list[int]:
    """Positions in the order of layers where a single tensor crosses, ends included: stage
    boundaries.
    """
    place = {layer.name: i for i, layer in enumerate(network.layers)}
    until = [max((place[c] for c in network.consumers[layer.name]), default=i)
             for i, layer in enumerate(network.layers)]
    # the input stays with the layer that reads it, the loss with the layer before it
    inner = [at for at in range(2, len(network.layers) - 1)
             if sum(until[i] >= at for i in range(at)) == 1]
    return [0, *inner, len(network.layers)]


def work(network: Network) -> list[float]:
    """Estimated work of each layer for one sample, in flops."""
    out = []
    for layer in network.layers:
        items = math.prod(network.shapes[layer.name]) if layer.inputs else 0
        out.append(max(layer.forward_flops(network.input_shape(layer)), FLOPS_PER_ITEM * items)
                   if layer.inputs else 0.0)
    return out


def stages(network: Network, count: int, per_layer: Sequence[float] | None = None) -> dict[str, int]:
    """Stage of every layer, such that the largest stage is as small as can be (dynamic programming
    over the cuts).

    Parameters
    ----------
    per_layer : sequence of float, optional
        Work of each layer, in any unit; else it is estimated, without a machine.

    Raises
    ------
    InputError
        More stages than places to cut.
    """
    at = cuts(network)
    blocks = len(at) - 1
    if count > blocks:
        raise InputError(f"network '{network.name}' can be cut into at most {blocks} stages, not {count}; use fewer, as in "
                         f"pipeline:{blocks}xN with N ranks a stage")
    total = [0.0]
    per_layer = work(network) if per_layer is None else per_layer
    for a, b in itertools.pairwise(at):
        total.append(total[-1] + sum(per_layer[a:b]))
    # best[j]: (largest stage, where the last stage begins) of the first j blocks, for one more
    # stage in every round
    best = [(total[j], 0) for j in range(blocks + 1)]
    starts = [[0] * (blocks + 1)]
    for s in range(1, count):
        new: list[tuple[float, int]] = [(math.inf, 0)] * (blocks + 1)
        for j in range(s + 1, blocks + 1):
            new[j] = min((max(best[i][0], total[j] - total[i]), i) for i in range(s, j))
        best = new
        starts.append([i for _, i in new])
    out: dict[str, int] = {}
    end = blocks
    for s in reversed(range(count)):
        begin = starts[s][end]
        for layer in network.layers[at[begin]:at[end]]:
            out[layer.name] = s
        end = begin
    return out
