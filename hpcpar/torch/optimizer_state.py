"""The state of PyTorch's optimizers with whole tensors, for any plan and number of ranks."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from hpcpar.errors import InputError
from hpcpar.torch.model import ParallelModule
from hpcpar.torch.tensors import TensorPlace, own_part, to_theirs
from hpcpar.train import global_tensors


def optimizer_state_dict(model: ParallelModule, optimizer: Optimizer) -> dict[str, Any]:
    """``optimizer.state_dict()`` with whole tensors in place of this rank's parts, the same on
    every rank under any plan; all ranks call it.

    Raises
    ------
    InputError
        On every rank: the optimizer keeps tensors that are cut otherwise than its parameters.
    """
    found = copy.copy(optimizer.state_dict())
    state = found["state"] = {number: dict(kept) for number, kept in found["state"].items()}
    numbers, keys = _numbers(model, optimizer), _keys(model, optimizer)
    layers: dict[str, dict[str, str]] = {}
    for name in numbers:
        place = model.tensor_places[name]
        layers.setdefault(place.layer.name, {})[place.what] = name
    for names in layers.values():
        for key in keys:
            for name, value in _gathered(model, optimizer, names, key).items():
                if key in state.get(numbers[name], {}):
                    state[numbers[name]][key] = value
    return found


def load_optimizer_state_dict(model: ParallelModule, optimizer: Optimizer,
                              state_dict: Mapping[str, Any]) -> None:
    """Loads what `optimizer_state_dict` made, or an optimizer of the whole module: this rank's
    parts of it.
    """
    state = {number: dict(kept) for number, kept in state_dict["state"].items()}
    for name, number in _numbers(model, optimizer).items():
        place, part = model.tensor_places[name], model.get_parameter(name)
        for key, value in state.get(number, {}).items():
            if _is_cut(value, place.shape):
                own = own_part(model.engine.executor, place, value)
                state[number][key] = torch.from_numpy(own.copy()).reshape(part.shape)
    optimizer.load_state_dict({**state_dict, "state": state})


def _is_cut(value: Any, shape: tuple[int, ...]) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0 and tuple(value.shape) == tuple(shape)


def _numbers(model: ParallelModule, optimizer: Optimizer) -> dict[str, int]:
    """The number in the optimizer's state of each of its parameters that the model has, by name."""
    given = [p for group in optimizer.param_groups for p in group["params"]]
    number = {p: i for i, p in enumerate(given)}
    return {name: number[p] for name, p in model.named_parameters() if p in number}


def _keys(model: ParallelModule, optimizer: Optimizer) -> list[str]:
    """Names of what the optimizer keeps for each entry of a parameter, on any rank."""
    found = {key for p, kept in optimizer.state.items() for key, value in kept.items()
             if _is_cut(value, p.shape)}
    other = {key for p, kept in optimizer.state.items() for key, value in kept.items()
             if isinstance(value, Tensor) and value.dim() and not _is_cut(value, p.shape)}
    ranks = model.engine.world.comm.allgather((found, other))
    for _, others in ranks:
        if others:
            raise InputError(f"{type(optimizer).__name__} keeps {', '.join(sorted(others))} in "
                             "another shape than its parameter: it cannot be put together from "
                             "parts; save optimizer.state_dict() of each rank")
    return sorted(set().union(*(keys for keys, _ in ranks)))


def _gathered(model: ParallelModule, optimizer: Optimizer, names: Mapping[str, str],
              key: str) -> dict[str, Tensor]:
    """The whole tensors of a layer, by parameter; `names` has its weight's and its bias's."""
    executor, world = model.engine.executor, model.engine.world
    places = {what: model.tensor_places[name] for what, name in names.items()}
    layer = next(iter(places.values())).layer
    parts = []
    for like, what in zip(_split(executor.parameters[layer.name]), ("weight", "bias"),
                          strict=False):
        kept = optimizer.state.get(model.get_parameter(names[what]), {}) if what in names else {}
        value = kept.get(key)
        parts.append(np.zeros(like.size, like.dtype) if value is None
                     else value.detach().numpy().ravel())
    wholes = dict(global_tensors.of_layer(executor, world, layer, np.concatenate(parts)))
    return {names[what]: _on_all(model, wholes.get(f"{layer.name}/{what}"), place)
            for what, place in places.items()}


def _split(parameters: Any) -> list[Any]:
    return [part for part in parameters.split(parameters.flat) if part is not None]


def _on_all(model: ParallelModule, mine: Any, place: TensorPlace) -> Tensor:
    """Rank 0's tensor, in the module's shape, on every rank."""
    world, dtype = model.engine.world, model.engine.plan.dtype
    theirs = None if mine is None else np.ascontiguousarray(to_theirs(place, mine))
    return torch.from_numpy(world.bcast_array(theirs, place.shape, np.dtype(dtype)).reshape(
        place.shape))
