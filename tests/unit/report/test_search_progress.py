"""A search says what it does, on a terminal alone."""

from __future__ import annotations

import io
import sys

import pytest

from hpcpar.cli import main as cli
from hpcpar.machine import files
from hpcpar.network.builtin.small import lenet5
from hpcpar.plan.plan import NetworkSpec
from hpcpar.search import auto

SHAPE = (1, 8, 8)


class Stderr(io.StringIO):
    """A standard error that is a terminal, or is not."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.isatty = lambda: terminal  # type: ignore[method-assign]


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("command", ["plan", "predict"])
def test_only_a_terminal_shows_progress(command: str, terminal: bool,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = Stderr(terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stderr)
    assert cli.main([command, "--network", "lenet5", "--input", "1x8x8", "--ranks", "2",
                     "--batch", "8"]) == 0
    assert ("0:00:00" in stderr.getvalue()) == terminal


def test_every_part_of_a_search_is_reported() -> None:
    told: list[str] = []
    spec = NetworkSpec("lenet5", SHAPE, 10)
    auto.best(lenet5(SHAPE, 10), spec, 4, 16, files.load("local"), tell=told.append)
    pipelines = auto.task(lenet5(SHAPE, 10), spec, 4, 16, files.load("local"), tell=told.append)
    auto.priced(pipelines, ["pipeline:2x2"])  # a bound leaves it out above
    text = "\n".join(told)
    for part in ("pricing data", "pricing owt-b", "pricing pipeline:2x2", "cost tables",
                 "local search, round 1"):
        assert part in text
