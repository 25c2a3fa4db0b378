"""Requests of ranks to each other: to stop, to save."""

from __future__ import annotations

from enum import IntFlag


class Ask(IntFlag):
    """Requests of a rank. An allreduce sums them together with the loss: any number of ranks may
    request a stop, but only rank 0 requests checkpoints and records.
    """

    NOTHING = 0
    STOP = 1
    CHECKPOINT = 1 << 24
    RECORD = 1 << 25
