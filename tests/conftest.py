"""Setup for all tests: no site defaults, the cases that this run draws, and how often Python
collects garbage.
"""

from __future__ import annotations

import gc
import os
import zlib
from collections import defaultdict
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
# assertions in helpers say as much as those in tests
pytest.register_assert_rewrite(*(
    ".".join(("tests", *path.relative_to(TESTS).with_suffix("").parts))
    for path in TESTS.rglob("*.py") if not path.name.startswith(("test_", "conftest", "__"))))

from tests.limits import DRAWN, THIRDS  # noqa: E402

#: No test reads the site defaults of whoever runs it.
os.environ["HPCPAR_CONFIG"] = ""
# pytest-xdist tells its workers a width
os.environ.pop("COLUMNS", None)

#: New objects, and younger collections, before a generation is looked through.
THRESHOLDS = (20_000, 20, 20)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps a third of the cases of each parametrized test, at least one, where a third is drawn.

    Three seeds in a row draw every case. Cases are shuffled by a checksum, lest a third is always
    the same value of one parameter.
    """
    if DRAWN is None:
        return
    cases = defaultdict(list)
    for item in items:
        if hasattr(item, "callspec"):
            cases[item.nodeid.partition("[")[0]].append(item)
    left_out = []
    for group in cases.values():
        group.sort(key=lambda item: zlib.crc32(item.nodeid.encode()))
        kept = set(range(DRAWN % THIRDS, len(group), THIRDS)) or {DRAWN % len(group)}
        left_out += [item for k, item in enumerate(group) if k not in kept]
    config.hook.pytest_deselected(items=left_out)
    gone = set(map(id, left_out))
    items[:] = [item for item in items if id(item) not in gone]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Leave modules and tests out of collections: PyTorch and some thousand tests make a large
    heap, and none of it is ever free.
    """
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
