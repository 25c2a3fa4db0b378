"""Pipeline stages: contiguous runs of layers, balanced by work."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from hpcpar.errors import InputError
from hpcpar.network.graph import Network

#: Flops in the time of moving one activation: memory bandwidth limits layers without products.
FLOPS_PER_ITEM = 30.0


def cuts(network: Network) -> list[int]:
    """Positions in the list of layers where a stage may start or end, both ends included.

    Exactly one tensor crosses an inner position. The input stays with the layer that reads it, and
    the loss with the layer before it.
    """
    place = {layer.name: i for i, layer in enumerate(network.layers)}
    until = [max((place[c] for c in network.consumers[layer.name]), default=i)
             for i, layer in enumerate(network.layers)]
    inner = [at for at in range(2, len(network.layers) - 1)
             if sum(until[i] >= at for i in range(at)) == 1]
    return [0, *inner, len(network.layers)]


def work(network: Network) -> list[float]:
    """Estimated work of each layer for one sample (flops)."""
    return [max(layer.forward_flops(network.input_shape(layer)),
                FLOPS_PER_ITEM * math.prod(network.shapes[layer.name])) if layer.inputs else 0.0
            for layer in network.layers]


def stages(network: Network, count: int,
           per_layer: Sequence[float] | None = None) -> dict[str, int]:
    """Stage of every layer, by dynamic programming; the largest stage is as small as possible.

    Parameters
    ----------
    per_layer : sequence of float, optional
        Work of each layer, in any unit; by default, the estimate of `work`.

    Raises
    ------
    InputError
        The network cannot be cut into `count` stages.
    """
    per_layer = work(network) if per_layer is None else per_layer
    at = cuts(network)
    work_until = _work_until(at, per_layer)
    if count >= len(at):
        blocks = len(at) - 1
        raise InputError(f"network '{network.name}' can be cut into at most {blocks} stages, not "
                         f"{count}; use fewer, as in pipeline:{blocks}xN with N ranks per stage")
    stage_of: dict[str, int] = {}
    for stage, (first, last) in enumerate(_balanced(work_until, count)):
        for layer in network.layers[at[first]:at[last]]:
            stage_of[layer.name] = stage
    return stage_of


def longest(at: Sequence[int], count: int, per_layer: Sequence[float]) -> float:
    """Work of the largest of `count` balanced stages; `at` are the `cuts`."""
    work_until = _work_until(at, per_layer)
    return max(work_until[last] - work_until[first] for first, last in _balanced(work_until, count))


def _work_until(at: Sequence[int], per_layer: Sequence[float]) -> list[float]:
    """Work of all layers before each cut."""
    layers_until = [0.0, *itertools.accumulate(per_layer)]
    return [layers_until[place] for place in at]


def _balanced(work_until: list[float], count: int) -> list[tuple[int, int]]:
    """First block and end of each of `count` runs of blocks that minimize the largest run.

    Parameters
    ----------
    work_until : list of float
        Work of the first j blocks, for every j from 0.
    """
    blocks = len(work_until) - 1
    # best[j] for the first j blocks in s + 1 runs: work of the largest run, start of the last run
    best = [(until, 0) for until in work_until]
    starts = [[0] * (blocks + 1)]
    for s in range(1, count):
        new: list[tuple[float, int]] = [(math.inf, 0)] * (blocks + 1)
        for j in range(s + 1, blocks + 1):
            new[j] = min((max(best[i][0], work_until[j] - work_until[i]), i) for i in range(s, j))
        best = new
        starts.append([i for _, i in new])
    runs: list[tuple[int, int]] = []
    end = blocks
    for s in reversed(range(count)):
        runs.append((starts[s][end], end))
        end = starts[s][end]
    return runs[::-1]
