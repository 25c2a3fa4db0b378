"""Measures how many times slower this machine is than the reference machine.

Run: ``python tests/speed.py``. It prints the geometric mean of the slowdowns of a Python loop and
of a matrix product on one core, at least 1. Time limits and expected times scale with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

#: Times on the reference machine (s): a loop of 10^7 additions, a float32 product of 1,024 x 1,024.
LOOP_S, PRODUCT_S = 0.22, 0.017


def best_s(work: Callable[[], object]) -> float:
    """The shortest time of three runs on a core (s); other processes do not count."""
    times = []
    for _ in range(3):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return min(times)


def loop() -> int:
    """10^7 additions."""
    total = 0
    for i in range(10**7):
        total += i
    return total


def slowness() -> float:
    """Slowdown relative to the reference machine."""
    a = np.ones((1024, 1024), np.float32)
    return max(1.0, (best_s(loop) / LOOP_S * (best_s(lambda: a @ a) / PRODUCT_S)) ** 0.5)


if __name__ == "__main__":
    print(f"{slowness():.1f}")
