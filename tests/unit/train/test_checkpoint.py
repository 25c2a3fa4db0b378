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
from hpcpar.plan.optimizers import OPTIMIZERS
from hpcpar.train import checkpoint
from hpcpar.train.checkpoint import CheckpointState

NET = network("lenet5", (1, 8, 8), 10)
#: Adam's state.
ADAM = OPTIMIZERS["adam"].state
#: Names of a layer's tensors.
NAMES = [f"{group}/{kind}{end}" for group, ends in (("params", ("",)), ("optimizer", ADAM))
         for kind in ("weight", "bias") for end in ends] + [
             f"params/{name}" for name in checkpoint.RUNNING]


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
    return {f"{name}{suffix}": value for i, suffix in enumerate(ADAM)
            for name, value in tensors(net, 1 + i).items()}


def state(net: Network = NET, step: int = 12) -> CheckpointState:
    return CheckpointState(step, 1, 3, 5, net.name, tuple(net.image_shape), net.classes, "adam")


def save(path: Path | str, params: checkpoint.Tensors, moments: checkpoint.Tensors = (),
         step: int = 12) -> str:
    checkpoint.write(str(path), checkpoint.image(params, moments, state(step=step)))
    return str(path)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return save(tmp_path / "c.h5", tensors(NET, ()).items(), moments(NET).items())


def fails(message: str, call: Any, *args: Any) -> None:
    with pytest.raises(InputError, match=message) as caught:
        call(*args)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("parts", [1, 3, 7])
def test_rows_of_any_split_make_whole_tensors(path: str, parts: int) -> None:
    params, states = tensors(NET, 0), moments(NET)
    for layer in NET.weighted:
        rows = len(params[f"{layer.name}/bias"])
        got = [checkpoint.resume_rows(path, layer.name, *block(rows, parts, i), np.float64, NAMES)
               for i in range(parts)]
        assert got[0]["params/weight"].dtype == np.float64
        for name in "weight", "bias":
            assert np.array_equal(np.concatenate([r[f"params/{name}"] for r in got]),
                                  params[f"{layer.name}/{name}"])
            for suffix in ADAM:
                parts_of = np.concatenate([r[f"optimizer/{name}{suffix}"] for r in got])
                assert np.array_equal(parts_of, states[f"{layer.name}/{name}{suffix}"])


def test_a_checkpoint_keeps_the_state(path: str) -> None:
    got = checkpoint.check(path, NET, ADAM)
    assert got.state == state() and not got.faults
    with h5py.File(path) as f:
        assert f["state"].attrs["hpcpar_version"] == hpcpar.__version__


def test_a_checkpoint_may_lack_bias_and_state(tmp_path: Path) -> None:
    out = save(tmp_path / "c.h5", [("fc/weight", np.ones((4, 2)))])
    rows = checkpoint.resume_rows(out, "fc", 1, 3, np.float32, NAMES)
    assert list(rows) == ["params/weight"] and rows["params/weight"].shape == (2, 2)


def test_running_statistics(tmp_path: Path) -> None:
    mean, variance = np.arange(4.0), np.arange(4.0, 8.0)
    bn = {"bn/weight": np.ones(4), "bn/bias": np.zeros(4), "bn/running_mean": mean,
          "bn/running_variance": variance}
    path = save(tmp_path / "c.h5", bn.items())
    rows = checkpoint.resume_rows(path, "bn", 1, 3, np.float64, NAMES)
    assert np.array_equal(rows["params/running_mean"], mean[1:3])
    assert np.array_equal(rows["params/running_variance"], variance[1:3])


def test_a_flipped_bit_is_found_or_changes_nothing(path: str) -> None:
    """Tensors and what describes them have checksums."""
    whole, rng = Path(path).read_bytes(), np.random.default_rng(7)
    want = {layer.name: checkpoint.resume_rows(path, layer.name, 0, 6, "f4", NAMES)
            for layer in NET.weighted}
    found = 0
    for place in rng.integers(0, len(whole), 300):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << int(rng.integers(8))
        Path(path).write_bytes(flipped)
        try:
            checked = checkpoint.check(path, NET, ADAM)
            if checked.faults:
                raise InputError(next(iter(checked.faults.values())))
            assert checked.state == state()
            for name, tensors_ in want.items():
                rows = checkpoint.resume_rows(path, name, 0, 6, "f4", NAMES)
                assert all(np.array_equal(rows[k], v) for k, v in tensors_.items())
        except InputError as err:
            assert "\n" not in str(err)
            found += 1
    assert found > 100


def test_missing_tensors_are_named_and_may_be_skipped(path: str) -> None:
    with h5py.File(path, "a") as f:
        del f["optimizer/conv2"]
        f["params/fc1"].move("bias", "other")
        f["state"].attrs["step"] = -1
    found = checkpoint.check(path, NET, ("",))
    assert "step" in found.faults["state"] and "--partial" in found.faults["state"]
    assert found.state is None and set(found.faults) == {"state", "optimizer/conv2", "params/fc1"}
    assert "has no weight of layer 'conv2' (optimizer/conv2/weight)" in found.faults[
        "optimizer/conv2"]
    assert set(checkpoint.check(path, NET, ()).faults) == {"state", "params/fc1"}
    for step in (5.7, "5", np.nan, 10**18):
        with h5py.File(path, "a") as f:
            f["state"].attrs["step"] = step
        assert "step" in checkpoint.check(path, NET, ()).faults["state"]


def test_bad_files_are_refused(path: str, tmp_path: Path) -> None:
    fails("does not exist", checkpoint.check, str(tmp_path / "none.h5"), NET, ("",))
    cut = tmp_path / "cut.h5"
    cut.write_bytes(Path(path).read_bytes()[:-300])
    fails("is truncated", checkpoint.check, str(cut), NET, ("",))
    with h5py.File(tmp_path / "other.h5", "w") as f:
        f["images"] = np.zeros(3)
    fails("not a checkpoint", checkpoint.check, str(tmp_path / "other.h5"), NET, ("",))
    with h5py.File(path, "a") as f:
        f["state"].attrs["hpcpar_checkpoint"] = 99
    fails("version 99", checkpoint.resume_rows, path, "conv1", 0, 1, "f4", NAMES)


@pytest.mark.parametrize("value", [np.full(6, b"x"), None])
def test_a_tensor_without_numbers_is_refused(path: str, value: Any) -> None:
    with h5py.File(path, "a") as f:
        del f["optimizer/conv1/bias"]
        if value is None:  # nothing was ever written into it
            f.create_dataset("optimizer/conv1/bias", (6, 1 << 20, 1 << 20), "f4", chunks=True)
        else:
            f["optimizer/conv1/bias"] = value
    fails("optimizer/conv1/bias", checkpoint.resume_rows, path, "conv1", 0, 6, "f4", NAMES)


def test_a_checkpoint_of_another_network_is_refused(path: str) -> None:
    fails("has network lenet5, but the plan has network mlp", checkpoint.check, path,
          network("mlp", (1, 8, 8), 10), 1)
    fails(r"shape \(1, 8, 8\), but the plan has shape \(1, 28, 28\)", checkpoint.check, path,
          network("lenet5"), 1)
    fails("classes 10, but the plan has classes 4", checkpoint.check, path,
          network("lenet5", (1, 8, 8), 4), 1)
    fails(r"has shape \(6, 1, 5, 5\), but rows 4 to 9", checkpoint.resume_rows, path, "conv1", 4, 9,
          "f4", NAMES)
    with h5py.File(path, "a") as f:
        del f["params/fc2/bias"]
    assert "no bias of layer 'fc2'" in checkpoint.check(path, NET, ("",)).faults["params/fc2"]
    with h5py.File(path, "a") as f:
        f["params/fc2/bias"] = np.zeros(3)
    fault = checkpoint.check(path, NET, ("",)).faults["params/fc2"]
    assert "with shape (3,), but the network needs (84,)" in fault


def test_oversized_chunks_are_refused(path: str) -> None:
    """Reading a row of them would take a gigabyte."""
    with h5py.File(path, "a") as f:
        del f["params/conv1/bias"]
        f.create_dataset("params/conv1/bias", (6,), "f8", chunks=(1 << 27,), maxshape=(None,),
                         compression="gzip")
        f["params/conv1/bias"].id.write_direct_chunk((0,), b"small")
    fault = checkpoint.check(path, NET, ()).faults["params/conv1"]
    assert "params/conv1/bias in chunks of (134217728,), larger than the tensor" in fault


def test_rows_of_names(path: str) -> None:
    """An inference reads no state of the optimizer."""
    layer = NET.weighted[0]
    names = checkpoint.tensor_shapes(NET, layer, ())
    assert list(names) == ["params/weight", "params/bias"]
    assert list(checkpoint.resume_rows(path, layer.name, 0, 6, "f4", names)) == [*names]
