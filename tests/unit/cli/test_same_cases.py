"""``plan``, ``predict``, ``sweep`` accept the same cases: those that ``run`` can run, with samples
for every rank.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcpar.cli.main import main
from hpcpar.data.synthetic import synthetic
from hpcpar.plan import plan as plans
from hpcpar.schedule.runnable import require

NETWORK = ("--network", "lenet5", "--input", "1x8x8")
STRATEGIES = ["data", "filter", "channel", "spatial", "ds:1x4", "grid:2x2", "owt", "owt-b", "owt-c",
              "pipeline:2x2"]
SEARCHED = ["auto", "layerwise"]
#: Options, and the strategies that they are refused for, on 4 ranks with 8 samples.
TABLE = [
    ("", {"owt-c"}),
    ("--microbatches 9", {*STRATEGIES, *SEARCHED}),
    ("--microbatches 8 --order 1f1b", {"data", "grid:2x2", "owt-b", "owt-c", "pipeline:2x2"}),
    ("--synchronization server", {"channel", "owt-c"}),
    ("--synchronization sharded --recompute 2", {"channel", "owt-c"}),
]


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The line with which a command refuses; empty where it accepts."""
    status = main([*argv])
    said = capsys.readouterr().err
    assert status == 0 or (status == 2 and said.count("\n") == 1)
    return said if status else ""


@pytest.mark.parametrize(("options", "bad"), TABLE)
def test_plan_and_predict_refuse_what_run_refuses(
        options: str, bad: set[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for strategy in [*STRATEGIES, *SEARCHED]:
        asked = (*NETWORK, "--ranks", "4", "--batch", "8", "--strategy", strategy,
                 *options.split())
        file = tmp_path / "plan.json"
        by_plan = refused(capsys, "plan", *asked, "-o", str(file))
        assert by_plan == refused(capsys, "predict", *asked)
        assert bool(by_plan) == (strategy in bad), (strategy, by_plan)
        if not by_plan:
            plan = plans.load(str(file))
            require(plan.network.build(), plan)  # as `run` does before it starts


@pytest.mark.parametrize(("kind", "batch"), [("strong", "2"), ("weak", "1/4")])
def test_plan_predict_and_sweep_refuse_alike(kind: str, batch: str, tmp_path: Path,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    """Down to a quarter of a sample per rank."""
    synthetic(str(tmp_path / "d.h5"), (1, 8, 8), 10, 8)
    samples = str(int(4 * eval(batch)) if kind == "weak" else batch)
    refusals = {}
    for strategy in STRATEGIES:
        asked = (*NETWORK, "--ranks", "4", "--strategy", strategy)
        refusals[strategy] = refused(capsys, "plan", *asked, "--batch", samples)
        each = "--batch-per-rank" if kind == "weak" else "--batch"
        assert refusals[strategy] == refused(capsys, "predict", *asked, each, batch)
    assert main(["sweep", kind, *NETWORK, "--ranks", "4", "--strategy", ",".join(STRATEGIES),
                 "--batch", batch, "--data", str(tmp_path / "d.h5"), "--dry-run", "--mpiexec", "x",
                 "--out", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    for strategy, refusal in refusals.items():
        case = f"{strategy.replace(':', '_')}-p4-b{samples}"
        text = (tmp_path / "out" / "cases" / case / "status.json").read_text()
        assert ('"skipped"' in text) == bool(refusal), (strategy, refusal)


def test_a_part_of_a_sample_needs_a_whole_batch(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "predict", *NETWORK, "--ranks", "6", "--batch-per-rank", "1/4")
    assert "1/4 samples on each of 6 ranks are not a whole batch" in said
