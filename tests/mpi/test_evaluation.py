"""Evaluation: no dropout, running statistics, no trace in the training; and executors that never
train.
"""

from __future__ import annotations

import importlib.util
import math
from dataclasses import replace

import numpy as np
import pytest

from hpcpar.comm import trace
from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import world
from hpcpar.errors import RunError
from hpcpar.kernels import backend
from hpcpar.network.builder import Chain
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    Conv2d,
    DiceCrossEntropy,
    Flatten,
    Linear,
    LogisticCrossEntropy,
    MeanSquaredError,
    SoftmaxCrossEntropy,
)
from hpcpar.plan.boxes import items, local, whole_box
from hpcpar.plan.config import Config
from hpcpar.plan.layout import owned
from hpcpar.plan.plan import NetworkSpec, Plan
from hpcpar.plan.strategies import configurations, plan_options
from hpcpar.runtime.executor import Executor
from hpcpar.runtime.observe import Watch
from hpcpar.schedule.lower import lower
from tests.mpi.comparison import (
    CHOOSERS,
    SEED,
    STEPS,
    TOLERANCE,
    Facts,
    distance,
    facts,
    fc_pass_rows,
    lead,
    rates,
)
from tests.mpi.networks import FIXED, MORE, describe, graph_seeds
from tests.mpi.plans import describe as describe_plan
from tests.mpi.plans import random_plan, staged_plan
from tests.mpi.sharing import allgather, bcast

P = world().size
pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None,
                                reason="PyTorch is not installed (extra 'oracle')")
#: Random graphs on this number of ranks.
COUNT = {1: 6, 2: 8, 3: 5, 4: 3}.get(P, 2)
GRAPHS = [f"graph-{seed}" for seed in graph_seeds(100 * P + 40, COUNT)]
#: Built-in ones with normalization and dropout, as many ranks share few cores not all on each
#: number of ranks.
BUILT_IN = MORE if P <= 2 else [MORE[P // 2 % 3]]
#: Training steps between evaluations.
TRAINED = 2


def padded(targets: np.ndarray, missing: int) -> np.ndarray:
    """The targets of a batch whose last samples do not count."""
    out = targets.copy()
    if missing:
        out[-missing:] = math.nan if out.dtype.kind == "f" else -1
    return out


class Serial:
    """PyTorch's evaluations before, between and after training steps, on rank 0, known to all.

    Attributes
    ----------
    seen : list of list
        After 0, 1, ... steps: (loss, what goes into the loss) of the full batch and of the padded
        one.
    losses : list of float
        Of the training steps.
    """

    def __init__(self, given: Facts, plan: Plan, missing: int, steps: int) -> None:
        found = bcast(world(), self._make(given, plan, missing, steps) if world().rank == 0
                      else None)
        self.losses, self.seen = found

    @staticmethod
    def _make(given: Facts, plan: Plan, missing: int,
              steps: int) -> tuple[list[float], list[list[tuple[float, np.ndarray]]]]:
        import torch

        from tests.reference import Reference

        torch.set_num_threads(1)
        network, fc_passes = given.network, None
        if plan.fc_passes > 1:
            fc_passes = fc_pass_rows(given.batch, plan.fc_passes, plan.switch, plan.ranks)
        reference = Reference(network, SEED, optimizer=plan.optimizer,
                              microbatches=plan.microbatches, fc_passes=fc_passes)
        images, targets, kept = given.images[-1], given.targets[-1], given.batch - missing
        losses: list[float] = []
        seen: list[list[tuple[float, np.ndarray]]] = []
        for i in range(steps + 1):
            if i:
                losses.append(reference.iterate(given.images[i - 1], given.targets[i - 1], i - 1,
                                                *rates(network, plan)))
            rows = []
            for count in (given.batch, kept):
                # a mean over the full batch, whatever counts in it
                loss = reference.evaluate(images[:count],
                                          targets[:count]) * count / given.batch if count else 0.0
                rows.append((loss, reference.outputs[network.layers[-1].inputs[0]] if count
                             else np.zeros((0, network.classes))))
            seen.append(rows)
        return losses, seen


def close(found: np.ndarray | float, expected: np.ndarray | float) -> bool:
    """Equal but for rounding, in parts of the largest magnitude."""
    found, expected = np.asarray(found), np.asarray(expected)
    return distance(found, expected, expected) <= TOLERANCE if expected.any() else not found.any()


class Check:
    """Evaluations of one executor against the serial ones; what differs is collected, so that the
    ranks stay together.
    """

    def __init__(self, given: Facts, plan: Plan, executor: Executor, missing: int) -> None:
        self.given, self.plan, self.executor, self.missing = given, plan, executor, missing
        assert executor.evaluation is not None
        self.watch = Watch(executor, executor.evaluation)
        self.faults: list[str] = []
        self.pixels = local(executor.image_box, tuple((0, n) for n in given.network.image_shape))
        self.truth = local(executor.truth_box, whole_box(given.network.truth_shape))

    def images(self, number: int) -> np.ndarray:
        """This rank's part of a batch."""
        return self.given.images[number][(self.executor.image_rows, *self.pixels)]

    def targets(self, number: int, missing: int = 0) -> np.ndarray:
        """This rank's part of the ground truth of a batch whose last samples do not count."""
        return padded(self.given.targets[number], missing)[(slice(None), *self.truth)]

    def evaluate(self, expected: list[tuple[float, np.ndarray]], where: str) -> None:
        """The full batch, and the padded one."""
        network, communicator = self.given.network, self.executor.communicator
        assert self.executor.evaluation is not None
        for missing, (loss, scores) in zip((0, self.missing), expected, strict=True):
            what = f"{where}, {missing} missing"
            communicator.trace.clear()
            targets = self.given.targets[-1]
            found, correct = self.executor.evaluate(self.images(-1), self.targets(-1, missing))
            try:
                trace.check(communicator.trace, self.executor.evaluation.schedule,
                            communicator.world.rank)
            except RunError as err:
                self.faults.append(f"{what}: {err}")
            if not close(found, loss):
                self.faults.append(f"{what}: loss {found:.15g} instead of {loss:.15g}")
            if isinstance(network.layers[-1], SoftmaxCrossEntropy):
                rows = np.moveaxis(scores, 1, -1).reshape(-1, network.classes)  # also of pixels
                ahead = lead(rows, targets[: len(scores)].reshape(-1))
                pixels = math.prod(scores.shape[2:])
                least, most = ((ahead > by).sum() / pixels for by in (1e-8, -1e-8))
                if not least - 1e-9 <= correct <= most + 1e-9:
                    self.faults.append(f"{what}: {correct} right instead of {least} to {most}")
            if not missing:
                self._scores(scores, what)

    def _scores(self, expected: np.ndarray, what: str) -> None:
        """The loss layer's input in the last part that passed."""
        network, plan = self.given.network, self.plan
        name = network.layers[-1].inputs[0]
        here = self.executor.part(name, max(plan.microbatches, plan.fc_passes) - 1)
        box = owned(network, network.by_name[name], plan.configs[name],
                    here.samples).box(self.executor.rank)
        mine = expected[here.place(np.arange(*box[0]))][
            (slice(None), *(slice(*ends) for ends in box[1:]))]
        if items(box) and not close(self.watch.outputs[name], mine):
            self.faults.append(f"{what}: scores differ")

    def end(self, what: str) -> None:
        """Fail on all ranks alike."""
        faults = [f"rank {rank}: {fault}"
                  for rank, found in enumerate(allgather(world(), self.faults[:4]))
                  for fault in found]
        assert not faults, (f"{what}: "
                            f"{'; '.join(faults[:8])}\n{describe(self.given.network)}\n"
                            f"{describe_plan(self.plan)}")


def check(name: str, plan: Plan, collectives: str, communicator: Communicator, missing: int,
          what: str, given: Facts | None = None) -> None:
    """Evaluate between training steps, and with an executor that does not train."""
    given = facts(name) if given is None else given
    network, choose = given.network, CHOOSERS[collectives]
    serial = Serial(given, plan, missing, TRAINED)
    forward = lower(network, plan, choose, training=False)
    alone = Executor(network, plan, None, communicator, backend("cpu"), SEED, forward)
    assert all(block.dout is None for here in (*alone.passes, *alone.fc_passes)
               for block in here.blocks.values()), "gradients without training"
    checked = Check(given, plan, alone, missing)
    checked.evaluate(serial.seen[0], "inference")
    checked.end(what)
    executor = Executor(network, plan, lower(network, plan, choose), communicator, backend("cpu"),
                        SEED, forward)
    checked = Check(given, plan, executor, missing)
    checked.evaluate(serial.seen[0], "before training")
    for i in range(TRAINED):
        communicator.trace.clear()
        loss, _ = executor.iterate(checked.images(i), checked.targets(i), i, *rates(network, plan))
        if not close(loss, serial.losses[i]):
            checked.faults.append(
                f"training step {i}: loss {loss:.15g} instead of {serial.losses[i]:.15g}")
        checked.evaluate(serial.seen[i + 1], f"after training step {i}")
    checked.end(what)


@pytest.mark.parametrize("name", [*GRAPHS, *BUILT_IN])
def test_random_plans_evaluate_as_one_rank(name: str, communicator: Communicator) -> None:
    given, number = facts(name), sum(name.encode())
    rng = np.random.default_rng([number, P, 5])
    plan = replace(random_plan(given.network, given.batch, P, rng), batch_norm="sync")
    check(name, plan, list(CHOOSERS)[number % len(CHOOSERS)], communicator,
          int(rng.integers(0, given.batch + 1)), "random plan")


@pytest.mark.skipif(P == 1, reason="a pipeline has several ranks")
@pytest.mark.parametrize("name", [*GRAPHS[: COUNT // 2], "lenet5", *BUILT_IN[:1]])
def test_pipelines_evaluate_as_one_rank(name: str, communicator: Communicator) -> None:
    given = facts(name)
    rng = np.random.default_rng([sum(name.encode()), P, 6])
    check(name, staged_plan(given.network, given.batch, P, rng), "ring", communicator,
          int(rng.integers(0, given.batch + 1)), "pipeline")


@pytest.mark.skipif(P == 1, reason="one rank has a single FC pass")
@pytest.mark.parametrize("strategy", ["owt-b", "owt-c"])
def test_several_passes_evaluate_as_one_rank(strategy: str, communicator: Communicator) -> None:
    """The FC passes take parts of the batch, together each sample once."""
    name, batch = f"{FIXED[0]}@{P * P}", P * P
    network = facts(name).network
    spec = NetworkSpec(network.name, network.image_shape, network.classes)
    plan = Plan(spec, P, batch, strategy, configurations(network, strategy, P), precision="fp64",
                **plan_options(strategy, P, batch))
    for overlap in ("none", "full") if P <= 4 else ("full",):
        check(name, replace(plan, overlap=overlap), "ring", communicator, P + 1, strategy)


@pytest.mark.parametrize("loss", [SoftmaxCrossEntropy, LogisticCrossEntropy, MeanSquaredError,
                                  DiceCrossEntropy])
def test_padding_does_not_count_in_any_loss(loss: type, communicator: Communicator) -> None:
    """From one missing sample to an empty batch, of which some ranks and micro-batches then have
    nothing that counts.
    """
    net = Chain("padded", (2, 5, 4))
    net.add(Conv2d, "conv", out_channels=P + 1, kernel=(2, 2))
    if loss is not DiceCrossEntropy:
        net.add(Flatten, "flatten").add(Linear, "fc", out_features=P + 1)
    network: Network = net.add(loss, "loss").build()
    batch = P + 2
    rng = np.random.default_rng(8)
    images = rng.standard_normal((STEPS, batch, *network.image_shape))
    targets = rng.standard_normal((STEPS, batch,
                                   P + 1)) if loss is MeanSquaredError else rng.integers(
                                       0, P + 1, (STEPS, batch, *network.truth_shape))
    by_samples = Config(n=P)
    others = {SoftmaxCrossEntropy: Config(replicas=P), DiceCrossEntropy: Config(h=P)}
    for config in (by_samples, others.get(loss, Config(c=P))):
        configs = {layer.name: by_samples if layer.name in ("input", "conv") else config
                   for layer in network.layers}
        plan = Plan(NetworkSpec("padded", network.image_shape, P + 1), P, batch, "data", configs,
                    precision="fp64")
        for missing in (1, batch - 1, batch):
            check("", replace(plan, microbatches=1 + missing % 3), "tree", communicator, missing,
                  f"{loss.kind}",
                  Facts(network, batch, images, targets))
