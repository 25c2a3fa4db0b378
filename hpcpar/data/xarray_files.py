"""Images and their ground truth from NetCDF files and Zarr stores, read by xarray."""

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

    Dimensions are told apart by their names: one counts the samples, one may count the channels,
    and the others, in the order of the first variable of the images, are the image's axes.

    Parameters
    ----------
    images, labels : sequence of str
        Names of variables; several are stacked along the channels (of labels: the targets).
    samples : str
        The dimension of the samples; by default the first of the first variable of the images.
    channels : str
        The dimension of the channels; without it each variable is one channel.

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
    except Exception as err:  # of each format's own library
        raise InputError(f"{source} cannot be read as NetCDF or Zarr ({reason(err)}); give such a "
                         "file, and install its reader with: pip install 'hpcpar[xarray]'") from err
    with opened as found, undecoded as stored:
        unknown = [name for name in (*images, *labels) if name not in found.variables]
        if unknown or not images or not labels:
            raise InputError(f"{source} has no variable '{', '.join(unknown)}'; choose --images "
                             f"and --labels from: {', '.join(map(str, found.variables))}")
        dims = [str(each) for each in found[images[0]].dims]
        if not dims:
            raise InputError(f"{source}: '{images[0]}' is a single number; choose variables with "
                             "samples")
        order = [samples or dims[0], *([channels] if channels else [])]
        if order[0] == channels:
            raise InputError(f"{source}: '{channels}' cannot count both samples and channels; "
                             "give --samples and --channels different dimensions")
        missing = [each for each in order if each not in dims]
        if missing:
            raise InputError(f"{source}: '{images[0]}' has no dimension '{missing[0]}'; its "
                             f"dimensions are {', '.join(dims)}")
        order += [each for each in dims if each not in order]
        pixels = _Stack([found[name] for name in images], source, order, channels)
        known = _Stack([_whole_numbers(stored[name], found[name]) for name in labels], source,
                       order, channels)
        x = Images(pixels, pixels.name)
        write_arrays(path, [(x, Truth(known, known.name, x, options))],
                     f"{os.path.basename(source)}: {', '.join((*images, *labels))}", options,
                     progress)


def _whole_numbers(stored: Any, decoded: Any) -> Any:
    """Labels as they are stored: decoded, missing ones would make all of them floating point."""
    packed = {"scale_factor", "add_offset", "_Unsigned"} & stored.attrs.keys()
    return decoded if packed or stored.dtype.kind not in "iu" else stored


class _Stack:
    """Variables of one source as an array [N, channels, *image axes], read some samples at a time.

    Raises
    ------
    InputError
        A variable has other dimensions than the first.
    """

    def __init__(self, variables: Sequence[Any], source: str, order: Sequence[str],
                 channels: str) -> None:
        self.name = f"{source}: '{', '.join(v.name for v in variables)}'"
        self._variables, first = variables, variables[0]
        self._order = [each for each in order if each in first.dims]
        if order[0] not in first.dims or any(set(v.dims) != set(self._order)
                                             for v in self._variables):
            raise InputError(f"{self.name} has dimensions " + ", ".join(
                str(v.dims) for v in self._variables) + f"; give variables of {tuple(order)}")
        self._channels = channels if channels in first.dims else ""
        count = first.sizes[channels] if self._channels else 1
        rest = [first.sizes[each] for each in self._order[1:] if each != channels]
        self.shape = (first.sizes[order[0]], count * len(variables), *rest)
        self.dtype = np.result_type(*(v.dtype for v in self._variables))

    def __getitem__(self, samples: slice) -> NDArray[Any]:
        try:
            read = [v.isel({self._order[0]: samples}).load().transpose(*self._order).values
                    for v in self._variables]
        except Exception as err:  # of each format's own library
            raise InputError(f"{self.name} cannot be read ({reason(err)}); fetch the file "
                             "again") from err
        return np.concatenate([each if self._channels else each[:, None] for each in read], axis=1)
