"""A module's tensors, by its own names, and the parts of them that a rank holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hpcpar.comm.world import World
from hpcpar.errors import InputError
from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer, Shape
from hpcpar.network.read.torch_module import TracedModule
from hpcpar.runtime.executor import Executor
from hpcpar.train import global_tensors
from hpcpar.train.checkpoint import RUNNING

#: Running statistics of a module, in the order of `RUNNING`.
STATISTICS = ("running_mean", "running_var")


@dataclass(frozen=True)
class TensorPlace:
    """Where a tensor of a module lives: a layer's ``weight``, ``bias``, or one of `RUNNING`.

    Attributes
    ----------
    shape : tuple of int
        In the module.
    """

    layer: Layer
    what: str
    shape: Shape


def places(module: nn.Module, traced: TracedModule) -> dict[str, TensorPlace]:
    """The place of every tensor that the schedule reads, by the module's names.

    Raises
    ------
    InputError
        A weight is computed from other parameters.
    """
    stored_here = module.state_dict(keep_vars=True)
    shapes = {name: tuple(t.shape) for name, t in stored_here.items()}
    found: dict[str, TensorPlace] = {}
    for layer in traced.network.stateful:
        stored = traced.network.origins.get(layer.name, ())
        prefix = stored[0].rpartition(".")[0] if stored else layer.name
        x = traced.network.input_shape(layer)
        whats = ["weight", "bias"] if layer.bias_shape(x) else ["weight"] * layer.has_weights
        if "" in stored or len(stored) != len(whats):
            raise InputError(f"layer '{layer.name}': the module stores its weights in another form "
                             "(weight_norm computes them, a plain product has them transposed); "
                             "use a layer of torch.nn")
        parts = [*zip(stored, whats, strict=True)]
        if layer.buffers(x):
            parts += [(f"{prefix}.{theirs}", ours)
                      for theirs, ours in zip(STATISTICS, RUNNING, strict=True)]
        for name, what in parts:
            if name not in shapes or np.prod(shapes[name]) != np.prod(_whole(traced.network, layer,
                                                                             what)):
                raise InputError(f"layer '{layer.name}': its {what} is computed from '{name}'; "
                                 "store it as a parameter of the module")
            found[name] = TensorPlace(layer, what, shapes[name])
    first = {stored_here[name]: place for name, place in found.items()}  # by identity
    return {name: first[t] for name, t in stored_here.items() if t in first}


def _whole(network: Network, layer: Layer, what: str) -> Shape:
    """Shape of a whole tensor of a layer in checkpoints."""
    x = network.input_shape(layer)
    if what in RUNNING:
        return network.shapes[layer.name][:1]
    return layer.weight_shape(x) if what == "weight" else layer.bias_shape(x)


def to_ours(network: Network, place: TensorPlace, value: NDArray[Any]) -> NDArray[Any]:
    """A module's tensor in the shape that checkpoints have."""
    value = place.layer.exchanged(value) if place.what == "weight" else value
    return value.reshape(_whole(network, place.layer, place.what))


def to_theirs(place: TensorPlace, value: NDArray[Any]) -> NDArray[Any]:
    """A tensor of a checkpoint in the module's shape."""
    value = place.layer.exchanged(value) if place.what == "weight" else value
    return value.reshape(place.shape)


def own_parts(executor: Executor, found: Mapping[str, TensorPlace]) -> Iterator[
        tuple[str, Tensor, Tensor, bool]]:
    """The name of every weight and bias, this rank's part of it and its gradient, which share the
    executor's memory, and whether it counts (of equal parts, one rank's does).
    """
    seen: set[TensorPlace] = set()
    for name, place in found.items():
        if place.what in RUNNING or place in seen:  # another name of it
            continue
        seen.add(place)
        p = executor.parameters[place.layer.name]
        which = 0 if place.what == "weight" else 1
        value, gradient = p.split(p.flat)[which], p.split(p.grad)[which]
        first = p.layout.holds(executor.rank) and p.layout.replica(executor.rank) == 0
        k = p.layout.config.coordinate("k", executor.rank) if first and which else 0
        yield name, torch.from_numpy(value), torch.from_numpy(gradient), bool(first and not k)


def whole(executor: Executor, world: World, found: Mapping[str, TensorPlace]) -> dict[str, Tensor]:
    """All tensors of the module, on every rank; all ranks must call it."""
    values = dict(global_tensors.weights(executor, world))
    out = {}
    for name, place in found.items():
        mine = values.get(f"{place.layer.name}/{place.what}")
        shape = _whole(executor.network, place.layer, place.what)
        dtype = np.float64 if mine is None else mine.dtype
        value = world.bcast_array(mine, shape, world.bcast(dtype))
        out[name] = torch.from_numpy(np.ascontiguousarray(to_theirs(place, value)))
    return out


def own_part(executor: Executor, place: TensorPlace, whole: Tensor) -> NDArray[Any]:
    """This rank's part of a whole tensor, or of one that goes with it (an optimizer's state)."""
    p = executor.parameters[place.layer.name]
    rows = to_ours(executor.network, place, whole.detach().cpu().numpy())[p.start:p.stop]
    return rows[:, slice(*p.columns)] if place.what == "weight" and rows.ndim > 1 else rows


def put(executor: Executor, found: Mapping[str, TensorPlace], given: Mapping[str, Tensor]) -> None:
    """Puts this rank's parts of whole tensors in place."""
    for name in found.keys() & given.keys():
        place, p = found[name], executor.parameters[found[name].layer.name]
        part = own_part(executor, place, given[name])
        if place.what in RUNNING:
            p.buffers[RUNNING.index(place.what)] = part
        else:
            p.backend.to_device(part, p.split(p.flat)[place.what == "bias"])
