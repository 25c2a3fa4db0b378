"""Classes of published runs: how far off predictions of the same kind are.

``trust.toml`` has them, written by `bench/gallery/intervals.py`. They make the interval of a
prediction without calibration (`hpcpar.cost.trust`). Where a class is lopsided, they also move its
times: computing takes the median of the class times as long as the model of kernels says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from importlib import resources

from hpcpar.io.schema import Count, Positive, convert, parse_toml
from hpcpar.machine.model import Device
from hpcpar.network.graph import Network
from hpcpar.plan.precision import PRECISIONS, Precision

#: Maker of the devices that the model of kernels is fitted to, in lower case.
FITTED_VENDOR = "nvidia"
#: Predictions of published runs with fewer samples per rank are less accurate.
FEW_SAMPLES = 16
#: A class is lopsided if its median is above this, or below the inverse.
LOPSIDED = 1.15
#: Basis whose float32 runs represent a number format without runs; by default the same basis.
UNSEEN = {"tables": "rate", "sheet": "rate"}
#: Basis whose runs represent another: a rate of unknown origin deviates like a peak rate.
STAND_INS = {"guess": "peak"}


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
        Ends of the 90% interval, and the median.
    """

    basis: str
    where: Mapping[str, str]
    rows: Count
    low: Positive
    median: Positive
    high: Positive

    def over(self, factor: float) -> ResidualClass:
        """The class relative to times that are `factor` times as long."""
        return replace(self, low=self.low / factor, median=self.median / factor,
                       high=self.high / factor)


@dataclass(frozen=True)
class Residuals:
    """All classes of published runs.

    Attributes
    ----------
    devices : tuple of str
        Devices of the catalog with published runs that the model of kernels is fitted to.
    most_ranks : int
        Ranks of the largest run.
    kinds : mapping
        Kind of network (`kind_of`) -> number of runs.
    """

    classes: tuple[ResidualClass, ...]
    devices: tuple[str, ...] = ()
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


#: The name under which runs in a format are published, by `Precision.work`.
PUBLISHED_AS = {PRECISIONS[name].work: name for name in reversed(PRECISIONS)}


def sheet_basis(device: Device) -> str:
    """The basis of prices by the model of kernels, as in `hpcpar.cost.trust.Trust`."""
    if device.kind != "gpu":
        return device.kind or "unstated"
    if device.vendor.lower() != FITTED_VENDOR:
        return "others"
    return "tables" if device.name in published().devices else "sheet"


def class_factor(device: Device, formats: Precision, kind: str) -> float:
    """Factor on the times of the model of kernels, for a network of this `kind_of`.

    It does not depend on the number of samples, so that plans with different parts compare.
    """
    if not device.multiprocessors:
        return 1.0
    return _lopsided_median(sheet_basis(device), PUBLISHED_AS[formats.work], kind)


@cache
def _lopsided_median(basis: str, precision: str, kind: str) -> float:
    """The median of a class if it is lopsided.

    It is 1 also if another basis stands in, or if the class rests on single convolutions.
    """
    runs = published().of(basis, {"precision": precision, "network": kind})
    own = runs.basis == basis and basis in ("tables", "sheet")
    lopsided = abs(math.log(runs.median)) > math.log(LOPSIDED)
    return runs.median if own and lopsided else 1.0
