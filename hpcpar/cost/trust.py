"""Decides how far to trust a prediction: its basis, and its 90% interval.

A calibrated machine has its own intervals (`interval_s`). For other machines the interval
comes from the errors of predictions of published runs, for the same kind of device and run
(`hpcpar.cost.published_runs`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from hpcpar.cost.anchors import MEASURED_RATIOS, MORE_RANKS, nearest, sd_of
from hpcpar.cost.compute.priced_formats import device_for
from hpcpar.cost.price_family import Costs
from hpcpar.cost.published_runs import (
    PUBLISHED_AS,
    ResidualClass,
    class_factor,
    kind_of,
    published,
    sheet_basis,
    traits,
)
from hpcpar.machine.anchored import Anchoring
from hpcpar.machine.catalog import peak_warning, sheets_of_rate
from hpcpar.machine.model import Device, Machine, Ratios
from hpcpar.network.graph import Network
from hpcpar.plan.plan import Plan

#: Largest relative difference between a measured iteration and its anchored price.
SAME = 0.001
#: The part of an iteration that computes.
COMPUTING = "computing"
_REMEDY = "hpcpar calibrate on one node narrows it"
#: Low and high end of a time (s).
Interval90 = tuple[float, float]


@dataclass(frozen=True)
class Trust:
    """The 90% interval of the ratio of measured to predicted time, and its source.

    Attributes
    ----------
    basis : str
        ``calibration``; ``tables``: a device with published runs; ``sheet``: a device without;
        ``others``: a device of another or unknown maker; ``cpu``: the data sheet of a CPU;
        ``unstated``: a data sheet that does not say ``kind``; ``rate``: one rate for all layers,
        fitted to the networks in ``fitted_to`` of the machine's ``[quality]``; ``peak``: the peak
        rate of a data sheet; ``guess``: any other rate; ``anchor``: a measured iteration like it;
        ``measured``: this iteration was measured.
    source : str
        The basis in words.
    runs : ResidualClass or None
        The published runs behind the interval; None if a calibration measured everything.
    factor : float
        Factor on the compute times of the model of kernels (`class_factor`); `runs` is relative to
        the times with it.
    warning : str
        A warning that the rate is a data sheet's peak, or an empty string.
    """

    basis: str
    source: str
    ratios: Ratios
    runs: ResidualClass | None = None
    warning: str = ""
    factor: float = 1.0

    @property
    def calibrated(self) -> bool:
        """True if a calibration of the machine measured everything."""
        return self.basis == "calibration"

    @property
    def rough(self) -> bool:
        """True if times deserve two digits."""
        return self.basis not in ("calibration", "measured")

    @property
    def words(self) -> str:
        """The source, and a remedy that narrows the interval."""
        known = self.basis in ("calibration", "anchor", "measured")
        return self.source if known else f"{self.source}; {_REMEDY}"

    def interval_s(self, predicted_s: float) -> Interval90:
        """The 90% interval of a time."""
        low, high = self.ratios
        return predicted_s * low, predicted_s * high

    def to_json(self, predicted_s: float) -> dict[str, object]:
        """The interval of an iteration's time as JSON data."""
        low_s, high_s = self.interval_s(predicted_s)
        return {"iteration_low_s": low_s, "iteration_high_s": high_s,
                "interval_basis": self.basis, "interval_source": self.source,
                "compute_factor": self.factor}


def basis_of(machine: Machine, device: Device) -> str:
    """The basis of prices by this device of the machine without a calibration, as in `Trust`."""
    if not device.multiprocessors:
        if sheets_of_rate(machine):
            return "peak"
        return "rate" if "fitted_to" in machine.quality else "guess"
    return sheet_basis(device)


def _source(machine: Machine, device: Device, basis: str, factor: float, rows: int) -> str:
    """The basis in words."""
    sheet = f"data sheet of the {device.name}" if device.name else "a data sheet"
    if machine.compute:
        return "calibrated by an earlier version, without intervals"
    words = {"tables": f"{sheet} and published runs", "sheet": sheet,
            "others": f"{sheet} and a model fitted to NVIDIA's",
            "cpu": f"{sheet} and a few published runs on CPUs",
            "unstated": f"{sheet} that does not say kind = \"gpu\" or \"cpu\"",
            "rate": f"one rate fitted to {machine.quality.get('fitted_to')}",
            "guess": "one rate of unknown origin",
            "peak": "the peak rate of a data sheet, which few networks reach"}[basis]
    if factor != 1.0:
        words += f" (the model's time x {factor:.3g}, the median of {rows} published)"
    return f"{words}, not calibrated"


def trust(network: Network, plan: Plan, machine: Machine, costs: Costs) -> Trust:
    """The 90% interval of a single plan's iteration, and its source.

    Parts that a calibration did not measure deviate like published runs.
    """
    device, kind = device_for(machine.device, plan.formats), kind_of(network)
    factor = 1.0 if machine.compute else class_factor(device, plan.formats, kind)
    basis, total_s, parts = (basis_of(machine, device), float(costs.iteration_s),
                             parts_of(machine, costs))
    samples = plan.samples_of_a_pass / max(float(c.n) for c in plan.configs.values())
    known = traits(network, samples, PUBLISHED_AS[plan.formats.work])
    runs = published().of(basis, known).over(factor)
    if all(part.ratios is None for part in parts):
        own = Trust(basis, _source(machine, device, basis, factor, runs.rows),
                    (runs.low, runs.high), runs, peak_warning(machine), factor)
    else:
        missing = list(dict.fromkeys(part.name for part in parts if part.ratios is None))
        low_s, high_s = interval_s(total_s, [(part.seconds, part.ratios or (runs.low, runs.high))
                                             for part in parts])
        ratios = low_s / total_s, high_s / total_s
        own = (Trust(basis, f"calibrated, but not {' and '.join(missing)}", ratios, runs)
               if missing else Trust("calibration", "calibrated", ratios))
    return own if machine.anchored is None else _anchored(own, plan, machine.anchored, total_s)


def _anchored(own: Trust, plan: Plan, anchoring: Anchoring, iteration_s: float) -> Trust:
    """The interval beside anchors; `own` is the model's.

    Published runs say nothing about anchors of other strategies, which leave the interval.
    """
    if not anchoring.anchors:
        return own
    anchor, runs = nearest(anchoring, plan.ranks, plan.batch, plan.precision)
    at = f"anchored at {anchor.name}"
    if runs is not None and runs.name == MORE_RANKS:
        sizes = sorted(each.ranks for each in anchoring.anchors)
        at = f"anchored on {sizes[0]} to {sizes[-1]} ranks"
    if runs is None and math.isclose(iteration_s, anchor.measured_s, rel_tol=SAME):
        return Trust("measured", f"measured: {anchor.name}", MEASURED_RATIOS)
    other = plan.ranks > 1 and plan.strategy != anchor.strategy
    if other or runs is None or sd_of(own.ratios) < sd_of((runs.low, runs.high)):
        return replace(own, source=f"{own.source}, {at}")
    like = ResidualClass("anchor", {"differs": runs.name}, runs.rows, runs.low, runs.median,
                         runs.high)
    return Trust("anchor", f"{at}, for another {runs.name.partition(',')[0]}",
                 (runs.low, runs.high), like)


# -- calibrated machines ---------------------------------------------------------------------------
def interval_s(total_s: float, parts: Iterable[tuple[float, Ratios]]) -> Interval90:
    """The 90% interval of a time.

    All steps of a part deviate alike, because the machine's speed drifts; their deviations add up.
    Different parts deviate independently; their squared deviations add up.

    Parameters
    ----------
    parts : iterable of (float, (float, float))
        Seconds of a part, and the 90% interval of the ratio of measured to predicted time.
    """
    below = above = 0.0
    for seconds, (low, high) in parts:
        below += (seconds * max(0.0, 1.0 - low)) ** 2
        above += (seconds * max(0.0, high - 1.0)) ** 2
    return max(0.0, total_s - math.sqrt(below)), total_s + math.sqrt(above)


class Part(NamedTuple):
    """A part of an iteration; `ratios` is the interval of measured to predicted time, if known."""

    name: str
    seconds: float
    ratios: Ratios | None


def parts_of(machine: Machine, costs: Costs) -> list[Part]:
    """The parts of a single plan's iteration that take time.

    They are measured computation, estimated computation, and the exposed communication of each
    level. A pipeline's bubble counts as computation.
    """
    exposed_s = [0.0] * len(machine.levels)
    for price, seconds in zip(costs.prices, costs.timeline.waits_s, strict=True):
        exposed_s[int(price.level)] += float(seconds)
    total_s, waits_s = float(costs.iteration_s), float(costs.exposed_communication_s)
    of_all_stages = sum(exposed_s) or 1.0
    rest_s, measured = total_s - waits_s, float(costs.measured_compute)
    parts = [Part(COMPUTING, rest_s * measured, machine.compute_ratios),
             Part(COMPUTING, rest_s * (1.0 - measured), machine.estimate_ratios)]
    parts += [Part(f"level '{level.name}'", waits_s * seconds / of_all_stages, level.ratios)
              for seconds, level in zip(exposed_s, machine.levels, strict=True)]
    return [part for part in parts if part.seconds > 0]
