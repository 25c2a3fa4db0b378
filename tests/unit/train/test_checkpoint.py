"""Checkpoints: whole tensors in, any rows out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import hpcpar
from hpcpar.errors import InputError
from hpcpar.network.builtin import network
from hpcpar.network.graph import Network
from hpcpar.plan.boxes import block
from hpcpar.train import checkpoint

NET = network("lenet5", (1, 8, 8), 10)


def tensors(net: Network, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    out = {}
    for layer in net.weighted:
        x = net.input_shape(layer)
        out[f"{layer.name}/weight"] = rng.normal(size=layer.weight_shape(x)).astype("f4")
        out[f"{layer.name}/bias"] = rng.normal(size=layer.bias_shape(x)).astype("f4")
    return out


def moments(net: Network) -> dict[str, np.ndarray]:
    """Both of Adam's."""
    return {f"{name}{suffix}": value for i, suffix in enumerate(checkpoint.STATES)
            for name, value in tensors(net, 1 + i).items()}


def state(net: Network = NET) -> dict[str, Any]:
    return {"step": 12, "epoch": 1, "batch_in_epoch": 3, "seed": 5, "network": net.name,
            "shape": net.image_shape, "classes": net.classes}


@pytest.fixture
def path(tmp_path: Path) -> str:
    out = str(tmp_path / "c.h5")
    checkpoint.write(out, tensors(NET, 0).items(), moments(NET).items(), state())
    return out


def fails(message: str, call: Any, *args: Any) -> None:
    with pytest.raises(InputError, match=message) as caught:
        call(*args)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("parts", [1, 3, 7])
def test_rows_of_any_split_make_the_tensors(path: str, parts: int) -> None:
    params, states = tensors(NET, 0), moments(NET)
    for layer in NET.weighted:
        rows = len(params[f"{layer.name}/bias"])
        got = [checkpoint.resume_rows(path, layer.name, *block(rows, parts, i), np.float64)
               for i in range(parts)]
        assert got[0]["params/weight"].dtype == np.float64
        for name in "weight", "bias":
            assert np.array_equal(np.concatenate([r[f"params/{name}"] for r in got]),
                                  params[f"{layer.name}/{name}"])
            for suffix in checkpoint.STATES:
                parts_of = np.concatenate([r[f"optimizer/{name}{suffix}"] for r in got])
                assert np.array_equal(parts_of, states[f"{layer.name}/{name}{suffix}"])


def test_state(path: str) -> None:
    got = checkpoint.check(path, NET)
    assert {k: got[k] for k in state()} == state() and got["hpcpar_version"] == hpcpar.__version__
    assert isinstance(got["step"], int) and isinstance(got["shape"], tuple)


def test_without_bias_and_state(tmp_path: Path) -> None:
    out = str(tmp_path / "c.h5")
    checkpoint.write(out, [("fc/weight", np.ones((4, 2)))], [], state())
    rows = checkpoint.resume_rows(out, "fc", 1, 3, np.float32)
    assert list(rows) == ["params/weight"] and rows["params/weight"].shape == (2, 2)


def test_running_statistics(tmp_path: Path) -> None:
    out = str(tmp_path / "c.h5")
    mean, variance = np.arange(4.0), np.arange(4.0, 8.0)
    bn = {"bn/weight": np.ones(4), "bn/bias": np.zeros(4), "bn/running_mean": mean,
          "bn/running_variance": variance}
    checkpoint.write(out, bn.items(), [], state())
    rows = checkpoint.resume_rows(out, "bn", 1, 3, np.float64)
    assert np.array_equal(rows["params/running_mean"], mean[1:3])
    assert np.array_equal(rows["params/running_variance"], variance[1:3])


def test_write_is_whole_or_not_at_all(path: str) -> None:
    before = Path(path).read_bytes()

    def broken() -> Any:
        yield "conv1/weight", np.ones(3)
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError):
        checkpoint.write(path, broken(), [], state())
    assert Path(path).read_bytes() == before and [p.name for p in Path(path).parent.iterdir()] == [
        "c.h5"
    ]


def test_bad_files(path: str, tmp_path: Path) -> None:
    fails("does not exist", checkpoint.check, str(tmp_path / "none.h5"), NET)
    cut = tmp_path / "cut.h5"
    cut.write_bytes(Path(path).read_bytes()[:-300])
    fails("is truncated", checkpoint.check, str(cut), NET)
    with h5py.File(tmp_path / "other.h5", "w") as f:
        f["images"] = np.zeros(3)
    fails("not a checkpoint", checkpoint.check, str(tmp_path / "other.h5"), NET)
    with h5py.File(path, "a") as f:
        f["state"].attrs["hpcpar_checkpoint"] = 99
    fails("version 99", checkpoint.resume_rows, path, "conv1", 0, 1, "f4")


def test_another_network(path: str) -> None:
    fails("is of network lenet5, the plan is for network mlp", checkpoint.check, path,
          network("mlp", (1, 8, 8), 10))
    fails(r"shape \(1, 8, 8\), the plan is for shape \(1, 28, 28\)", checkpoint.check, path,
          network("lenet5"))
    fails("classes 10, the plan is for classes 4", checkpoint.check, path,
          network("lenet5", (1, 8, 8), 4))
    fails("no layer 'conv9'", checkpoint.resume_rows, path, "conv9", 0, 1, "f4")
    fails("has 6 rows, rows 4 to 9", checkpoint.resume_rows, path, "conv1", 4, 9, "f4")
    with h5py.File(path, "a") as f:
        del f["params/fc2/bias"]
    fails("no bias of layer 'fc2'", checkpoint.check, path, NET)
    with h5py.File(path, "a") as f:
        f["params/fc2/bias"] = np.zeros(3)
    fails(r"has shape \(3,\), the network's has \(84,\)", checkpoint.check, path, NET)
