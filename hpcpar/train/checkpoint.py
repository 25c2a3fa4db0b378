"""The checkpoint file: whole (unsplit) tensors in HDF5, so that any number of ranks under any plan
can go on from it.

=========================================
==================================================================== ``params/<layer>/weight``
[out, in, kh, kw] (convolution) or [out, in] (linear) ``params/<layer>/bias``
[out]; absent without bias ``params/<layer>/running_mean``             [out] of batch normalisation;
likewise ``running_variance`` ``optimizer/<layer>/weight`` and ``bias``  the optimiser's state, of
the same shapes: velocities of the momentum, or Adam's first
                                           moments, and its second ones as ``weight_second`` and
                                           ``bias_second``
attributes of group ``state``              step, epoch, batch_in_epoch, seed, network, shape,
classes, hpcpar_version
=========================================
====================================================================

Row i of a weight makes output channel i, so a rank that owns some channels reads some rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

import hpcpar
from hpcpar.data.dataset import open_hdf5, reason, replacing
from hpcpar.errors import InputError
from hpcpar.network.graph import Network

#: Version of the file; a reader refuses any other.
VERSION = 1
#: What `state` must hold; a caller may add more.
STATE = ("step", "epoch", "batch_in_epoch", "seed", "network", "shape", "classes")

_REMEDY = "write one with: hpcpar run ... --checkpoint FILE"


#: Endings of the names of the optimiser's states.
STATES = ("", "_second")
#: Running statistics of batch normalisation.
RUNNING = ("running_mean", "running_variance")


@dataclass(frozen=True)
class Rows:
    """Rows of a layer's parameters and of the optimiser's state.

    Attributes
    ----------
    weight : ndarray
        [rows, ...].
    bias : ndarray or None
        [rows]; None for a layer without bias.
    state : tuple of (ndarray or None, ndarray or None)
        Weight's and bias's of each of `STATES`; None where the file has none.
    running : ndarray or None
        [2, rows] mean and variance of batch normalisation.
    """

    weight: NDArray[Any]
    bias: NDArray[Any] | None
    state: tuple[tuple[NDArray[Any] | None, NDArray[Any] | None], ...]
    running: NDArray[Any] | None


#: Names ``<layer>/weight`` and ``<layer>/bias`` with global arrays.
Tensors = Iterable[tuple[str, ArrayLike]]


def write(path: str, params: Tensors, velocities: Tensors, state: Mapping[str, Any]) -> None:
    """Write a checkpoint, whole or not at all.

    Parameters
    ----------
    params, velocities : Tensors
        Taken one by one: the caller can gather each when it is its turn.
    state : mapping
        At least `STATE`: numbers, strings, and the image shape as a sequence.

    Raises
    ------
    InputError
        The file cannot be written.
    """
    missing = [name for name in STATE if name not in state]
    if missing:
        raise ValueError(f"the state of a checkpoint lacks {', '.join(missing)}")
    with replacing(path, "checkpoint") as f:
        for group, tensors in (("params", params), ("optimizer", velocities)):
            f.create_group(group)
            for name, value in tensors:
                f.create_dataset(f"{group}/{name}", data=np.asarray(value))
        attributes = f.create_group("state").attrs
        attributes.update({**state, "hpcpar_checkpoint": VERSION,
                           "hpcpar_version": hpcpar.__version__})


def _open(path: str) -> h5py.File:
    f = open_hdf5(path, "checkpoint", _REMEDY)
    group = f.get("state")
    if not isinstance(group, h5py.Group) or "params" not in f:
        f.close()
        raise InputError(f"{path} is an HDF5 file but not a checkpoint; {_REMEDY}")
    version = group.attrs.get("hpcpar_checkpoint")
    if version != VERSION:
        f.close()
        raise InputError(f"checkpoint {path} is of version {version}, this hpcpar reads version {VERSION}; write it again with this hpcpar")
    return f


def _plain(value: Any) -> Any:
    """An attribute as plain Python: numbers, strings, tuples."""
    if isinstance(value, np.ndarray):
        return tuple(value.tolist())
    return value.item() if isinstance(value, np.generic) else value


def read_state(path: str) -> dict[str, Any]:
    """The state attributes, as plain numbers, strings and tuples.

    Raises
    ------
    InputError
        Missing, damaged, not a checkpoint, or of another version.
    """
    with _open(path) as f:
        state = {name: _plain(value) for name, value in f["state"].attrs.items()}
    missing = [name for name in STATE if name not in state]
    if missing:
        raise InputError(f"checkpoint {path} lacks the state {', '.join(missing)}; {_REMEDY}")
    return state


def check(path: str, network: Network) -> dict[str, Any]:
    """Check that a checkpoint is one of this network, with every tensor in its shape; gives its
    state.

    Raises
    ------
    InputError
        As `read_state`; another network, image shape or classes; a layer that is missing or of
        another shape.
    """
    state = read_state(path)
    want = {"network": network.name, "shape": tuple(network.image_shape),
            "classes": network.classes}
    for name, value in want.items():
        if state[name] != value:
            raise InputError(f"checkpoint {path} is of {name} {state[name]}, the plan is for {name} {value}; "
                             "resume it with a plan of its own network, shape and classes")
    with _open(path) as f:
        for layer in network.weighted:
            x = network.input_shape(layer)
            shapes = {"weight": layer.weight_shape(x), "bias": layer.bias_shape(x)}
            wanted = [("params", kind, shape) for kind, shape in shapes.items()]
            wanted += [("optimizer", f"{kind}{suffix}", shape) for kind, shape in shapes.items()
                       for suffix in STATES]
            if layer.buffers(x):
                wanted += [("params", name, shapes["weight"]) for name in RUNNING]
            for group, kind, shape in wanted:
                tensor = f.get(f"{group}/{layer.name}/{kind}")
                if shape and tensor is None and group == "params":
                    raise InputError(f"checkpoint {path} has no {kind} of layer '{layer.name}'; it is incomplete, use another one")
                if tensor is not None and tensor.shape != shape:
                    raise InputError(f"checkpoint {path}: {group} {kind} of layer '{layer.name}' has shape {tensor.shape}, "
                                     f"the network's has {shape}; use a checkpoint of this network")
    return state


def read_rows(path: str, layer: str, start: int, stop: int, dtype: DTypeLike) -> Rows:
    """Rows ``start:stop`` of a layer's tensors; the rest of the file stays unread.

    Raises
    ------
    InputError
        The file is damaged, lacks the layer, or the layer has fewer rows.
    """
    with _open(path) as f:

        def rows(name: str) -> NDArray[Any] | None:
            dataset = f.get(name)
            if dataset is None:
                return None
            if not 0 <= start <= stop <= dataset.shape[0]:
                raise InputError(f"checkpoint {path}: '{name}' has {dataset.shape[0]} rows, rows {start} to {stop} are wanted; "
                                 "use a checkpoint of this network")
            try:
                return dataset[start:stop].astype(dtype, copy=False)
            except OSError as err:
                raise InputError(f"checkpoint {path} is damaged at '{name}' ({reason(err)}); use another one") from err

        weight = rows(f"params/{layer}/weight")
        if weight is None:
            known = ", ".join(f["params"])
            raise InputError(f"checkpoint {path} has no layer '{layer}' (it has {known}); use a checkpoint of this network")
        state = tuple((rows(f"optimizer/{layer}/weight{suffix}"),
                       rows(f"optimizer/{layer}/bias{suffix}")) for suffix in STATES)
        mean, variance = (rows(f"params/{layer}/{name}") for name in RUNNING)
        running = None if mean is None or variance is None else np.stack([mean, variance])
        return Rows(weight, rows(f"params/{layer}/bias"), state, running)
