"""Frameworks: whose rules a plan is priced by, and who refuses to run it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcpar.cli.main import main
from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.errors import InputError
from hpcpar.machine import files
from hpcpar.network.builtin import network as builtin
from hpcpar.plan import plan as plans
from hpcpar.plan.frameworks import FRAMEWORKS, MIB, OWN, Framework
from hpcpar.plan.plan import NetworkSpec, Overlap, Plan, make_plan
from hpcpar.prediction.price import price
from hpcpar.schedule.runnable import require_executed
from hpcpar.schedule.steps import Comm, Phase
from hpcpar.simulation.simulate import Simulator

SPEC = NetworkSpec("resnet50", (3, 224, 224), 1000)
NETWORK = builtin("resnet50")
DGX = files.load("dgx1-v100")


def plan_of(framework: str, ranks: int = 16, **options: Any) -> Plan:
    return make_plan(SPEC, "data", ranks, 32 * ranks, network=NETWORK, framework=framework,
                     **({"batch_norm": "local"} | options))


def seconds(plan: Plan) -> float:
    return price(NETWORK, plan, DGX).iteration_s


def test_a_framework_gives_buckets_and_overlap_that_the_user_may_change() -> None:
    ddp = plan_of("ddp")
    assert (ddp.bucket_bytes, ddp.overlap) == (25 * MIB, Overlap.FULL)
    assert plan_of("replicated").overlap is Overlap.NONE
    assert plan_of("ddp", bucket_bytes=MIB).bucket_bytes == MIB
    assert plan_of(OWN) == make_plan(SPEC, "data", 16, 512, network=NETWORK, batch_norm="local")


def test_updates_wait_for_the_last_gradient() -> None:
    steps = schedule_for(NETWORK, plan_of("ddp", machine=DGX)).steps
    first = next(step.index for step in steps if step.phase is Phase.UPDATE)
    needed = [step.needed_by for step in steps
              if isinstance(step, Comm) and step.phase is Phase.GRADIENT]
    assert needed and set(needed) == {first}
    own = schedule_for(NETWORK, replace(plan_of("ddp", machine=DGX), framework=OWN)).steps
    assert any(step.needed_by > first for step in own
               if isinstance(step, Comm) and step.phase is Phase.GRADIENT)


def test_each_rule_costs_time() -> None:
    ddp = plan_of("ddp")
    own, cycles = replace(ddp, framework=OWN), replace(ddp, framework="horovod-0.20")
    assert seconds(own) < seconds(ddp) < seconds(cycles)
    # the last bucket waits for half a cycle; every sum of batch normalization does, too
    assert seconds(cycles) - seconds(ddp) == pytest.approx(2.5e-3, rel=0.01)
    more = [seconds(replace(plan, batch_norm="sync")) - seconds(plan) for plan in (ddp, cycles)]
    assert more[1] - more[0] > 50 * 2.5e-3


def test_halo_exchanges_and_gathers_do_not_wait_for_a_cycle() -> None:
    for strategy in "ds:8x2", "df:8x2":
        ddp, cycles = (make_plan(SPEC, strategy, 16, 512, network=NETWORK, batch_norm="local",
                                 framework=name, overlap="none", bucket_bytes=2**40, machine=DGX)
                       for name in ("ddp", "horovod-0.20"))
        sums = sum(isinstance(step, Comm) and step.phase is Phase.GRADIENT
                   for step in schedule_for(NETWORK, ddp).steps)
        others = len(schedule_for(NETWORK, ddp).comms) - sums
        assert others > 20 and sums > 0
        assert seconds(cycles) - seconds(ddp) == pytest.approx(2.5e-3 * sums, rel=1e-6), strategy


def test_fused_kernels_shorten_element_wise_layers_in_mixed_precision_only() -> None:
    for precision, fuses in ("amp", True), ("fp32", False):
        plain = price(NETWORK, plan_of("horovod", precision=precision), DGX)
        fused = price(NETWORK, plan_of("mxnet", precision=precision), DGX)
        assert (fused.compute_s < 0.95 * plain.compute_s) is fuses
        assert fused.compute_s <= plain.compute_s


def test_predict_equals_simulate_with_the_rules_of_each_framework() -> None:
    for name in FRAMEWORKS:
        plan = plan_of(name)
        simulated = float(Simulator(NETWORK, plan, DGX).play().iteration_s[0])
        assert seconds(plan) == pytest.approx(simulated, rel=1e-9)


def test_a_file_keeps_the_framework_and_only_our_own_rules_run(tmp_path: Path) -> None:
    path = str(tmp_path / "plan.json")
    plans.save(plan_of("ddp", 4), path)
    assert plans.load(path).framework == "ddp"
    require_executed(OWN)
    with pytest.raises(InputError, match="rules of framework ddp can be planned"):
        require_executed("ddp")
    with pytest.raises(InputError, match="unknown framework 'dpp'; did you mean 'ddp'"):
        replace(plan_of(OWN), framework="dpp")


def test_the_command_line_knows_frameworks(capsys: pytest.CaptureFixture[str],
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["predict", "--network", "lenet5", "--ranks", "4", "--batch", "64", "--strategy",
             "data", "--machine", "dgx1-v100", "--framework"]
    assert main([*words, "pytorch"]) == 2
    assert "write ddp" in capsys.readouterr().err
    monkeypatch.setitem(FRAMEWORKS, "mine", Framework("a loop of ours", 0, "none"))
    assert main([*words, "mine", "--explain"]) == 0
    shown = capsys.readouterr().out
    assert "rules of mine" in shown and "slowest rank" in shown and "samples/s" in shown


def test_a_node_may_limit_the_input() -> None:
    plan = plan_of("ddp")
    free = price(NETWORK, plan, DGX)
    limited = price(NETWORK, plan, DGX, node_samples_per_s=1000.0)
    assert (free.io_s, limited.io_s) == (0.0, pytest.approx(8 * 32 / 1000))
    assert limited.iteration_s == limited.io_s > free.iteration_s
    # ranks that share a sample read a part each
    cut = make_plan(SPEC, "ds:4x4", 16, 64, network=NETWORK)
    assert price(NETWORK, cut, DGX, node_samples_per_s=1000.0).io_s == pytest.approx(
        8 * 16 / 4 / 1000, rel=0.01)
