"""Batches of a data set for ranks that each read their own samples."""

from __future__ import annotations

from collections.abc import Iterator, Sized

import torch
from torch.utils.data import IterableDataset, Sampler

from hpcpar.errors import InputError
from hpcpar.torch.model import ParallelModule


class BatchSampler(Sampler[list[int]]):
    """Hands each rank the numbers of its samples of every batch, for a ``DataLoader``'s
    ``batch_sampler``; over all ranks every batch is the same for any plan, and no sample comes
    twice in an epoch. Samples that fill no batch are left out, others in every epoch.

    Parameters
    ----------
    data : torch.utils.data.Dataset
        Of map style: what has a length, and a sample for each number below it.

    Attributes
    ----------
    epoch : int
        Fixes the order, with the seed; it grows by itself.
    """

    def __init__(self, model: ParallelModule, data: Sized, shuffle: bool = True,
                 seed: int = 0) -> None:
        if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
            raise InputError(f"{type(data).__name__} has no samples by number (an iterable "
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
