"""The gallery of published runs: runs on many devices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.gallery import large
from bench.gallery.large import LEAST, PAPERS, Large, predicted, rows, summary
from bench.gallery.prediction import case
from bench.gallery.rows import Row
from bench.gallery.series import series
from hpcpar.prediction.price import price

PAPER_ROWS = list(series(PAPERS))


def one(source: str, devices: int, *, efficiency: bool = False) -> Row:
    """The paper's row."""
    return next(row for row in PAPER_ROWS if row.source.startswith(source)
                and int(row.devices) == devices and bool(row.efficiency) == efficiency)


def test_every_row_has_a_source_a_machine_and_either_a_time_or_an_efficiency() -> None:
    with PAPERS.open(encoding="utf-8") as file:
        assert len(PAPER_ROWS) == sum(1 for _ in file) - 1
    for row in PAPER_ROWS:
        assert row.source and row.note and row.machine, row.id
        assert bool(row.samples_per_s) != bool(row.efficiency), row.id
        assert bool(row.than) == bool(row.efficiency)
        assert int(row.nodes) * int(row.devices_per_node) == int(row.devices)
    assert {row.id for row in PAPER_ROWS} < {row.id for row in rows()}


def test_times_are_those_of_the_sources() -> None:
    """The seconds of a training run over its iterations."""
    images = 1_281_167
    assert one("Goyal", 256).iteration_s == pytest.approx(3600 * 8192 / (90 * images), rel=1e-4)
    assert one("Akiba", 1024).iteration_s == pytest.approx(900 * 32768 / (90 * images), rel=1e-4)
    assert one("Yamazaki", 2048).iteration_s == pytest.approx(81920 / 1.73e6, rel=1e-4)


def test_a_time_has_the_interval_of_its_own_prediction() -> None:
    row = one("Goyal", 256)
    found = predicted(row)
    own = price(*case(row))
    assert found.predicted_s == own.iteration_s
    low_s, high_s = own.trust.interval_s(own.iteration_s)
    measured = {inside: replace(row, cells=row.cells | {"iteration_ms": f"{1e3 * at_s}"})
                for inside, at_s in ((True, low_s * 1.01), (False, high_s * 1.01))}
    for inside, other in measured.items():
        assert replace(found, row=other).inside is inside
        assert f"| {'yes' if inside else 'no'} |" in replace(found, row=other).line()


def test_an_efficiency_is_relative_to_fewer_devices() -> None:
    found = predicted(one("Goyal", 256, efficiency=True))
    alone = price(*case(one("Goyal", 8)))
    assert found.fewest_s == alone.iteration_s < found.predicted_s
    assert found.ratio == pytest.approx(alone.iteration_s / found.predicted_s / 0.9)
    assert "| 90% of 8 |" in found.line() and found.group == "papers: efficiency"


def test_the_summary_counts_large_runs_only() -> None:
    found = predicted(one("Goyal", 256))
    small = replace(found, row=one("Goyal", 8))
    twice = Large(found.row, 2 * found.row.iteration_s, found.trust)
    out = summary([found, small, twice])
    assert f"{LEAST} devices and more" in out[0]
    assert "| all times | 2 |" in out[2] and "| papers: time | 2 |" in out[3]
    assert large.lines([found])[0] == "## Large runs"
