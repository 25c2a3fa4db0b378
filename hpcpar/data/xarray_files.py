"""Images and ground truth from NetCDF files and Zarr stores, through xarray."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpar.data.arrays import ArrayOptions, Images, Truth, write_arrays
from hpcpar.data.dataset import Progress
from hpcpar.data.zarr_store import local_store
from hpcpar.errors import InputError
from hpcpar.io.files import reason, require_regular
from hpcpar.io.hdf5 import check
from hpcpar.io.read_limit import bounded, require_memory
from hpcpar.network.layers.base import shape_text

_REMEDY = "fetch it again, or install its reader with: pip install 'hpcpar[xarray]'"


def from_xarray(path: str, source: str, images: Sequence[str], labels: Sequence[str],
                options: ArrayOptions, *, samples: str = "", channels: str = "",
                allow_external: bool = False, progress: Progress | None = None) -> None:
    """Write a data file from variables of a NetCDF file or a Zarr store.

    Dimensions are identified by name: one counts the samples, one may count the channels, and the
    others are the image's axes, in the order of the first image variable. Labels per pixel may have
    as many dimensions of their own, in the order of the first label variable.

    Parameters
    ----------
    images, labels : sequence of str
        Names of variables; several are stacked as channels (as targets for labels).
    samples : str
        The sample dimension; by default, the first dimension of the first image variable.
    channels : str
        The channel dimension; by default, each variable is one channel.
    allow_external : bool
        Whether a NetCDF-4 file may keep data in other files.

    Raises
    ------
    InputError
        xarray is missing, the source cannot be read, or its variables do not fit.
    """
    try:
        import xarray  # noqa: F401
    except ImportError as err:
        raise InputError(f"NetCDF and Zarr need xarray ({err}); install it with: pip install "
                         "'hpcpar[xarray]'") from err
    with warnings.catch_warnings(), ExitStack() as stack:
        warnings.simplefilter("ignore")  # xarray warns about encodings
        decoded, stored = (stack.enter_context(opened) for opened in _opened(
            source, allow_external))
        unknown = [name for name in (*images, *labels) if name not in decoded.variables]
        if unknown or not images or not labels:
            raise InputError(f"{source} has no variable '{', '.join(unknown)}'; choose --images "
                             f"and --labels from: {', '.join(map(str, decoded.variables))}")
        order = _order(source, decoded[images[0]], samples, channels)
        leading = 2 if channels else 1
        axes = order[leading:]
        other = [str(dim) for dim in decoded[labels[0]].dims if dim not in order]
        pixels = _Stack([decoded[name] for name in images], source, order, channels)
        truth = _Stack([_whole_numbers(stored[name], decoded[name]) for name in labels], source,
                       order[:leading] + (other if len(other) == len(axes) else axes), channels)
        x = Images(pixels, pixels.name)
        write_arrays(path, [(x, Truth(truth, truth.name, x, options))],
                     f"{os.path.basename(source)}: {', '.join((*images, *labels))}", options,
                     progress)


def _opened(source: str, allow_external: bool) -> tuple[Any, Any]:
    """The source as xarray decodes it, and as it is stored."""
    import xarray

    with _reading(source):
        options: dict[str, Any] = {"cache": False}
        store: Any = source
        if os.path.isdir(source):
            store, options["engine"] = local_store(source), "zarr"
        else:
            _check_netcdf(source, allow_external)
        return (xarray.open_dataset(store, decode_times=False, **options),
                xarray.open_dataset(store, decode_cf=False, **options))


def _check_netcdf(source: str, allow_external: bool) -> None:
    """Checks a file by its first bytes: xarray would also open remote and compressed ones."""
    require_regular(source)
    with open(source, "rb") as f:
        start = f.read(8)
    if start == b"\x89HDF\r\n\x1a\n":
        check([source], "NetCDF file", "fetch it again", allow_external)
    elif start[:3] != b"CDF":
        raise ValueError("it does not begin like a NetCDF file")


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Turns what each format's library raises into one line, and limits what reading costs."""
    with bounded(name, "store smaller chunks and samples"):
        try:
            yield
        except (InputError, MemoryError):
            raise
        except Exception as err:
            raise InputError(f"{name} cannot be read as NetCDF or Zarr ({reason(err)}); {_REMEDY}"
                             ) from err


def _order(source: str, first: Any, samples: str, channels: str) -> list[str]:
    """The dimensions in the order of the data file: samples, channels, image."""
    dims = [str(dim) for dim in first.dims]
    if not dims:
        raise InputError(f"{source}: '{first.name}' is a single number; choose variables with "
                         "samples")
    order = [samples or dims[0], *([channels] if channels else [])]
    if order[0] == channels:
        raise InputError(f"{source}: '{channels}' cannot count both samples and channels; "
                         "give --samples and --channels different dimensions")
    missing = [dim for dim in order if dim not in dims]
    if missing:
        raise InputError(f"{source}: '{first.name}' has no dimension '{missing[0]}'; its "
                         f"dimensions are {', '.join(dims)}")
    return order + [dim for dim in dims if dim not in order]


def _whole_numbers(stored: Any, decoded: Any) -> Any:
    """Integer labels as stored; decoding would turn labels with missing values into floats."""
    packed = {"scale_factor", "add_offset", "_Unsigned"} & stored.attrs.keys()
    return decoded if packed or stored.dtype.kind not in "iu" else stored


class _Stack:
    """Variables of one source as an array [N, channels, *image], read some samples at a time."""

    def __init__(self, variables: Sequence[Any], source: str, order: Sequence[str],
                 channels: str) -> None:
        self.name = f"{source}: '{', '.join(v.name for v in variables)}'"
        self._variables, first = variables, variables[0]
        self._order = [dim for dim in order if dim in first.dims]
        if order[0] not in first.dims or any(set(v.dims) != set(self._order)
                                             for v in self._variables):
            raise InputError(f"{self.name} has dimensions " + ", ".join(
                str(v.dims) for v in self._variables) + f"; give variables of {tuple(order)}")
        for variable in variables:
            _check(self.name, variable)
        self._channels = channels if channels in first.dims else ""
        count = first.sizes[channels] if self._channels else 1
        rest = [first.sizes[dim] for dim in self._order[1:] if dim != channels]
        self.shape = (first.sizes[order[0]], count * len(variables), *rest)
        self.dtype = np.result_type(*(v.dtype for v in self._variables))

    def __getitem__(self, samples: slice) -> NDArray[Any]:
        with _reading(self.name):
            read = [v.isel({self._order[0]: samples}).load().transpose(*self._order).values
                    for v in self._variables]
            if not self._channels:
                read = [values[:, None] for values in read]
            return read[0] if len(read) == 1 else np.concatenate(read, axis=1)


def _check(name: str, variable: Any) -> None:
    """Checks that a variable holds numbers, in chunks that fit into memory."""
    dtype, encoding = variable.dtype, variable.encoding
    if dtype.kind not in "biuf":
        raise InputError(f"{name}: '{variable.name}' holds {dtype}, not numbers; choose variables "
                         "of whole or floating-point numbers")
    chunk = encoding.get("chunks") or encoding.get("chunksizes") or ()
    stored = np.dtype(encoding.get("dtype", dtype))
    # a chunk is held as it is stored and decompressed
    require_memory(2 * math.prod(chunk) * stored.itemsize, f"one chunk {shape_text(chunk)} of "
                   f"{name}", "store it in smaller chunks")
