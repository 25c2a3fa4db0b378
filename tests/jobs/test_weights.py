"""Training from the weights of a PyTorch module."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hpcpar.cli.main import main
from hpcpar.network.source import load_module
from tests.jobs.conftest import Run

MODEL = """
from torch import nn


def net(shape=(1, 8, 8), classes=10):
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(),
                         nn.Linear(256, classes))
"""


def test_weights_alone_have_no_seed(hpcpar: Run, plan: Callable[..., Path], digits: Path,
                                    tmp_path: Path) -> None:
    """Shuffling and dropout of the training that follows take any seed, and keep it."""
    torch = pytest.importorskip("torch")
    model = tmp_path / "model.py"
    model.write_text(MODEL, encoding="utf-8")
    module, _ = load_module(f"{model}:net")
    torch.save(module.state_dict(), tmp_path / "net.pt")
    weights, after = tmp_path / "weights.h5", tmp_path / "after.h5"
    assert main(["weights", "from-torch", str(tmp_path / "net.pt"), str(weights), "--network",
                 f"{model}:net"]) == 0
    made = plan(2, "data", network=f"{model}:net")
    words = ("run", "--plan", made, "--data", digits, "--checkpoint", after, "--resume")
    done = hpcpar(2, *words, weights, "--partial", "--seed", 5, "--steps", 2)
    assert done.returncode == 0, done.stderr
    done = hpcpar(2, *words, after, "--seed", 6, "--steps", 3)
    assert done.returncode == 2 and "resume it with --seed 5" in done.stderr
