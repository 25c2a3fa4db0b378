"""All ranks of a plan in virtual time.

The timeline is that of `hpcpar.cost.timeline.overlap`, with a case for each rank: a compute step
takes as long as that rank's own boxes need, and a communication ends when the messages that the
rank sends and waits for have gone and come (`Movement`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from hpcpar.cost.compute.step_time import roofline_s, timed
from hpcpar.cost.compute.work import Work, Workload
from hpcpar.cost.network.contention import NetworkModel
from hpcpar.cost.price_family import Costs, PricedSteps, items_of, price_steps
from hpcpar.cost.step_prices import StepPrice, StepPricer
from hpcpar.cost.timeline.overlap import Item, Span, StageTime, Timeline, timeline
from hpcpar.errors import InputError
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.plan.axis import IntArray
from hpcpar.plan.config import Floats
from hpcpar.plan.plan import Plan
from hpcpar.plan.rank_boxes import box_shapes
from hpcpar.schedule.freeze import frozen_movement
from hpcpar.schedule.outline_steps import Move, Task
from hpcpar.simulation.links import FloatArray, LinkRates
from hpcpar.simulation.movement import Movement
from hpcpar.simulation.noise import QUIET, Noise

#: Largest job that is played: every array has an entry for each rank.
MOST_RANKS = 1 << 17
#: Numbers that the timelines of one pass over the steps may hold, to bound memory.
MOST_NUMBERS = 30_000_000


@dataclass(frozen=True)
class Simulation:
    """Iterations of a plan, played on all ranks.

    Attributes
    ----------
    iteration_s : ndarray
        [repeats] until the last rank is done.
    compute_s, exposed_s : ndarray
        [ranks] computing, and standing still for communication that nothing hides, or for ranks
        that are late to it: means over the repeats. The rest of the iteration a rank waits for
        other stages, or for the last rank.
    last : ndarray
        [ranks] part of the repeats in which this rank is the last to be done.
    waits_s : ndarray
        [steps] exposed communication, the mean over ranks and repeats.
    start_s, end_s : ndarray
        [steps, ranks] of the first repeat; NaN where a rank does not take part.
    step_s : ndarray
        [steps, ranks] what they take of the first repeat: computing, or exposed communication.
    """

    iteration_s: FloatArray
    compute_s: FloatArray
    exposed_s: FloatArray
    last: FloatArray
    waits_s: FloatArray
    start_s: FloatArray
    end_s: FloatArray
    step_s: FloatArray

    @property
    def mean_s(self) -> float:
        """The mean iteration."""
        return float(self.iteration_s.mean())

    @property
    def waiting_s(self) -> FloatArray:
        """[ranks] the rest of the iteration: waiting for other stages, or for the last rank."""
        return np.maximum(0.0, self.mean_s - self.compute_s - self.exposed_s)


def require_size(ranks: int) -> None:
    """Checks that a job is not too large to play its ranks one by one.

    Raises
    ------
    InputError
        It is.
    """
    if ranks > MOST_RANKS:
        raise InputError(f"{ranks:,} ranks: at most {MOST_RANKS:,} are simulated one by one; use "
                         "hpcpar predict, or plan without --robust")


class Simulator:
    """The steps of a plan with their seconds and messages on every rank.

    Parameters
    ----------
    costs : PricedSteps, optional
        The prices of the steps in closed form; made here if not given.

    Raises
    ------
    InputError
        There are too many ranks.
    """

    def __init__(self, network: Network, plan: Plan, machine: Machine,
                 costs: PricedSteps | None = None) -> None:
        require_size(plan.ranks)
        self.machine, self.ranks = machine, plan.ranks
        self.costs = price_steps(network, plan, machine) if costs is None else costs
        self.entries = self.costs.entries
        edges = self.costs.out.edges
        self._workload = Workload(network, plan, edges,
                                  partial(box_shapes, rank=np.arange(self.ranks)))
        plain = replace(machine, collectives=())
        self._plain = StepPricer(network, plan, plain, NetworkModel(plain), edges)
        self.links = LinkRates(machine)
        self._movements: dict[Hashable, Movement] = {}
        self._computes: dict[Hashable, FloatArray] = {}

    def play(self, noise: Noise = QUIET, repeats: int = 1,
             progress: Callable[[int], None] = lambda done: None) -> Simulation:
        """Play iterations on all ranks.

        Parameters
        ----------
        repeats : int
            Iterations, which differ by their jitter.
        progress : callable
            Told how many iterations are done.
        """
        each = max(1, MOST_NUMBERS // (4 * len(self.entries) * self.ranks))
        generator = np.random.default_rng(noise.seed)
        sums, waits = np.zeros((3, self.ranks)), np.zeros(len(self.entries))
        iterations: list[FloatArray] = []
        times: FloatArray = np.zeros((3, 0, 0))
        for begin in range(0, repeats, each):
            count = min(each, repeats - begin)
            items = list(self._items(noise, count, generator))
            line = self._line(items)
            done = np.broadcast_to(line.total_s, (count, self.ranks))
            iterations.append(done.max(axis=1))
            if not begin:
                times = self._times(items, line)
            sums += [part.sum(axis=0) for part in _parts(items, line, done)]
            waits += [float(np.mean(seconds)) * count for seconds in line.waits_s]
            progress(begin + count)
        compute_s, exposed_s, last = sums / repeats
        return Simulation(np.concatenate(iterations), compute_s, exposed_s, last, waits / repeats,
                          *times)

    def exact_costs(self) -> Costs:
        """The costs on the rank of each stage that computes longest, with messages as long as on
        the rank where they take longest. The iteration is that of the last rank.
        """
        items = list(self._items(QUIET, 1, np.random.default_rng(0)))
        line = self._line(items)
        computed = np.zeros((len(line.stages), self.ranks))
        for item in items:
            if item.needed_by is None:
                computed[item.stage] += np.ravel(item.seconds)
        longest = computed.argmax(axis=1)
        priced: dict[Task | Move, StepPrice] = {}
        for entry, item, price in zip(self.entries, items, self.costs.steps, strict=True):
            if entry.step not in priced:  # micro-batches share theirs
                every = np.ravel(item.seconds)
                seconds = every.max() if item.needed_by is not None else every[longest[item.stage]]
                priced[entry.step] = replace(price, seconds=float(seconds), level=item.level)
        known = replace(self.costs, steps=tuple(priced[entry.step] for entry in self.entries))
        busy_s = computed.max(axis=1).tolist()
        return Costs.of(known, _of_ranks(items, line, longest.tolist(), busy_s))

    def _line(self, items: Sequence[Item]) -> Timeline[Floats]:
        return timeline(items, self.machine.overlap, len(self.machine.levels),
                        self.machine.progress)

    def left_bytes(self) -> list[IntArray]:
        """By level: [units] bytes that leave a rank, a node, a rack in an iteration."""
        out = self.links.nothing_left(self.ranks)
        for entry, price in zip(self.entries, self.costs.steps, strict=True):
            if isinstance(entry.step, Move):
                for total, each in zip(out, self._movement(entry.step, price).left_bytes,
                                       strict=True):
                    total += each
        return out

    def traffic(self) -> tuple[IntArray, IntArray]:
        """Messages and bytes that every rank sends: [steps, ranks]."""
        none = np.zeros(self.ranks, np.int64)
        moved = [self._movement(entry.step, price) if isinstance(entry.step, Move) else None
                 for entry, price in zip(self.entries, self.costs.steps, strict=True)]
        return (np.array([none if m is None else m.messages for m in moved]),
                np.array([none if m is None else m.sent_bytes for m in moved]))

    def _items(self, noise: Noise, repeats: int, generator: np.random.Generator) -> Iterator[Item]:
        """The steps in time, with an entry for every repeat and rank."""
        known: dict[Task | Move, Item] = {}
        every = items_of(self.machine, self.costs)
        for entry, price, plain in zip(self.entries, self.costs.steps, every, strict=True):
            if isinstance(entry.step, Move):
                movement = self._movement(entry.step, price)
                yield plain._replace(seconds=movement.alone_s, end_s=movement.end_s,
                                     level=movement.level or plain.level)
            elif noise.jitter or entry.step not in known:
                seconds = noise.on(self.compute_s(entry.step), repeats, generator)
                known[entry.step] = plain._replace(seconds=seconds)
                yield known[entry.step]
            else:
                yield known[entry.step]

    def _movement(self, step: Move, price: StepPrice) -> Movement:
        key = (step.key, step.phase, step.root)
        if key not in self._movements:
            modelled_s, factor = float(self._plain.price(step).seconds), 1.0
            if self.machine.collectives and modelled_s:
                factor = float(price.seconds) / modelled_s
            self._movements[key] = Movement(frozen_movement(step), self.ranks, self.machine,
                                            self.links, factor, float(price.seconds))
        return self._movements[key]

    def work(self, step: Task) -> Work:
        """The work of a compute step, with the shapes of all ranks."""
        return self._workload.work(step.layer, step.op, step.batch)

    def compute_s(self, step: Task) -> FloatArray:
        """Seconds of a compute step on every rank."""
        key = (step.layer.name, step.op, step.batch)
        if key not in self._computes:
            self._computes[key] = rank_seconds(self.machine, self.work(step), self.ranks)
        return self._computes[key]

    def _times(self, items: Sequence[Item], line: Timeline[Floats]) -> FloatArray:
        """When steps of the first repeat started and ended, and what they took: [3, steps, ranks].
        """
        out = np.full((3, len(self.entries), self.ranks), np.nan)
        for i, (entry, price, span) in enumerate(
                zip(self.entries, self.costs.steps, line.spans, strict=True)):
            if isinstance(entry.step, Move):
                lasts_s, took_s = self._movement(entry.step, price).alone_s, line.waits_s[i]
            else:
                lasts_s, took_s = self.compute_s(entry.step), items[i].seconds
            for times, seconds in zip(out, (span.start_s, span.end_s, took_s), strict=True):
                wide = np.broadcast_to(seconds, np.broadcast_shapes(np.shape(seconds),
                                                                    (1, self.ranks)))
                times[i] = np.where(lasts_s > 0, wide[0], np.nan)
        return out


def _of_ranks(items: Sequence[Item], line: Timeline[Floats], ranks: Sequence[int],
              busy_s: Sequence[float]) -> Timeline[Floats]:
    """The timeline with the times of one rank of each stage.

    Its end is that of the last rank. What a rank waits for others at its own end belongs to its
    last communication; in a pipeline, to the bubble.

    Parameters
    ----------
    busy_s : sequence of float
        How long each of the ranks computes.
    """
    def at(seconds: Floats, stage: int) -> float:
        every = np.asarray(seconds)
        return float(every.item(ranks[stage] if every.size > 1 else 0))

    spans = tuple(
        Span(at(span.start_s, item.stage), at(span.end_s, item.stage), span.stream)
        for item, span in zip(items, line.spans, strict=True))
    total_s, waits, stages = float(np.max(line.total_s)), np.zeros(len(items)), []
    for number, stage in enumerate(line.stages):
        exposed_s: dict[int, Floats] = {
            i: at(seconds, number) for i, seconds in stage.exposed_s.items()}
        rest_s = max(0.0, total_s - busy_s[number] - float(sum(exposed_s.values())))
        if len(ranks) == 1 and exposed_s:
            exposed_s[max(exposed_s)] += rest_s
            rest_s = 0.0
        for i, seconds in exposed_s.items():
            waits[i] += seconds
        stages.append(StageTime[Floats](exposed_s, rest_s))
    return Timeline(spans, tuple(waits.tolist()), total_s, tuple(stages))


def _parts(items: Sequence[Item], line: Timeline[Floats], done: FloatArray) -> list[FloatArray]:
    """Computing, exposed communication, and who is last: [repeats, ranks]."""
    compute, exposed = np.zeros_like(done), np.zeros_like(done)
    for item in items:
        if item.needed_by is None:
            compute += item.seconds
    for stage in line.stages:
        for seconds in stage.exposed_s.values():
            exposed += seconds
    return [compute, exposed, done >= done.max(axis=1, keepdims=True)]


def rank_seconds(machine: Machine, work: Work, ranks: int) -> FloatArray:
    """Seconds of a piece of work whose shapes are those of all ranks: [ranks]."""
    if not machine.compute:
        return np.broadcast_to(roofline_s(machine, work, ranks), (ranks,))
    shapes = np.stack([np.broadcast_to(n, ranks) for n in (*work.x, *work.y)])
    _, first, which = np.unique(shapes, axis=1, return_index=True, return_inverse=True)
    each = [float(timed(machine, work.case(int(i)), ranks)[0]) for i in first]
    return np.array(each)[np.ravel(which)]
