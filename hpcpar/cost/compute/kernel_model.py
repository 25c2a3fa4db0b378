"""Time of a kernel on a device that was never measured: from its data sheet, and from shapes.

A convolution or linear layer is a matrix product for each pass. A library cuts the product into
tiles, a tile for each multiprocessor at a time, and splits long sums where tiles are few; it takes
the tile that is fastest. Other layers move bytes. `bench/fit_kernels.py` fits the numbers, the same
for all devices, to published measurements.

Numbers may be arrays with an entry for each case of a family of plans.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

import numpy as np

from hpcpar.cost.compute.work import Work
from hpcpar.errors import unknown
from hpcpar.machine.model import Device
from hpcpar.plan.config import Flags, Floats, Numbers
from hpcpar.plan.precision import OF_WORK
from hpcpar.schema import NotNegative, Positive, convert, parse_toml

#: Rows and columns of a tile: a library chooses among them.
TILES = ((128, 128), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64), (32, 32))
#: A sum is split into parts of at least so many terms.
SHORTEST_PART = 64
#: Lanes that the schedulers of a multiprocessor feed; more lanes wait for pairs of instructions.
FED_LANES = 128
#: Flops of tensor cores that load as many words as a flop of a lane: a V100 has 64 such lanes, an
#: A100 128 in float16.
LANE_FLOPS = 8
#: Fewest input and output channels for which libraries take Winograd's algorithm.
WINOGRAD_CHANNELS = 16
#: Years between which libraries became faster, and from when to when Winograd's algorithm came.
LIBRARY_YEARS, WINOGRAD_YEARS = (2012.0, 2020.0), (2015.4, 2016.6)
#: Year in which a library reaches the shares as fitted.
REFERENCE_YEAR = 2017.0
#: Share of a data sheet's rate that the best kernels reach, however young the library.
LARGEST_SHARE = 0.9


@dataclass(frozen=True)
class TensorCores:
    """The fitted numbers of products on tensor cores.

    Winograd's algorithm and Fourier transforms gain nothing there, but tiles read overlapping
    windows as often as Winograd's transforms would; kernels without tiles do not use tensor cores.

    Attributes
    ----------
    share, tile_words, fill : mapping, float, float
        As in `KernelModel`, of the rate of products in the format; lanes are counted as
        `LANE_FLOPS` of a tensor core.
    tf32 : float
        Part of these shares that products in TF32 reach.
    """

    share: Mapping[str, Positive]
    tile_words: NotNegative
    fill: NotNegative
    tf32: Positive


@dataclass(frozen=True)
class KernelModel:
    """The fitted numbers, for all devices together.

    Attributes
    ----------
    share : mapping
        Pass -> share of the data sheet's rate that full tiles of the largest size reach.
    winograd : mapping
        Pass -> times as fast as direct convolution, of 3 x 3 kernels at stride 1.
    winograd_traffic : float
        Additional bytes of Winograd's transforms, as a multiple of the layer's.
    large_window : float
        The same gain of Fourier transforms, of 5 x 5 kernels and larger at stride 1.
    strided : float
        Times as slow: gradient of the input of a convolution with a stride.
    volumes : float
        Times as slow: kernels of three dimensions.
    tile_words : float
        Words that a multiprocessor of `FED_LANES` lanes loads in the time of a product, as the
        length of the sides of a tile at which loading takes half of the time.
    fill : float
        Terms of a sum that could be added while a tile starts and ends.
    direct : float
        Share of the rate of kernels without tiles, as of depthwise convolutions.
    bandwidth : mapping
        Family of layers (`Layer.kernel_family`, ``matmul``, ``update``) -> share of the data
        sheet's bandwidth.
    yearly : float
        Times as fast, of a library a year younger.
    host_s : float
        Host time of an operation: what small kernels wait for.
    tensor : TensorCores
        Products in other formats than float32 and float64.
    """

    share: Mapping[str, Positive]
    winograd: Mapping[str, Positive]
    bandwidth: Mapping[str, Positive]
    winograd_traffic: NotNegative
    large_window: Positive
    strided: Positive
    volumes: Positive
    tile_words: NotNegative
    fill: NotNegative
    direct: Positive
    yearly: Positive
    host_s: NotNegative
    tensor: TensorCores


@lru_cache(maxsize=1)
def fitted() -> KernelModel:
    """The numbers that come with the package."""
    text = (resources.files("hpcpar.cost.compute") / "kernel_model.toml").read_bytes()
    return convert(parse_toml(text, "kernel_model.toml", ""), KernelModel, "kernel_model.toml", "")


@dataclass(frozen=True)
class Product:
    """A pass of a convolution or linear layer as `count` products of m x k and k x n matrices.

    Attributes
    ----------
    flops, bytes : float
        Of the whole operation.
    winograd, large, strided, volume : bool
        Winograd's algorithm suits it; Fourier transforms do; it has a stride; it has three
        dimensions.
    """

    m: Numbers
    n: Numbers
    k: Numbers
    count: Numbers
    flops: Numbers
    bytes: Numbers
    winograd: Flags
    large: Flags
    strided: Flags
    volume: Flags


def product_of(work: Work) -> Product:
    """The product behind a piece of work of a convolution or linear layer, from its boxes."""
    layer, x, y = work.layer, work.x, work.y
    kernel, stride = getattr(layer, "kernel", ()), getattr(layer, "stride", ())
    taps, half = math.prod(kernel), np.maximum(work.flops, 1) / 2
    pixels = x[0] * math.prod(x[2:]), y[0] * math.prod(y[2:])
    channels: Numbers = x[1]
    filters: Numbers = y[1]
    count: Numbers = 1
    if getattr(layer, "groups", 1) > 1:
        places = np.maximum(np.minimum(*pixels) * filters * taps, 1)
        channels = np.maximum(half / places, 1)
        count = np.maximum(x[1] / channels, 1)
        filters = filters / count
    rows, columns = {"forward": (pixels[1], filters), "backward": (pixels[0], channels),
                     "backward_weight": (channels * taps, filters)}[work.op]
    sums = half / np.maximum(rows * columns * count, 1)
    stepwise = all(step == 1 for step in stride)
    winograd = (stepwise and kernel == (3, 3)) & np.greater_equal(
        np.minimum(channels, filters), WINOGRAD_CHANNELS)
    large = stepwise and min(kernel, default=0) >= 5
    return Product(rows, columns, sums, count, work.flops, work.bytes, winograd, large,
                   not stepwise, len(kernel) == 3)


def product_s(model: KernelModel, device: Device, op: str, p: Product) -> Floats:
    """Seconds of a pass of products, without launch and host."""
    year = np.clip(device.software_year, *LIBRARY_YEARS)
    first, last = WINOGRAD_YEARS
    arrived = np.clip((year - first) / (last - first), 0, 1) * p.winograd
    if op == "forward":  # not for processors that would rather use their tensor cores
        arrived = arrived * np.logical_not(device.has_tf32)
    rate = device.flops_per_s * np.minimum(1, FED_LANES / device.lanes)
    share = np.minimum(model.share[op] * model.yearly ** (year - REFERENCE_YEAR), LARGEST_SHARE)
    fast = (share * (1 + (model.winograd[op] - 1) * arrived)
            * np.where(p.large, model.large_window, 1))
    slow = np.where(p.volume, model.volumes, 1)
    if op == "backward":
        slow = slow * np.where(p.strided, model.strided, 1)
    tiled = _tiled(model, device.multiprocessors, device.lanes, p)
    compute_s = np.minimum(slow * tiled / (fast * rate), p.flops / (model.direct * rate))
    moved = p.bytes * (1 + model.winograd_traffic * arrived)
    return compute_s + moved / (model.bandwidth["matmul"] * device.bandwidth_bytes_per_s)


def tensor_product_s(model: KernelModel, device: Device, op: str, p: Product, rate: Floats,
                     is_tf32: Flags) -> Floats:
    """Seconds of a pass of products in a format of this `rate` (flop/s), without launch and host:
    on tensor cores, or where that is faster by lanes, as `product_s`.
    """
    tensor = model.tensor
    slow = np.where(p.volume, model.volumes, 1)
    if op == "backward":
        slow = slow * np.where(p.strided, model.strided, 1)
    lanes = device.lanes * rate / (LANE_FLOPS * device.flops_per_s)
    reached = tensor.share[op] * np.where(is_tf32, tensor.tf32, 1) * rate
    compute_s = slow * _tiled(tensor, device.multiprocessors, lanes, p) / reached
    moved = p.bytes * (1 + model.winograd_traffic * p.winograd)
    moved_s = moved / (model.bandwidth["matmul"] * device.bandwidth_bytes_per_s)
    return np.minimum(compute_s + moved_s, product_s(model, device, op, p))


def _tiled(model: KernelModel | TensorCores, units: int, lanes: Floats, p: Product) -> Floats:
    """Flops that the time of all tiles could do, with the fastest tile.

    It counts what tiles stick out of the product, multiprocessors that idle in the last wave, and
    words loaded.
    """
    load = model.tile_words * np.minimum(lanes, 2 * FED_LANES) / FED_LANES
    best: Floats = np.inf
    for rows, columns in TILES:
        tiles = np.ceil(p.m / rows) * np.ceil(p.n / columns) * p.count
        parts = np.maximum(np.minimum(np.floor(units / np.maximum(tiles, 1)),
                                      p.k / SHORTEST_PART), 1)
        waves = np.ceil(tiles * parts / units)
        loading = (1 + load * (1 / rows + 1 / columns)) / (1 + model.tile_words / 64)
        best = np.minimum(best, 2.0 * rows * columns * units * waves * loading
                          * (p.k / parts + model.fill))
    return best


def kernel_s(device: Device, work: Work) -> Floats:
    """Seconds of a piece of work on a device of the catalogue.

    Raises
    ------
    InputError
        Nobody knows the layer's `kernel_family`.
    """
    model = fitted()
    if work.dtype == "float64":
        device = device.of_doubles
    rate = device.rate_of(OF_WORK[work.dtype].rates)
    if work.family == "matmul" and rate:
        busy_s = tensor_product_s(model, device, work.op, product_of(work), rate,
                                  work.dtype == "tf32")
    elif work.family == "matmul":
        busy_s = product_s(model, device, work.op, product_of(work))
    else:
        if work.family not in model.bandwidth:
            raise unknown(f"kernel_family of a layer {work.kind}", work.family, model.bandwidth)
        busy_s = work.bytes / (model.bandwidth[work.family] * device.bandwidth_bytes_per_s)
    return with_host_s(model, work.fraction * busy_s + device.launch_s)


def with_host_s(model: KernelModel, device_s: Floats) -> Floats:
    """Seconds of an operation with its host time, most of which a long kernel hides."""
    return np.sqrt(device_s**2 + model.host_s**2)
