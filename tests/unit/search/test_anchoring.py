"""Predictions that follow measured iterations, and what these would need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hpcpar
from hpcpar.errors import InputError
from hpcpar.search.measurements import Measurement, measurement, measurements

ONE, EIGHT = "1 rank, batch 64: 2 ms", "8 ranks, batch 512: 3.5 ms"
TASK: dict[str, Any] = {"network": "lenet5", "machine": "dgx-a100"}


@pytest.mark.parametrize(("text", "expected"), [
    ("1 rank, batch 256: 346 ms", Measurement(1, 256, 0.346)),
    ("8 ranks, batch 2048, amp: 4,096 samples/s", Measurement(8, 2048, 0.5, precision="amp")),
    ("8 ranks, batch 32 per rank, strategy grid:2x4: 1.5 s",
     Measurement(8, 256, 1.5, strategy="grid:2x4")),
    ("batch 4, 2 ranks, network lenet5, precision tf32, machine dgx1-v100: 2e3 us",
     Measurement(2, 4, 0.002, "lenet5", "tf32", machine="dgx1-v100"))])
def test_measurements_in_text(text: str, expected: Measurement) -> None:
    found = measurement(text)
    assert isinstance(found, Measurement) and found.seconds == pytest.approx(expected.seconds)
    assert found.name == expected.name and found.network == expected.network
    assert measurement(found) is found


@pytest.mark.parametrize("text", [
    "346 ms", "1 rank: 346 ms", "batch 4: 1 s", "1 rank, batch 256", "1 rank, batch 256: 346",
    "1 rank, batch 256: 0 ms", "1 rank, batch 256: -3 ms", "1 rank, batch 256: inf s",
    "0 ranks, batch 4: 1 s", "1 rank, batch 0: 1 s", "1 rank, batch 4, fp16: 1 s",
    "1 rank, batch 4, on dgx-a100: 1 s", "1 rank, batch x: 1 s", "", ":"])
def test_what_is_not_a_measurement_is_refused(text: str) -> None:
    with pytest.raises(InputError) as caught:
        hpcpar.predict(**TASK, measured=text)
    assert "argument measured" in str(caught.value) and "\n" not in str(caught.value)


def test_rows_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("ranks,batch,seconds,samples_per_s,precision\n1,64,0.002,,\n"
                    "8,512,,256000,amp\n")
    assert measurements([str(path), Measurement(2, 4, 1.0)]) == [
        Measurement(1, 64, 0.002), Measurement(8, 512, 0.002, precision="amp"),
        Measurement(2, 4, 1.0)]


@pytest.mark.parametrize(("text", "said"), [
    ("", "no row"), ("ranks,batch,seconds\n", "no row"), ("ranks,time\n1,2\n", "column 'time'"),
    ("ranks,batch,seconds\n1,64\n", "line 2: give ranks"),
    ("ranks,batch,seconds\n1,64,1,9\n", "line 2: unknown column"),
    ("ranks,batch,seconds\n1,64,1\n1,64,0\n", "line 3: '0' is not"),
    ("ranks,batch,seconds,samples_per_s\n1,64,1,64\n", "one batch and one time")])
def test_rows_that_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        measurements([str(path)])
    with pytest.raises(InputError, match="cannot read"):
        measurements([str(tmp_path / "none.csv")])


@pytest.mark.parametrize(("text", "said"), [
    ("1 rank, batch 64, network vgg16: 2 ms", "an iteration of vgg16"),
    ("8 ranks, batch 4: 2 ms", "cannot be cut into 8 parts"),
    ("8 ranks, batch 64, strategy grid:3x2: 2 ms", "grid"),
    ("8 ranks, batch 64, strategy zero: 2 ms", "zero"),
    ("1 rank, batch 64, machine nowhere: 2 ms", "nowhere"),
    ("1 rank, batch 64, machine local, amp: 2 ms", "only a float32 rate")])
def test_anchors_that_cannot_be_are_refused(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        hpcpar.predict(**TASK, measured=text)
    assert str(caught.value).startswith("--measured '") and "\n" not in str(caught.value)


def test_an_anchor_below_the_time_of_reading_is_refused() -> None:
    with pytest.raises(InputError, match="drop --io and --node-input"):
        hpcpar.predict(**TASK, measured=ONE, io=1e6)


@pytest.mark.parametrize("measured", [(ONE,), (EIGHT,), (ONE, EIGHT), (
    ONE, EIGHT, "4 ranks, batch 256: 2.6 ms", "1 rank, batch 128: 3.1 ms")])
def test_the_prediction_of_an_anchor_is_the_anchor(measured: tuple[str, ...]) -> None:
    for text in measured:
        m = measurement(text)
        assert isinstance(m, Measurement)
        found = hpcpar.predict(**TASK, ranks=m.ranks, batch=m.batch, measured=measured)
        p = found.predictions[0]
        assert p.iteration_s == pytest.approx(m.seconds, rel=1e-6)
        assert p.trust.basis == "measured" and p.trust.ratios[1] < 1.06
    alone = hpcpar.predict(**TASK, measured=measured)
    assert [p.iteration_s for p in alone.predictions] == pytest.approx(
        [measurement(text).seconds for text in measured])  # type: ignore[union-attr]


def test_frameworks_with_cycles_are_anchored_exactly() -> None:
    measured = (ONE, EIGHT, "8 ranks, batch 1024: 9 ms")
    found = hpcpar.predict(**TASK, measured=measured, framework="horovod-0.20")
    assert [p.iteration_s for p in found.predictions] == pytest.approx([2e-3, 3.5e-3, 9e-3])


def test_other_cases_follow_their_anchors() -> None:
    def times(*measured: str) -> list[float]:
        found = hpcpar.predict(**TASK, ranks=[1, 8, 32], batch_per_rank=64, measured=measured)
        return [p.iteration_s for p in found.predictions]

    plain, one, both = times(), times(ONE), times(ONE, EIGHT)
    by = 2e-3 / plain[0]
    assert plain[1] < one[1] < by * plain[1]  # messages are not slower
    efficiency = [each[0] / each[2] for each in (plain, one, both)]
    assert efficiency[2] < 0.6 < efficiency[0] < efficiency[1] < 1
    p = hpcpar.predict(**TASK, ranks=32, batch_per_rank=64, measured=ONE).predictions[0]
    assert p.trust.basis == "anchor" and "another number of ranks" in p.trust.source
    other = hpcpar.predict(**TASK, ranks=8, batch=512, strategy="filter", measured=(ONE, EIGHT))
    assert other.predictions[0].trust.basis == "tables"


def test_memory_and_bytes_do_not_change() -> None:
    plain, anchored = (hpcpar.plan(**TASK, ranks=8, batch=512, strategy="filter", measured=m)
                       for m in ((), (ONE, EIGHT)))
    assert anchored.prediction.memory == plain.prediction.memory
    assert anchored.prediction.communication_bytes == plain.prediction.communication_bytes
    assert anchored.prediction.iteration_s > plain.prediction.iteration_s


@pytest.mark.parametrize("strategy", ["data", "layerwise"])
def test_a_plan_keeps_its_anchors(tmp_path: Path, strategy: str) -> None:
    """Search, prediction, simulation and the plan's file have the same times."""
    path = str(tmp_path / "plan.json")
    made = hpcpar.plan(**TASK, ranks=8, batch=512, strategy=strategy, measured=(ONE, EIGHT))
    made.save(path)
    again = hpcpar.predict(plan=path).predictions[0]
    assert again.iteration_s == pytest.approx(made.prediction.iteration_s)
    assert again.trust == made.prediction.trust
    simulated = hpcpar.simulate(path).simulated
    assert simulated.played.mean_s == pytest.approx(made.prediction.iteration_s)
    anew = hpcpar.predict(plan=path, measured="8 ranks, batch 512: 5 ms").predictions[0]
    assert anew.iteration_s == pytest.approx(5e-3) or strategy != "data"


def test_a_named_format_or_machine_counts_where_there_is_no_nearer_anchor() -> None:
    far = "1 rank, batch 64, machine dgx1-v100: 4 ms"
    found = hpcpar.predict(**TASK, ranks=1, batch=64, measured=far)
    trust = found.predictions[0].trust
    assert trust.basis == "anchor" and trust.source.endswith("dgx1-v100, for another device")
    other = hpcpar.predict(**TASK, ranks=1, batch=64, precision="amp", measured=ONE)
    assert other.predictions[0].iteration_s == pytest.approx(2e-3)
    assert found.predictions[0].iteration_s < 3.9e-3
    format_ = hpcpar.predict(**TASK, ranks=1, batch=64, precision="amp",
                             measured="1 rank, batch 64, fp32: 2 ms")
    assert format_.predictions[0].trust.source.endswith("for another number format")
    mixed = hpcpar.predict(**TASK, ranks=1, batch=64, measured=(far, ONE))
    anchored = mixed.candidates[0].task.machine.anchored
    assert anchored is not None and len(anchored.anchors) == 1
    assert mixed.predictions[0].iteration_s == pytest.approx(2e-3)


def test_the_terms_that_would_explain_a_time() -> None:
    both = hpcpar.predict(**TASK, measured=(ONE, EIGHT))
    one, *eight = both.why
    assert one.name == "computing" and one.needed_s == pytest.approx(2e-3)
    assert [t.name for t in eight] == [
        "computing", "exposed communication", "slowest rank", "interference"]
    assert eight[0].predicted_s == pytest.approx(2e-3)
    for term in eight:
        assert term.needed_s - term.predicted_s == pytest.approx(3.5e-3 - term.model_s)
        assert term.factor == term.needed_s / term.predicted_s
    fast = hpcpar.predict(**TASK, measured="8 ranks, batch 512: 1 us").why
    assert {t.factor for t in fast[1:]} == {None}
    single = hpcpar.predict(**TASK, measured=EIGHT)
    assert single.why[0].model_s < eight[0].model_s
    assert "would explain it" in single.answer
    assert single.to_json()["anchored"]["why"][0]["name"] == "computing"


def test_sweeps_and_proposals_follow_anchors(tmp_path: Path,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    options: dict[str, Any] = {**TASK, "ranks": [1, 8], "measured": (ONE, EIGHT)}
    swept = hpcpar.sweep("weak", batch=64, out=str(tmp_path / "weak"), dry_run=True,
                         strategy="data", launcher="slurm", device="gpu", **options)
    assert "loss on several ranks" in capsys.readouterr().err
    found = hpcpar.proposal(batch_per_rank=64, **options)
    for points in (swept.points, found.series["weak"]):
        assert [p.predicted and p.predicted.iteration_s for p in points] == pytest.approx(
            [2e-3, 3.5e-3])
    found.save(str(tmp_path / "page.md"))
    assert "Times follow measured iterations" in (tmp_path / "page.md").read_text()


def test_a_sweep_that_calibrates_takes_no_anchors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="add --machine NAME"):
        hpcpar.sweep("weak", "lenet5", [1], 64, str(tmp_path / "weak"), measured=ONE)
