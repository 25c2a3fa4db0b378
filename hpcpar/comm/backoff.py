"""Pauses of a rank between two polls of what it waits for."""

from __future__ import annotations

import os
import time

#: Fruitless polls before a waiting rank sleeps; after each it offers its core to other ranks. With
#: a core for each rank they last far longer than the shortest sleep: otherwise a rank that sleeps
#: makes its partner sleep, and so on through all rounds of a collective. A rank that shares its
#: core leaves it sooner.
YIELDS, YIELDS_SHARED = 1000, 20
#: The shortest and the longest sleep (s).
SHORT_S, LONG_S = 2e-5, 1e-3
#: Length of a sleep over the time without progress: a rank with little to do leaves its core to
#: those that have more.
PART = 1 / 50


def pause(polls: int, idle_s: float, yields: int = YIELDS) -> bool:
    """Leave the core to others after a fruitless poll; True once the rank sleeps between polls.

    Parameters
    ----------
    polls : int
        Fruitless polls so far.
    idle_s : float
        Time without any progress (s).
    yields : int
        Polls without a sleep.
    """
    if polls < yields:
        os.sched_yield()
        return False
    time.sleep(min(LONG_S, max(SHORT_S, PART * idle_s)))
    return True
