"""Global tensors for checkpoints: gathered from the ranks' parts, and split into them again."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import numpy as np

from hpcpar.comm.world import World
from hpcpar.kernels.interface import Array
from hpcpar.network.layers import Layer
from hpcpar.plan.layout import shards
from hpcpar.runtime.executor import Executor
from hpcpar.runtime.parameters import Parameters, columns
from hpcpar.schedule.steps import Group
from hpcpar.schedule.weights import gradient_axes
from hpcpar.train.checkpoint import RUNNING


def weights(executor: Executor, world: World) -> Iterator[tuple[str, np.ndarray]]:
    """The global weight, bias and running statistics of every layer, on rank 0.

    All ranks must iterate; the others receive nothing.
    """
    for layer in executor.network.stateful:
        p = executor.parameters[layer.name]
        if layer.has_weights:
            yield from of_layer(executor, world, layer, p.flat)
        for i, name in enumerate(RUNNING if p.buffers is not None else ()):
            buffer = _host(executor, p.buffers[i])
            values = np.empty(executor.network.shapes[layer.name][:1], buffer.dtype)
            for base in _bases(p):
                _receive(world, buffer, base, values[slice(*p.layout.box(base)[0])])
            if world.rank == 0:
                yield f"{layer.name}/{name}", values


def state(executor: Executor, world: World) -> Iterator[tuple[str, np.ndarray]]:
    """The global optimizer state of every layer, on rank 0, as `weights`."""
    for layer in executor.network.weighted:
        p = executor.parameters[layer.name]
        for i, suffix in enumerate(executor.rule.optimizer.state if layer.learns else ()):
            yield from of_layer(executor, world, layer, p.state[i] if p.updates else p.flat[:0],
                                suffix, True)


def _bases(p: Parameters) -> list[int]:
    """The first rank of each set of replicas, one for each block of rows and columns."""
    config = p.layout.config
    c, k = config.mesh_axes["c"], config.mesh_axes["k"]
    return [int(config.first + i * c.stride + j * k.stride)
            for i, j in itertools.product(range(c.size), range(k.size))]


def of_layer(executor: Executor, world: World, layer: Layer, array: Array, suffix: str = "",
             state: bool = False) -> Iterator[tuple[str, np.ndarray]]:
    """The global tensors of a layer's weight and bias, gathered on rank 0.

    Parameters
    ----------
    array : array
        [rows * entries of a row] this rank's part, weights first.
    state : bool
        `array` is optimizer state: this rank has only the shard that it updates.
    """
    p, x = executor.parameters[layer.name], executor.network.input_shape(layer)
    buffer, whole = _host(executor, array), layer.weight_shape(x)
    weight = np.empty(whole, executor.plan.dtype)
    bias = np.empty(layer.bias_shape(x), executor.plan.dtype)
    for base in _bases(p):
        (start, stop), (first, last) = p.layout.box(base)
        lines = np.empty((stop - start, last - first), executor.plan.dtype)
        for owner, (a, b) in _owners(executor, layer, base, state):
            _receive(world, buffer, owner, lines[:, a:b])
        if world.rank == 0:
            box = slice(start, stop), slice(*columns(p.layout, whole, base))
            part = weight[box[:len(whole)]]
            part[...] = lines.reshape(-1)[:part.size].reshape(part.shape)
            if p.has_bias:
                part_of_bias = bias[start:stop]
                part_of_bias[...] = lines.reshape(-1)[part.size:].reshape(part_of_bias.shape)
    if world.rank == 0:
        yield f"{layer.name}/weight{suffix}", weight
        if p.has_bias:
            yield f"{layer.name}/bias{suffix}", bias


def _owners(executor: Executor, layer: Layer, base: int,
            state: bool) -> list[tuple[int, tuple[int, int]]]:
    """The ranks that together hold a block of rows, each with its range of a row's entries."""
    p = executor.parameters[layer.name]
    if p.shard is None or not state:
        (first, last) = p.layout.box(base)[1]
        return [(base, (0, last - first))]
    layout = shards(executor.network, layer, executor.plan.configs[layer.name])
    group = Group(gradient_axes(layer, executor.plan), int(layout.config.first))
    return [(rank, layout.box(rank)[1]) for rank in group.members(base)]


def _receive(world: World, buffer: np.ndarray, owner: int, out: np.ndarray) -> None:
    """Copy the owner's buffer to `out` on rank 0."""
    if world.rank == owner == 0:
        out[...] = buffer.reshape(out.shape)
    elif world.rank == owner:
        world.comm.Send(buffer, dest=0)
    elif world.rank == 0:
        received = np.empty(out.shape, out.dtype)
        world.comm.Recv(received, source=owner)
        out[...] = received


def _host(executor: Executor, array: Array) -> np.ndarray:
    out = np.empty(array.shape, array.dtype)
    executor.backend.to_host(array, out)
    return out


def restore(executor: Executor, p: Parameters, rows: Mapping[str, np.ndarray]) -> None:
    """Copy this rank's rows of a layer, from `checkpoint.resume_rows`, to its parameters."""

    def flat(weight: str, bias: str) -> np.ndarray:
        part = rows[weight]
        part = part if part.ndim < 2 else part[:, slice(*p.columns)]
        return np.concatenate([a.ravel() for a in (part, rows.get(bias)) if a is not None])

    move = executor.backend.to_device
    if "params/weight" in rows:
        move(flat("params/weight", "params/bias"), p.flat)
    for array, suffix in zip(p.state, executor.rule.optimizer.state, strict=False):
        if f"optimizer/weight{suffix}" in rows:
            whole = flat(f"optimizer/weight{suffix}", f"optimizer/bias{suffix}")
            move(np.ascontiguousarray(p.updated(whole)), array)
    if p.buffers is not None:
        move(np.stack([rows[f"params/{name}"] for name in RUNNING]), p.buffers)
