"""The GPU backend on the CPU (see cuda_support) against the cases of every backend."""

from __future__ import annotations

from tests.cuda_support import *  # noqa: F403
from tests.kernel_cases import *  # noqa: F403

del test_transfers  # noqa: F821 - copies from and to the host are CuPy's own, which is not here
