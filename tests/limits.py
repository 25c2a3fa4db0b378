"""Limits of time, and the share of the tests that a run draws; ``tests/run.sh`` sets both.

No verdict comes from the clock: a slow or busy machine makes tests slow, not red. A test waits for
files, pipes or states (`wait_until`), never for a number of seconds.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from typing import Any

#: Factor by which this machine is slower than the reference machine; `tests/speed.py` measures it.
SLOWNESS = max(1.0, float(os.environ.get("HPCPAR_TEST_SLOWNESS", "1")))
#: A command or a test that takes longer (s) is stuck, not slow. Tests take a minute at most.
LIMIT_S = 1800 * SLOWNESS
#: Seconds between two looks at a state.
LOOK_S = 0.01
#: Parts that the cases of each test are divided into, and parts that the tests of each file are
#: divided into: a run draws one of the former, or one of the latter.
SIXTHS, SAMPLES = 6, 12
SAMPLED = os.environ.get("HPCPAR_TEST_DRAW") == "sample"
PARTS = SAMPLES if SAMPLED else SIXTHS
#: Seed that selects the part; None for everything.
DRAWN = int(os.environ["HPCPAR_TEST_SEED"]) if os.environ.get("HPCPAR_TEST_SEED") else None


def wait_until(condition: Callable[[], object], job: subprocess.Popen[Any] | None = None) -> None:
    """Returns once the condition holds; fails if the job that should bring it about has ended.

    pytest ends a test that waits for ever.
    """
    while not condition():
        assert job is None or job.poll() is None or condition(), "the job has ended"
        time.sleep(LOOK_S)
