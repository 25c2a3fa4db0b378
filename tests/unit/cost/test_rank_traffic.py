"""Predicted bytes and messages are those that the ranks of a run send."""

from __future__ import annotations

import numpy as np
import pytest

from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.machine import files
from hpcpar.plan.plan import NetworkSpec, make_plan
from hpcpar.prediction.price import price
from hpcpar.schedule.messages import counts


@pytest.mark.parametrize(("name", "shape", "strategy", "ranks", "batch", "machine", "options"), [
    ("lenet5", (1, 28, 28), "pipeline", 6, 6, "k80x16", {}),
    ("lenet5", (1, 28, 28), "pipeline:3x2", 6, 7, "k80x16", {"order": "1f1b"}),
    ("lenet5", (1, 28, 28), "filter", 7, 5, "p100x4x4", {"collectives": "tree"}),
    ("lenet5", (1, 28, 28), "owt", 7, 9, "p100x4x4", {"collectives": "tree"}),
    ("lenet5", (1, 28, 28), "owt-b", 4, 8, "p100x4x4", {}),
    ("lenet5", (1, 28, 28), "data", 5, 12, "local", {"synchronization": "server"}),
    ("alexnet", (3, 67, 67), "ds:2x3", 6, 11, "p100x4x4", {"synchronization": "sharded"}),
    ("alexnet", (3, 67, 67), "grid:3x2", 6, 11, "p100x4x4", {"collectives": "ring"}),
    ("alexnet", (3, 67, 67), "channel", 5, 11, "cori-knl", {"microbatches": 3}),
    ("resnet50", (3, 64, 64), "domain:5x1", 5, 4, "abci-v100", {"recompute": 4}),
])
def test_predicted_traffic_equals_the_messages(name: str, shape: tuple[int, ...], strategy: str,
                                               ranks: int, batch: int, machine: str,
                                               options: dict[str, str | int]) -> None:
    spec, loaded = NetworkSpec(name, shape, 10), files.load(machine)
    network = spec.build()
    plan = make_plan(spec, strategy, ranks, batch, network=network, machine=loaded,
                     **options)
    predicted, schedule = price(network, plan, loaded), schedule_for(network, plan)
    total = np.zeros(ranks, np.int64)
    by_layer = {layer.name: np.zeros(ranks, np.int64) for layer in network.layers}
    for step in schedule.comms:
        each = [counts(step, rank) for rank in range(ranks)]
        n_bytes = np.array([c.sent_bytes for c in each])
        total += n_bytes
        by_layer[step.layer] += n_bytes
        found = predicted.steps[step.index]
        assert (found.messages, found.sent_bytes) == (max(c.messages for c in each), n_bytes.max())
    assert predicted.communication_bytes == total.max() > 0
    for row in predicted.layers:
        assert row.communication_bytes == by_layer[row.name].max()
