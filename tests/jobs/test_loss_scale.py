"""The loss scale of float16 in whole jobs: in checkpoints, metrics and the summary."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import h5py
import pytest

from tests.jobs.conftest import Run, summary


@pytest.mark.parametrize(("ranks", "strategy"), [(2, "filter"), (3, "spatial")])
def test_a_resumed_training_has_the_same_bits(ranks: int, strategy: str, hpcpar: Run,
                                              plan: Callable[..., Path], digits: Path,
                                              tmp_path: Path) -> None:
    """Also over updates that the scale skips."""
    made = plan(ranks, strategy, precision="amp-fp16", machine="dgx-a100", optimizer="adam")
    words = ("run", "--plan", made, "--data", digits, "--rate", 0.001, "--json")
    first, whole, part = (tmp_path / f"{name}.h5" for name in ("first", "whole", "part"))
    start = hpcpar(ranks, *words, "--steps", 3, "--checkpoint", first)
    assert summary(start)["loss_scale"] == 65536 and "note: the loss scale" not in start.stderr
    with h5py.File(first, "a") as f:
        assert f["state"].attrs["good_iterations"] == 3
        f["state"].attrs["loss_scale"] = 2.0**24
    done = hpcpar(ranks, *words, "--steps", 40, "--resume", first, "--checkpoint", whole,
                  "--metrics", tmp_path / "m.csv")
    expected = summary(done)
    skipped = expected["skipped_updates"]
    assert 0 < skipped < 20 and expected["loss_scale"] == 2.0**(24 - skipped)
    assert f"the loss scale is {2.0**(24 - skipped):g}" in done.stderr
    losses = summary(hpcpar(ranks, *words, "--steps", 4, "--resume", first, "--checkpoint", part))
    rest = summary(hpcpar(ranks, *words, "--steps", 40, "--resume", part, "--checkpoint", part))
    assert losses["losses"] + rest["losses"] == expected["losses"]
    assert [rest[name] for name in ("loss_scale", "skipped_updates")] == [
        expected[name] for name in ("loss_scale", "skipped_updates")]
    with h5py.File(whole) as one, h5py.File(part) as other:
        assert dict(one["state"].attrs) == dict(other["state"].attrs) | {
            "shape": pytest.approx(one["state"].attrs["shape"])}
        tensors: list[str] = []
        one.visititems(lambda name, item: tensors.append(name)
                       if isinstance(item, h5py.Dataset) else None)
        assert len(tensors) > 20
        assert all((one[name][...] == other[name][...]).all() for name in tensors)
    with open(tmp_path / "m.csv", newline="") as f:
        rows = list(csv.DictReader(f))
    assert float(rows[-1]["loss_scale"]) == expected["loss_scale"]
