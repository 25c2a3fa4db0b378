"""The record of a run: reading returns the written values."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcpar.errors import InputError
from hpcpar.plan.plan import NetworkSpec, make_plan, to_json
from hpcpar.schedule.lower import lower
from hpcpar.train import record_file, run_record
from hpcpar.train.run_record import RankInfo, RunRecord, StepInfo

STEPS = [StepInfo(0, "compute", "forward", "conv1", "conv1.forward", "forward"),
         StepInfo(1, "comm", "gradient", "conv1", "conv1.gradient.allreduce", "allreduce", "ring"),
         StepInfo(2, "compute", "update", "cönv1", "conv1.update", "update")]


def sample(ranks: int = 2, iterations: int = 5) -> RunRecord:
    rng = np.random.default_rng(0)
    seconds = rng.random((ranks, iterations, len(STEPS))).astype("f4")
    return RunRecord(
        plan=to_json(make_plan(NetworkSpec("lenet5", (1, 8, 8), 10), "data", ranks, 8)),
        steps=STEPS,
        ranks=[RankInfo(f"node{r}", 100 + r, 1, "cpu", 10**10 + r) for r in range(ranks)],
        seconds=seconds, iteration_s=seconds.sum(2).astype("f8"),
        sent_bytes=rng.integers(0, 9, (ranks, 3)), messages=rng.integers(0, 9, (ranks, 3)),
        loss=rng.random(iterations), train_accuracy=np.array([np.nan, 0.9]),
        test_accuracy=np.array([0.8, 0.95]), test_loss=np.array([np.nan, 1.5]),
        start_s=seconds.astype("f8"), prediction={"iteration_s": 0.5, "long": ["x" * 100] * 1000},
        machine={"name": "local"}, versions={"numpy": "2"}, started="2024-05-01T12:00:00+00:00",
        command="hpcpar run", warmup=2, samples=80, node_ranks=4, node_cores=2,
    )


def test_a_record_survives_a_round_trip(tmp_path: Path) -> None:
    want, path = sample(), str(tmp_path / "run.h5")
    record_file.write(path, want)
    got = record_file.read(path)
    for f in fields(RunRecord):
        a, b = getattr(want, f.name), getattr(got, f.name)
        if isinstance(a, np.ndarray):
            assert np.array_equal(a, b, equal_nan=a.dtype.kind == "f"), f.name
        elif f.name == "plan":
            assert b["strategy"] == "data" and b["configs"] == a["configs"]
        elif f.name == "path":
            assert b == path
        else:
            assert a == b, f.name
    assert (
        got.seconds.dtype == np.float32 and got.measured == slice(2, None) and got.iterations == 5
    )
    assert [p.name for p in tmp_path.iterdir()] == ["run.h5"]


def test_a_record_without_starts_and_with_a_long_warmup_is_read(tmp_path: Path) -> None:
    path = str(tmp_path / "run.h5")
    record_file.write(path, replace(sample(), start_s=None, test_loss=None, warmup=9))
    got = record_file.read(path)
    assert got.start_s is None and got.test_loss is None and got.measured == slice(0, None)


def test_iterations_of_the_slowest_rank_add_up_to_the_epoch() -> None:
    # each rank is late by one in every third iteration, and begins the next as much later
    late = np.array([[2.0, 0.0, 1.0] * 4, [1.0, 2.0, 0.0] * 4, [0.0, 1.0, 2.0] * 4])
    record = replace(sample(3, 12), iteration_s=late + 10.0, warmup=3)
    assert record.slowest_s.shape == (9,)
    assert record.slowest_s.sum() == 9 * 11.0 and np.median(record.slowest_s) == 11.0
    slower = replace(record, iteration_s=late + np.array([[10.0], [10.5], [10.0]]))
    np.testing.assert_array_equal(slower.slowest_s, slower.iteration_s[1, 3:])


def part(first: int, stop: int, epochs: tuple[int, ...]) -> RunRecord:
    """A part of a training run: iteration n takes n s on rank 0, n + 0.5 s on rank 1."""
    numbers = np.arange(first, stop)
    whole = sample(2, len(numbers))
    by_epoch = np.array(epochs, float)
    return replace(whole, iterations_done=numbers, done=stop, training="this one",
                   kept=np.arange(len(numbers)),
                   iteration_s=numbers + np.array([[0.0], [0.5]]), loss=numbers * 10.0,
                   epochs_done=np.array(epochs), train_accuracy=by_epoch, test_accuracy=by_epoch,
                   test_loss=by_epoch, start_s=None, started=f"at {first}")


def test_a_resumed_record_counts_repeated_iterations_once() -> None:
    got = run_record.join(part(0, 25, (0, 1, 2)), part(20, 30, (2,)), 20, 2, 100)
    assert got.iterations_done is not None and got.iterations_done.tolist() == [*range(30)]
    assert got.loss.tolist() == [n * 10.0 for n in range(30)]
    assert got.iteration_s[1].tolist() == [n + 0.5 for n in range(30)]
    assert got.epochs_done is not None and got.epochs_done.tolist() == [0, 1, 2]
    assert got.test_accuracy.tolist() == [0, 1, 2] and got.started == "at 0"
    # steps' times come from the newest part
    assert got.timed.tolist() == got.compared.tolist() == [*range(20, 30)]
    assert got.compared_seconds.shape == (2, 10, 3)


def test_a_resumed_record_marks_missing_iterations() -> None:
    """A run is killed after its checkpoint of step 39, when its record ends at step 10."""
    before = replace(part(0, 10, ()), done=10)
    got = run_record.join(before, replace(part(39, 45, ()), done=45), 39, 0, 100)
    assert (got.missing, got.done, got.iterations) == (29, 45, 16)
    later = run_record.join(got, replace(part(50, 52, ()), done=52), 50, 0, 100)
    assert later.missing == 29 + 5
    assert run_record.join(got, replace(part(40, 52, ()), done=52), 40, 0, 100).missing == 29


def test_a_record_without_held_out_losses_is_resumed() -> None:
    got = run_record.join(replace(part(0, 20, (0, 1)), test_loss=None), part(20, 30, (2,)), 20, 2,
                          100)
    assert got.test_loss is not None
    np.testing.assert_array_equal(got.test_loss, [np.nan, np.nan, 2])
    assert not run_record.faults(got)


def test_a_resumed_record_stays_bounded() -> None:
    long = run_record.join(part(0, 1000, ()), part(1000, 1010, ()), 1000, 0, 64)
    assert long.iterations_done is not None and 32 <= long.iterations - 10 <= 64
    longer = run_record.join(long, part(1010, 1013, ()), 1010, 0, 64)
    assert longer.iterations <= 64 + 3 and longer.timed.tolist() == [*range(longer.iterations)][-3:]


def test_a_resumed_training_continues_its_record_and_moves_others_aside(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    plan = sample().plan

    def continued(step: int, training: str = "this one", **other: int) -> RunRecord | None:
        return record_file.continued(str(path), plan | other, STEPS, training, step, 1)

    assert continued(5) is None
    record_file.write(str(path), part(0, 5, (0,)))
    found = continued(3)
    assert found is not None and found.iterations == 5
    assert continued(5, "another") is None
    (tmp_path / "run.1.h5").rename(path)
    assert continued(5, ranks=3) is None
    assert [p.name for p in tmp_path.iterdir()] == ["run.1.h5"]
    path.write_text("no record")
    (tmp_path / "run.2.h5").symlink_to("nowhere")
    assert continued(5) is None
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.1.h5", "run.2.h5", "run.3.h5"]
    assert record_file.read(str(tmp_path / "run.1.h5")).iterations == 5


def test_under_another_plan_each_iteration_is_in_one_record(tmp_path: Path) -> None:
    """Iterations that the resumed run repeats leave the record of the same training, and no other.
    """
    path, plan = tmp_path / "run.h5", sample().plan | {"ranks": 3}
    before = part(0, 30, (0, 1, 2))
    for training, left in (("this one", 20), ("", 30), ("another", 30)):
        record_file.write(str(path), replace(before, training=training))
        assert record_file.continued(str(path), plan, STEPS, "this one", 20, 2) is None
        aside = record_file.read(str(tmp_path / "run.1.h5"))
        assert aside.iterations_done is not None
        assert aside.iterations_done.tolist() == [*range(left)] and aside.done == left
        assert aside.epochs_done is not None
        assert aside.epochs_done.tolist() == [*range(left // 10)]
        assert aside.seconds.shape == (2, left, 3) and aside.timed.tolist() == [*range(left)]
        (tmp_path / "run.1.h5").unlink()
    record_file.write(str(path), part(25, 30, ()))  # nothing would be left of it
    record_file.continued(str(path), plan, STEPS, "this one", 20, 2)
    assert record_file.read(str(tmp_path / "run.1.h5")).iterations == 5


def test_a_cut_record_keeps_the_step_times_before_the_cut() -> None:
    whole = part(0, 40, (0, 1))
    kept = np.array([0, 1, 8, 9, 16, 17, 24, 25, 32, 33])
    thin = replace(whole, kept=kept, seconds=whole.seconds[:, kept])
    got = run_record.cut(thin, 17, 1)
    assert got.iterations == 17 and got.kept is not None
    assert got.kept.tolist() == [0, 1, 8, 9, 16] and got.seconds.shape[1] == 5
    assert not run_record.faults(got) and run_record.cut(thin, 99, 9).done == 40
    assert run_record.cut(replace(thin, epochs_done=None), 17, 1).iterations == 40


def test_records_of_version_1_are_read(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    run = replace(sample(), kept=np.array([1, 3]), start_s=np.zeros((2, 2, 3)))
    record_file.write(str(path), run)
    with h5py.File(path, "a") as f:
        f.attrs["hpcpar_record"] = 1
    got = record_file.read(str(path))
    assert got.timed.tolist() == [0, 1, 2, 3, 4] and got.compared.tolist() == [2, 3, 4]
    np.testing.assert_array_equal(got.compared_seconds, got.seconds[:, 2:])


def test_shapes_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="messages"):
        record_file.write(str(tmp_path / "run.h5"), replace(sample(), messages=np.zeros((2, 4))))


def test_steps_of_a_schedule() -> None:
    plan = make_plan(NetworkSpec("lenet5", (1, 8, 8), 10), "data", 2, 8)
    schedule = lower(plan.network.build(), plan, lambda step: ("ring", 1))
    table = run_record.steps_of(schedule)
    assert [s.index for s in table] == [s.index for s in schedule.steps]
    assert [s.label for s in table] == [s.label for s in schedule.steps]
    first = StepInfo(0, "compute", "forward", "conv1", "conv1.forward", "forward")
    assert first in [replace(s, index=0) for s in table]
    comms = [s for s in table if s.kind == "comm"]
    assert {(s.op, s.algorithm) for s in comms} == {("allreduce", "ring")} and sum(
        s.phase == "gradient" for s in comms
    ) == 5


def test_bad_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    record_file.write(str(path), sample())

    def fails(message: str, where: Path = path) -> None:
        with pytest.raises(InputError, match=message) as caught:
            record_file.read(str(where))
        assert "\n" not in str(caught.value) and str(where) in str(caught.value)

    fails("does not exist", tmp_path / "none.h5")
    cut = tmp_path / "cut.h5"
    cut.write_bytes(path.read_bytes()[:-100])
    fails("is truncated", cut)
    with h5py.File(tmp_path / "other.h5", "w") as f:
        f["x"] = 1
    fails("not the record of a run", tmp_path / "other.h5")
    with h5py.File(path, "a") as f:
        f.attrs["hpcpar_record"] = 3
    fails("has version 3")
    with h5py.File(path, "a") as f:
        f.attrs["hpcpar_record"] = 2
        del f["loss"]
    fails("has no data set 'loss'")
    with h5py.File(path, "a") as f:
        f["loss"] = np.zeros(4)
    fails(r"loss \(4,\) instead of \(5,\)")
    for change, message in (({"seconds": -sample().seconds}, "seconds with negative"),
                            ({"kept": np.array([3, 1, 2, 0, 4])}, "kept out of order"),
                            ({"kept": np.arange(1, 6)}, "kept out of order"),
                            ({"epochs_done": np.ones((2, 2), int)}, r"epochs_done \(2, 2\)"),
                            ({"epochs_done": np.array([3, 1])}, "epochs_done out of order"),
                            ({"test_accuracy": np.zeros(3)}, r"test_accuracy \(3,\) instead"),
                            ({"test_loss": np.zeros(1)}, r"test_loss \(1,\) instead of \(2,\)"),
                            ({"begin_s": np.full((2, 5), np.inf)}, "begin_s with infinite"),
                            ({"clock": np.full((2, 2, 3), np.nan)}, "clock with infinite")):
        bad = replace(sample(), start_s=None, **change)
        with pytest.raises(ValueError, match=message):
            record_file.write(str(path), bad)
    no_end = np.full((2, 5, 3), np.nan)
    bad = replace(sample(), end_s=no_end, wait_s=no_end)
    with pytest.raises(ValueError, match="stamps with infinite numbers"):
        record_file.write(str(path), bad)
    apart = replace(bad, start_s=np.where([True, False, True], bad.start_s, np.nan))
    record_file.write(str(path), apart)  # no rank takes part in the communication
    record_file.read(str(path))
    with h5py.File(path, "a") as f:
        plan = json.loads(f["plan"][()])
        del plan["batch"], f["plan"]
        f["plan"] = json.dumps(plan)
    fails("plan in run record .* 'batch'")
    with pytest.raises(InputError, match="cannot write run record"):
        record_file.write(str(tmp_path / "no" / "run.h5"), sample())


def test_arrays_larger_than_their_file_are_not_read(tmp_path: Path) -> None:
    """A record bounds its step times; all else takes as much in the file as in memory."""
    path = tmp_path / "run.h5"
    record_file.write(str(path), replace(sample(), start_s=None))
    for name, shape in (("seconds", (2, 10**7, 3)), ("iteration_s", (2, 10**7)),
                        ("loss", (10**7,)), ("test_loss", (10**7,)), ("wait_s", (2, 10**7, 3))):
        bomb = tmp_path / f"{name}.h5"
        bomb.write_bytes(path.read_bytes())
        with h5py.File(bomb, "a") as f:
            f.pop(name, None)
            f.create_dataset(name, shape, "f4", chunks=True, compression="gzip")
            f[name][(0,) * len(shape)] = 1.0
        with pytest.raises(InputError, match=rf"'/{name}' is too large for such a file; run aga"):
            record_file.read(str(bomb))
    with h5py.File(path, "a") as f:  # few values, in a chunk that expands to a gigabyte
        del f["loss"]
        f.create_dataset("loss", (5,), "f8", chunks=(1 << 27,), maxshape=(None,),
                         compression="gzip")
        f["loss"].id.write_direct_chunk((0,), b"small")
    with pytest.raises(InputError, match="'/loss' is too large for such a file"):
        record_file.read(str(path))
