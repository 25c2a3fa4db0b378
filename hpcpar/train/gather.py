"""Global weights from the ranks that own their rows, for checkpoints."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hpcpar.comm.world import World
from hpcpar.kernels.interface import Array
from hpcpar.plan.layout import parameters
from hpcpar.train.executor import Executor


def tensors(executor: Executor, world: World, name: str) -> Iterator[tuple[str, np.ndarray]]:
    """Every layer's global weight and bias on rank 0, one layer at a time; nothing on the others, which must also run through it.

    Parameters
    ----------
    name : {'flat', 'velocity'}
        Which buffer of `Parameters`.
    """
    network, plan = executor.network, executor.plan
    for layer in network.weighted:
        local = executor.parameters[layer.name]
        layout = parameters(network, layer, plan.configs[layer.name])
        degree = plan.configs[layer.name].c
        stride = plan.configs[layer.name].digits["c"].stride
        buffer = _host(executor, getattr(local, name))
        x = network.input_shape(layer)
        weight = np.empty(layer.weight_shape(x), plan.dtype) if world.rank == 0 else None
        bias = np.empty(layer.bias_shape(x), plan.dtype) if world.rank == 0 and local.has_bias else None
        for part in range(degree):
            owner = part * stride  # the first rank that owns these rows; others hold the same bits
            rows = layout.box(owner)[0]
            if rows[0] == rows[1]:
                continue
            if world.rank == owner and owner != 0:
                world.comm.Send(buffer, dest=0)
            if weight is not None:
                per_row = weight[0].size
                if owner == 0:
                    flat = buffer
                else:
                    flat = np.empty((rows[1] - rows[0]) * (per_row + (bias is not None)), plan.dtype)
                    world.comm.Recv(flat, source=owner)
                count = (rows[1] - rows[0]) * per_row
                weight[rows[0]:rows[1]] = flat[:count].reshape(-1, *weight.shape[1:])
                if bias is not None:
                    bias[rows[0]:rows[1]] = flat[count:]
        if weight is not None:
            yield f"{layer.name}/weight", weight
            if bias is not None:
                yield f"{layer.name}/bias", bias


def _host(executor: Executor, array: Array) -> np.ndarray:
    out = np.empty(array.shape, array.dtype)
    executor.backend.to_host(array, out)
    return out
