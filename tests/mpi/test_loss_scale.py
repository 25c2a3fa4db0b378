"""A gradient that overflows float16 on one rank: no rank updates, and all halve the loss scale."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hpcpar.comm import trace
from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import world
from hpcpar.runtime.executor import Executor
from hpcpar.runtime.loss_scale import ScaleState
from hpcpar.schedule.lower import lower
from hpcpar.schedule.steps import Compute, Op, Phase
from tests.mpi.comparison import CHOOSERS
from tests.mpi.sharing import allgather
from tests.mpi.test_mixed import plan_of, smooth

P = world().size
#: Weights on all ranks, cut, on some ranks only, and updated by some ranks only.
PLANS: list[tuple[str, dict[str, Any]]] = [
    ("data", {}), ("filter", {}), ("pipeline", {"microbatches": 2}), ("spatial", {}),
    ("data", {"synchronization": "sharded"}), ("data", {"synchronization": "server"}),
]


class Run:
    """An executor that trains on the same batch, and its weights and optimizer state."""

    def __init__(self, strategy: str, options: dict[str, Any], communicator: Communicator) -> None:
        network, rng = smooth(), np.random.default_rng(3)
        self.plan = plan_of(network, strategy, precision="amp-fp16", optimizer="adam", **options)
        self.schedule = lower(network, self.plan, CHOOSERS["ring"])
        self.executor = Executor(network, self.plan, self.schedule, communicator,
                                 communicator.backend, 7)
        box = tuple(slice(*i) for i in self.executor.image_box)
        images = rng.standard_normal((self.plan.batch, *network.image_shape)).astype(np.float32)
        self.images = images[(self.executor.image_rows, *box)]
        self.labels = rng.integers(0, network.classes, self.plan.batch)

    def iterate(self, step: int) -> float:
        return self.executor.iterate(self.images, self.labels, step, 0.001, 0.9, 0.01)[0]

    def weights(self) -> dict[str, list[bytes]]:
        return {name: [a.tobytes() for a in (p.flat, *p.state)]
                for name, p in self.executor.parameters.items()}

    @property
    def scale(self) -> ScaleState:
        assert self.executor.loss_scale is not None
        return self.executor.loss_scale.state

    def spoil(self, rank: int, layer: str) -> None:
        """Make a gradient infinite before it is unscaled on a rank that updates it."""
        program, p = self.executor.training, self.executor.parameters[layer]
        updates = allgather(self.executor.communicator.world, p.updates)
        chosen = [r for r, here in enumerate(updates) if here]
        (step,) = (s.index for s in self.schedule.steps
                   if isinstance(s, Compute) and s.op is Op.UNSCALE and s.layer == layer)
        assert program is not None
        if self.executor.rank == chosen[rank % len(chosen)]:
            program.before[step] = lambda: p.updated(p.grad).fill(np.inf)


@pytest.mark.parametrize("layer", ["conv1", "fc2"])
@pytest.mark.parametrize(("strategy", "options"), PLANS, ids=str)
def test_an_overflow_on_one_rank_skips_all_updates(strategy: str, options: dict[str, Any],
                                                   layer: str, communicator: Communicator) -> None:
    run = Run(strategy, options, communicator)
    run.iterate(0)
    assert run.scale == (65536, 1, 0)
    before, running = run.weights(), run.executor.parameters["norm2"].buffers.copy()
    run.spoil(P - 1, layer)
    communicator.trace.clear()
    run.iterate(1)
    trace.check(communicator.trace, run.schedule, run.executor.rank)
    assert run.weights() == before
    assert set(allgather(communicator.world, run.scale)) == {(32768, 0, 1)}
    if running.size and run.executor.lives("norm2"):
        assert (run.executor.parameters["norm2"].buffers != running).all()
    assert run.executor.training is not None
    run.executor.training.before.clear()
    run.iterate(2)
    assert run.scale == (32768, 1, 1)
    changed = {name for name, bits in run.weights().items() if bits != before[name]}
    assert changed == {n for n, p in run.executor.parameters.items() if p.flat.size}


def test_adam_does_not_count_skipped_updates(communicator: Communicator) -> None:
    """Its first update moves a weight by the rate, 0.001; as second one, it would by 0.00074."""
    run = Run("data", {}, communicator)
    before = {name: p.flat.copy() for name, p in run.executor.parameters.items()}
    run.spoil(0, "fc2")
    run.iterate(0)
    assert run.scale.skipped == 1 and run.executor.training is not None
    run.executor.training.before.clear()
    run.iterate(1)
    for name, p in run.executor.parameters.items():
        assert abs(p.flat - before[name]).max() == pytest.approx(0.001, rel=1e-3)


@pytest.mark.parametrize(("strategy", "options"), PLANS, ids=str)
def test_only_float16_has_the_steps_of_a_loss_scale(strategy: str, options: dict[str, Any]) -> None:
    network = smooth()
    plan = plan_of(network, strategy, precision="amp-fp16", **options)
    steps, plain = (lower(network, p, CHOOSERS["ring"]).steps
                    for p in (plan, replace(plan, precision="amp")))
    unscaled = [s.layer for s in steps if isinstance(s, Compute) and s.op is Op.UNSCALE]
    votes = [s for s in steps if s.phase is Phase.LOSS and s.tensor.gradient]
    updated = [s.layer for s in plain if isinstance(s, Compute) and s.op is Op.UPDATE]
    assert sorted(unscaled) == sorted(updated) and len(votes) == (P > 1)
    assert len(steps) == len(plain) + len(unscaled) + len(votes)
    first = min(s.index for s in steps if isinstance(s, Compute) and s.op is Op.UPDATE)
    assert all(s.needed_by <= first for s in votes)
