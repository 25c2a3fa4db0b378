"""The session for a first GPU runs from end to end on the pretended one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.gpu_parts import PARTS
from tests import cuda_cpu
from tests.limits import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(bool(cuda_cpu.missing()), reason=cuda_cpu.missing())
def test_every_part_is_done(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "bench" / "gpu_session.py", "--pretended", "--out", tmp_path],
        capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + (tmp_path / "session.md").read_text()
    parts = json.loads((tmp_path / "session.json").read_text())["parts"]
    assert list(parts) == list(PARTS) and not any("fault" in part for part in parts.values())
    assert all(row["losses off"] < 1e-5 for row in parts["ranks"]["rows"])
    page = (tmp_path / "session.md").read_text()
    assert "On a pretended GPU" in page and "conv2 | 4 | tf32 | backward weight" in page


def test_the_hosts_work_is_counted_without_a_card() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "bench" / "gpu_host.py", "--networks", "lenet5", "--iterations",
         "2", "--json", "--replayed"], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    row, replayed = map(json.loads, done.stdout.splitlines())
    assert replayed["graphs"] == 1 and replayed["waits"] == 0
    assert replayed["launches"] == 2  # they normalize the images
    assert row["convolutions"] == 5  # of two layers, without the gradient of the images
    assert row["launches"] == sum(row[kind] for kind in (
        "kernels", "convolutions", "products", "array operations"))


def test_an_iteration_of_resnet50_has_few_launches() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "bench" / "gpu_host.py", "--networks", "resnet50", "--iterations",
         "2", "--json"], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert 158 < json.loads(done.stdout)["launches"] <= 350  # 158 for its convolutions alone


def test_a_part_that_fails_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed (extra 'cuda-check')")
    done = subprocess.run(
        [sys.executable, ROOT / "bench" / "gpu_session.py", "--out", tmp_path, "--parts",
         "costs,versions"], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 1
    parts = json.loads((tmp_path / "session.json").read_text())["parts"]
    assert parts["costs"]["fault"] == "exit status 1"
    assert "no GPU is visible" in "".join(parts["costs"]["log"])
    assert "fault" not in parts["versions"] and parts["versions"]["facts"]["devices"] == []
