"""How long a test may take, and which cases a run draws; ``tests/run.sh`` says both."""

from __future__ import annotations

import os

#: Times slower than the machine of the stated times; `tests/speed.py` measures it.
SLOWNESS = max(1.0, float(os.environ.get("HPCPAR_TEST_SLOWNESS", "1")))
#: A command or a test that takes longer (s) is stuck, not slow.
LIMIT_S = 300 * SLOWNESS
#: A command that ends "at once" takes less time than this (s), on a busy machine too.
SOON_S = 20 * SLOWNESS
#: A run draws one part of this many of the combinations.
THIRDS = 3
#: The seed of the part; None for every case.
DRAWN = int(os.environ["HPCPAR_TEST_SEED"]) if os.environ.get("HPCPAR_TEST_SEED") else None
