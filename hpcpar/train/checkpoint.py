"""Checkpoints, from which training resumes on any number of ranks and under any plan.

The HDF5 file holds global (unsplit) tensors; each chunk has a checksum. Row i of a weight computes
output channel i, so a rank reads only the rows of the channels that it owns (`resume_rows`).

====================================  =============================================================
``params/<layer>/weight``             [out, in, kh, kw] (convolution), [out, in] (linear), [out]
                                      (normalization) or a sample's shape (layer normalization)
``params/<layer>/bias``               [out], or a sample's shape (layer normalization); absent
                                      without bias
``params/<layer>/running_mean``,      [out], of batch normalization
``running_variance``
``optimizer/<layer>/weight``,         state of the optimizer, in the same shapes, named as in
``bias``, ``weight_second``, ...      `hpcpar.plan.optimizers.Optimizer.state`
attributes of group ``state``         the fields of `CheckpointState`, hpcpar_checkpoint (version
                                      of the file), hpcpar_version
====================================  =============================================================
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any

import h5py
import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike, DTypeLike, NDArray

from hpcpar.errors import InputError
from hpcpar.io.files import reason, write_bytes
from hpcpar.io.hdf5 import attributes, find, is_empty, memory_bytes, open_hdf5
from hpcpar.io.schema import Count, Extent, convert
from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer
from hpcpar.version import __version__

#: Version of the file; a reader refuses any other.
VERSION = 1
_REMEDY = "write one with: hpcpar run ... --checkpoint FILE"
_PARTIAL = "use another one, or resume without these tensors with --partial"

#: Groups of tensors.
GROUPS = ("params", "optimizer")
#: Running statistics of batch normalization.
RUNNING = ("running_mean", "running_variance")
#: Approximate size of a chunk.
_CHUNK_BYTES = 4 << 20

#: Names ``<layer>/weight`` and ``<layer>/bias`` with global arrays.
Tensors = Iterable[tuple[str, ArrayLike]]


@dataclass(frozen=True)
class CheckpointState:
    """Progress and setup of a training run."""

    #: Iterations done.
    step: Count
    #: Epoch and batch of the next iteration.
    epoch: Count
    batch_in_epoch: Count
    seed: int
    network: str
    #: Shape of an image.
    shape: tuple[Extent, ...]
    classes: Extent
    #: Empty if unknown.
    optimizer: str = ""
    #: Identifies the training; runs that resume it keep it (`Training.identity`). Empty if unknown.
    training: str = ""
    #: The loss scale of float16 (0: none), and the rest of `hpcpar.runtime.loss_scale.ScaleState`.
    loss_scale: Annotated[float, Meta(ge=0)] = 0.0
    good_iterations: Count = 0
    skipped_updates: Count = 0


@dataclass(frozen=True)
class CheckedCheckpoint:
    """A checkpoint that matches a network."""

    #: None if it is damaged.
    state: CheckpointState | None
    #: Errors by missing or damaged group: ``state``, ``params/<layer>`` or ``optimizer/<layer>``.
    faults: dict[str, str]


def image(params: Tensors, velocities: Tensors, state: CheckpointState) -> memoryview:
    """The bytes of a checkpoint. A generator of tensors can gather one tensor at a time."""
    out = io.BytesIO()
    # File formats from 1.10 on also protect the metadata with checksums.
    with h5py.File(out, "w", libver=("v110", "v110")) as f:
        for group, tensors in (("params", params), ("optimizer", velocities)):
            f.create_group(group)
            for name, value in tensors:
                tensor = np.asarray(value)
                rows = _CHUNK_BYTES // max(1, tensor[:1].nbytes)
                chunk = (min(len(tensor), max(1, rows)), *tensor.shape[1:])
                f.create_dataset(f"{group}/{name}", data=tensor, chunks=chunk, fletcher32=True)
        f.create_group("state").attrs.update({**asdict(state), "hpcpar_checkpoint": VERSION,
                                              "hpcpar_version": __version__})
    return out.getbuffer()


def write(path: str, content: memoryview) -> None:
    """Writes a checkpoint atomically.

    Raises
    ------
    InputError
        The file cannot be written.
    """
    write_bytes(path, content, "checkpoint")


def _open(path: str) -> h5py.File:
    f = open_hdf5(path, "checkpoint", _REMEDY)
    group = find(f, "state", h5py.Group)
    if group is None or find(f, "params", h5py.Group) is None:
        f.close()
        raise InputError(f"{path} is an HDF5 file but not a checkpoint; {_REMEDY}")
    version = attributes(group, f"checkpoint {path}", _REMEDY).get("hpcpar_checkpoint")
    if version != VERSION:
        f.close()
        raise InputError(f"checkpoint {path} has version {version}, but this hpcpar reads version "
                         f"{VERSION}; write it again with this hpcpar")
    return f


def _state(f: h5py.File, path: str) -> CheckpointState:
    """The state, checked against its type; other attributes are ignored."""
    stored = attributes(f["state"], f"checkpoint {path}", _PARTIAL)
    known = {x.name: stored[x.name] for x in fields(CheckpointState) if x.name in stored}
    return convert(known, CheckpointState, f"the state in checkpoint {path}", _PARTIAL)


def read_state(path: str) -> CheckpointState:
    """The state in a checkpoint.

    Raises
    ------
    InputError
        The file is not a checkpoint, or its state is damaged.
    """
    with _open(path) as f:
        return _state(f, path)


def check(path: str, network: Network, states: Sequence[str]) -> CheckedCheckpoint:
    """Checks that a checkpoint matches a network, and lists missing or damaged tensors.

    Parameters
    ----------
    states : sequence of str
        Names of the optimizer's state tensors (`Optimizer.state`); empty for inference.

    Raises
    ------
    InputError
        The file is missing, is not a checkpoint, or has another version, network, image shape or
        number of classes.
    """
    with _open(path) as f:
        state, faults = None, {}
        try:
            state = _state(f, path)
        except InputError as err:
            faults["state"] = str(err)
        if state is not None:
            _check_network(path, state, network)
        for layer in network.stateful:
            faults |= _layer_faults(f, path, network, layer, states)
    return CheckedCheckpoint(state, faults)


def _check_network(path: str, state: CheckpointState, network: Network) -> None:
    expected = {"network": network.name, "shape": tuple(network.image_shape),
                "classes": network.classes}
    for name, value in expected.items():
        if getattr(state, name) != value:
            raise InputError(f"checkpoint {path} has {name} {getattr(state, name)}, but the plan "
                             f"has {name} {value}; resume it with a plan for the same network, "
                             "shape and classes")


def tensor_shapes(network: Network, layer: Layer,
                  states: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The shapes of a layer's tensors by name; for `states` see `check`.

    The names are as in the file, without the layer: ``params/weight``, ``optimizer/bias``.
    """
    x = network.input_shape(layer)
    both = {"weight": layer.weight_shape(x), "bias": layer.bias_shape(x)}
    learned = {kind: shape for kind, shape in both.items() if shape}
    shapes = {f"params/{kind}": shape for kind, shape in learned.items()}
    shapes |= {f"optimizer/{kind}{suffix}": shape for kind, shape in learned.items()
               for suffix in (states if layer.learns else ())}
    return shapes | {f"params/{name}": x[:1] for name in RUNNING if layer.buffers(x)}


def _layer_faults(f: h5py.File, path: str, network: Network, layer: Layer,
                  states: Sequence[str]) -> dict[str, str]:
    """Errors for missing or damaged tensors of a layer, by group."""
    faults: dict[str, str] = {}
    for tensor_name, shape in tensor_shapes(network, layer, states).items():
        group, kind = tensor_name.split("/")
        name = f"{group}/{layer.name}/{kind}"
        tensor = find(f, name)
        if tensor is None:
            fault = f"has no {kind} of layer '{layer.name}' ({name})"
        elif tensor.dtype.kind != "f" or is_empty(tensor):
            fault = f"holds no floating-point numbers at {name}"
        elif tensor.shape != shape:
            fault = f"has {name} with shape {tensor.shape}, but the network needs {shape}"
        elif memory_bytes(tensor) > tensor.nbytes:
            fault = f"has {name} in chunks of {tensor.chunks}, larger than the tensor"
        else:
            continue
        faults.setdefault(f"{group}/{layer.name}", f"checkpoint {path} {fault}; {_PARTIAL}")
    return faults


def resume_rows(path: str, layer: str, start: int, stop: int, dtype: DTypeLike,
                names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """Rows ``start:stop`` of a layer's tensors.

    `names` are keys of `tensor_shapes`. The caller has passed them through `check`, which bounds
    their size.

    Raises
    ------
    InputError
        The file is damaged, or a tensor has fewer rows.
    """
    rows = {}
    with _open(path) as f:
        for tensor_name in names:
            name = f"/{layer}/".join(tensor_name.split("/"))
            tensor = find(f, name)
            if tensor is None:
                continue
            if not tensor.shape or not 0 <= start <= stop <= tensor.shape[0]:
                raise InputError(f"checkpoint {path}: {name} has shape {tensor.shape}, but rows "
                                 f"{start} to {stop} are needed; use a checkpoint of this network")
            if tensor.dtype.kind != "f" or is_empty(tensor):
                raise InputError(f"checkpoint {path} holds no floating-point numbers at {name}; "
                                 f"{_PARTIAL}")
            try:
                rows[tensor_name] = tensor[start:stop].astype(dtype, copy=False)
            except (OSError, MemoryError) as err:
                cause = reason(err) if isinstance(err, OSError) else "too large"
                raise InputError(f"checkpoint {path} is damaged at {name} ({cause}); "
                                 f"{_PARTIAL}") from err
    return rows
