"""How a rank spends the time between two looks at what it waits for."""

from __future__ import annotations

import os
import time

from hpcpar.comm.turns import Turns

#: A waiting rank offers its core to others after every fruitless poll, and after so many of them it
#: sleeps between polls. That is many times longer than a sleep: else a rank that slept makes its
#: partner sleep, and so on through all rounds.
YIELDS = 1000
#: The shortest sleep and the longest (s).
SHORT_S, LONG_S = 2e-5, 1e-3
#: A sleep over the time in which nothing has come: a rank with little to do in a plan leaves its
#: core to those that have more.
PART = 1 / 50


class Patience:
    """Pauses between polls.

    Parameters
    ----------
    turns : Turns or None
        With whom a rank takes turns on its core, where there are more ranks than cores.
    """

    def __init__(self, turns: Turns | None) -> None:
        self.turns = turns if turns is not None and turns.mates else None

    def pause(self, polls: int, idle_s: float) -> bool:
        """After a fruitless poll, leave the core to others; True if it is time to see whether
        anything has come lately.

        Parameters
        ----------
        polls : int
            So many were fruitless.
        idle_s : float
            So long nothing has come.
        """
        if self.turns is not None:
            self.turns.hand_on()
            # the others on the core only wait as well
            if idle_s >= LONG_S / PART:
                time.sleep(LONG_S)
        elif polls < YIELDS:
            # free where a core is idle
            os.sched_yield()
            return False
        else:
            time.sleep(min(LONG_S, max(SHORT_S, PART * idle_s)))
        return True
