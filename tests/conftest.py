"""What all tests share: no site defaults, and how often Python looks for garbage in cycles."""

from __future__ import annotations

import gc
import os

import pytest

#: No test reads the site defaults of whoever runs it.
os.environ["HPCPAR_CONFIG"] = ""
# pytest-xdist tells its workers a width
os.environ.pop("COLUMNS", None)

#: New objects, and younger collections, before a generation is looked through.
THRESHOLDS = (20_000, 20, 20)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Leave modules and tests out of collections: PyTorch and some thousand tests make a large
    heap, and none of it is ever free.
    """
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
