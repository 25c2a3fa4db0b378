"""The GPU backend on the CPU (see cuda_support) against the cases of every backend."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
pytest.register_assert_rewrite("kernel_cases", "kernel_conv_cases", "kernel_norm_cases",
                               "kernel_pool_cases", "kernel_support")

from kernel_cases import *  # noqa: E402, F403, I001
from cuda_support import *  # noqa: E402, F403

del test_transfers  # noqa: F821 - copies from and to the host are CuPy's own, which is not here
