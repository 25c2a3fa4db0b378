"""Outputs that other programs read: lines of ``compare --json`` for ReFrame, and the table of
``--metrics`` for MLflow, as the documentation shows them.
"""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from hpcpar.api.compare import compare
from hpcpar.cli.options import print_json
from hpcpar.report.metrics import Metrics
from tests.unit.report.test_compare import run
from tests.unit.report.test_metrics import now

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/how-to/regression-tests.md"


def test_reframe_finds_the_numbers_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    result = compare(run())
    row = result.runs[0]
    print_json(result.to_json())
    out = capsys.readouterr().out
    test = (ROOT / "packaging/reframe_hpcpar.py").read_text()
    patterns = re.findall(r"extractsingle\(r'([^']+)'", test)
    found = [float(re.search(p, out, re.M)[1]) for p in patterns]  # type: ignore[index]
    assert found == [row.iteration.measured_s, row.iteration.accuracy]
    names = re.findall(r'^\| `("\w+")` \|', PAGE.read_text(), re.M)
    assert len(names) == 4 and all(re.search(rf"^ *{name}: \S+,$", out, re.M) for name in names)


def test_mlflow_gets_every_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    logged: list[tuple[dict[str, float], int]] = []

    class Run:
        def __enter__(self) -> None: ...
        def __exit__(self, *_: Any) -> None: ...

    stand_in = types.ModuleType("mlflow")
    stand_in.start_run = Run  # type: ignore[attr-defined]
    stand_in.log_metrics = lambda values, step: logged.append(  # type: ignore[attr-defined]
        (values, step))
    monkeypatch.setitem(sys.modules, "mlflow", stand_in)
    table = Metrics("run.csv")
    for epoch in (1, 2):
        table.add(now(epoch, True))
    (block,) = re.findall(r"```python\n(import csv.*?)```", PAGE.read_text(), re.S)
    exec(block, {})
    assert [step for _, step in logged] == [10, 20]
    assert [values["loss"] for values, _ in logged] == [0.5, 0.5]
