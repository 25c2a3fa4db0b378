"""Batches of a data set, for ranks that read only the samples that they need."""

from __future__ import annotations

from collections.abc import Iterator, Sized

import torch
from torch.utils.data import IterableDataset, Sampler

from hpcpar.errors import InputError
from hpcpar.torch.model import ParallelModule


class BatchSampler(Sampler[list[int]]):
    """Selects this rank's samples of every batch, as a ``DataLoader``'s ``batch_sampler``.

    The batches over all ranks do not depend on the plan, and no sample occurs twice in an epoch. An
    epoch leaves out samples that do not fill a batch; with `shuffle`, different ones each time.

    Parameters
    ----------
    data : torch.utils.data.Dataset
        A map-style data set: it has a length, and samples by number.

    Attributes
    ----------
    epoch : int
        Determines the order, together with `seed`; every iteration over the sampler increments it.
    """

    def __init__(self, model: ParallelModule, data: Sized, shuffle: bool = True,
                 seed: int = 0) -> None:
        if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
            raise InputError(f"{type(data).__name__} has no samples by number (it is an iterable "
                             "data set); let every rank read the same whole batches, with "
                             "DataLoader(data, batch_size=model.plan.batch, drop_last=True)")
        self.model, self.data, self.shuffle, self.seed, self.epoch = model, data, shuffle, seed, 0

    def __len__(self) -> int:
        return len(self.data) // self.model.plan.batch

    def __iter__(self) -> Iterator[list[int]]:
        """This rank's samples of each batch."""
        order = torch.arange(len(self.data))
        if self.shuffle:
            seeded = torch.Generator().manual_seed(self.seed + self.epoch)
            order = torch.randperm(len(self.data), generator=seeded)
        self.epoch += 1
        rows = torch.from_numpy(self.model.engine.samples)
        for i in range(len(self)):
            yield order[i * self.model.plan.batch + rows].tolist()
