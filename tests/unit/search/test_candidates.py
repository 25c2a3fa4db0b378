"""Many strategies priced together are what each is alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hpcpar.errors import InputError
from hpcpar.machine import files
from hpcpar.network.builtin import network
from hpcpar.plan.plan import NetworkSpec, Plan
from hpcpar.plan.strategies import parse
from hpcpar.prediction.price import price as exact
from hpcpar.search import auto
from hpcpar.search.candidates import Candidate, priced, sample_parts
from tests.unit.closed import price as closed
from tests.unit.search.test_bucket_sizes import sizes_of_rows


@pytest.mark.parametrize(
    ("name", "ranks", "machine", "options"),
    [("lenet5", 6, "p100x4x4", {"bucket_bytes": None}),
     ("cosmoflow", 4, "h100x8", {"synchronization": "sharded"}),
     ("lenet5", 4, "local", {"bucket_bytes": 1 << 16, "gather": "eager"})],
)
def test_every_candidate_has_the_price_of_its_plan(name: str, ranks: int, machine: str,
                                                   options: dict[str, Any]) -> None:
    """In both placements, with the gradients of several layers in one bucket as each strategy's
    configurations allow.
    """
    net, loaded = network(name), files.load(machine)
    spec = NetworkSpec(name, net.image_shape, net.classes)
    task = auto.task(net, spec, ranks, 4 * ranks, loaded, **options)
    names = auto.strategies_to_try(net, ranks, loaded)
    found = priced(task, names)
    assert [c.strategy for c in found] == names and any("/outer" in each for each in names) == (
        len(loaded.levels) > 1
    )
    for c in found:
        price = exact if c.exact_costs else closed
        tried = [price(net, plan, loaded) for plan in plans(c, options)]
        least_s = min(p.iteration_s for p in tried if p.fits or not any(p.fits for p in tried))
        assert c.iteration_s == pytest.approx(least_s, rel=1e-12)
        p = price(net, c.plan, loaded)
        assert p.iteration_s == pytest.approx(least_s, rel=1e-12)
        assert (c.memory_bytes, c.parts, c.fits) == (p.memory_bytes, int(sample_parts(c.plan)),
                                                     p.fits)


def plans(c: Candidate, options: dict[str, Any]) -> list[Plan]:
    """The plans that a candidate is the best of: with every size of buckets, where none is asked
    for.
    """
    if options.get("bucket_bytes", 0) is not None:
        return [c.plan]
    return [replace(c.plan, bucket_bytes=size)
            for size in {c.plan.bucket_bytes, *sizes_of_rows(c.task.network)}]


def test_strategies_for_features_are_skipped_without_features() -> None:
    unet = network("unet", (1, 16, 16))
    names = {parse(name)[0] for name in auto.strategies_to_try(unet, 4, files.load("local"))}
    assert names == {"data", "filter", "spatial", "channel", "grid", "ds", "pipeline"}


def test_more_parts_than_filters_run_and_more_parts_than_samples_do_not() -> None:
    """As docs/reference/strategies.md says."""
    spec = NetworkSpec("lenet5", (1, 12, 12), 3)
    network, machine = spec.build(), files.load("local")
    chosen = auto.price_named(network, spec, "filter", 4, 2, machine)
    assert not chosen.refusal
    assert {(p.axis, p.extent, p.parts) for p in chosen.prediction.limits} == {("c", 3, 4)}
    with pytest.raises(InputError, match="a batch of 2 cannot be cut into 4 parts: ranks would "
                                         "have no samples"):
        auto.price_named(network, spec, "data", 4, 2, machine)


def test_image_parts_may_have_fewer_samples_than_ranks_unless_the_batch_is_limited() -> None:
    """The linear layers of ds are cut by samples over all ranks, of which some are without."""
    spec = NetworkSpec("lenet5", (1, 12, 12), 3)
    network, machine = spec.build(), files.load("local")
    assert not auto.price_named(network, spec, "ds:2x2", 4, 2, machine).refusal
    assert not auto.price_named(network, spec, "ds:2x2", 4, 2, machine,
                                min_batch_per_rank=None).refusal
    with pytest.raises(InputError, match="--min-batch-per-rank 2 allows 1; name a strategy"):
        auto.price_named(network, spec, "ds:2x2", 4, 2, machine, min_batch_per_rank=2)
