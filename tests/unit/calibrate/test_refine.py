"""Records into a machine's table: which steps count for what, and which records are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcpar.calibrate import provenance
from hpcpar.calibrate.refine import refine
from hpcpar.calibrate.work_index import WorkIndex
from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.errors import InputError
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.plan.plan import NetworkSpec, from_json, make_plan, to_json
from hpcpar.prediction.price import price
from hpcpar.schedule.steps import Compute
from hpcpar.train.run_record import RankInfo, RunRecord, steps_of

MACHINE = files.load("local")


def record(strategy: str = "data", ranks: int = 2, iterations: int = 10, scale: float = 1.0,
           **options: Any) -> RunRecord:
    """Step i takes (i + 1) us on rank 0, rank r r tenths more; the first two iterations warm up."""
    host, threads, started = options.pop("host",
                                         "node7"), options.pop("threads", 1), options.pop(
                                             "started", "then")
    plan = make_plan(NetworkSpec("lenet5", (1, 28, 28), 10), strategy, ranks, 9,
                     machine=MACHINE, **options)
    network = plan.network.build()
    schedule = schedule_for(network, plan)
    n = len(schedule.steps)
    seconds = np.zeros((ranks, iterations, n))
    for i, step in enumerate(schedule.steps):
        for r in range(ranks):
            config = plan.configs[step.layer]
            if not isinstance(step, Compute) or config.first <= r < config.first + config.ranks:
                seconds[r, :, i] = scale * (i + 1) * 1e-6 * (1 + r / 10)
    seconds[:, :2] *= 50
    info = [RankInfo(host, r, threads, "cpu", 0) for r in range(ranks)]
    counts = np.zeros((ranks, n), np.int64)
    return RunRecord(to_json(plan), steps_of(schedule), info, seconds.astype(np.float32),
                     seconds.sum(axis=2), counts, counts,
                     np.zeros(iterations), started=started, warmup=2, path=f"{strategy}.h5")


def steps(record: RunRecord, op: str, layer: str) -> list[float]:
    """Seconds of steps on the last rank of those that have them."""
    return [float(record.seconds[:, -1, s.index].max()) for s in record.steps if s.op == op
            and s.layer == layer]


def entry(machine: Machine, start: str) -> float:
    (found,) = [s for key, s in machine.compute.items() if key.startswith(start)]
    return found


def test_times_come_from_the_slowest_rank_after_the_warm_up() -> None:
    r = record()
    found = refine(MACHINE, "m.toml", [r])
    assert found.new == len(found.machine.compute) > 20 and found.known == 0
    assert entry(found.machine,
                 "conv2d.forward x=5x1x") == pytest.approx(steps(r, "forward", "conv1")[0],
                                                           rel=1e-5)
    (change,) = found.changes
    assert change.before_s != change.after_s and change.measured_s == pytest.approx(
        r.iteration_s[1, -1])


def test_the_mean_counts_where_ranks_share_cores() -> None:
    """As in a calibration; rank r takes r tenths longer than rank 0."""
    r = record(ranks=4)
    found = refine(replace(MACHINE, cores_per_node=2), "m.toml", [r]).machine
    slowest = steps(r, "forward", "conv1")[0]
    assert entry(found, "conv2d.forward x=3x1x") == pytest.approx(slowest * 1.15 / 1.3, rel=1e-5)
    everyone = refine(replace(MACHINE, cores_per_node=4), "m.toml", [r]).machine
    assert entry(everyone, "conv2d.forward x=3x1x") == pytest.approx(slowest, rel=1e-5)


def test_a_machine_in_processor_time_is_refused() -> None:
    data = files.to_dict(MACHINE)
    old = files.from_dict(data | {"device": {**data["device"], "at_once": 2.0}})
    with pytest.raises(InputError, match=r"m.toml was calibrated .* by an earlier version"):
        refine(old, "m.toml", [record(ranks=4)])


def test_interior_and_boundary_are_one_measurement() -> None:
    r = record("spatial", overlap="full")
    found = refine(MACHINE, "m.toml", [r]).machine
    wanted = steps(r, "interior", "conv2")[0] + steps(r, "boundary", "conv2")[0]
    assert any(s == pytest.approx(wanted, rel=1e-5) for key, s in found.compute.items()
               if key.startswith("conv2d.forward"))


def test_the_last_micro_batch_of_each_stage_counts() -> None:
    """The last micro-batch of 2, 2, 2 and 3 samples counts; each layer lives on one rank."""
    r = record("pipeline", microbatches=4)
    found = refine(MACHINE, "m.toml", [r]).machine
    assert {key.split(" x=")[1].split("x")[0] for key in found.compute if "forward" in key} == {"3"}
    assert entry(found,
                 "conv2d.forward x=3x1x") == pytest.approx(steps(r, "forward", "conv1")[-1],
                                                           rel=1e-5)


def test_every_priced_step_is_measured() -> None:
    for strategy, options in (("data", {}), ("spatial", {}), ("filter", {}), ("owt", {}),
                              ("pipeline", {"microbatches": 3})):
        r = record(strategy, **options)
        found = refine(MACHINE, "m.toml", [r]).machine
        plan = make_plan(NetworkSpec("lenet5", (1, 28, 28), 10), strategy, 2, 9,
                         machine=MACHINE, **options)
        assert price(plan.network.build(), plan, found).measured_compute == 1.0, strategy


def test_a_repeated_record_changes_nothing_and_several_give_the_median() -> None:
    """The same record twice changes nothing; of several, the median."""
    first = refine(MACHINE, "m.toml", [record()])
    again = refine(first.machine, "m.toml", [record()])
    assert again.machine == first.machine and (again.new, again.ratio) == (0, 1.0)
    assert len(again.machine.quality["sources"]) == 1
    three = refine(first.machine, "m.toml",
                   [record(scale=s, started=str(s)) for s in (1.0, 3.0, 9.0)])
    assert three.ratio == pytest.approx(3.0) and len(three.machine.quality["sources"]) == 4
    assert len(three.machine.compute) == len(first.machine.compute)
    assert files.from_dict(files.to_dict(three.machine)) == three.machine


@pytest.mark.parametrize(("other", "message"), [
    ({"host": "login1"}, r"data.h5 ran on login#, but m.toml was measured with node#"),
    ({"threads": 4}, r"BLAS threads per rank: 4, but m.toml was measured with 1"),
    ({"precision": "fp64"}, r"data.h5 computes in float64, but m.toml has times in float32"),
])
def test_records_of_another_setting_are_refused(other: dict[str, Any], message: str) -> None:
    machine = refine(MACHINE, "m.toml", [record()]).machine
    refine(machine, "m.toml", [record(host="node12.cluster", started="later")])
    with pytest.raises(InputError, match=message):
        refine(machine, "m.toml", [record(**other)])


def test_ranks_that_differ_and_steps_of_another_version_are_refused() -> None:
    mixed = record()
    mixed.ranks[1] = replace(mixed.ranks[1], threads=2)
    with pytest.raises(InputError, match="different numbers of threads"):
        refine(MACHINE, "m.toml", [mixed])
    other = record()
    other.steps.pop()
    with pytest.raises(InputError, match="this hpcpar makes other steps"):
        refine(MACHINE, "m.toml", [other])


def test_a_rank_outside_a_layer_does_not_count() -> None:
    plan = make_plan(NetworkSpec("mlp", (1, 8, 8), 10), "pipeline", 2, 4,
                     machine=MACHINE)
    network = plan.network.build()
    schedule = schedule_for(network, plan)
    work = WorkIndex(network, plan, schedule)
    every = np.stack([work.seconds(np.ones(len(schedule.steps)), rank) for rank in range(2)])
    assert (every.max(axis=0) >= 1).all() and (every == 0).any(axis=1).all()


def clocked(machine: Machine, late_s: float = 0.0, overlap: str = "none") -> RunRecord:
    """A run of which every communication took as long as `machine` says, on clocks that differ;
    rank 1 comes `late_s` late.
    """
    r = record("filter", overlap=overlap)
    plan = make_plan(NetworkSpec("lenet5", (1, 28, 28), 10), "filter", 2, 9,
                     machine=MACHINE, overlap=overlap)
    costs = price(plan.network.build(), plan, machine).steps
    k, n = r.iterations, len(r.steps)
    starts, took = 0.1 * np.arange(n), np.array([c.seconds for c in costs])
    late = np.array([0.0, late_s])[:, None, None]
    r.begin_s = np.stack([np.arange(k) * 10.0, np.arange(k) * 10.0 + 500.0])
    r.clock = np.array([[[0.0, 0.0, 1e-6], [100.0, 0.0, 1e-6]],
                        [[500.0, 500.0, 1e-6], [600.0, 500.0, 1e-6]]])
    r.start_s = (starts + late + np.zeros((2, k, n))).astype(np.float64)
    r.end_s = np.broadcast_to(starts + late_s + took, (2, k, n)).copy()
    r.wait_s = r.end_s - r.start_s
    return r


@pytest.mark.parametrize("late_s", [0.0, 0.02])
def test_levels_are_scaled_to_communication_steps(late_s: float) -> None:
    """Whoever comes late is not the links' fault."""
    (level,) = MACHINE.levels
    small = None if level.small_alpha_s is None else 3 * level.small_alpha_s
    true = replace(MACHINE, levels=(replace(level, alpha_s=3 * level.alpha_s, small_alpha_s=small,
                                            beta_s_per_byte=0.5 * level.beta_s_per_byte),))
    found = refine(MACHINE, "m.toml", [clocked(true, late_s)])
    (scale,) = found.links
    assert (scale.alpha, scale.beta) == pytest.approx((3.0, 0.5), rel=0.05) and scale.steps >= 4
    again = refine(found.machine, "m.toml", [clocked(true, late_s)])
    assert again.machine == found.machine and again.links == [], "it has said so already"
    other = replace(clocked(true, late_s), started="later")
    (scale,) = refine(found.machine, "m.toml", [other]).links
    assert (scale.alpha, scale.beta) == pytest.approx((1.0, 1.0), rel=0.05)


def test_overlapping_steps_do_not_refine_links() -> None:
    found = refine(MACHINE, "m.toml", [clocked(MACHINE, overlap="full")])
    assert sum(scale.steps for scale in found.links) < sum(step.kind == "comm"
                                                           for step in clocked(MACHINE).steps) - 2


def true_machine(slower: float, kind_factor: float, alpha: float, beta: float) -> Machine:
    """A machine whose kinds of work and links take other times than `MACHINE` says."""
    levels = tuple(replace(level, alpha_s=alpha * level.alpha_s,
                           beta_s_per_byte=beta * level.beta_s_per_byte)
                   for level in MACHINE.levels)
    device = replace(MACHINE.device, flops_per_s=MACHINE.device.flops_per_s / slower)
    return replace(MACHINE, device=device, levels=levels,
                   kinds={"conv2d.forward float32": kind_factor, "maxpool2d.forward float32": 3.0})


def recorded_on(machine: Machine, strategy: str) -> RunRecord:
    """A run of a strategy of which every step took as long as `machine` says."""
    r = record(strategy, overlap="none")
    plan = from_json(r.plan, "")
    took = np.array([c.seconds for c in price(plan.network.build(), plan, machine).steps])
    r.seconds = np.broadcast_to(took, r.seconds.shape).astype(np.float32)
    r.iteration_s = r.seconds.sum(axis=2).astype(np.float64)
    k, n = r.iterations, len(r.steps)
    r.begin_s = np.stack([np.arange(k) * 10.0] * 2)
    r.clock = np.array([[[0.0, 0.0, 1e-6], [100.0, 0.0, 1e-6]]] * 2)
    r.start_s = np.broadcast_to(0.1 * np.arange(n), (2, k, n)).astype(np.float64)
    r.end_s = r.start_s + took
    r.wait_s = r.end_s - r.start_s
    return r


@settings(max_examples=25)
@given(st.sampled_from([("data", "filter"), ("filter", "data"), ("filter", "channel"),
                        ("data", "spatial"), ("spatial", "filter")]),
       st.floats(1.3, 4.0), st.floats(0.5, 2.0), st.floats(1.2, 5.0), st.floats(1.2, 5.0))
def test_a_record_of_one_plan_predicts_another(pair: tuple[str, str], slower: float, kind: float,
                                               alpha: float, beta: float) -> None:
    """On a machine that computes and sends more slowly than its file says, refining with a record
    of plan A brings the prediction of plan B nearer to the truth.
    """
    ran, other = pair
    true = true_machine(slower, kind, alpha, beta)
    found = refine(MACHINE, "m.toml", [recorded_on(true, ran)]).machine
    plan = from_json(record(other, overlap="none").plan, "")
    network = plan.network.build()
    before, after, truth = (float(price(network, plan, m).iteration_s)
                            for m in (MACHINE, found, true))
    assert abs(after - truth) < abs(before - truth)
    assert after == pytest.approx(truth, rel=0.35)


def test_times_of_another_math_mode_are_refused() -> None:
    """A record of a GPU says how it multiplied; older records say nothing, and are taken."""
    fp32 = replace(record(), versions={"gpu": "H100", "math": "fp32", "cuda": "13"})
    refined = refine(MACHINE, "m", [fp32]).machine
    origin = provenance.origin(files.from_dict(files.to_dict(refined)).quality, "m")
    assert origin is not None and origin.versions == {"gpu": "H100", "math": "fp32"}
    for versions in ({"gpu": "H100", "math": "fp32", "cuda": "14"}, {}):
        refine(refined, "m", [replace(record(), versions=versions)])
        assert origin.notes(versions) == []
    tf32 = {"gpu": "H100", "math": "tf32"}
    with pytest.raises(InputError, match="ran with math tf32, but m was measured with fp32"):
        refine(refined, "m", [replace(record(), versions=tf32)])
    assert origin.notes(tf32) == ["the plan's machine was measured with math fp32, but this run "
                                  "has tf32: calibrate again to predict this run"]
