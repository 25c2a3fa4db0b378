"""Global tensors from the ranks that own their parts, for checkpoints, and a rank's parts from
global tensors.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from hpcpar.comm.world import World
from hpcpar.kernels.interface import Array
from hpcpar.network.layers import Layer
from hpcpar.plan.layout import shards
from hpcpar.runtime.executor import Executor
from hpcpar.runtime.parameters import Parameters, columns
from hpcpar.schedule.steps import Group
from hpcpar.schedule.weights import gradient_axes
from hpcpar.train.checkpoint import RUNNING, STATES, ParameterRows


def weights(executor: Executor, world: World) -> Iterator[tuple[str, np.ndarray]]:
    """Every layer's global weight and bias, and running statistics, on rank 0; nothing on the
    others, which must also run through it.
    """
    for layer in executor.network.weighted:
        p = executor.parameters[layer.name]
        yield from _layer(executor, world, layer, p.flat, ("weight", "bias"))
        if p.buffers is not None:
            for which, name in enumerate(RUNNING):
                found = _rows(executor, world, layer, p.buffers[which])
                if found is not None:
                    yield f"{layer.name}/{name}", found


def state(executor: Executor, world: World) -> Iterator[tuple[str, np.ndarray]]:
    """The optimiser's state of every layer, likewise."""
    for layer in executor.network.weighted:
        p = executor.parameters[layer.name]
        for i, suffix in enumerate(STATES[: executor.rule.states]):
            yield from _layer(executor, world, layer, p.state[i] if p.updates else p.flat[:0],
                              (f"weight{suffix}", f"bias{suffix}"), True)


def _bases(p: Parameters) -> list[int]:
    """The first rank of each that holds the same rows and columns."""
    config = p.layout.config
    c, k = config.mesh_axes["c"], config.mesh_axes["k"]
    return [int(config.first + i * c.stride + j * k.stride)
            for i, j in itertools.product(range(c.size), range(k.size))]


def _layer(
    executor: Executor, world: World, layer: Layer, array: Array, names: tuple[str, str],
    state: bool = False,
) -> Iterator[tuple[str, np.ndarray]]:
    p, x = executor.parameters[layer.name], executor.network.input_shape(layer)
    buffer = _host(executor, array)
    whole = layer.weight_shape(x)
    weight = np.empty(whole, executor.plan.dtype) if world.rank == 0 else None
    bias = np.empty(layer.bias_shape(x),
                    executor.plan.dtype) if world.rank == 0 and p.has_bias else None
    for base in _bases(p):
        (start, stop), (first, last) = p.layout.box(base)
        if start == stop:
            continue
        flat = np.empty((stop - start) * (last - first),
                        executor.plan.dtype) if world.rank == 0 else None
        lines = None if flat is None else flat.reshape(stop - start, last - first)
        for owner, (a, b) in _owners(executor, layer, base, state):
            found = _sent(world, buffer, owner, (stop - start, b - a))
            if lines is not None and found is not None:
                lines[:, a:b] = found
        if weight is not None and flat is not None:
            place = columns(p.layout, whole, base)
            count = stop - start
            if len(whole) < 2:
                weight[start:stop] = flat[:count]
            else:
                part = weight[start:stop, place[0]:place[1]]
                count = part.size
                part[...] = flat[:count].reshape(part.shape)
            if bias is not None:
                bias[start:stop] = flat[count:]
    for name, tensor in zip(names, (weight, bias), strict=True):
        if tensor is not None:
            yield f"{layer.name}/{name}", tensor


def _owners(executor: Executor, layer: Layer, base: int,
            state: bool) -> list[tuple[int, tuple[int, int]]]:
    """Ranks that together hold rows, each with its entries of a row (its shard of the state, or
    all).
    """
    p = executor.parameters[layer.name]
    if p.shard is None or not state:
        (first, last) = p.layout.box(base)[1]
        return [(base, (0, last - first))]
    layout = shards(executor.network, layer, executor.plan.configs[layer.name])
    group = Group(gradient_axes(layer, executor.plan), int(layout.config.first))
    return [(rank, layout.box(rank)[1]) for rank in group.members(base)]


def _sent(world: World, buffer: np.ndarray, owner: int,
          shape: tuple[int, int]) -> np.ndarray | None:
    """An owner's buffer on rank 0."""
    if owner == 0:
        return buffer.reshape(shape) if world.rank == 0 else None
    if world.rank == owner:
        world.comm.Send(buffer, dest=0)
    if world.rank:
        return None
    out = np.empty(shape, buffer.dtype)
    world.comm.Recv(out, source=owner)
    return out


def _rows(executor: Executor, world: World, layer: Layer, array: Array) -> np.ndarray | None:
    """A value for each channel, from the ranks that hold the channels."""
    p, buffer = executor.parameters[layer.name], _host(executor, array)
    out = np.empty(layer.weight_shape(executor.network.input_shape(layer))[0], buffer.dtype)
    for base in _bases(p):
        start, stop = p.layout.box(base)[0]
        if stop > start:
            found = _sent(world, buffer, base, (1, stop - start))
            if found is not None:
                out[start:stop] = found[0]
    return out if world.rank == 0 else None


def _host(executor: Executor, array: Array) -> np.ndarray:
    out = np.empty(array.shape, array.dtype)
    executor.backend.to_host(array, out)
    return out


def restore(executor: Executor, p: Parameters, rows: ParameterRows) -> None:
    """Put this rank's part of a layer's rows in place."""
    move, dtype = executor.backend.to_device, executor.plan.dtype

    def flat(weight: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
        part = weight if weight.ndim < 2 else weight[:, slice(*p.columns)]
        return np.concatenate([part.ravel(), np.zeros(0, dtype) if bias is None
                               else bias]).astype(dtype)

    move(flat(rows.weight, rows.bias), p.flat)
    for array, (weight, bias) in zip(p.state, rows.state, strict=False):
        if weight is not None:
            move(np.ascontiguousarray(p.updated(flat(weight, bias))), array)
    if p.buffers is not None and rows.running is not None:
        move(rows.running, p.buffers)
