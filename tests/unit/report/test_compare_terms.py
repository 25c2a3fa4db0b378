"""Which term of a prediction is off, waiting apart from communicating, and a pipeline's bubble."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from hpcpar.plan.plan import Plan
from hpcpar.prediction.price import price
from hpcpar.report.compare import compare, compare_one, to_json
from hpcpar.report.late_senders import clocked
from hpcpar.report.rows import BUBBLE, Row
from hpcpar.report.tables.compare_table import show_rows
from hpcpar.schedule.steps import Step
from tests.unit.played import MACHINE, Lasts, Played, lenet, play, predicted

PLANS = {
    "data": lenet("data", 3), "blocking": lenet("grid:2x2", 4, overlap="none"),
    "spatial": lenet("spatial", 3), "owt": lenet("owt", 4),
    "gpipe": lenet("pipeline", 2, microbatches=4),
    "1f1b": lenet("pipeline:2x2", 4, microbatches=4, order="1f1b"), "one": lenet("data", 1),
    "fc_passes": lenet("owt-b", 2), "micro": lenet("data", 2, microbatches=4),
}


def jittery(seed: int = 1, scale: float = 1e-4) -> Lasts:
    rng = np.random.default_rng(seed)
    return lambda rank, iteration, step: float(scale * (1 + 0.2 * rank + rng.random()))


@cache
def jittered(name: str) -> Played:
    """A run of one of the plans, in which ranks differ and of which some iterations are kept."""
    return play(PLANS[name], jittery(), kept=[1, 2, 4])


def but(lasts: Lasts, label: str, longer_s: float, rank: int | None = None) -> Lasts:
    """The same, but one step takes longer (on one rank)."""

    def changed(r: int, k: int, step: Step) -> float:
        return lasts(r, k, step) + (longer_s if step.label == label and rank in (None, r) else 0.0)

    return changed


@pytest.mark.parametrize("name", PLANS)
def test_waiting_is_found_despite_clock_offsets(name: str) -> None:
    played = jittered(name)
    times = clocked(played.record)
    assert list(times.iterations) == [1, 2, 4]
    want = played.waiting_s[:, [1, 2, 4]]
    np.testing.assert_allclose(times.waiting_s, want, atol=2e-8)
    assert (want.max() > 1e-4) == (PLANS[name].ranks > 1)
    waits = want > 1e-6
    assert (times.who[waits] >= 0).all() and (times.who[waits] != np.nonzero(waits)[0]).all()


@pytest.mark.parametrize("name", PLANS)
def test_parts_and_terms_add_up(name: str) -> None:
    row = compare_one(jittered(name).record)
    error = row.iteration.measured_s - (row.iteration.predicted_s or 0.0)
    assert sum(t.excess_s for t in row.terms) == pytest.approx(error, rel=1e-9)
    assert sum(abs(t.share) for t in row.terms) == pytest.approx(1.0)
    assert [abs(t.excess_s) for t in row.terms] == sorted((abs(t.excess_s) for t in row.terms),
                                                          reverse=True)
    parts = [t for split in row.phases.values() for t in split.values()]
    assert sum(t.predicted_s or 0.0
               for t in parts) == pytest.approx(row.iteration.predicted_s, rel=1e-9)
    assert sum(t.measured_s
               for t in parts) + row.rest_s == pytest.approx(row.iteration.measured_s, rel=1e-9)
    for t in parts:
        assert t.low_s is None or t.high_s is None or 0 <= t.low_s <= t.high_s
    assert row.tells_waiting and (BUBBLE in row.phases) == (row.stages
                                                            > 1) == ("pipe" in PLANS[name].strategy)


@pytest.mark.parametrize("name", ["data", "gpipe"])
def test_inference(name: str) -> None:
    row = compare_one(play(PLANS[name], jittery(), training=False).record)
    error = row.iteration.measured_s - (row.iteration.predicted_s or 0.0)
    assert sum(t.excess_s for t in row.terms) == pytest.approx(error, rel=1e-9)
    assert row.tells_waiting and row.stages == (2 if name == "gpipe"
                                                else 1) and not row.phases["backward"][
        "compute"].measured_s


@pytest.mark.parametrize("name", PLANS)
def test_a_run_as_predicted_is_accurate(name: str) -> None:
    """Played with the predicted times, every part is predicted: the bubble too."""
    plan = PLANS[name]
    row = compare_one(play(plan, predicted(plan)).record)
    # messages in flight at the same time share no link here
    assert row.iteration.accuracy is not None and row.iteration.accuracy > 0.85
    if row.stages > 1:
        bubble = row.phases[BUBBLE]["waiting"]
        assert bubble.measured_s > 0.1 * row.iteration.measured_s
        assert bubble.accuracy is not None
        assert bubble.accuracy > 0.8
        everywhere = sum(split["communication"].measured_s for split in row.phases.values())
        assert everywhere < 0.5 * row.iteration.measured_s


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_the_predicted_bubble_equals_the_timelines_idle_time(name: str) -> None:
    plan = PLANS[name]
    prediction = price(plan.network.build(), plan, MACHINE)
    idle_s = [stage.bubble_s for stage in prediction.stages]
    row = compare_one(jittered(name).record)
    assert row.phases[BUBBLE]["waiting"].predicted_s == pytest.approx(sum(idle_s) / 2, rel=1e-9)
    # some transfers are hidden by computing: not all of their time counts
    hops = [s for s in prediction.steps if s.label.startswith("relu2.") and s.is_comm]
    assert sum(s.exposed_s for s in hops) < 0.9 * sum(s.seconds for s in hops)


def largest(plan: Plan, lasts: Lasts) -> Any:
    return compare_one(play(plan, lasts).record).terms[0]


def test_the_slow_layer_is_named() -> None:
    plan = PLANS["data"]
    term = largest(plan, but(predicted(plan), "conv2.backward_weight", 0.01))
    assert (term.cause, term.layer, term.op) == ("compute", "conv2", "backward_weight")
    assert term.excess_s == pytest.approx(0.01, rel=1e-3) and term.share > 0.8


def test_the_slow_collective_is_named_with_ranks_bytes_and_algorithm() -> None:
    plan = PLANS["blocking"]
    played = play(plan, predicted(plan))
    comm = max((s for s in played.record.steps if s.kind == "comm" and s.phase == "gradient"),
               key=lambda s: s.index)
    term = largest(plan, but(predicted(plan), comm.label, 0.01))
    assert (term.cause, term.layer, term.phase, term.op) == ("communication", comm.layer,
                                                             "gradient", "allreduce")
    assert term.excess_s == pytest.approx(0.01, rel=1e-2)
    assert term.algorithm == comm.algorithm and term.ranks in (2, 4)
    assert term.sent_bytes == played.record.sent_bytes[:, comm.index].max() > 0
    assert f"{term.ranks} ranks" in term.what and term.algorithm in term.what


def test_waiting_names_the_late_rank() -> None:
    """Rank 0 is late with what rank 1 needs in the forward pass; rank 1, which computes longest,
    waits for it.
    """
    plan = lenet("spatial", 2, overlap="none")
    lasts = but(but(predicted(plan), "conv1.forward", 0.01, rank=0), "conv2.backward_weight", 0.02,
                rank=1)
    row = compare_one(play(plan, lasts).record)
    compute, waiting = row.terms[:2]
    assert (compute.cause, compute.layer, compute.excess_s) == ("compute", "conv2",
                                                                pytest.approx(0.02, rel=1e-2))
    assert (waiting.cause, waiting.phase, waiting.waited_for) == ("waiting", "forward", 0)
    assert waiting.excess_s == pytest.approx(0.01, rel=2e-2) and "for rank 0" in waiting.what
    assert row.phases["forward"]["waiting"].measured_s == pytest.approx(waiting.measured_s)


def test_a_slow_stage_widens_the_bubble() -> None:
    plan = PLANS["gpipe"]
    row = compare_one(play(plan, but(predicted(plan), "fc1.forward", 0.002)).record)
    bubble = row.phases[BUBBLE]["waiting"]
    assert bubble.predicted_s is not None and bubble.measured_s > bubble.predicted_s + 0.003
    first = next(t for t in row.terms if t.cause == "bubble")
    assert first.waited_for == 1 and row.terms.index(first) < 2
    assert {t.layer for t in row.terms[:2] if t.cause == "compute"} == {"fc1"}


def test_records_without_iterations_or_network_are_compared() -> None:
    played = jittered("1f1b").record
    without = compare_one(replace(played, warmup=5))
    assert not without.tells_waiting
    assert without.stages == 1
    assert BUBBLE not in without.phases
    assert without.terms
    assert all(split["waiting"].measured_s == 0 for split in without.phases.values())
    unknown = replace(played,
                      plan=played.plan
                      | {"network": {"name": "elsewhere:net", "shape": [1, 8, 8], "classes": 10}})
    row = compare_one(unknown)
    assert row.tells_waiting and row.stages == 1
    few = compare_one(play(PLANS["data"], jittery(), kept=[0]).record)
    assert few.tells_waiting
    warm = compare_one(replace(play(PLANS["data"], jittery(), kept=[0, 1]).record, warmup=3))
    assert not warm.tells_waiting  # none of the iterations whose steps are kept is compared


@cache
def rows() -> list[Row]:
    long = replace(jittered("1f1b").record, path="a/" + "long" * 12 + ".h5")
    other = jittered("data").record
    other = replace(other,
                    plan=other.plan
                    | {"network": {"name": "another-network", "shape": [1, 8, 8], "classes": 10}})
    return compare([long, other, jittered("one").record])


@pytest.mark.parametrize("everything", [False, True])
def test_tables_are_at_most_100_columns_wide(everything: bool,
                                             capsys: pytest.CaptureFixture[str],
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    show_rows(rows(), everything)
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 100
    assert "…" not in text
    for word in ("quartiles", "bubble", "unexpected time", "mean of 2 stages", "waiting",
                 "stages wait for each other"):
        assert word in text
    assert ("by step" in text) == everything


def test_json_of_everything() -> None:
    data = json.loads(json.dumps(to_json(rows()), allow_nan=False))
    first = data["runs"][0]
    assert first["stages"] == 2 and first["phases"][BUBBLE]["waiting"]["predicted_s"] > 0
    assert first["quartiles_iteration_s"][0] <= first["quartiles_iteration_s"][1]
    step = next(s for s in first["steps"] if s["kind"] == "comm" and s["phase"] == "forward")
    assert {"label", "op", "algorithm", "ranks", "sent_bytes", "times", "communication",
            "waiting"} <= set(step) and step["times"] == 4
    assert {"cause", "what", "predicted_s", "measured_s", "excess_s", "share",
            "waited_for"} <= set(first["unforeseen"][0])


def test_picture_of_everything(tmp_path: Any) -> None:
    pytest.importorskip("matplotlib")
    from hpcpar.report.pictures.compare_plot import plot

    plot(rows()[:1], str(tmp_path / "c.png"))
    assert (tmp_path / "c.png").stat().st_size > 30_000


def test_played_runs_are_records(tmp_path: Any) -> None:
    from hpcpar.train.record_file import read, write

    played: Played = play(PLANS["data"], jittery(), kept=[0, 2])
    write(str(tmp_path / "run.h5"), played.record)
    back = read(str(tmp_path / "run.h5"))
    for name in ("kept", "clock", "begin_s", "start_s", "end_s", "wait_s"):
        np.testing.assert_array_equal(getattr(back, name), getattr(played.record, name))
    assert back.start_s is not None and back.start_s.dtype == np.float32
    with pytest.raises(ValueError, match="wait_s"):
        write(str(tmp_path / "bad.h5"), replace(played.record, wait_s=np.zeros((3, 6, 1))))
