"""Tests of a device that is pretended: its ranks wait for each other by polling, which takes long
where they share cores.
"""

from __future__ import annotations

import pytest

from hpcpar.comm.world import world
from tests.limits import DRAWN

#: On 1 and 2 ranks; on 3 and 4 where every case runs.
few_ranks = pytest.mark.skipif(
    world().size > (2 if DRAWN is not None else 4),
    reason="strategies on 1 to 8 ranks are in test_gpu.py, and take long where ranks share cores")
