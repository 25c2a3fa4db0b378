"""State of PyTorch's optimizers with whole tensors, for any plan and number of ranks."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from hpcpar.errors import InputError
from hpcpar.torch.model import ParallelModule
from hpcpar.torch.tensors import TensorPlace, held, own_part, to_theirs
from hpcpar.train import global_tensors


def optimizer_state_dict(model: ParallelModule, optimizer: Optimizer) -> dict[str, Any]:
    """``optimizer.state_dict()`` with whole tensors, equal on all ranks and for any plan.

    All ranks call it together.

    Raises
    ------
    InputError
        The optimizer keeps tensors with other shapes than its parameters; on every rank.
    """
    whole = copy.copy(optimizer.state_dict())
    state = whole["state"] = {number: dict(kept) for number, kept in whole["state"].items()}
    numbers, keys = _numbers(model, optimizer), _keys(model, optimizer)
    layers: dict[str, list[str]] = {}
    for name in numbers:
        layers.setdefault(model.tensor_places[name].layer.name, []).append(name)
    for names in layers.values():
        for key in keys:
            for name, value in _gathered(model, optimizer, names, key).items():
                if key in state.get(numbers[name], {}):
                    state[numbers[name]][key] = value
    return whole


def load_optimizer_state_dict(model: ParallelModule, optimizer: Optimizer,
                              state_dict: Mapping[str, Any]) -> None:
    """Load this rank's parts of a state with whole tensors.

    The state comes from `optimizer_state_dict`, or from an optimizer of the whole module.
    """
    state = {number: dict(kept) for number, kept in state_dict["state"].items()}
    for name, number in _numbers(model, optimizer).items():
        place, parameter = model.tensor_places[name], model.get_parameter(name)
        for key, value in state.get(number, {}).items():
            if _is_cut(value, place.shape):
                part = own_part(model.engine.executor, place, value)
                state[number][key] = torch.from_numpy(part.copy()).reshape(parameter.shape).to(
                    parameter.device)
    optimizer.load_state_dict({**state_dict, "state": state})


def _is_cut(value: Any, shape: tuple[int, ...]) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0 and tuple(value.shape) == tuple(shape)


def _numbers(model: ParallelModule, optimizer: Optimizer) -> dict[str, int]:
    """Name of a parameter in the model -> its number in the optimizer's state."""
    numbers = {p: i for i, p in enumerate(p for group in optimizer.param_groups
                                          for p in group["params"])}
    return {name: numbers[p] for name, p in model.named_parameters()
            if p in numbers and name in model.tensor_places}


def _keys(model: ParallelModule, optimizer: Optimizer) -> list[str]:
    """Names of the optimizer's tensors with the shape of a parameter, on any rank."""
    cut = {key for p, kept in optimizer.state.items() for key, value in kept.items()
           if _is_cut(value, p.shape)}
    other = {key for p, kept in optimizer.state.items() for key, value in kept.items()
             if isinstance(value, Tensor) and value.dim() and not _is_cut(value, p.shape)}
    ranks = model.engine.share("the state of the optimizer", (cut, other)).values()
    for _, others in ranks:
        if others:
            raise InputError(f"{type(optimizer).__name__} keeps {', '.join(sorted(others))} in "
                             "another shape than its parameter, so hpcpar cannot join the parts; "
                             "save optimizer.state_dict() of each rank")
    return sorted(set().union(*(keys for keys, _ in ranks)))


def _gathered(model: ParallelModule, optimizer: Optimizer, names: Sequence[str],
              key: str) -> dict[str, Tensor]:
    """The whole tensors of a layer's parameters, by their names."""
    executor, world = model.engine.executor, model.engine.world
    places = {name: model.tensor_places[name] for name in names}
    layer = places[names[0]].layer
    p = executor.parameters[layer.name]
    flat = np.zeros(p.flat.size, p.flat.dtype)
    for name, place in places.items():
        value = optimizer.state.get(model.get_parameter(name), {}).get(key)
        if value is not None:
            held(p, place, flat)[...] = value.detach().cpu().numpy()
    wholes = dict(global_tensors.of_layer(executor, world, layer, flat))
    return {name: _on_all(model, wholes.get(f"{layer.name}/{place.what}"), place)
            for name, place in places.items()}


def _on_all(model: ParallelModule, gathered: Any, place: TensorPlace) -> Tensor:
    """Rank 0's tensor, in the module's shape, on every rank."""
    dtype = np.result_type(model.engine.plan.dtype, *[np.complex64] * place.is_complex)
    whole = None if gathered is None else np.ascontiguousarray(to_theirs(place, gathered))
    return torch.from_numpy(model.engine.world.bcast_array(whole, place.shape, dtype).reshape(
        place.shape)).to(model.device)
