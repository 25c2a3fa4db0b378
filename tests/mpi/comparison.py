"""Training on the ranks against the same training in one process."""

from __future__ import annotations

import importlib.util
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from networks import FIXED, describe, fixed, random_network
from reference import Reference
from sharing import allgather, bcast

from hpcpar.comm import trace
from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import world
from hpcpar.errors import RunError
from hpcpar.kernels import backend
from hpcpar.network.graph import Network
from hpcpar.network.layers import Dropout, Flatten, Layer, ReLU, SoftmaxCrossEntropy
from hpcpar.plan.boxes import local
from hpcpar.plan.layout import owned
from hpcpar.plan.plan import NetworkSpec, Plan
from hpcpar.plan.strategies import Configs
from hpcpar.schedule.builder import Chooser, Move
from hpcpar.schedule.lower import lower
from hpcpar.schedule.rounds import ALGORITHMS
from hpcpar.schedule.sharing import in_place
from hpcpar.schedule.steps import Schedule
from hpcpar.train.executor import Executor

STEPS = 5
SEED = 7
#: Learning rate, momentum, weight decay.
SGD = (0.05, 0.9, 0.01)
TOLERANCE = 1e-10


@dataclass(frozen=True)
class Truth:
    """Serial training: data, and what every step gives."""

    network: Network
    batch: int
    images: np.ndarray
    labels: np.ndarray
    losses: list[float]
    correct: list[tuple[int, int]]
    outputs: list[dict[str, np.ndarray]]
    gradients: list[dict[str, np.ndarray]]
    weight_gradients: list[dict[str, list[np.ndarray]]]
    weights: dict[str, list[np.ndarray]]


@lru_cache(maxsize=2)
def truth(name: str) -> Truth:
    """The truth about a network of `FIXED` or ``random-SEED``. Rank 0 computes it: PyTorch takes long to load."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed (extra 'torch')")
    network, batch = fixed(name) if name in FIXED else random_network(int(name.removeprefix("random-")))
    rng = np.random.default_rng(11)
    images = rng.standard_normal((STEPS, batch, *network.image_shape))
    labels = rng.integers(0, network.classes, (STEPS, batch))
    results = bcast(world(), _serial(network, images, labels) if world().rank == 0 else None)
    assert results is not None
    return Truth(network, batch, images, labels, *results)


def _serial(network: Network, images: np.ndarray, labels: np.ndarray) -> tuple[Any, ...]:
    import torch

    torch.set_num_threads(1)
    ref = Reference(network, SEED)
    losses, correct, outputs, gradients, weight_gradients = [], [], [], [], []
    for i in range(STEPS):
        losses.append(ref.iterate(images[i], labels[i], i, *SGD))
        scores = ref.outputs[network.layers[-2].name]
        # scores may tie to the last digits (all of a layer's units dead): the least and the most that may count as right
        lead = _lead(scores, labels[i])
        correct.append((int((lead > 1e-8).sum()), int((lead > -1e-8).sum())))
        outputs.append(ref.outputs)
        gradients.append(ref.gradients)
        weight_gradients.append(ref.weight_gradients)
    weights = {name: [t.detach().numpy().copy() for t in tensors] for name, tensors in ref.weights.items()}
    return losses, correct, outputs, gradients, weight_gradients, weights


def _lead(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """By how much each label's score leads the best of the others."""
    own = np.take_along_axis(scores, labels[:, None], 1)[:, 0]
    others = scores.copy()
    np.put_along_axis(others, labels[:, None], -np.inf, 1)
    return own - others.max(axis=1)


def _fixed(place: int, segments: int) -> Chooser:
    def choose(step: Move) -> tuple[str, int]:
        kind = step.pattern.kind
        assert kind is not None
        algorithm = ALGORITHMS[kind][place]
        return algorithm, segments if algorithm == "ring" else 1

    return choose


#: What may choose the algorithm of every collective.
CHOOSERS: dict[str, Chooser] = {
    "ring": _fixed(0, 1),
    "ring, 3 segments": _fixed(0, 3),
    "tree": _fixed(1, 1),
    "mpi": lambda step: ("mpi", 1),
}


@dataclass(frozen=True)
class Run:
    """What a run leaves: losses of every step and this rank's weights, flat."""

    losses: list[float]
    weights: dict[str, np.ndarray]


def distance(found: Any, expected: np.ndarray, piece: np.ndarray) -> float:
    """Largest difference of a piece from its place in `expected`, relative to the largest entry of all of that."""
    if found.shape != piece.shape:
        return np.inf
    if not piece.size:
        return 0.0
    return float(np.abs(found - piece).max() / max(float(np.abs(expected).max()), 1e-30))


class Comparison:
    """One executor against the truth; collects what differs instead of raising, so that the ranks stay together."""

    def __init__(self, facts: Truth, configs: Configs, executor: Executor, schedule: Schedule) -> None:
        self.facts, self.configs, self.executor, self.schedule = facts, configs, executor, schedule
        self.faults: list[str] = []

    def same(self, found: Any, expected: np.ndarray, where: str, piece: tuple[slice, ...] = (slice(None),)) -> None:
        off = distance(found, expected, expected[piece])
        if not off <= TOLERANCE:
            self.faults.append(f"{where}: off by {off:.2e}")

    def step(self, i: int, loss: float, correct: float) -> None:
        """After step `i`: loss, blocks, gradients, trace."""
        facts, network = self.facts, self.facts.network
        communicator = self.executor.communicator
        try:
            trace.check(communicator.trace, self.schedule, communicator.world.rank)
        except RunError as err:
            self.faults.append(str(err))
        self.same(np.array([loss]), np.array([facts.losses[i]]), f"loss, step {i}")
        if isinstance(network.layers[-1], SoftmaxCrossEntropy):
            least, most = facts.correct[i]
            if not least <= correct <= most:
                self.faults.append(f"correct samples, step {i}: {correct} instead of {least} to {most}")
        for before, layer, follower in zip((None, *network.layers), network.layers[:-1], network.layers[1:], strict=False):
            self._blocks(i, before, layer, follower)
        for name, p in self.executor.parameters.items():
            rows, expected = (slice(p.start, p.stop),), facts.weight_gradients[i][name]
            self.same(p.dweight, expected[0], f"weight gradient of {name}, step {i}", rows)
            if p.has_bias:
                self.same(p.dbias, expected[1], f"bias gradient of {name}, step {i}", rows)

    def _blocks(self, i: int, before: Layer | None, layer: Layer, follower: Layer) -> None:
        """Output and its gradient, unless another layer has overwritten them in place."""
        facts, blocks = self.facts, self.executor.blocks[layer.name]
        shape = (facts.batch, *facts.network.shapes[layer.name])
        box = owned(facts.network, layer, self.configs[layer.name], facts.batch).box(self.executor.rank)
        piece = local(box, tuple((0, n) for n in shape))
        if isinstance(follower, Flatten) or not in_place(follower, layer):
            self.same(blocks.y, facts.outputs[i][layer.name], f"output of {layer.name}, step {i}", piece)
        changer = before if isinstance(layer, Flatten) else layer
        if blocks.dy is not None and not isinstance(changer, ReLU | Dropout):
            self.same(blocks.dy, facts.gradients[i][layer.name], f"gradient of {layer.name}, step {i}", piece)

    def end(self) -> None:
        """After the last step: weights."""
        for name, p in self.executor.parameters.items():
            rows, expected = (slice(p.start, p.stop),), self.facts.weights[name]
            self.same(p.weight, expected[0], f"weight of {name}", rows)
            if p.has_bias:
                self.same(p.bias, expected[1], f"bias of {name}", rows)


def check(facts: Truth, configs: Configs, overlap: str, collectives: str, communicator: Communicator, what: str) -> Run:
    """Train, compare everything with the truth at every step, and the replicas with each other; fails on all ranks alike."""
    world, network = communicator.world, facts.network
    spec = NetworkSpec(network.name, network.image_shape, network.classes)
    plan = Plan(spec, world.size, facts.batch, "data", configs, overlap=overlap, dtype="float64")
    schedule = lower(network, plan, CHOOSERS[collectives])
    executor = Executor(network, plan, schedule, communicator, backend("cpu"), SEED)
    pixels = local(executor.image_box, tuple((0, n) for n in (facts.batch, *network.image_shape)))
    samples = slice(*executor.label_interval)
    comparison = Comparison(facts, configs, executor, schedule)
    losses: list[float] = []
    for i in range(STEPS):
        communicator.trace.clear()
        loss, correct = executor.iterate(facts.images[i][pixels], facts.labels[i][samples], i, *SGD)
        losses.append(loss)
        comparison.step(i, loss, correct)
    comparison.end()
    weights = {name: p.flat.copy() for name, p in executor.parameters.items()}
    rows = {name: (p.start, p.stop, zlib.crc32(p.flat)) for name, p in executor.parameters.items()}
    everyone: list[tuple[list[str], dict[str, tuple[int, int, int]]]] = allgather(world, (comparison.faults[:4], rows))
    faults = [f"rank {rank}: {fault}" for rank, (found, _) in enumerate(everyone) for fault in found]
    for name in rows:
        bits: dict[tuple[int, int], set[int]] = {}
        for _, theirs in everyone:
            bits.setdefault(theirs[name][:2], set()).add(theirs[name][2])
        faults += [f"{name}, rows {at}: replicas differ in their bits" for at, found in bits.items() if len(found) > 1]
    if faults:
        split = ", ".join(f"{name} {config}" for name, config in configs.items())
        pytest.fail(f"{'; '.join(faults[:8])}\n{what}, overlap {overlap}, collectives {collectives}, batch {facts.batch}\n"
                    f"{describe(network)}\n{split}", pytrace=False)
    return Run(losses, weights)
