"""An array whose samples are in files of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from hpcpar.errors import InputError

#: The file or files of a sample.
F = TypeVar("F")


class FileSamples(Generic[F]):
    """An array [N, ...] whose samples are read from files.

    Parameters
    ----------
    files : sequence
        The files of each sample.
    shape : tuple of int
        Shape of a sample.
    read : callable
        Returns a sample, or its fault.
    apply : callable
        Calls `read` for several samples, as `map` does; a pool's `map` reads them side by side.
    """

    def __init__(self, files: Sequence[F], shape: tuple[int, ...], dtype: np.dtype[Any],
                 read: Callable[[F], NDArray[Any] | InputError],
                 apply: Callable[..., Iterable[NDArray[Any] | InputError]] = map) -> None:
        self._files, self._read, self._apply = files, read, apply
        self.shape, self.dtype = (len(files), *shape), dtype

    def __getitem__(self, samples: slice) -> NDArray[Any]:
        out = np.empty((samples.stop - samples.start, *self.shape[1:]), self.dtype)
        for i, sample in enumerate(self._apply(self._read, self._files[samples])):
            if isinstance(sample, InputError):
                raise sample
            out[i] = sample
        return out
