"""The tutorial's notebook runs from its first cell to its last, and stores what it showed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs.conftest import ROOT, clean_environment
from tests.limits import LIMIT_S

PAGE = ROOT / "docs" / "tutorial.ipynb"


def test_the_tutorial_runs(mpiexec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("ipykernel", "matplotlib", "pandas", "sklearn"):
        pytest.importorskip(package)
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    notebook = nbformat.read(PAGE, as_version=4)
    stored = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.outputs]
    shown = [kind for cell in stored for output in cell.outputs for kind in output.get("data", {})]
    assert shown.count("image/png") == 2 and shown.count("text/html") >= 4
    for name, value in clean_environment().items():
        monkeypatch.setenv(name, value)
    client.NotebookClient(notebook, timeout=LIMIT_S, kernel_name="python3",
                          resources={"metadata": {"path": str(tmp_path)}}).execute()
    texts = [output.data["text/plain"] for cell in notebook.cells if cell.cell_type == "code"
             for output in cell.outputs if "data" in output]
    assert texts[0].startswith("Use 16 GPUs of p100x4x4")
    assert any("an iteration, measured" in text and "% right" in text for text in texts)
