"""Pixels by class."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hpcpar.train import record_file, run_record
from hpcpar.train.class_counts import ClassCounts
from tests.unit.train.test_record import part, sample


def test_dice_reveals_classes_that_accuracy_hides() -> None:
    """95 of 100 pixels are background, all but one of the others are missed; class 3 has none."""
    found = ClassCounts(np.array([[95, 3, 2, 0], [99, 1, 0, 0], [95, 1, 0, 0]]))
    assert (found.most_frequent, found.share) == (0, 0.95)
    assert found.dice == [pytest.approx(190 / 194), 0.5, 0.0, None]
    assert found.mean_dice == 0.25
    assert ClassCounts(np.array([[4, 0], [4, 0], [4, 0]])).mean_dice is None


def test_counts_are_kept_in_records_and_old_records_are_read(tmp_path: Path) -> None:
    counts = np.arange(12).reshape(2, 3, 2)
    for name, some in ("with.h5", counts), ("old.h5", None):
        record_file.write(str(tmp_path / name), replace(sample(), test_counts=some))
        got = record_file.read(str(tmp_path / name)).test_counts
        assert got is None if some is None else np.array_equal(got, counts)
    with pytest.raises(ValueError, match="test_counts"):
        record_file.write(str(tmp_path / "bad.h5"), replace(sample(), test_counts=counts[:1]))
    later = replace(part(6, 9, (2,)), test_counts=np.ones((1, 3, 2), np.int64))
    joined = run_record.join(part(0, 6, (0, 1)), later, 6, 2, 100).test_counts
    assert joined is not None and joined.sum(axis=(1, 2)).tolist() == [0, 0, 6]
