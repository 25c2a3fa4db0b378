"""Training on the ranks against the same training in one process."""

from __future__ import annotations

import importlib.util
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from hpcpar.comm import trace
from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import world
from hpcpar.errors import RunError
from hpcpar.network.graph import Network
from hpcpar.network.layers import BatchNorm, Layer, SoftmaxCrossEntropy
from hpcpar.plan.boxes import Box, items, local, whole_box
from hpcpar.plan.layout import owned
from hpcpar.plan.optimizers import OPTIMIZERS
from hpcpar.plan.plan import Plan
from hpcpar.runtime.executor import Executor
from hpcpar.runtime.observe import Watch
from hpcpar.runtime.passes import Pass
from hpcpar.schedule.lower import lower
from hpcpar.schedule.steps import Chooser, Comm, Kind, Schedule
from hpcpar.train.verify import whole_gradient
from tests.collectives import BY_KIND
from tests.kernel_support import fetch
from tests.mpi.networks import by_name, describe, rate, sample
from tests.mpi.sharing import allgather, bcast

STEPS = 5
SEED = 7
TOLERANCE = 1e-9
#: Chains divide by no statistics.
CHAIN_TOLERANCE = 1e-10
#: Adam divides small gradients by their size, and their noise with them.
ADAM_TOLERANCE = 1e-7


@dataclass(frozen=True)
class Facts:
    """A network and its data: images [STEPS, batch, ...], targets [STEPS, batch(, outputs)]."""

    network: Network
    batch: int
    images: np.ndarray
    targets: np.ndarray


@lru_cache(maxsize=8)
def facts(name: str) -> Facts:
    """A network of tests/mpi/networks.py; ``name@8`` with another batch."""
    network, batch = by_name(name.partition("@")[0])
    batch = int(name.partition("@")[2] or batch)
    rng = np.random.default_rng(11)
    drawn = [sample(network, batch, rng) for _ in range(STEPS)]
    return Facts(network, batch, np.stack([d[0] for d in drawn]), np.stack([d[1] for d in drawn]))


def is_noisy(plan: Plan) -> bool:
    """The optimizer makes rounding as large as everything else."""
    return OPTIMIZERS[plan.optimizer].noise_rates > 0


def rates(network: Network, plan: Plan) -> tuple[float, float, float]:
    """Learning rate, momentum, weight decay."""
    return (0.001 if is_noisy(plan) else rate(network), 0.9, 0.01)


@dataclass(frozen=True)
class Truth:
    """Results of every step of the serial training."""

    losses: list[float]
    correct: list[tuple[float, float]]
    outputs: list[dict[str, np.ndarray]]
    gradients: list[dict[str, np.ndarray]]
    weight_gradients: list[dict[str, list[np.ndarray]]]
    weights: dict[str, list[np.ndarray]]
    running: dict[str, np.ndarray]


_KNOWN: dict[Any, Truth] = {}


def truth(name: str, plan: Plan, steps: int) -> Truth:
    """The truth about a network under the options of a plan that change it. Rank 0 computes it:
    PyTorch takes long to load.
    """
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed (extra 'oracle')")
    norms = tuple((n, plan.configs[n].key) for n in sorted(plan.configs)
                  if isinstance(facts(name).network.by_name[n], BatchNorm))
    fc_passes = (plan.fc_passes, plan.switch,
             int(plan.configs[_before_switch(facts(name).network)].n)) if plan.fc_passes > 1 else ()
    key = (name, steps, plan.optimizer, plan.microbatches, fc_passes,
           norms if plan.batch_norm == "local" else ())
    if key not in _KNOWN:
        while len(_KNOWN) > 3:
            _KNOWN.pop(next(iter(_KNOWN)))
        found = bcast(world(), _serial(facts(name), plan, steps, fc_passes) if world().rank == 0
                      else None)
        assert found is not None
        _KNOWN[key] = Truth(*found)
    return _KNOWN[key]


def _before_switch(network: Network) -> str:
    from hpcpar.schedule.one_weird_trick import switch

    return network.layers[switch(network)].inputs[0]


def fc_pass_rows(batch: int, fc_passes: int, switch: str, parts: int) -> list[np.ndarray]:
    """Samples of every pass: some of each of `parts` ranks' samples, or one rank's."""
    places = np.arange(batch).reshape(fc_passes,
                                      -1) if switch == "one" else np.arange(batch).reshape(
                                          parts, fc_passes, -1).transpose(1, 0, 2)
    return list(places.reshape(fc_passes, -1))


def statistics_blocks(network: Network, plan: Plan, layer: Layer, samples: int) -> list[Box]:
    """The distinct boxes, channels aside, whose statistics are taken on their own."""
    layout = owned(network, layer, plan.configs[layer.name], samples)
    boxes = [layout.box(rank) for rank in range(plan.ranks) if layout.holds(rank)]
    return sorted({(b[0], *b[2:]) for b in boxes})


def _serial(given: Facts, plan: Plan, steps: int, fc_passes: tuple[Any, ...]) -> tuple[Any, ...]:
    import torch

    from tests.reference import Reference

    torch.set_num_threads(1)
    network = given.network

    def blocks(layer: Layer, samples: int) -> list[tuple[slice, ...]]:
        return [tuple(slice(*i) for i in box)
                for box in statistics_blocks(network, plan, layer, samples)]

    ref = Reference(
        network, SEED, optimizer=plan.optimizer, microbatches=plan.microbatches,
        fc_passes=fc_pass_rows(given.batch, *fc_passes) if fc_passes else None,
        blocks=blocks if plan.batch_norm == "local" else None,
    )
    losses, correct, outputs, gradients, weight_gradients = [], [], [], [], []
    for i in range(steps):
        losses.append(ref.iterate(given.images[i], given.targets[i], i, *rates(network, plan)))
        least = most = 0.0
        if isinstance(network.layers[-1], SoftmaxCrossEntropy):
            # scores may tie to the last digits (all of a layer's units dead): the least and the
            # most that may count as right
            ahead = lead(ref.outputs[network.layers[-1].inputs[0]], given.targets[i])
            # each pixel counts as its part of a sample
            pixels = math.prod(ahead.shape[1:])
            least, most = (ahead > 1e-8).sum() / pixels, (ahead > -1e-8).sum() / pixels
        correct.append((least, most))
        outputs.append(ref.outputs)
        gradients.append(ref.gradients)
        weight_gradients.append(dict(ref.weight_gradients))
    weights = {name: [t.detach().numpy().copy() for t in tensors]
               for name, tensors in ref.weights.items()}
    return losses, correct, outputs, gradients, weight_gradients, weights, ref.running


def lead(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """By how much each label's score leads the best of the others."""
    own = np.take_along_axis(scores, labels[:, None], 1)[:, 0]
    others = scores.copy()
    np.put_along_axis(others, labels[:, None], -np.inf, 1)
    return own - others.max(axis=1)


#: Collectives that the library may do.
ALGORITHMS_OF_MPI = (Kind.ALLREDUCE, Kind.ALLGATHER, Kind.REDUCE_SCATTER)


def _fixed(place: int, segments: int) -> Chooser:
    def choose(step: Comm) -> tuple[str, int]:
        (kind,) = step.pattern.kinds
        algorithm = BY_KIND[kind][min(place, len(BY_KIND[kind]) - 1)]
        return algorithm, segments if algorithm == "ring" else 1

    return choose


#: Ways to choose the algorithm of every collective.
CHOOSERS: dict[str, Chooser] = {
    "ring": _fixed(0, 1),
    "ring, 3 segments": _fixed(0, 3),
    "tree": _fixed(1, 1),
    "halving": _fixed(2, 1),
    "mpi": lambda step: ("mpi" if step.pattern.kinds[0] in ALGORITHMS_OF_MPI else "direct", 1),
}


@dataclass(frozen=True)
class Run:
    """Results of a run: losses of every step and this rank's weights, flat."""

    losses: list[float]
    weights: dict[str, np.ndarray]


def distance(found: Any, expected: np.ndarray, piece: np.ndarray) -> float:
    """Largest difference of a piece from its place in `expected`, relative to the largest entry of
    all of that.
    """
    if found.shape != piece.shape:
        return np.inf
    if not piece.size:
        return 0.0
    return float(np.abs(found - piece).max() / max(float(np.abs(expected).max()), 1e-30))


class Comparison:
    """One executor against the truth; collects what differs instead of raising, so that the ranks
    stay together.
    """

    def __init__(self, given: Facts, expected: Truth, plan: Plan, executor: Executor,
                 schedule: Schedule) -> None:
        self.facts, self.truth, self.plan = given, expected, plan
        self.executor, self.schedule = executor, schedule
        self.network, self.rank = given.network, executor.rank
        assert executor.training is not None
        self.watch = Watch(executor, executor.training)
        self.faults: list[str] = []

    def same(self, found: Any, expected: np.ndarray, where: str, piece: Any = slice(None)) -> None:
        off = distance(fetch(found), expected, expected[piece])
        usual = CHAIN_TOLERANCE if self.network.is_chain else TOLERANCE
        if not off <= (ADAM_TOLERANCE if is_noisy(self.plan) else usual):
            self.faults.append(f"{where}: off by {off:.2e}")

    def step(self, i: int, loss: float, correct: float) -> None:
        """After step `i`: loss, blocks, gradients, trace."""
        communicator = self.executor.communicator
        try:
            trace.check(communicator.trace, self.schedule, communicator.world.rank)
        except RunError as err:
            self.faults.append(str(err))
        self.same(np.array([loss]), np.array([self.truth.losses[i]]), f"loss, step {i}")
        if isinstance(self.network.layers[-1], SoftmaxCrossEntropy):
            least, most = self.truth.correct[i]
            if not least - 1e-9 <= correct <= most + 1e-9:
                self.faults.append(
                    f"correct samples, step {i}: {correct} instead of {least} to {most}")
        for layer, here in self.intact():
            self._blocks(i, layer, here)
        for name, p in self.executor.parameters.items():
            layer = self.network.by_name[name]
            if p.flat.size and layer.learns and whole_gradient(self.plan, self.schedule, layer):
                expected = self.truth.weight_gradients[i][name]
                self.same(p.dweight, expected[0], f"weight gradient of {name}, step {i}",
                          self.piece(name, 0))
                if p.has_bias:
                    self.same(p.dbias, expected[1], f"bias gradient of {name}, step {i}",
                              self.piece(name, 1))

    def piece(self, name: str, which: int) -> tuple[slice, ...]:
        """A rank's rows and columns of a weight (0) or bias (1)."""
        p = self.executor.parameters[name]
        return (slice(p.start, p.stop),
                slice(*p.columns)) if which == 0 and len(p.weight_shape) > 1 else (
                    slice(p.start, p.stop),)

    def intact(self) -> Iterator[tuple[Layer, Pass]]:
        """Layers with the pass that is watched."""
        for layer in self.network.layers[:-1]:
            yield layer, self.executor.part(layer.name,
                                            max(self.plan.microbatches, self.plan.fc_passes) - 1)

    def _blocks(self, i: int, layer: Layer, here: Pass) -> None:
        """Output and its gradient."""
        box = owned(self.network, layer, self.plan.configs[layer.name], here.samples).box(self.rank)
        if not items(box):
            return
        rest = local(box[1:], tuple((0, n) for n in self.network.shapes[layer.name]))
        piece = (here.place(np.arange(*box[0])), *rest)
        self.same(self.watch.outputs[layer.name], self.truth.outputs[i][layer.name],
                  f"output of {layer.name}, step {i}", piece)
        if layer.name in self.network.trained:
            expected = self.truth.gradients[i][layer.name]
            self.same(self.watch.gradients[layer.name], expected,
                      f"gradient of {layer.name}, step {i}", piece)

    def end(self) -> None:
        """After the last step: weights, running statistics."""
        for name, p in self.executor.parameters.items():
            if p.buffers is not None and p.buffers.size:
                self.same(p.buffers, self.truth.running[name], f"running statistics of {name}",
                          self._statistics(name))
            if not p.flat.size:
                continue
            expected, weight = self.truth.weights[name], p.split(p.flat)
            self.same(weight[0], expected[0], f"weight of {name}", self.piece(name, 0))
            if p.has_bias:
                self.same(weight[1], expected[1], f"bias of {name}", self.piece(name, 1))

    def _statistics(self, name: str) -> tuple[Any, ...]:
        """Where this rank's running statistics lie: in its own block's."""
        p, layer = self.executor.parameters[name], self.network.by_name[name]
        block = 0
        if self.plan.batch_norm == "local":
            samples = self.executor.passes[0].samples
            box = owned(self.network, layer, self.plan.configs[name], samples).box(self.rank)
            block = statistics_blocks(self.network, self.plan, layer,
                                      samples).index((box[0], *box[2:]))
        return (block, slice(None), slice(p.start, p.stop))


def check(name: str, plan: Plan, collectives: str, communicator: Communicator, what: str,
          steps: int = STEPS) -> Run:
    """Train, compare everything with the truth at every step, and the replicas with each other;
    fails on all ranks alike.
    """
    ranks, given, expected = communicator.world, facts(name), truth(name, plan, steps)
    schedule = lower(given.network, plan, CHOOSERS[collectives])
    executor = Executor(given.network, plan, schedule, communicator, communicator.backend,
                        SEED)
    comparison = Comparison(given, expected, plan, executor, schedule)
    pixels = local(executor.image_box, tuple((0, n) for n in given.network.image_shape))
    losses: list[float] = []
    for i in range(steps):
        communicator.trace.clear()
        images = given.images[i][(executor.image_rows, *pixels)]
        truth_box = local(executor.truth_box, whole_box(given.network.truth_shape))
        targets = given.targets[i][(slice(None), *truth_box)]
        loss, correct = executor.iterate(images, targets, i, *rates(given.network, plan))
        losses.append(loss)
        comparison.step(i, loss, correct)
    comparison.end()
    weights = {n: fetch(p.flat) for n, p in executor.parameters.items()}
    bits = {n: (p.start, p.stop, *p.columns, zlib.crc32(weights[n]))
            for n, p in executor.parameters.items() if p.flat.size}
    everyone: list[tuple[list[str], dict[str, tuple[int, ...]], float]] = allgather(
        ranks, (comparison.faults[:4], bits, losses[-1]))
    faults = [f"rank {rank}: {fault}" for rank, (found, *_) in enumerate(everyone)
              for fault in found]
    for n in executor.parameters:
        seen: dict[tuple[int, ...], set[int]] = {}
        for _, theirs, _ in everyone:
            if n in theirs:
                seen.setdefault(theirs[n][:-1], set()).add(theirs[n][-1])
        faults += [f"{n}, rows {at}: replicas differ in their bits" for at, found in seen.items()
                   if len(found) > 1]
    if len({loss for *_, loss in everyone}) > 1:
        faults.append("ranks were told different losses")
    if faults:
        split = ", ".join(f"{n} {config}{'' if config.ranks == plan.ranks else f'@{config.first}'}"
                          for n, config in plan.configs.items())
        names = ("overlap", "synchronization", "batch_norm", "optimizer", "microbatches",
                 "fc_passes",
                 "order", "bucket_bytes", "recompute")
        options = {k: getattr(plan, k) for k in names}
        pytest.fail(
            f"{'; '.join(faults[:8])}\n{what}, {options}, collectives {collectives}, batch "
            f"{given.batch}\n"
                    f"{describe(given.network)}\n{split}", pytrace=False)
    return Run(losses, weights)
