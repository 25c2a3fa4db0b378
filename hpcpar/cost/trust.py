"""How far a prediction can be trusted: what it rests on, and its 90% interval.

A calibrated machine has intervals of its own (`hpcpar.cost.interval`). Any other takes what
predictions of published runs were off by (``trust.toml``, which `bench/gallery/intervals.py`
writes), by what is known of the device and by kind of plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources

from hpcpar.cost.interval import Interval90, interval_s, parts_of
from hpcpar.cost.price_family import Costs
from hpcpar.machine.model import Machine, Ratios
from hpcpar.machine.sheet_rate import peak_warning, sheets_of_rate
from hpcpar.network.graph import Network
from hpcpar.plan.plan import Plan
from hpcpar.schema import Count, Positive, convert, parse_toml

#: Samples of a rank below which published runs are predicted less well.
FEW_SAMPLES = 16
#: Whose float32 runs count for a number format without runs; else those of the same basis.
UNSEEN = {"tables": "rate", "sheet": "rate"}
#: Classes of runs that stand for others: a rate of unknown origin deviates as a peak does.
STAND_INS = {"guess": "peak"}
_REMEDY = "hpcpar calibrate on one node narrows it"


@dataclass(frozen=True)
class ResidualClass:
    """A class of published runs: measured over predicted times.

    Attributes
    ----------
    basis : str
        What their predictions rested on, one of `BASES`.
    where : mapping
        What the runs have in common, as `traits` says it.
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
    """All classes of runs.

    Attributes
    ----------
    devices, others : tuple of str
        Devices of the catalogue that have published runs; those of another maker than the devices
        that the model of kernels is fitted to.
    most_ranks : int
        Ranks of the largest run.
    kinds : mapping
        Number of runs by kind of network (`kind_of`).
    """

    classes: tuple[ResidualClass, ...]
    devices: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    most_ranks: Count = 1
    kinds: Mapping[str, Count] = field(default_factory=dict)

    def of(self, basis: str, known: Mapping[str, str]) -> ResidualClass:
        """The narrowest class that all of this is known of."""
        named = STAND_INS.get(basis, basis)
        fitting = [each for each in self.classes
                   if each.basis == named and each.where.items() <= known.items()]
        if not fitting:
            return self.of(UNSEEN.get(basis, basis), {**known, "precision": "fp32"})
        return max(fitting, key=lambda each: (len(each.where), -each.rows))


@lru_cache(maxsize=1)
def published() -> Residuals:
    """The classes that come with the package."""
    text = (resources.files("hpcpar.cost") / "trust.toml").read_bytes()
    return convert(parse_toml(text, "trust.toml", ""), Residuals, "trust.toml", "")


@dataclass(frozen=True)
class Trust:
    """The 90% interval of measured over predicted time, and where it comes from.

    Attributes
    ----------
    basis : str
        ``calibration``; ``tables``: a device with published runs; ``sheet``: a device without;
        ``others``: one of another maker; ``rate``: one rate for all layers, fitted to the networks
        that ``fitted_to`` in the machine's ``[quality]`` names; ``peak``: that of a data sheet;
        ``guess``: any other.
    source : str
        The same in words.
    ratios : (float, float)
        The interval.
    runs : ResidualClass or None
        The published runs behind it; None where all was measured.
    warning : str
        A line on a rate that is a data sheet's peak; empty where there is none.
    """

    basis: str
    source: str
    ratios: Ratios
    runs: ResidualClass | None = None
    warning: str = ""

    @property
    def calibrated(self) -> bool:
        """All of it was measured on the machine."""
        return self.basis == "calibration"

    @property
    def words(self) -> str:
        """The source, and what would narrow the interval."""
        return self.source if self.calibrated else f"{self.source}; {_REMEDY}"

    def interval_s(self, predicted_s: float) -> Interval90:
        """The interval of a time."""
        low, high = self.ratios
        return predicted_s * low, predicted_s * high

    def to_json(self, predicted_s: float) -> dict[str, object]:
        """Plain data on an iteration."""
        low_s, high_s = self.interval_s(predicted_s)
        return {"iteration_low_s": low_s, "iteration_high_s": high_s,
                "interval_basis": self.basis, "interval_source": self.source}


def traits(network: Network, samples: float, precision: str) -> dict[str, str]:
    """The facts that decide the class of a run.

    Parameters
    ----------
    samples : float
        Samples of a rank in a pass.
    """
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
    """The ground of prices of computing without calibration, one of `Trust`'s."""
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
    """The interval of an iteration of a single plan, and where it comes from.

    Parts that a calibration did not measure deviate as published runs do.
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
