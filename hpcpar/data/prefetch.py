"""Prefetching: a thread reads the next batches while the training computes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from numpy.typing import NDArray

from hpcpar.data.loader import Loader


@dataclass(frozen=True)
class Batch:
    """One rank's part of a mini-batch.

    Attributes
    ----------
    images : array
        Normalised images [n, c, ...].
    labels : array
        Labels [n], int64, or targets [n, outputs].
    """

    epoch: int
    index: int
    images: NDArray[Any]
    labels: NDArray[Any]


def _batches(loader: Loader, epoch: int, index: int, count: int) -> Iterator[Batch]:
    for _ in range(count):
        if index == loader.batches_per_epoch:
            epoch, index = epoch + 1, 0
        yield Batch(epoch, index, *loader.batch(epoch, index))
        index += 1


class Prefetch:
    """Iterator over batches that a thread reads ahead; to be closed before its loader.

    An exception in the thread is raised in the consumer after the batches read before it.

    Parameters
    ----------
    depth : int
        Limit of the batches in the queue; 0 reads each batch on request, without a thread.
    """

    def __init__(self, loader: Loader, epoch: int, index: int, count: int, depth: int = 2) -> None:
        self._batches = _batches(loader, epoch, index, count)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if depth:
            self._queue: queue.Queue[Batch | BaseException | None] = queue.Queue(depth)
            self._thread = threading.Thread(target=self._work, name="hpcpar-prefetch", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        try:
            for batch in self._batches:
                if not self._put(batch):
                    return
            self._put(None)
        except BaseException as err:
            self._put(err)

    def _put(self, entry: Batch | BaseException | None) -> bool:
        """Put an entry into the queue; False if the consumer has closed it."""
        while not self._stop.is_set():
            try:
                self._queue.put(entry, timeout=0.05)
                return True
            except queue.Full:
                continue
        return False

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._stop.is_set():
            raise StopIteration
        if self._thread is None:
            return next(self._batches)
        entry = self._queue.get()
        if isinstance(entry, Batch):
            return entry
        self.close()
        if entry is None:
            raise StopIteration
        raise entry

    def close(self) -> None:
        """Stop the thread and wait for it."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Prefetch:
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()


def prefetch(loader: Loader, epoch: int = 0, index: int = 0, count: int | None = None,
             depth: int = 2) -> Prefetch:
    """Batches of a loader from (epoch, index) on, read ahead by a thread.

    A loader with all images in memory needs no thread.

    Parameters
    ----------
    count : int, optional
        Number of batches, across epochs; by default up to the end of this epoch.
    depth : int
        Limit of the batches in the queue.
    """
    count = loader.batches_per_epoch - index if count is None else count
    return Prefetch(loader, epoch, index, count, 0 if loader.resident else depth)
