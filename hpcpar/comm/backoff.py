"""Pauses between the polls of a waiting rank."""

from __future__ import annotations

import os
import time

#: Fruitless polls before a waiting rank sleeps; each of them yields its core. With a core per rank,
#: they last far longer than the shortest sleep: otherwise a rank that sleeps would make its partner
#: sleep, and so on through all rounds of a collective. A rank that shares its core sleeps sooner.
YIELDS, YIELDS_SHARED = 1000, 20
#: The shortest and the longest sleep (s).
SHORT_S, LONG_S = 2e-5, 1e-3
#: Length of a sleep as a fraction of the time without progress, so that idle ranks leave their
#: cores to busy ones.
SLEEP_FRACTION = 1 / 50


def pause(polls: int, idle_s: float, yields: int = YIELDS) -> bool:
    """Yield the core after each of the first `yields` fruitless polls, later sleep; return True if
    the rank slept. `idle_s` is the time without any progress.
    """
    if polls < yields:
        os.sched_yield()
        return False
    time.sleep(min(LONG_S, max(SHORT_S, SLEEP_FRACTION * idle_s)))
    return True
