"""Images and ground truth from NetCDF files and Zarr stores, through xarray."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpar.data.arrays import ArrayOptions, Images, Truth, write_arrays
from hpcpar.data.dataset import Progress
from hpcpar.errors import InputError
from hpcpar.files import reason


def from_xarray(path: str, source: str, images: Sequence[str], labels: Sequence[str],
                options: ArrayOptions, *, samples: str = "", channels: str = "",
                progress: Progress | None = None) -> None:
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

    Raises
    ------
    InputError
        xarray is missing, the source cannot be read, or its variables do not fit.
    """
    try:
        import xarray
    except ImportError as err:
        raise InputError(f"NetCDF and Zarr need xarray ({err}); install it with: pip install "
                         "'hpcpar[xarray]'") from err
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # xarray warns about encodings
            opened = xarray.open_dataset(source, cache=False, decode_times=False)
            undecoded = xarray.open_dataset(source, cache=False, decode_cf=False)
    except Exception as err:  # each format's library raises its own
        raise InputError(f"{source} cannot be read as NetCDF or Zarr ({reason(err)}); give such a "
                         "file, and install its reader with: pip install 'hpcpar[xarray]'") from err
    with opened as decoded, undecoded as stored:
        unknown = [name for name in (*images, *labels) if name not in decoded.variables]
        if unknown or not images or not labels:
            raise InputError(f"{source} has no variable '{', '.join(unknown)}'; choose --images "
                             f"and --labels from: {', '.join(map(str, decoded.variables))}")
        dims = [str(dim) for dim in decoded[images[0]].dims]
        if not dims:
            raise InputError(f"{source}: '{images[0]}' is a single number; choose variables with "
                             "samples")
        order = [samples or dims[0], *([channels] if channels else [])]
        if order[0] == channels:
            raise InputError(f"{source}: '{channels}' cannot count both samples and channels; "
                             "give --samples and --channels different dimensions")
        missing = [dim for dim in order if dim not in dims]
        if missing:
            raise InputError(f"{source}: '{images[0]}' has no dimension '{missing[0]}'; its "
                             f"dimensions are {', '.join(dims)}")
        axes = [dim for dim in dims if dim not in order]
        other = [str(dim) for dim in decoded[labels[0]].dims if dim not in (*order, *axes)]
        pixels = _Stack([decoded[name] for name in images], source, order + axes, channels)
        truth = _Stack([_whole_numbers(stored[name], decoded[name]) for name in labels], source,
                       order + (other if len(other) == len(axes) else axes), channels)
        x = Images(pixels, pixels.name)
        write_arrays(path, [(x, Truth(truth, truth.name, x, options))],
                     f"{os.path.basename(source)}: {', '.join((*images, *labels))}", options,
                     progress)


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
        self._channels = channels if channels in first.dims else ""
        count = first.sizes[channels] if self._channels else 1
        rest = [first.sizes[dim] for dim in self._order[1:] if dim != channels]
        self.shape = (first.sizes[order[0]], count * len(variables), *rest)
        self.dtype = np.result_type(*(v.dtype for v in self._variables))

    def __getitem__(self, samples: slice) -> NDArray[Any]:
        try:
            read = [v.isel({self._order[0]: samples}).load().transpose(*self._order).values
                    for v in self._variables]
        except Exception as err:  # each format's library raises its own
            raise InputError(f"{self.name} cannot be read ({reason(err)}); fetch the file "
                             "again") from err
        return np.concatenate([values if self._channels else values[:, None] for values in read],
                              axis=1)
