"""Decides how far to trust a prediction: its basis, and its 90% interval.

A calibrated machine has its own intervals (`hpcpar.cost.interval`). For other machines the interval
comes from the errors of predictions of published runs, for the same kind of device and run
(``trust.toml``, written by `bench/gallery/intervals.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources

from hpcpar.cost.interval import Interval90, interval_s, parts_of
from hpcpar.cost.price_family import Costs
from hpcpar.io.schema import Count, Positive, convert, parse_toml
from hpcpar.machine.catalog import peak_warning, sheets_of_rate
from hpcpar.machine.model import Machine, Ratios
from hpcpar.network.graph import Network
from hpcpar.plan.plan import Plan

#: Predictions of published runs with fewer samples per rank are less accurate.
FEW_SAMPLES = 16
#: Basis whose float32 runs represent a number format without runs; by default the same basis.
UNSEEN = {"tables": "rate", "sheet": "rate"}
#: Basis whose runs represent another: a rate of unknown origin deviates like a peak rate.
STAND_INS = {"guess": "peak"}
_REMEDY = "hpcpar calibrate on one node narrows it"


@dataclass(frozen=True)
class ResidualClass:
    """The ratio of measured to predicted time in a class of published runs.

    Attributes
    ----------
    basis : str
        Basis of the predictions, as in `Trust`.
    where : mapping
        Common `traits` of the runs.
    rows : int
        Number of runs.
    low, median, high : float
        The 5th, 50th and 95th percentile.
    """

    basis: str
    where: Mapping[str, str]
    rows: Count
    low: Positive
    median: Positive
    high: Positive


@dataclass(frozen=True)
class Residuals:
    """All classes of published runs.

    Attributes
    ----------
    devices, others : tuple of str
        Devices of the catalog with published runs, and devices of other makers than the ones that
        the model of kernels is fitted to.
    most_ranks : int
        Ranks of the largest run.
    kinds : mapping
        Kind of network (`kind_of`) -> number of runs.
    """

    classes: tuple[ResidualClass, ...]
    devices: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    most_ranks: Count = 1
    kinds: Mapping[str, Count] = field(default_factory=dict)

    def of(self, basis: str, known: Mapping[str, str]) -> ResidualClass:
        """The most specific class of this basis that fits the known traits."""
        named = STAND_INS.get(basis, basis)
        fitting = [runs for runs in self.classes
                   if runs.basis == named and runs.where.items() <= known.items()]
        if not fitting:
            return self.of(UNSEEN.get(basis, basis), {**known, "precision": "fp32"})
        return max(fitting, key=lambda runs: (len(runs.where), -runs.rows))


@lru_cache(maxsize=1)
def published() -> Residuals:
    """The classes that come with the package."""
    text = (resources.files("hpcpar.cost") / "trust.toml").read_bytes()
    return convert(parse_toml(text, "trust.toml", ""), Residuals, "trust.toml", "")


@dataclass(frozen=True)
class Trust:
    """The 90% interval of the ratio of measured to predicted time, and its source.

    Attributes
    ----------
    basis : str
        ``calibration``; ``tables``: a device with published runs; ``sheet``: a device without;
        ``others``: a device of another maker; ``rate``: one rate for all layers, fitted to the
        networks in ``fitted_to`` of the machine's ``[quality]``; ``peak``: the peak rate of a data
        sheet; ``guess``: any other rate.
    source : str
        The basis in words.
    runs : ResidualClass or None
        The published runs behind the interval; None if a calibration measured everything.
    warning : str
        A warning that the rate is a data sheet's peak, or an empty string.
    """

    basis: str
    source: str
    ratios: Ratios
    runs: ResidualClass | None = None
    warning: str = ""

    @property
    def calibrated(self) -> bool:
        """True if a calibration of the machine measured everything."""
        return self.basis == "calibration"

    @property
    def words(self) -> str:
        """The source, and a remedy that narrows the interval."""
        return self.source if self.calibrated else f"{self.source}; {_REMEDY}"

    def interval_s(self, predicted_s: float) -> Interval90:
        """The 90% interval of a time."""
        low, high = self.ratios
        return predicted_s * low, predicted_s * high

    def to_json(self, predicted_s: float) -> dict[str, object]:
        """The interval of an iteration's time as JSON data."""
        low_s, high_s = self.interval_s(predicted_s)
        return {"iteration_low_s": low_s, "iteration_high_s": high_s,
                "interval_basis": self.basis, "interval_source": self.source}


def traits(network: Network, samples: float, precision: str) -> dict[str, str]:
    """The traits that select a run's class; `samples` is the number per rank and pass."""
    kind = kind_of(network)
    few = samples < FEW_SAMPLES and kind != "volumes"
    return {"precision": precision, "samples": "few" if few else "many", "network": kind}


def kind_of(network: Network) -> str:
    """``volumes``, ``depthwise convolutions`` or ``images``."""
    if len(network.image_shape) == 4:
        return "volumes"
    depthwise = any(getattr(layer, "groups", 1) == network.input_shape(layer)[0] > 1
                    for layer in network.layers if layer.is_matmul)
    return "depthwise convolutions" if depthwise else "images"


def basis_of(machine: Machine) -> str:
    """The basis of compute prices without a calibration, as in `Trust`."""
    name = machine.device.name
    if not machine.device.multiprocessors:
        if sheets_of_rate(machine):
            return "peak"
        return "rate" if "fitted_to" in machine.quality else "guess"
    if name in published().others:
        return "others"
    return "tables" if name in published().devices else "sheet"


def _source(machine: Machine, basis: str) -> str:
    """The basis in words."""
    sheet = f"data sheet of the {machine.device.name}" if machine.device.name else "a data sheet"
    if machine.compute:
        return "calibrated by an earlier version, without intervals"
    words = {"tables": f"{sheet} and published runs", "sheet": sheet,
            "others": f"{sheet} and a model fitted to NVIDIA's",
            "rate": f"one rate fitted to {machine.quality.get('fitted_to')}",
            "guess": "one rate of unknown origin",
            "peak": "the peak rate of a data sheet, which few networks reach"}[basis]
    return f"{words}, not calibrated"


def trust(network: Network, plan: Plan, machine: Machine, costs: Costs) -> Trust:
    """The 90% interval of a single plan's iteration, and its source.

    Parts that a calibration did not measure deviate like published runs.
    """
    basis, total_s, parts = basis_of(machine), float(costs.iteration_s), parts_of(machine, costs)
    samples = plan.samples_of_a_pass / max(float(c.n) for c in plan.configs.values())
    runs = published().of(basis, traits(network, samples, plan.precision))
    if all(part.ratios is None for part in parts):
        return Trust(basis, _source(machine, basis), (runs.low, runs.high), runs,
                     peak_warning(machine))
    missing = list(dict.fromkeys(part.name for part in parts if part.ratios is None))
    low_s, high_s = interval_s(total_s, [(part.seconds, part.ratios or (runs.low, runs.high))
                                         for part in parts])
    ratios = low_s / total_s, high_s / total_s
    if missing:
        return Trust(basis, f"calibrated, but not {' and '.join(missing)}", ratios, runs)
    return Trust("calibration", "calibrated", ratios)
