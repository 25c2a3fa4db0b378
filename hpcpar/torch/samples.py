"""Checks that all ranks get the same samples."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable

import torch
from torch import Tensor

from hpcpar.comm.world import World
from hpcpar.errors import InputError, on_all_ranks
from hpcpar.plan.boxes import Box
from hpcpar.process.launchers import whole_number
from hpcpar.torch.engine import Engine

#: How many first iterations compare samples; later, every one whose number EVERY divides.
COMPARED, EVERY = 3, 100


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


def require_equal(engine: Engine, images: Tensor, rows: Iterable[int], box: Box) -> None:
    """Compare the samples of ranks that hold the same ones, in some iterations.

    Parameters
    ----------
    rows : iterable of int
        Places of the images in the mini-batch, unless they are the whole mini-batch.
    box : Box
        The part of each sample.

    Raises
    ------
    InputError
        Two ranks hold different numbers at one place; on every rank.
    """
    if engine.world.size == 1 or (engine.iterations >= COMPARED and engine.iterations % EVERY):
        return
    engine.world.lookout.place = f"the start of iteration {engine.iterations + 1}"
    stored = images.detach().cpu().contiguous().view(torch.uint8).numpy()
    parts = {"the batch": stored} if len(stored) == engine.plan.batch else {
        f"sample {row} of the batch": part for row, part in zip(rows, stored, strict=True)}
    own = {(name, str(box)): zlib.crc32(part) for name, part in parts.items()}
    first: dict[tuple[str, str], tuple[int, int]] = {}
    for rank, digests in engine.share("the comparison of samples", own).items():
        for key, digest in digests.items():
            other, expected = first.setdefault(key, (rank, digest))
            if digest != expected:
                raise on_all_ranks(InputError(
                    f"ranks {other} and {rank} hold different images as {key[0]}: seed the "
                    "loader's order and its random changes alike on all ranks, or let "
                    "hpcpar.torch.BatchSampler choose each rank's samples"))
