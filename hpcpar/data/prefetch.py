"""Prefetching: a thread reads the next batches during training."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, TypeVar

from numpy.typing import NDArray

from hpcpar.data.loader import Loader

#: Number of batches that the thread reads ahead.
AHEAD = 2
#: Images of a batch, on the host or on a device.
Images = TypeVar("Images")


@dataclass(frozen=True)
class Batch(Generic[Images]):
    """One rank's part of a mini-batch.

    Attributes
    ----------
    images : array
        Stored images [n, c, ...], where the `upload` of `prefetch` puts them.
    labels : array
        Labels [n, ...], int64, or targets [n, outputs, ...].
    counted : tuple of float
        As in `Loader.counted`.
    """

    epoch: int
    index: int
    images: Images
    labels: NDArray[Any]
    counted: tuple[int, float]


def prefetch(loader: Loader, upload: Callable[[NDArray[Any]], Images], epoch: int = 0,
             index: int = 0, count: int | None = None) -> Generator[Batch[Images], None, None]:
    """Batches of a loader from (epoch, index) on; close this before the loader.

    A thread reads `AHEAD` batches ahead, unless the loader has all images in memory. An exception
    in the thread is raised in place of its batch.

    Parameters
    ----------
    upload : callable
        Copies images to the device, in the thread (`Backend.upload`).
    count : int, optional
        Number of batches, across epochs; by default, up to the end of this epoch.
    """
    per_epoch = loader.batches_per_epoch
    first = epoch * per_epoch + index
    stop = first + (per_epoch - index if count is None else count)

    def read(number: int) -> Batch[Images]:
        place = divmod(number, per_epoch)
        images, labels = loader.batch(*place)
        return Batch(*place, upload(images), labels, loader.counted(*place))

    if loader.resident:
        yield from map(read, range(first, stop))
        return
    with ThreadPoolExecutor(1, "hpcpar-prefetch") as pool:
        reads = (pool.submit(read, number) for number in range(first, stop))
        ahead = deque(islice(reads, AHEAD))
        try:
            while ahead:
                ahead.extend(islice(reads, 1))
                yield ahead.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
