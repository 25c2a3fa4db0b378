"""Setup of all tests: no site defaults, no verdicts by the clock, a draw of cases, and rare garbage
collections.
"""

from __future__ import annotations

import gc
import os
import zlib
from collections import defaultdict
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
# Failed assertions in helpers print as much as failed assertions in tests.
pytest.register_assert_rewrite(*(
    ".".join(("tests", *path.relative_to(TESTS).with_suffix("").parts))
    for path in TESTS.rglob("*.py") if not path.name.startswith(("test_", "conftest", "__"))))

from tests.limits import DRAWN, LIMIT_S, PARTS, SAMPLED  # noqa: E402

# Tests do not read the site defaults of the user who runs them.
os.environ["HPCPAR_CONFIG"] = ""
# pytest-timeout ends tests that are stuck.
os.environ.setdefault("PYTEST_TIMEOUT", str(LIMIT_S))
# pytest-xdist sets a width for its workers.
os.environ.pop("COLUMNS", None)

#: Thresholds of `gc.set_threshold`, high for speed.
THRESHOLDS = (20_000, 20, 20)


def pytest_configure(config: pytest.Config) -> None:
    """Gives all of Hypothesis's tests one profile, unless this run leaves its plugin out.

    The examples are the same in each run, and no example or its generation is too slow.
    """
    if not config.pluginmanager.hasplugin("hypothesispytest"):
        return
    from hypothesis import HealthCheck, settings

    settings.register_profile("hpcpar", deadline=None, derandomize=True, database=None,
                              suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("hpcpar")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps a sixth of the cases of each parametrized test, or a sample of the tests of each file,
    at least one, if the run draws them.

    Consecutive seeds cover everything. A checksum shuffles the cases, so that a sixth does not
    always have the same value of a parameter.
    """
    if DRAWN is None:
        return
    cases = defaultdict(list)
    for item in items:
        if SAMPLED or hasattr(item, "callspec"):
            cases[item.nodeid.partition("::" if SAMPLED else "[")[0]].append(item)
    deselected = []
    for group in cases.values():
        group.sort(key=lambda item: zlib.crc32(item.nodeid.encode()))
        kept = set(range(DRAWN % PARTS, len(group), PARTS)) or {DRAWN % len(group)}
        deselected += [item for k, item in enumerate(group) if k not in kept]
    config.hook.pytest_deselected(items=deselected)
    dropped = set(map(id, deselected))
    items[:] = [item for item in items if id(item) not in dropped]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Exclude modules and tests, a large heap that is never freed, from garbage collections."""
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
