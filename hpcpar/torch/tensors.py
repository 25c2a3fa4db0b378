"""A module's tensors by name, and a rank's parts of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hpcpar.comm.world import World
from hpcpar.errors import InputError
from hpcpar.kernels.interface import Array
from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer, Shape
from hpcpar.network.read.torch_module import TracedModule
from hpcpar.runtime.executor import Executor
from hpcpar.runtime.parameters import Parameters
from hpcpar.train import global_tensors
from hpcpar.train.checkpoint import RUNNING

#: Running statistics of a module, in the order of `RUNNING`.
STATISTICS = ("running_mean", "running_var")


@dataclass(frozen=True)
class TensorPlace:
    """The place of a module's tensor: a layer's ``weight``, ``bias``, or one of `RUNNING`.

    `shape` is the shape in the module. `first` is its place in a weight that holds several tensors,
    else None; there, a complex tensor is a row of pairs of reals.
    """

    layer: Layer
    what: str
    shape: Shape
    first: int | None = None
    is_complex: bool = False


def places(module: nn.Module, traced: TracedModule) -> dict[str, TensorPlace]:
    """Name in the module -> place, for every tensor that the schedule reads.

    Raises
    ------
    InputError
        The module computes a weight from other parameters.
    """
    state = module.state_dict(keep_vars=True)
    shapes = {name: tuple(t.shape) for name, t in state.items()}
    by_name: dict[str, TensorPlace] = {}
    for layer in traced.network.stateful:
        stored = traced.network.origins.get(layer.name, ())
        if layer.whole_samples:  # one vector of all
            first = 0
            for name in stored:
                pairs = state[name].is_complex()
                by_name[name] = TensorPlace(layer, "weight", shapes[name], first, pairs)
                first += state[name].numel() * (1 + pairs)
            continue
        prefix = stored[0].rpartition(".")[0] if stored else layer.name
        x = traced.network.input_shape(layer)
        whats = ["weight", "bias"] if layer.bias_shape(x) else ["weight"] * layer.has_weights
        if "" in stored or len(stored) != len(whats):
            raise InputError(f"layer '{layer.name}': the module stores its weights in another form "
                             "(weight_norm computes them, a plain product transposes them); use a "
                             "layer of torch.nn")
        parts = [*zip(stored, whats, strict=True)]
        if layer.buffers(x):
            parts += [(f"{prefix}.{statistic}", what)
                      for statistic, what in zip(STATISTICS, RUNNING, strict=True)]
        for name, what in parts:
            if what in RUNNING and (name not in shapes or any(
                    state[name] is state[other] for other in by_name)):
                raise InputError(f"layer '{layer.name}' has no {what} of its own: a normalization "
                                 "without weights that is called twice keeps one for both; call "
                                 "two modules, or give it weights (affine=True)")
            expected = whole_shape(traced.network, layer, what)
            if name not in shapes or np.prod(shapes[name]) != np.prod(expected):
                raise InputError(f"layer '{layer.name}': the module computes its {what} from "
                                 f"'{name}'; store it as a parameter of the module")
            by_name[name] = TensorPlace(layer, what, shapes[name])
    by_tensor = {state[name]: place for name, place in by_name.items()}  # tied ones are one key
    return {name: by_tensor[t] for name, t in state.items() if t in by_tensor}


def whole_shape(network: Network, layer: Layer, what: str) -> Shape:
    """Shape of a layer's whole tensor in checkpoints."""
    x = network.input_shape(layer)
    if what in RUNNING:
        return network.shapes[layer.name][:1]
    return layer.weight_shape(x) if what == "weight" else layer.bias_shape(x)


def to_ours(network: Network, place: TensorPlace, value: NDArray[Any]) -> NDArray[Any]:
    """A module's tensor in the shape of checkpoints."""
    if place.first is not None:
        return np.ascontiguousarray(value).view(value.real.dtype).reshape(1, -1)
    value = place.layer.exchanged(value) if place.what == "weight" else value
    return value.reshape(whole_shape(network, place.layer, place.what))


def to_theirs(place: TensorPlace, value: NDArray[Any]) -> NDArray[Any]:
    """A checkpoint's tensor in the module's shape."""
    if place.first is not None:
        return _part(place, value).reshape(place.shape)
    value = place.layer.exchanged(value) if place.what == "weight" else value
    return value.reshape(place.shape)


def _part(place: TensorPlace, value: Array) -> Array:
    """The values of a tensor in a weight that holds several."""
    first, count = place.first or 0, int(np.prod(place.shape, dtype=int))
    part = value.reshape(-1)[first:first + count * (1 + place.is_complex)]
    return part.view(f"c{2 * part.itemsize}") if place.is_complex else part


def held(p: Parameters, place: TensorPlace, flat: Array) -> Array:
    """This rank's part of a weight or bias in a flat buffer."""
    value = p.split(flat)[place.what == "bias"]
    if place.first is None:
        return value
    part = _part(place, value)
    fits = part.size == np.prod(place.shape, dtype=int)
    return part.reshape(place.shape if fits else (0, *place.shape[1:]))


def own_parts(executor: Executor, by_name: Mapping[str, TensorPlace],
              to_torch: Callable[[Array], Tensor]
              ) -> Iterator[tuple[str, Tensor, Tensor | None, bool]]:
    """Name, value, gradient (None without training) and whether it counts, for this rank's part of
    each weight and bias.

    Value and gradient share the executor's memory. Among ranks with equal parts, only one counts.
    """
    seen: set[TensorPlace] = set()
    for name, place in by_name.items():
        if place.what in RUNNING or place in seen:  # a second name of a tied tensor
            continue
        seen.add(place)
        p = executor.parameters[place.layer.name]
        value = to_torch(held(p, place, p.flat))
        gradient = None if p.grad is None else to_torch(held(p, place, p.grad))
        first = p.layout.holds(executor.rank) and p.layout.replica(executor.rank) == 0
        k = p.layout.config.coordinate("k", executor.rank) if (
            first and place.what == "bias") else 0
        yield name, value, gradient, bool(first and not k)


def own_statistics(executor: Executor, by_name: Mapping[str, TensorPlace],
                   to_torch: Callable[[Array], Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Name and value of this rank's part of each running statistic, in the executor's memory."""
    for name, place in by_name.items():
        if place.what in RUNNING:
            buffers = executor.parameters[place.layer.name].buffers
            yield name, to_torch(buffers[RUNNING.index(place.what)])


def whole(executor: Executor, world: World, by_name: Mapping[str, TensorPlace]
          ) -> dict[str, Tensor]:
    """All whole tensors of the module, on every rank; all ranks call it together."""
    values = dict(global_tensors.weights(executor, world))
    out = {}
    for name, place in by_name.items():
        gathered = values.get(f"{place.layer.name}/{place.what}")
        shape = whole_shape(executor.network, place.layer, place.what)
        dtype = np.float64 if gathered is None else gathered.dtype
        value = world.bcast_array(gathered, shape, world.bcast(dtype))
        out[name] = torch.from_numpy(np.ascontiguousarray(to_theirs(place, value)))
    return out


def from_first(world: World, tensor: Tensor) -> Tensor:
    """Rank 0's tensor, on every rank."""
    array = tensor.detach().cpu().numpy()
    return torch.from_numpy(world.bcast_array(array, array.shape, array.dtype)).reshape(array.shape)


def differences(shapes: Mapping[str, Shape],
                given: Mapping[str, Any]) -> tuple[list[str], list[str], list[str]]:
    """Names of tensors that are missing, are unknown, or have a different shape."""
    return ([name for name in shapes if name not in given],
            [name for name in given if name not in shapes],
            [name for name, shape in shapes.items()
             if name in given and tuple(given[name].shape) != shape])


def own_part(executor: Executor, place: TensorPlace, whole: Tensor) -> NDArray[Any]:
    """This rank's part of a whole tensor, or of its optimizer state."""
    p = executor.parameters[place.layer.name]
    if place.first is not None:
        part = whole.detach().cpu().numpy()
        return part if p.flat.size else np.empty((0, *place.shape[1:]), part.dtype)
    rows = to_ours(executor.network, place, whole.detach().cpu().numpy())[p.start:p.stop]
    return rows[:, slice(*p.columns)] if place.what == "weight" and rows.ndim > 1 else rows


def put(executor: Executor, by_name: Mapping[str, TensorPlace],
        wholes: Mapping[str, Tensor]) -> None:
    """Copy this rank's parts of whole tensors into the executor."""
    for name in by_name.keys() & wholes.keys():
        place, p = by_name[name], executor.parameters[by_name[name].layer.name]
        part = own_part(executor, place, wholes[name])
        if place.what in RUNNING:
            p.backend.to_device(part, p.buffers[RUNNING.index(place.what)])
        else:
            p.backend.to_device(part, held(p, place, p.flat))
