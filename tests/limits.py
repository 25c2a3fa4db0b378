"""Time limits of tests, and the cases that a run draws; ``tests/run.sh`` sets both."""

from __future__ import annotations

import os

#: Factor by which this machine is slower than the reference machine; `tests/speed.py` measures it.
SLOWNESS = max(1.0, float(os.environ.get("HPCPAR_TEST_SLOWNESS", "1")))
#: A command or a test that takes longer (s) is stuck, not slow.
LIMIT_S = 300 * SLOWNESS
#: Limit (s) for an action that should end immediately, even on a busy machine.
SOON_S = 20 * SLOWNESS
#: Number of parts that the cases are divided into; a run may draw one of them.
THIRDS = 3
#: Seed that selects the part; None for all cases.
DRAWN = int(os.environ["HPCPAR_TEST_SEED"]) if os.environ.get("HPCPAR_TEST_SEED") else None
