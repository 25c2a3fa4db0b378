"""Fits a machine's times to measured iterations, and says which term would explain them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpcpar.cost.anchors import anchored_residuals, posterior, sd_of
from hpcpar.cost.compute.step_time import slowest
from hpcpar.errors import InputError
from hpcpar.machine import files
from hpcpar.machine.anchored import Anchor, Anchoring, TimeFactors
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.network.spec import NetworkSpec
from hpcpar.prediction.price import plan_costs
from hpcpar.search import auto
from hpcpar.search.candidates import LEAST_BATCH, Candidate
from hpcpar.search.measurements import Measurement, measurements

#: Relative error of an anchor's own price, and most corrections until it is reached.
EXACT, CORRECTIONS = 1e-9, 10


@dataclass(frozen=True)
class AnchorCase:
    """A measurement and the model's price of it.

    Attributes
    ----------
    machine : str
        The machine, if it is not the one asked about.
    on : callable
        Maps a machine to the price on it.
    """

    measurement: Measurement
    machine: str
    plain: Candidate
    on: Callable[[Machine], Candidate]

    def anchored(self, machine: Machine) -> Candidate:
        """The price on a machine that follows the measurements."""
        return self.plain if self.machine else self.on(machine)

    @property
    def time(self) -> Callable[[float], float]:
        """Maps a factor on the loss to the predicted time (s)."""
        task = self.plain.task
        if task.ranks == 1:
            return lambda loss: self.plain.iteration_s
        # the algorithms are the same: all times of the network change alike
        plan = replace(self.plain.plan, machine=None)
        return lambda loss: float(plan_costs(
            task.network, plan, task.machine.at(TimeFactors(1.0, loss)),
            **task.price_options).iteration_s)


@dataclass(frozen=True)
class AnchorFit:
    """A machine that follows measured iterations, and the model's prices of them."""

    machine: Machine
    cases: tuple[AnchorCase, ...] = ()

    def why(self) -> list[Why]:
        """The terms that would explain each measured time."""
        return [_why(case, self.cases) for case in self.cases]


@dataclass(frozen=True)
class NeededTerm:
    """A term of an iteration, and how long it would have to be to explain a measured time alone.
    """

    name: str
    predicted_s: float
    needed_s: float

    @property
    def factor(self) -> float | None:
        """Needed over predicted time; None if no time of this term explains the measured one."""
        possible = self.predicted_s > 0 and self.needed_s >= 0
        return self.needed_s / self.predicted_s if possible else None


@dataclass(frozen=True)
class Why:
    """A measured iteration against the model's.

    Attributes
    ----------
    predicted_s : float
        With the computing time of the anchor on one rank, if there is one with the same samples.
    """

    name: str
    measured_s: float
    predicted_s: float
    terms: tuple[NeededTerm, ...]


def fit(machine: Machine, network: Network, spec: NetworkSpec,
        measured: Iterable[Measurement | str], options: Mapping[str, Any]) -> AnchorFit:
    """The machine with times that follow measured iterations.

    Anchors of another number format or machine count only if there are no others.

    Parameters
    ----------
    options
        The options of `auto.task`, which also hold for the measured iterations.

    Raises
    ------
    InputError
        A measurement cannot be one of this network, or no plan like it can run.
    """
    given = measurements(measured)
    if not given:
        return AnchorFit(machine)
    bare = replace(machine.at(TimeFactors()), anchored=None)
    cases = [_case(m, bare, network, spec, options) for m in given]
    same = [c for c in cases if not c.machine
            and c.measurement.precision in ("", options["precision"])]
    used = same or cases
    sd = sd_of(used[0].plain.prediction.trust.ratios), anchored_residuals().loss_sd
    factors = posterior([c.time for c in used], [c.measurement.seconds for c in used], sd)
    anchors = tuple(_anchor(c, factors, options["precision"]) for c in used)
    if len(anchors) == 1:  # nothing contradicts it
        factors = anchors[0].exact
        anchors = (replace(anchors[0], fitted_s=anchors[0].measured_s),)
    anchoring = Anchoring(fitted=factors, anchors=anchors)
    return AnchorFit(replace(bare, anchored=anchoring), tuple(cases))


def _case(m: Measurement, bare: Machine, network: Network, spec: NetworkSpec,
          options: Mapping[str, Any]) -> AnchorCase:
    """A measurement with its price."""
    if m.network not in ("", network.name):
        raise InputError(f"--measured '{m.name}' is an iteration of {m.network}, and says nothing "
                         f"about {network.name}: leave it out, or ask about {m.network}")
    other = m.machine if m.machine != bare.name else ""
    own = {**options, "precision": m.precision or options["precision"], LEAST_BATCH: None}

    def on(machine: Machine) -> Candidate:
        return auto.price_named(network, spec, m.strategy, m.ranks, m.batch, machine, **own)

    try:
        plain = on(files.load(other) if other else bare)
    except InputError as err:
        raise InputError(f"--measured '{m.name}': {err}") from err
    if (io_s := float(plain.costs.io_s)) > m.seconds:
        raise InputError(f"--measured '{m.name}': reading its images at --io takes {io_s:.3g} s, "
                         f"more than the measured {m.seconds:.3g} s; drop --io, or correct it")
    return AnchorCase(m, other, plain, on)


def _anchor(case: AnchorCase, fitted: TimeFactors, precision: str) -> Anchor:
    m, machine, exact = case.measurement, case.plain.task.machine, fitted
    fitted_s = iteration_s = case.on(machine.at(exact)).iteration_s
    for _ in range(CORRECTIONS):
        if math.isclose(iteration_s, m.seconds, rel_tol=EXACT):
            break
        rest = m.seconds / iteration_s  # nearly all times change by it
        exact = TimeFactors(exact.computing * rest, exact.loss * rest)
        iteration_s = case.on(machine.at(exact)).iteration_s
    return Anchor(m.name, m.ranks, m.batch, m.strategy, m.precision or precision, case.machine,
                  m.seconds, case.plain.iteration_s, fitted_s, exact)


def _why(case: AnchorCase, cases: Sequence[AnchorCase]) -> Why:
    m, p = case.measurement, case.plain.prediction
    machine = case.plain.task.machine
    slow = 1.0 if machine.compute else slowest(machine.device, m.ranks)
    one = next((c for c in cases if c.measurement.ranks == 1 < m.ranks
                and c.measurement.batch * m.ranks == m.batch), None)
    by = one.measurement.seconds / one.plain.iteration_s if one else 1.0
    computing_s = by * p.compute_s / slow
    terms = {"computing": computing_s} if m.ranks == 1 else {
        "computing": computing_s, "exposed communication": p.exposed_communication_s,
        "waiting for the slowest": by * p.compute_s - computing_s}
    predicted_s = p.iteration_s + (by - 1.0) * p.compute_s
    excess_s = m.seconds - predicted_s
    return Why(m.name, m.seconds, predicted_s, tuple(
        NeededTerm(name, seconds, seconds + excess_s) for name, seconds in terms.items()))
