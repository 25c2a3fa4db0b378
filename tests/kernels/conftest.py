"""The pretended cuDNN for the tests of kernels."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def library() -> ModuleType:
    """The pretended cuDNN, a module of its own beside an installed one."""
    path = Path(__file__).resolve().parents[1] / "pretended" / "cudnn.py"
    spec = importlib.util.spec_from_file_location("pretended_cudnn", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
