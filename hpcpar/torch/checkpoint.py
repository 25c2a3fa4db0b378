"""Converts between checkpoints of ``hpcpar run`` and a module's ``state_dict``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from hpcpar.errors import InputError, one_line
from hpcpar.io.files import atomic_path, require_regular
from hpcpar.io.read_limit import bounded
from hpcpar.network.layers import SoftmaxCrossEntropy
from hpcpar.network.layers.base import Shape
from hpcpar.network.read.torch_module import traced
from hpcpar.torch.tensors import TensorPlace, places, to_ours, to_theirs, whole_shape
from hpcpar.train import checkpoint
from hpcpar.train.checkpoint import CheckpointState


def state_of(path: str, module: nn.Module, shape: Shape) -> dict[str, Tensor]:
    """The ``state_dict`` of a module with the weights of a checkpoint.

    Raises
    ------
    InputError
        The checkpoint is damaged, or belongs to another network.
    """
    trace = traced(module, shape, SoftmaxCrossEntropy)
    faults = checkpoint.check(path, trace.network, ()).faults
    if faults:
        raise InputError(next(iter(faults.values())))
    state: dict[str, Tensor] = dict(module.state_dict())
    for name, place in places(module, trace).items():
        rows = checkpoint.resume_rows(
            path, place.layer.name, 0, whole_shape(trace.network, place.layer, place.what)[0],
            str(state[name].real.dtype).removeprefix("torch."), [f"params/{place.what}"])
        state[name] = torch.from_numpy(np.ascontiguousarray(
            to_theirs(place, rows[f"params/{place.what}"])))
    return state


def write_state(path: str, module: nn.Module, shape: Shape, checkpoint_file: str) -> None:
    """Write a module's ``state_dict`` with the weights of a checkpoint (see `state_of`)."""
    state = state_of(checkpoint_file, module, shape)
    with atomic_path(path, "state_dict") as temporary:
        torch.save(state, temporary)


def write_checkpoint(path: str, module: nn.Module, shape: Shape, state_file: str) -> None:
    """Write a checkpoint with the weights of a ``state_dict`` file, without optimizer state.

    Raises
    ------
    InputError
        The file is unreadable, or does not fit the module.
    """
    own = sum(tensor.nbytes for tensor in module.state_dict().values())
    try:
        require_regular(state_file)
        with bounded(state_file, "give the state_dict of this module, without other tensors", own):
            state = torch.load(state_file, map_location="cpu", weights_only=True)
        module.load_state_dict(state)
    except InputError:
        raise
    except Exception as err:  # PyTorch raises many kinds
        raise InputError(f"{state_file} does not fit the module ({one_line(err)})") from err
    trace = traced(module, shape, SoftmaxCrossEntropy)
    network, values = trace.network, module.state_dict()

    def tensors(by_name: dict[str, TensorPlace]) -> Iterator[tuple[str, np.ndarray]]:
        parts: dict[str, list[np.ndarray]] = {}
        for place, name in {place: name for name, place in by_name.items()}.items():
            parts.setdefault(f"{place.layer.name}/{place.what}", []).append(
                to_ours(network, place, values[name].numpy()))
        for path, arrays in parts.items():
            yield path, arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=1)

    state = CheckpointState(0, 0, 0, 0, network.name, tuple(network.image_shape), network.classes)
    checkpoint.write(path, checkpoint.image(tensors(places(module, trace)), (), state))
