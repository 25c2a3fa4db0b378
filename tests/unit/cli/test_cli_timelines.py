"""``hpcpar predict --timeline`` and ``--timeline-plot``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.cli.output import text

LENET = ["predict", "--network", "lenet5", "--ranks", "4", "--batch", "64"]


def test_timelines(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    shown = text(capsys, *LENET, "--strategy", "data,pipeline:2x2", "--timeline", str(path))
    assert f"wrote {path}; open it at https://ui.perfetto.dev" in shown
    events = json.loads(path.read_text())["traceEvents"]
    processes = {e["pid"] for e in events}
    assert len(processes) == 2 and all(processes == {e["pid"] for e in events if e["ph"] == kind}
                                       for kind in "XM")


def test_timeline_plots(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "t.png"
    assert f"wrote {path}" in text(capsys, *LENET, "--timeline-plot", str(path))
    assert path.read_bytes().startswith(b"\x89PNG")
