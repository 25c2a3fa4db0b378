"""Checkpoints: training resumes on another number of ranks and under another plan.

The file holds global (unsplit) tensors in HDF5. Row i of a weight computes output channel i, so a
rank that owns some channels reads some rows (`resume_rows`).

====================================  =============================================================
``params/<layer>/weight``             [out, in, kh, kw] (convolution) or [out, in] (linear)
``params/<layer>/bias``               [out]; absent without bias
``params/<layer>/running_mean``,      [out], of batch normalisation
``running_variance``
``optimizer/<layer>/weight``,         state of the optimiser, of the same shapes: velocities of
``bias``                              momentum, or Adam's first moments
``optimizer/<layer>/weight_second``,  Adam's second moments
``bias_second``
attributes of group ``state``         step, epoch, batch_in_epoch, seed, network, shape, classes,
                                      hpcpar_version
====================================  =============================================================
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
from hpcpar.network.layers import Layer

#: Version of the file; a reader refuses any other.
VERSION = 1
#: Attributes that `state` must have; a caller may add more.
STATE = ("step", "epoch", "batch_in_epoch", "seed", "network", "shape", "classes")

_REMEDY = "write one with: hpcpar run ... --checkpoint FILE"

#: Suffixes of the optimiser's state tensors.
STATES = ("", "_second")
#: Running statistics of batch normalisation.
RUNNING = ("running_mean", "running_variance")


@dataclass(frozen=True)
class ParameterRows:
    """ParameterRows of a layer's parameters and of the optimiser's state.

    Attributes
    ----------
    weight : ndarray
        [rows, ...].
    bias : ndarray or None
        [rows]; None for a layer without bias.
    state : tuple of (ndarray or None, ndarray or None)
        State of weight and of bias for each of `STATES`; None where the file has none.
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
    """Writes a checkpoint atomically.

    Parameters
    ----------
    params, velocities : Tensors
        Iterated once, so that the caller can gather one tensor at a time.
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
        raise InputError(f"checkpoint {path} is of version {version}, this hpcpar reads version "
                         f"{VERSION}; write it again with this hpcpar")
    return f


def _plain(value: Any) -> Any:
    """An attribute as a plain number, string or tuple."""
    if isinstance(value, np.ndarray):
        return tuple(value.tolist())
    return value.item() if isinstance(value, np.generic) else value


def read_state(path: str) -> dict[str, Any]:
    """The attributes of ``state`` as plain numbers, strings and tuples.

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
    """Checks that a checkpoint belongs to this network, and returns its state.

    Raises
    ------
    InputError
        As `read_state`; another network, image shape or number of classes; a layer that is missing
        or has another shape.
    """
    state = read_state(path)
    want = {"network": network.name, "shape": tuple(network.image_shape),
            "classes": network.classes}
    for name, value in want.items():
        if state[name] != value:
            raise InputError(f"checkpoint {path} is of {name} {state[name]}, the plan is for "
                             f"{name} {value}; resume it with a plan of its own network, shape "
                             "and classes")
    with _open(path) as f:
        for layer in network.weighted:
            _check_tensors(f, path, network, layer)
    return state


def _check_tensors(f: h5py.File, path: str, network: Network, layer: Layer) -> None:
    """Checks the shapes of a layer's tensors; the optimiser's state may be absent."""
    x = network.input_shape(layer)
    shapes = {"weight": layer.weight_shape(x), "bias": layer.bias_shape(x)}
    wanted = [("params", kind, shape) for kind, shape in shapes.items()]
    wanted += [("optimizer", f"{kind}{suffix}", shape) for kind, shape in shapes.items()
               for suffix in STATES]
    if layer.buffers(x):
        wanted += [("params", name, shapes["weight"]) for name in RUNNING]
    for group, kind, shape in wanted:
        tensor = f.get(f"{group}/{layer.name}/{kind}")
        if tensor is None:
            if shape and group == "params":
                raise InputError(f"checkpoint {path} has no {kind} of layer '{layer.name}'; it is "
                                 "incomplete, use another one")
        elif tensor.shape != shape:
            raise InputError(f"checkpoint {path}: {group} {kind} of layer '{layer.name}' has shape "
                             f"{tensor.shape}, the network's has {shape}; use a checkpoint of this "
                             "network")


def resume_rows(path: str, layer: str, start: int, stop: int, dtype: DTypeLike) -> ParameterRows:
    """Reads rows ``start:stop`` of a layer's tensors: those of one rank that resumes.

    Raises
    ------
    InputError
        The file is damaged, lacks the layer, or the layer has fewer rows.
    """
    with _open(path) as f:

        def rows(name: str) -> NDArray[Any] | None:
            return _read_rows(f, path, name, start, stop, dtype)

        weight = rows(f"params/{layer}/weight")
        if weight is None:
            known = ", ".join(f["params"])
            raise InputError(f"checkpoint {path} has no layer '{layer}' (it has {known}); use a "
                             "checkpoint of this network")
        state = tuple((rows(f"optimizer/{layer}/weight{suffix}"),
                       rows(f"optimizer/{layer}/bias{suffix}")) for suffix in STATES)
        mean, variance = (rows(f"params/{layer}/{name}") for name in RUNNING)
        running = None if mean is None or variance is None else np.stack([mean, variance])
        return ParameterRows(weight, rows(f"params/{layer}/bias"), state, running)


def _read_rows(f: h5py.File, path: str, name: str, start: int, stop: int,
               dtype: DTypeLike) -> NDArray[Any] | None:
    """ParameterRows of one data set; None where the file has none of this name."""
    dataset = f.get(name)
    if dataset is None:
        return None
    if not 0 <= start <= stop <= dataset.shape[0]:
        raise InputError(f"checkpoint {path}: '{name}' has {dataset.shape[0]} rows, rows {start} "
                         f"to {stop} are wanted; use a checkpoint of this network")
    try:
        return dataset[start:stop].astype(dtype, copy=False)
    except OSError as err:
        raise InputError(f"checkpoint {path} is damaged at '{name}' ({reason(err)}); use another "
                         "one") from err
