"""Checkpoints: training resumes on another number of ranks and under another plan.

The file holds global (unsplit) tensors in HDF5. Row i of a weight computes output channel i, so a
rank that owns some channels reads some rows (`resume_rows`).

====================================  =============================================================
``params/<layer>/weight``             [out, in, kh, kw] (convolution), [out, in] (linear), [out]
                                      (normalisation) or a sample's shape (layer normalisation)
``params/<layer>/bias``               [out], or a sample's shape (layer normalisation); absent
                                      without bias
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
from typing import Any

import h5py
import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

import hpcpar
from hpcpar.data.dataset import attributes, open_hdf5, replacing
from hpcpar.errors import InputError
from hpcpar.files import reason
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


def check(path: str, network: Network) -> dict[str, Any]:
    """Checks that a checkpoint belongs to this network, and returns its state.

    Raises
    ------
    InputError
        Missing, damaged, not a checkpoint, or of another version; another network, image shape or
        number of classes; a layer that is missing or has another shape.
    """
    with _open(path) as f:
        state = attributes(f["state"])
        missing = [name for name in STATE if name not in state]
        if missing:
            raise InputError(f"checkpoint {path} lacks the state {', '.join(missing)}; {_REMEDY}")
        state["shape"] = tuple(state["shape"])
        want = {"network": network.name, "shape": tuple(network.image_shape),
                "classes": network.classes}
        for name, value in want.items():
            if state[name] != value:
                raise InputError(f"checkpoint {path} is of {name} {state[name]}, the plan is for "
                                 f"{name} {value}; resume it with a plan of its own network, shape "
                                 "and classes")
        for layer in network.stateful:
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
        wanted += [("params", name, x[:1]) for name in RUNNING]
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


def resume_rows(path: str, layer: str, start: int, stop: int,
                dtype: DTypeLike) -> dict[str, NDArray[Any]]:
    """Rows ``start:stop`` of a layer's tensors, those of one rank that resumes.

    Their names are those of the file without the layer: ``params/weight``, ``optimizer/bias``.

    Raises
    ------
    InputError
        The file is damaged, lacks the layer, or the layer has fewer rows.
    """
    with _open(path) as f:
        if layer not in f["params"]:
            known = ", ".join(f["params"])
            raise InputError(f"checkpoint {path} has no layer '{layer}' (it has {known}); use a "
                             "checkpoint of this network")
        rows = {}
        for group in "params", "optimizer":
            for name, dataset in f.get(f"{group}/{layer}", {}).items():
                if not 0 <= start <= stop <= dataset.shape[0]:
                    raise InputError(
                        f"checkpoint {path}: '{dataset.name}' has {dataset.shape[0]} rows, rows "
                        f"{start} to {stop} are wanted; use a checkpoint of this network")
                try:
                    rows[f"{group}/{name}"] = dataset[start:stop].astype(dtype, copy=False)
                except OSError as err:
                    raise InputError(f"checkpoint {path} is damaged at '{dataset.name}' "
                                     f"({reason(err)}); use another one") from err
        return rows
