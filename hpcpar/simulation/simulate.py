"""Simulates all ranks of a plan.

It uses `hpcpar.cost.timeline.timeline` with one entry per rank. The rank's own boxes determine the
time of a compute step. A communication ends when the rank has sent and received its messages
(`Movement`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from hpcpar.cost.compute.step_time import roofline_s, timed
from hpcpar.cost.compute.work import Work, Workload
from hpcpar.cost.network.links import FloatArray, LinkRates
from hpcpar.cost.price_family import Costs, PricedSteps, laid_out, price_steps
from hpcpar.cost.step_prices import StepPrice, StepPricer, latency_s
from hpcpar.cost.timeline.timeline import Span, StageTime, Timeline
from hpcpar.errors import InputError
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.plan.axis import IntArray
from hpcpar.plan.config import Floats
from hpcpar.plan.layout import box_shapes
from hpcpar.plan.plan import Plan
from hpcpar.schedule.steps import Comm, Compute, Step
from hpcpar.simulation.movement import Movement
from hpcpar.simulation.noise import QUIET, Noise

#: Largest job that can be simulated: every array has one entry per rank.
MOST_RANKS = 1 << 17
#: Limit of the numbers in the timelines of iterations that are simulated at once, to bound memory.
MOST_NUMBERS = 30_000_000


@dataclass(frozen=True)
class Simulation:
    """Simulated iterations of a plan on all ranks.

    Attributes
    ----------
    iteration_s : ndarray
        [repeats] time until the last rank finishes.
    compute_s, exposed_s : ndarray
        [ranks] computation and exposed communication, which includes waiting for late ranks; means
        over the repeats.
    last : ndarray
        [ranks] fraction of the repeats in which this rank finishes last.
    waits_s : ndarray
        [steps] exposed communication, the mean over ranks and repeats.
    start_s, end_s : ndarray
        [steps, ranks] of the first repeat; NaN where a rank does not take part.
    step_s : ndarray
        [steps, ranks] computation or exposed communication in the first repeat.
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
        """Mean time of an iteration."""
        return float(self.iteration_s.mean())

    @property
    def waiting_s(self) -> FloatArray:
        """[ranks] time in which a rank waits for other stages or for the last rank."""
        return np.maximum(0.0, self.mean_s - self.compute_s - self.exposed_s)


def require_size(ranks: int) -> None:
    """Check that a job is small enough to simulate (InputError)."""
    if ranks > MOST_RANKS:
        raise InputError(f"{ranks:,} ranks: at most {MOST_RANKS:,} are simulated one by one; use "
                         "hpcpar predict, or plan without --robust")


class Simulator:
    """Simulates a plan on all ranks; `costs` are its prices, if the caller has them.

    Raises
    ------
    InputError
        The job has too many ranks.
    """

    def __init__(self, network: Network, plan: Plan, machine: Machine,
                 costs: PricedSteps | None = None) -> None:
        require_size(plan.ranks)
        self.costs = price_steps(network, plan, machine) if costs is None else costs
        self.machine, self.plan = self.costs.network_model.machine, plan
        self.ranks = plan.ranks
        self.steps = self.costs.schedule.steps
        edges = self.costs.out.edges
        self._workload = Workload(network, plan, edges,
                                  partial(box_shapes, rank=np.arange(self.ranks)))
        unmeasured = self.costs.networks[replace(self.machine, collectives=())]
        self._plain = StepPricer(network, plan, unmeasured.machine, unmeasured, edges)
        self.links = LinkRates(self.costs.network_model)
        self._movements: dict[Hashable, Movement] = {}
        self._computes: dict[Hashable, FloatArray] = {}

    def play(self, noise: Noise = QUIET, repeats: int = 1,
             progress: Callable[[int], None] = lambda done: None) -> Simulation:
        """Simulate iterations on all ranks.

        Parameters
        ----------
        repeats : int
            Number of iterations, which differ in their jitter.
        progress : callable
            Receives the number of finished iterations.
        """
        at_once = max(1, MOST_NUMBERS // (4 * len(self.steps) * self.ranks))
        generator = np.random.default_rng(noise.seed)
        sums, waits = np.zeros((3, self.ranks)), np.zeros(len(self.steps))
        iterations: list[FloatArray] = []
        times: FloatArray = np.zeros((3, 0, 0))
        for begin in range(0, repeats, at_once):
            count = min(at_once, repeats - begin)
            prices = list(self._prices(noise, count, generator))
            line = laid_out(self.machine, self.plan, self.steps, prices)
            end_s = np.broadcast_to(line.total_s, (count, self.ranks))
            iterations.append(end_s.max(axis=1))
            if not begin:
                times = self._times(prices, line)
            sums += [part.sum(axis=0) for part in _parts(self.steps, prices, line, end_s)]
            waits += [float(np.mean(seconds)) * count for seconds in line.waits_s]
            progress(begin + count)
        compute_s, exposed_s, last = sums / repeats
        return Simulation(np.concatenate(iterations), compute_s, exposed_s, last, waits / repeats,
                          *times)

    def exact_costs(self) -> Costs:
        """The costs on the rank of each stage that computes longest.

        A message takes as long as on its slowest rank. The iteration ends with the last rank.
        """
        on_ranks = list(self._prices(QUIET, 1, np.random.default_rng(0)))
        line = laid_out(self.machine, self.plan, self.steps, on_ranks)
        computed = np.zeros((len(line.stages), self.ranks))
        for step, price in zip(self.steps, on_ranks, strict=True):
            if isinstance(step, Compute):
                computed[step.stage] += np.ravel(price.seconds)
        longest = computed.argmax(axis=1)
        prices: dict[Hashable, StepPrice] = {}
        for step, price in zip(self.steps, on_ranks, strict=True):
            if step.key not in prices:
                rank_s, is_compute = np.ravel(price.seconds), isinstance(step, Compute)
                seconds = rank_s[longest[step.stage]] if is_compute else rank_s.max()
                prices[step.key] = price._replace(seconds=float(seconds), end_s=None)
                if isinstance(step, Comm):
                    prices[step.key] = prices[step.key]._replace(
                        latency_s=latency_s(self.machine, step, prices[step.key]))
        priced = replace(self.costs, prices=tuple(prices[step.key] for step in self.steps))
        busy_s = computed.max(axis=1).tolist()
        return Costs.of(priced, _of_ranks(self.steps, line, longest.tolist(), busy_s))

    def left_bytes(self) -> list[IntArray]:
        """For each level, [units] bytes that leave a rank, node or rack in an iteration."""
        out = self.links.nothing_left(self.ranks)
        for step, price in self.costs.pairs:
            if isinstance(step, Comm):
                moved = self._movement(step, price).left_bytes
                for total, n_bytes in zip(out, moved, strict=True):
                    total += n_bytes
        return out

    def traffic(self) -> tuple[IntArray, IntArray]:
        """Messages and bytes that each rank sends: [steps, ranks]."""
        none = np.zeros(self.ranks, np.int64)
        moved = [self._movement(step, price) if isinstance(step, Comm) else None
                 for step, price in self.costs.pairs]
        return (np.array([none if m is None else m.messages for m in moved]),
                np.array([none if m is None else m.sent_bytes for m in moved]))

    def _prices(self, noise: Noise, repeats: int,
                generator: np.random.Generator) -> Iterator[StepPrice]:
        """Prices of all steps, with arrays [repeats, ranks]."""
        known: dict[Hashable, StepPrice] = {}
        for step, price in self.costs.pairs:
            if isinstance(step, Comm):
                movement = self._movement(step, price)
                yield price._replace(seconds=movement.alone_s, end_s=movement.end_s,
                                     level=movement.level or price.level)
            elif noise.jitter or step.key not in known:
                seconds = noise.on(self.compute_s(step), repeats, generator)
                known[step.key] = price._replace(seconds=seconds)
                yield known[step.key]
            else:
                yield known[step.key]

    def _movement(self, step: Comm, price: StepPrice) -> Movement:
        if step.key not in self._movements:
            factor = 1.0
            if self.machine.collectives and (
                    modeled_s := float(self._plain.price(step).seconds)):
                factor = float(price.seconds) / modeled_s
            about = (step.pattern, step.source, step.destination, step.item_bytes, step.algorithm,
                     step.segments, step.inner, step.root, self.ranks, factor, float(price.seconds))
            known = self.costs.network_model.known
            if about not in known:
                known[about] = Movement(step, self.ranks, self.machine, self.links, factor,
                                        float(price.seconds))
            found = known[about]
            assert isinstance(found, Movement)
            self._movements[step.key] = found
        return self._movements[step.key]

    def work(self, step: Compute) -> Work:
        """The work of a compute step, with the shapes on all ranks."""
        return self._workload.of(step)

    def compute_s(self, step: Compute) -> FloatArray:
        """Seconds of a compute step on every rank: [ranks]."""
        if step.key not in self._computes:
            work = self._workload.of(step)
            self._computes[step.key] = _rank_seconds(self.machine, work, self.ranks)
        return self._computes[step.key]

    def _times(self, prices: Sequence[StepPrice], line: Timeline[Floats]) -> FloatArray:
        """Start, end and duration of the steps of the first repeat: [3, steps, ranks]."""
        out = np.full((3, len(self.steps), self.ranks), np.nan)
        for i, ((step, price), span) in enumerate(zip(self.costs.pairs, line.spans, strict=True)):
            if isinstance(step, Comm):
                alone_s, duration_s = self._movement(step, price).alone_s, line.waits_s[i]
            else:
                alone_s, duration_s = self.compute_s(step), prices[i].seconds
            for times, seconds in zip(out, (span.start_s, span.end_s, duration_s), strict=True):
                wide = np.broadcast_to(seconds, np.broadcast_shapes(np.shape(seconds),
                                                                    (1, self.ranks)))
                times[i] = np.where(alone_s > 0, wide[0], np.nan)
        return out


def _of_ranks(steps: Sequence[Step], line: Timeline[Floats], ranks: Sequence[int],
              busy_s: Sequence[float]) -> Timeline[Floats]:
    """The timeline of one rank of each stage; it ends with the last rank of the job.

    The wait for other ranks at the end belongs to the rank's last communication, or to the bubble
    in a pipeline. `busy_s` is the compute time of each of these ranks.
    """
    def at(seconds: Floats, stage: int) -> float:
        values = np.asarray(seconds)
        return float(values.item(ranks[stage] if values.size > 1 else 0))

    spans = tuple(
        Span(at(span.start_s, step.stage), at(span.end_s, step.stage), span.stream)
        for step, span in zip(steps, line.spans, strict=True))
    total_s, waits, stages = float(np.max(line.total_s)), np.zeros(len(steps)), []
    for number, stage in enumerate(line.stages):
        exposed_s: dict[int, Floats] = {
            i: at(seconds, number) for i, seconds in stage.exposed_s.items()}
        bubble_s = at(stage.bubble_s, number)
        idle_s = max(0.0, total_s - busy_s[number] - float(sum(exposed_s.values())) - bubble_s)
        if len(ranks) == 1 and exposed_s:
            exposed_s[max(exposed_s)] += idle_s
        else:
            bubble_s += idle_s
        for i, seconds in exposed_s.items():
            waits[i] += seconds
        stages.append(StageTime[Floats](exposed_s, bubble_s))
    return Timeline(spans, tuple(waits.tolist()), total_s, tuple(stages))


def _parts(steps: Sequence[Step], prices: Sequence[StepPrice], line: Timeline[Floats],
           end_s: FloatArray) -> list[FloatArray]:
    """Computation, exposed communication, and whether a rank is last: [repeats, ranks] each."""
    compute, exposed = np.zeros_like(end_s), np.zeros_like(end_s)
    for step, price in zip(steps, prices, strict=True):
        if isinstance(step, Compute):
            compute += price.seconds
    for stage in line.stages:
        for seconds in stage.exposed_s.values():
            exposed += seconds
    return [compute, exposed, end_s >= end_s.max(axis=1, keepdims=True)]


def _rank_seconds(machine: Machine, work: Work, ranks: int) -> FloatArray:
    """Seconds on every rank of work that has the shapes of all ranks: [ranks]."""
    if not machine.compute:
        return np.broadcast_to(roofline_s(machine, work, ranks), (ranks,))
    shapes = np.stack([np.broadcast_to(n, ranks) for n in (*work.x, *work.y)])
    _, first, index = np.unique(shapes, axis=1, return_index=True, return_inverse=True)
    seconds = [float(timed(machine, work.case(int(i)), ranks)[0]) for i in first]
    return np.array(seconds)[np.ravel(index)]
