"""Tests that need a GPU; skipped, with the reason, where there is none."""

from __future__ import annotations

from typing import Any

import pytest

from hpcpar.errors import InputError


@pytest.fixture(scope="session")
def gpu() -> Any:
    """The GPU's backend."""
    try:
        from hpcpar.kernels.cupy_backend import CupyBackend

        return CupyBackend()
    except ImportError as err:
        pytest.skip(f"CuPy cannot be imported: {err}")
    except InputError as err:
        pytest.skip(str(err))
