"""Explanations: terms that add up to the prediction, and changes that anyone can price again."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from hpcpar.machine import files
from hpcpar.network import builtin
from hpcpar.network.graph import Network
from hpcpar.plan.limits import limit
from hpcpar.plan.plan import NetworkSpec
from hpcpar.prediction.price import price
from hpcpar.search import auto
from hpcpar.search import explain as module
from hpcpar.search.candidates import Candidate
from hpcpar.search.explain import Explanation, Limitation, explain
from hpcpar.search.what_if import what_ifs
from tests.unit.search import test_tables

OPTIONS: dict[str, dict[str, Any]] = {"--overlap full": {"overlap": "full"},
                                      "--overlap gradient": {"overlap": "gradient"},
                                      "--collectives auto": {"collectives": "auto"},
                                      "--synchronization sharded": {"synchronization": "sharded"},
                                      "--batch-norm local": {"batch_norm": "local"}}


@cache
def network(name: str) -> Network:
    return test_tables.residual() if name == "residual" else builtin.network(name)


def candidate(name: str, strategy: str, ranks: int, batch: int, machine: str,
              **options: Any) -> Candidate:
    net = network(name)
    source = "tests.unit.search.test_tables:residual" if name == "residual" else name
    return auto.price_named(net, NetworkSpec(source, net.image_shape, net.classes), strategy, ranks,
                            batch, files.load(machine), **options)


@cache
def explained(*what: Any, **options: Any) -> tuple[Candidate, Explanation]:
    found = candidate(*what, **options)
    return found, explain(found.task.network, found)


def terms_of(found: Candidate) -> Explanation:
    """Without the changes, which take a search."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "what_ifs", lambda network, chosen: [])
        return explain(found.task.network, found)


@cache
def terms(*what: Any, **options: Any) -> tuple[Candidate, Explanation]:
    found = candidate(*what, **options)
    return found, terms_of(found)


def seconds(found: Explanation, name: str) -> float:
    out = term(found, name).seconds
    assert out is not None
    return out


def term(found: Explanation, name: str) -> Limitation:
    (out,) = [t for t in found.terms if t.name == name]
    return out


CASES: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    (("lenet5", "data", 4, 64, "local"), {}),
    (("lenet5", "grid:2x4", 8, 64, "p100x4x4"), {"overlap": "none"}),
    (("lenet5", "domain:2x2", 4, 64, "abci-v100"), {"synchronization": "sharded"}),
    (("residual", "ds:2x2", 4, 8, "p100x4x4"), {"overlap": "gradient", "collectives": "ring"}),
    (("lenet5", "filter", 8, 64, "p100x4x4"), {"synchronization": "server", "contention": 3.0}),
]


@pytest.mark.parametrize(("what", "options"), CASES)
def test_communication_adds_up(what: tuple[Any, ...], options: dict[str, Any]) -> None:
    chosen, found = terms(*what, **options)
    p = chosen.prediction
    parts = [term(found, name) for name in ("gradient exchange", "layer-wise communication",
                                            "p2p communication")]
    assert sum(t.seconds or 0.0 for t in parts) == pytest.approx(p.communication_s, rel=1e-12)
    assert sum(t.exposed_s or 0.0 for t in parts) == pytest.approx(
        p.exposed_communication_s, rel=1e-9, abs=1e-15
    )
    # the busiest rank of one step may rest in another
    sent = sum(float(t.remark.split("at most ")[1].split(" MB")[0]) for t in parts)
    assert sent >= p.communication_bytes / 1e6 * (1 - 1e-3)
    update = term(found, "weight update")
    assert update.seconds == pytest.approx(p.phases["update"]["compute_s"], rel=1e-12)
    assert all((t.seconds is None) == (t.exposed_s is None) for t in found.terms)
    assert [t.category for t in found.terms if t.category != "scaling"] == [
        "input", *["communication"] * 4, "memory", "memory", *["computation"] * 3]


@pytest.mark.parametrize(("what", "options"), CASES[2:4])
def test_proposed_changes_can_be_priced(what: tuple[Any, ...], options: dict[str, Any]) -> None:
    chosen, found = explained(*what, **options)
    t, plan = chosen.task, chosen.plan
    assert found.changes == tuple(
        sorted(found.changes, key=lambda c: (not c.fits, c.iteration_s))
    )
    for change in found.changes:
        assert change.gain == pytest.approx(chosen.iteration_s
                                            / change.iteration_s) and change.gain > 1
        machine, again = t.machine, plan
        if change.what.startswith("strategy "):
            if "layerwise" not in change.what:
                named = auto.price_strategy(t, change.what.split()[1])
                assert (change.iteration_s == pytest.approx(named.iteration_s, rel=1e-9)
                        and change.fits == named.fits)
            continue
        option = [values for words, values in OPTIONS.items() if words in change.what]
        if option:
            again = replace(plan, **option[0])
        elif "bandwidth" in change.what:
            machine = replace(machine,
                              levels=tuple(replace(x, beta_s_per_byte=x.beta_s_per_byte / 2)
                                           for x in machine.levels))
        elif "latency" in change.what:
            machine = replace(machine,
                              levels=tuple(replace(x, alpha_s=x.alpha_s / 2)
                                           for x in machine.levels))
        else:
            assert change.what == "devices twice as fast"
            d = machine.device
            machine = replace(
                machine,
                device=replace(d, flops_per_s=2 * d.flops_per_s, launch_s=d.launch_s / 2,
                               bandwidth_bytes_per_s=2 * d.bandwidth_bytes_per_s),
            )
        p = price(t.network, replace(again, machine=machine), machine,
                  **t.price_options)
        assert (
            change.iteration_s == pytest.approx(p.iteration_s, rel=1e-12) and change.fits == p.fits
        )
    assert any(c.what == "devices twice as fast" for c in found.changes)


def test_congestion() -> None:
    """None by definition with a contention of one; else what the other flows cost."""
    assert term(terms("lenet5", "data", 8, 64, "p100x4x4", contention=1.0)[1],
                "network congestion").seconds == 0.0
    # one level, a link for every rank
    assert term(terms(*CASES[0][0])[1], "network congestion").seconds == 0.0
    chosen, found = terms("lenet5", "df:4x4/outer", 16, 64, "p100x4x4", overlap="none")
    alone = price(chosen.task.network, chosen.plan, chosen.task.machine, contention=1.0)
    congestion = term(found, "network congestion")
    assert (congestion.seconds
            == pytest.approx(chosen.prediction.communication_s - alone.communication_s)
            and (congestion.seconds or 0) > 0)
    assert (f"takes {chosen.prediction.communication_s / alone.communication_s:.3g} times as long"
            in congestion.remark)


def test_redundancy() -> None:
    """The images and the loss, which all ranks compute alike under filter, and what uneven channel
    parts hold more.
    """
    whole = terms("lenet5", "data", 1, 64, "local")[1]
    assert "hold 1 times the size of one copy" in term(whole, "memory redundancy").remark
    assert term(whole, "computation redundancy").seconds == 0.0
    chosen, found = terms("lenet5", "filter", 4, 64, "local")
    expected = sum(
        s.seconds * (1 - 1 / chosen.plan.configs[s.layer].replicas) for s in chosen.prediction.steps
        if not s.is_comm and s.phase != "update"
    )
    twice = seconds(found, "computation redundancy")
    assert twice == pytest.approx(expected, rel=1e-12) and twice > 0
    net = network("lenet5")
    weights = 3 * net.parameters
    items = sum(64 * math.prod(net.shapes[layer.name]) for layer in net.layers)
    replicated = sum(64 * math.prod(net.shapes[name]) for name, c in chosen.plan.configs.items()
                     if c.replicas == 4)
    uneven = _uneven(chosen)
    held = (items + 3 * replicated + uneven + weights + _uneven_weights(chosen)) / (items + weights)
    assert f"hold {held:.3g} times" in term(found, "memory redundancy").remark
    data = term(terms("lenet5", "data", 4, 64, "local")[1], "memory redundancy").remark
    assert f"hold {(items + 4 * weights) / (items + weights):.3g} times" in data


def _uneven(chosen: Candidate) -> int:
    """Items that the largest of uneven channel parts holds more than the mean, times the ranks."""
    net, total = chosen.task.network, 0
    for layer in net.layers:
        parts = chosen.plan.configs[layer.name].c
        units = net.shapes[layer.name][0] // net.granules[layer.name]
        total += (
            (-(-units // parts) * parts - units) * 64 * math.prod(net.shapes[layer.name]) // units
        )
    return total


def _uneven_weights(chosen: Candidate) -> int:
    net, total = chosen.task.network, 0
    for layer in net.weighted:
        parts, rows = chosen.plan.configs[layer.name].c, net.shapes[layer.name][0]
        total += ((-(-rows // parts) * parts - rows)
                  * 3
                  * layer.parameters(net.input_shape(layer))
                  // rows)
    return total


def test_balance() -> None:
    """10 samples on 4 ranks: the largest part has 3 where 2.5 would be even."""
    chosen, found = terms("lenet5", "data", 4, 10, "local")
    work = chosen.prediction.compute_s - chosen.prediction.phases["update"]["compute_s"]
    assert term(found, "workload balancing").seconds == pytest.approx(work / 6, rel=1e-9)
    assert term(terms("lenet5", "data", 4, 64, "local")[1], "workload balancing").seconds == 0.0
    pipeline, found = terms("lenet5", "pipeline:2x2", 4, 64, "local")
    p = pipeline.prediction
    assert term(found, "workload balancing").seconds == 0.0
    assert term(found, "pipeline bubble").seconds == p.bubble_s > 0
    waits_s = p.exposed_communication_s + p.bubble_s
    assert p.iteration_s == pytest.approx(p.compute_s + waits_s, rel=1e-12)
    parts = [t for t in found.terms if t.category == "communication"][:3]
    for whole, part in ((p.communication_s, "seconds"), (p.exposed_communication_s, "exposed_s")):
        assert sum(getattr(t, part) for t in parts) == pytest.approx(whole, rel=1e-12)
    assert all(t.exposed_s is None or t.exposed_s <= (t.seconds or 0.0) for t in found.terms)


def test_accumulated_gradients_have_no_bubble() -> None:
    found = terms("lenet5", "data", 4, 64, "local", microbatches=4)[1]
    assert term(found, "workload balancing").seconds == pytest.approx(0.0, abs=1e-12)
    assert not any(t.name == "pipeline bubble" for t in found.terms)


def test_a_pipelines_communication_adds_up() -> None:
    chosen, found = terms("lenet5", "pipeline:2x2", 4, 64, "local")
    parts = [term(found, name).seconds or 0.0
             for name in ("gradient exchange", "layer-wise communication", "p2p communication")]
    assert sum(parts) == pytest.approx(chosen.prediction.communication_s)


def test_reading_images_can_be_the_bottleneck() -> None:
    chosen, found = terms("lenet5", "data", 4, 64, "local", io_bytes_per_s=1e5)
    assert chosen.iteration_s == chosen.prediction.io_s > 10 * chosen.prediction.compute_s
    assert found.bottleneck != "computing"


def test_memory_stalling() -> None:
    chosen, found = terms("lenet5", "data", 4, 64, "local")
    used = chosen.prediction.memory_bytes / chosen.prediction.memory_limit_bytes
    assert term(found, "memory stalling").remark == f"{used:.0%} of a rank's memory: fits"
    machine = files.load("local")
    for share, state in ((0.95, "little room"), (1.05, "does not fit")):
        device = replace(machine.device, memory_bytes=int(chosen.prediction.memory_bytes / share))
        task = replace(chosen.task, machine=replace(machine, device=device))
        tight = auto.price_strategy(task, "data")
        remark = term(terms_of(tight), "memory stalling").remark
        assert remark.startswith(f"{share:.0%}") and state in remark


def test_limits() -> None:
    """ParaDL's last column within the limit; beyond it, the layer that runs out first."""
    net = network("lenet5")
    for strategy, ranks in (("data", 4), ("filter", 4), ("channel", 4), ("spatial", 4),
                            ("df:2x2", 4), ("pipeline:2x2", 4), ("owt", 4)):
        remark = term(terms("lenet5", strategy, ranks, 64, "local")[1], "number of PEs").remark
        assert remark == f"'{strategy}' can use up to {limit(net, strategy, 64)} ranks here"
    assert limit(net, "data", 64) == 64 and limit(net, "df:2x2", 64) == 64 * limit(
        net, "filter", 64
    )
    remark = term(terms("lenet5", "filter", 16, 64, "local")[1], "number of PEs").remark
    assert remark.startswith("beyond its limit: 6 filters in 16 parts leave 10 of 16 ranks idle")


def test_the_bottleneck_is_the_largest_exposed_term() -> None:
    assert terms("alexnet", "data", 16, 512, "k80x16",
                 overlap="none")[1].bottleneck == "gradient exchange"
    assert terms("lenet5", "data", 1, 64, "local")[1].bottleneck == "computing"
    _, found = explained(*CASES[2][0], **CASES[2][1])
    document = found.to_json()
    assert document["bottleneck"] == found.bottleneck
    assert [t["name"] for t in document["terms"]] == [t.name for t in found.terms]
    assert [c["what"] for c in document["changes"]] == [c.what for c in found.changes]


def test_whole_convolutions_are_proposed_where_launches_cost_more_than_halos() -> None:
    """A part of a convolution beside its halo is one kernel more."""
    found = candidate("lenet5", "domain:2x2", 4, 64, "p100x4x4", overlap="full")
    proposed = "compute convolutions whole, without hiding halos (--overlap gradient)"
    assert proposed not in {change.what for change in what_ifs(found.task.network, found)}
    slow = replace(found.task.machine,
                   device=replace(found.task.machine.device, launch_s=1e-2))
    costly = auto.price_named(found.task.network, found.task.spec, "domain:2x2", 4, 64, slow,
                              overlap="full")
    change = next(c for c in what_ifs(found.task.network, costly) if c.what == proposed)
    assert change.iteration_s < costly.iteration_s
