"""Fits a machine's times to measured iterations, and says which term would explain them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hpcpar.cost.anchors import anchored_residuals, posterior, sd_of, with_factors
from hpcpar.errors import InputError
from hpcpar.machine import files
from hpcpar.machine.anchored import NOT_ANCHORED, Anchor, Anchoring, TimeFactors
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.network.spec import NetworkSpec
from hpcpar.prediction.price import plan_costs
from hpcpar.search import auto
from hpcpar.search.candidates import Candidate
from hpcpar.search.measurements import Measurement, measurements
from hpcpar.search.scaling_losses import SLOWEST, losses
from hpcpar.search.task import LEAST_BATCH

#: Relative error of an anchor's own price, and most corrections until it is reached.
EXACT, CORRECTIONS = 1e-9, 10


@dataclass(frozen=True)
class AnchorCase:
    """A measurement, the machine if another was measured, its price there by the model alone, and
    a function that prices it on any machine.
    """

    measurement: Measurement
    machine: str
    plain: Candidate
    on: Callable[[Machine], Candidate]

    def with_loss(self, loss: float) -> float:
        """The time with a factor on the loss (s)."""
        t = self.plain.task
        # the algorithms stay, because all times of the network change alike
        plan = replace(self.plain.plan, machine=None)
        on = with_factors(t.machine, TimeFactors(1.0, loss))
        return self.plain.iteration_s if t.ranks == 1 else float(
            plan_costs(t.network, plan, on, **t.price_options).iteration_s)

    def anchor(self, fitted: TimeFactors, precision: str) -> Anchor:
        """The anchor beside factors that fit all."""
        m, on, exact = self.measurement, self.plain.task.machine, fitted
        fitted_s = iteration_s = self.on(with_factors(on, exact)).iteration_s
        for _ in range(CORRECTIONS):
            if math.isclose(iteration_s, m.seconds, rel_tol=EXACT):
                break
            rest = m.seconds / iteration_s  # nearly all times change by it
            exact = TimeFactors(exact.computing * rest, exact.loss * rest)
            iteration_s = self.on(with_factors(on, exact)).iteration_s
        return Anchor(m.name, m.ranks, m.batch, m.strategy, m.precision or precision, self.machine,
                      m.seconds, self.plain.iteration_s, fitted_s, exact)


@dataclass(frozen=True)
class NeededTerm:
    """A term of an iteration, and how long it would have to be to explain the measured time alone.

    `model_s` is the iteration, with the computing time of a measurement on one rank if there is one
    with the same samples per rank.
    """

    anchor: str
    measured_s: float
    model_s: float
    name: str
    predicted_s: float

    @property
    def needed_s(self) -> float:
        return self.predicted_s + self.measured_s - self.model_s

    @property
    def factor(self) -> float | None:
        """Needed over predicted time; None if no time of this term explains the measured one."""
        possible = self.predicted_s > 0 and self.needed_s >= 0
        return self.needed_s / self.predicted_s if possible else None


def fit(machine: Machine, network: Network, spec: NetworkSpec,
        measured: Iterable[Measurement | str],
        options: Mapping[str, Any]) -> tuple[Machine, list[AnchorCase]]:
    """A machine with times that follow measured iterations, which have these options of `auto.task`
    too. Anchors of another number format or machine count only if there are no others.

    Raises
    ------
    InputError
        A measurement cannot be one of this network, or no plan like it can run.
    """
    bare = replace(with_factors(machine, NOT_ANCHORED), anchored=None)
    cases = [_case(m, bare, network, spec, options) for m in measurements(measured)]
    if not cases:
        return machine, []
    used = [c for c in cases if not c.machine
            and c.measurement.precision in ("", options["precision"])] or cases
    sd = sd_of(used[0].plain.prediction.trust.ratios), anchored_residuals().loss_sd
    factors = posterior([c.with_loss for c in used], [c.measurement.seconds for c in used], sd)
    anchors = [c.anchor(factors, options["precision"]) for c in used]
    if len(anchors) == 1:  # nothing contradicts it
        factors = anchors[0].exact
        anchors = [replace(anchors[0], fitted_s=anchors[0].measured_s)]
    return replace(bare, anchored=Anchoring(fitted=factors, anchors=tuple(anchors))), cases


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
        raise InputError(f"--measured '{m.name}': reading its images takes {io_s:.3g} s, "
                         f"more than the measured {m.seconds:.3g} s; drop --io and --node-input, "
                         "or correct them")
    return AnchorCase(m, other, plain, on)


def needed(cases: Iterable[AnchorCase]) -> Iterator[NeededTerm]:
    """The terms that would explain each measured time."""
    one = {c.measurement.batch: c.measurement.seconds / c.plain.iteration_s for c in cases
           if c.measurement.ranks == 1}
    for case in cases:
        m, p = case.measurement, case.plain.prediction
        by = one.get(m.batch // m.ranks, 1.0) if m.ranks > 1 else 1.0
        lost = {each.name: each.seconds or 0.0
                for each in losses(case.plain, case.plain.task.price_options)}
        slow_s = by * lost.pop(SLOWEST, 0.0)
        terms = {"computing": by * p.compute_s - slow_s}
        if m.ranks > 1:
            terms |= {"exposed communication": p.exposed_communication_s, SLOWEST: slow_s, **lost}
        model_s = p.iteration_s + (by - 1.0) * p.compute_s
        yield from (NeededTerm(m.name, m.seconds, model_s, name, seconds)
                    for name, seconds in terms.items())
