"""Checks that all ranks get the same samples."""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Iterable

import torch
from torch import Tensor

from hpcpar.comm.world import World
from hpcpar.errors import InputError, on_all_ranks
from hpcpar.process.launchers import whole_number
from hpcpar.torch.engine import Engine

#: How many first iterations compare samples; later, every one whose number EVERY divides.
COMPARED, EVERY = 3, 100
#: A number for the content of each sample, or batch, and part of it.
Digests = dict[tuple[str, str], int]


def require_one_world(world: World) -> None:
    """Check that this process is not one of several that MPI does not see.

    Raises
    ------
    InputError
        ``torchrun`` started it.
    """
    started = whole_number("WORLD_SIZE") or 1
    if world.size == 1 < started and "RANK" in os.environ:
        raise InputError(f"torchrun started {started} processes (RANK and WORLD_SIZE are set), but "
                         f"MPI sees one alone: start them with mpiexec -n {started} python in "
                         "place of torchrun")


def are_compared(iteration: int) -> bool:
    """Whether samples of an iteration, counted from 0, are compared."""
    return iteration < COMPARED or iteration % EVERY == 0


def digests(engine: Engine, given: Tensor, rows: Iterable[int], part: object) -> Digests:
    """Digests of a tensor's samples by their place.

    Parameters
    ----------
    given : Tensor
        [samples, ...] the whole mini-batch, or some samples.
    rows : iterable of int
        Places of some samples in the mini-batch.
    part : object
        What `given` has of each sample; equal where the same numbers are expected.
    """
    each = given.detach().cpu().reshape(len(given), math.prod(given.shape[1:])).contiguous()
    stored = each.view(torch.uint8).numpy()
    named = {"the batch": stored} if len(stored) == engine.plan.batch else {
        f"sample {row} of the batch": sample for row, sample in zip(rows, stored, strict=False)}
    return {(name, str(part)): zlib.crc32(numbers) for name, numbers in named.items()}


def require_equal(engine: Engine, what: str, own: Digests) -> None:
    """Compare the samples of ranks that hold the same ones.

    Raises
    ------
    InputError
        Two ranks hold different numbers at one place; on every rank.
    """
    if engine.world.size == 1:
        return
    first: dict[tuple[str, str], tuple[int, int]] = {}
    for rank, of_rank in engine.share("the comparison of samples", own).items():
        for key, digest in of_rank.items():
            other, expected = first.setdefault(key, (rank, digest))
            if digest != expected:
                raise on_all_ranks(InputError(
                    f"ranks {other} and {rank} hold different {what} as {key[0]}: seed the "
                    "loader's order and its random changes alike on all ranks, or let "
                    "hpcpar.torch.BatchSampler choose each rank's samples"))
