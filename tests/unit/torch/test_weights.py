"""``hpcpar weights``: a module's weights to a checkpoint and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hpcpar.cli.main import main
from hpcpar.network.source import load_module
from hpcpar.train import checkpoint

torch = pytest.importorskip("torch")

MODEL = '''
import torch
from torch import nn


def net(shape=(1, 8, 8), classes=3):
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(),
        nn.ConvTranspose2d(4, 6, 2, 2, groups=2), nn.Flatten(), nn.Linear(6 * 256, classes))


def number(shape=None, classes=None):
    return 3
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights_model.py").write_text(MODEL, encoding="utf-8")
    module, _ = load_module("weights_model.py:net")
    torch.save(module.state_dict(), "before.pt")
    return tmp_path


def test_weights_survive_a_round_trip(folder: Path) -> None:
    network = ["--network", "weights_model.py:net"]
    assert main(["weights", "from-torch", "before.pt", "weights.h5", *network]) == 0
    assert main(["weights", "to-torch", "weights.h5", "after.pt", *network]) == 0
    before, after = torch.load("before.pt"), torch.load("after.pt")
    assert list(before) == list(after)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_state_replaces_only_states(folder: Path, monkeypatch: pytest.MonkeyPatch,
                                      capsys: pytest.CaptureFixture[str]) -> None:
    network = ["--network", "weights_model.py:net"]
    assert main(["weights", "from-torch", "before.pt", "weights.h5", *network]) == 0
    np.savez("mine.npz", a=np.zeros(2))  # a ZIP archive, too
    assert main(["weights", "to-torch", "weights.h5", "mine.npz", *network]) == 2
    assert "not a state_dict of PyTorch" in capsys.readouterr().err
    assert main(["weights", "to-torch", "weights.h5", "after.pt", *network]) == 0
    before = Path("after.pt").read_bytes()

    def fails(state: object, path: str) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", fails)
    assert main(["weights", "to-torch", "weights.h5", "after.pt", *network]) == 2
    assert "No space left" in capsys.readouterr().err
    assert Path("after.pt").read_bytes() == before


def test_weights_replace_no_training(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network = ["--network", "weights_model.py:net"]
    state = checkpoint.CheckpointState(700, 1, 2, 0, "net", (1, 8, 8), 10)
    checkpoint.write("weights.h5", checkpoint.image((), (), state))
    before = Path("weights.h5").read_bytes()
    assert main(["weights", "from-torch", "before.pt", "weights.h5", *network]) == 2
    assert "weights.h5 has 700 iterations of a training" in capsys.readouterr().err
    assert Path("weights.h5").read_bytes() == before


def test_a_checkpoint_has_hpcpars_shapes(folder: Path) -> None:
    """A transposed convolution's weight is [out, in / groups, ...] in checkpoints."""
    assert main(["weights", "from-torch", "before.pt", "weights.h5", "--network",
                 "weights_model.py:net"]) == 0
    rows = checkpoint.resume_rows("weights.h5", "3", 0, 6, "float32", ["params/weight"])
    assert rows["params/weight"].shape == (6, 2, 2, 2)
    theirs = torch.load("before.pt")["3.weight"].numpy()  # [in, out / groups, ...]
    assert (rows["params/weight"][4, 1] == theirs[3, 1]).all()


def test_states_that_do_not_fit_are_refused(folder: Path,
                                            capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"other": torch.zeros(1)}, "other.pt")
    assert main(["weights", "from-torch", "other.pt", "weights.h5", "--network",
                 "weights_model.py:net"]) == 2
    assert "other.pt does not fit the module" in capsys.readouterr().err
    assert main(["weights", "from-torch", "before.pt", "weights.h5", "--network",
                 "weights_model.py:number"]) == 2
    assert "returns a torch.nn.Module, not a int" in capsys.readouterr().err
