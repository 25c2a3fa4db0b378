"""Decides how long a kernel takes on an unmeasured device, from its data sheet and the shapes.

Each pass of a convolution or linear layer is a matrix product. A library cuts the product into
tiles, one per multiprocessor at a time, and splits long sums if there are few tiles; it chooses the
fastest tile size. Other layers are limited by bandwidth. `bench/fit_kernels.py` fits the parameters
to published measurements, one set for all devices.

Each value is a number for one plan, or an array with one entry per plan of a family.
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
from hpcpar.io.schema import NotNegative, Positive, convert, parse_toml
from hpcpar.machine.model import Device
from hpcpar.plan.config import Flags, Floats, Numbers
from hpcpar.plan.precision import OF_WORK

#: Rows and columns of the tiles that a library chooses from.
TILES = ((128, 128), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64), (32, 32))
#: Fewest terms in a part of a split sum.
SHORTEST_PART = 64
#: Lanes that the schedulers of a multiprocessor feed; more lanes need pairs of instructions.
FED_LANES = 128
#: Flops on tensor cores that load the same number of words as one flop of a lane. In float16 a V100
#: counts as 64 lanes, an A100 as 128.
LANE_FLOPS = 8
#: Fewest input and output channels for which libraries use Winograd's algorithm.
WINOGRAD_CHANNELS = 16
#: How much longer CPUs take than devices with their data sheet that the model is fitted to: the
#: median of published training runs on Xeon, Xeon Phi and A64FX (``python -m bench.gallery.cpus``).
CPU_SLOWDOWN = 13.6
#: Years in which libraries became faster, and in which they adopted Winograd's algorithm.
LIBRARY_YEARS, WINOGRAD_YEARS = (2012.0, 2020.0), (2015.4, 2016.6)
#: Year of the library that reaches exactly the fitted shares.
REFERENCE_YEAR = 2017.0
#: Upper bound of the share of a data sheet's rate, in any year.
LARGEST_SHARE = 0.9


@dataclass(frozen=True)
class TensorCores:
    """Fitted parameters of products on tensor cores.

    Winograd's algorithm and Fourier transforms gain nothing on tensor cores, but overlapping
    windows cost the same traffic as Winograd's transforms. Kernels without tiles do not use tensor
    cores. In the layouts that tensor cores need, they have a share of their own.

    Attributes
    ----------
    share, tile_words, fill : mapping, float, float
        As in `KernelModel`, relative to the product rate in this format. `LANE_FLOPS` flops of a
        tensor core count as one lane.
    tf32 : float
        Fraction of these shares that TF32 products reach.
    direct : float
        As in `KernelModel`, for items of 4 bytes. Such kernels wait for the words that they load:
        items of 2 bytes go twice as fast.
    """

    share: Mapping[str, Positive]
    tile_words: NotNegative
    fill: NotNegative
    tf32: Positive
    direct: Positive


@dataclass(frozen=True)
class KernelModel:
    """Fitted parameters, one set for all devices.

    Attributes
    ----------
    share : mapping
        Pass -> share of the data sheet's rate that full tiles of the largest size reach.
    winograd : mapping
        Pass -> speedup of Winograd's algorithm over direct convolution, for 3 x 3 kernels at
        stride 1.
    winograd_traffic : float
        Additional bytes that Winograd's transforms move, as a multiple of the layer's bytes.
    large_window : float
        Speedup of Fourier transforms over direct convolution, for kernels of 5 x 5 and larger at
        stride 1.
    strided : float
        Slowdown of the input gradient of a strided convolution.
    volumes : float
        Slowdown of three-dimensional kernels.
    tile_words : float
        Loading a tile takes tile_words (1 / rows + 1 / columns) times as long as its product, on a
        multiprocessor of `FED_LANES` lanes.
    fill : float
        Overhead of a tile, as the number of terms that could be added in that time.
    direct : float
        Share of the data sheet's rate that kernels without tiles reach, e.g. depthwise
        convolutions.
    bandwidth : mapping
        Family of layers (`Layer.kernel_family`, ``matmul``, ``update``) -> share of the data
        sheet's bandwidth.
    yearly : float
        Speedup of a library over the library of the year before.
    host_s : float
        Time of an operation that nothing hides: the host's, and the start and end of the kernel.
    tensor : TensorCores
        Products in formats other than float32 and float64.
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
    """The parameters that come with the package."""
    text = (resources.files("hpcpar.cost.compute") / "kernel_model.toml").read_bytes()
    return convert(parse_toml(text, "kernel_model.toml", ""), KernelModel, "kernel_model.toml", "")


@dataclass(frozen=True)
class Product:
    """A pass of a convolution or linear layer as `count` products of m x k and k x n matrices.

    Flops and bytes count the whole pass. The flags mark convolutions that suit Winograd's algorithm
    (`winograd`) or Fourier transforms (`large`), with a stride, and in three dimensions (`volume`).
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
    """The matrix product behind the work of a convolution or linear layer."""
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


def product_s(model: KernelModel, device: Device, op: str, p: Product, direct: Floats) -> Floats:
    """Device time of a pass in float32 or float64 (s), without launch and host time.

    Kernels without tiles reach the share `direct` of the device's rate.
    """
    year = np.clip(device.software_year, *LIBRARY_YEARS)
    first, last = WINOGRAD_YEARS
    arrived = np.clip((year - first) / (last - first), 0, 1) * p.winograd
    if op == "forward":  # devices with TF32 use tensor cores instead of Winograd's algorithm
        arrived = arrived * np.logical_not(device.has_tf32)
    rate = device.flops_per_s * np.minimum(1, FED_LANES / device.lanes)
    share = np.minimum(model.share[op] * model.yearly ** (year - REFERENCE_YEAR), LARGEST_SHARE)
    fast = (share * (1 + (model.winograd[op] - 1) * arrived)
            * np.where(p.large, model.large_window, 1))
    slow = np.where(p.volume, model.volumes, 1)
    if op == "backward":
        slow = slow * np.where(p.strided, model.strided, 1)
    tiled = _tiled(model, device.multiprocessors, device.lanes, p)
    compute_s = np.minimum(slow * tiled / (fast * rate), p.flops / (direct * rate))
    moved = p.bytes * (1 + model.winograd_traffic * arrived)
    return compute_s + moved / (model.bandwidth["matmul"] * device.bandwidth_bytes_per_s)


def tensor_product_s(model: KernelModel, device: Device, op: str, p: Product, rate: Floats,
                     is_tf32: Flags) -> Floats:
    """Device time of a pass in a format with this `rate` in flop/s (s), without launch and host.

    The pass runs on tensor cores, or on lanes (`product_s`) where they are faster.
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
    direct = tensor.direct * np.where(is_tf32, 1, 2)
    return np.minimum(compute_s + moved_s, product_s(model, device, op, p, direct))


def _tiled(model: KernelModel | TensorCores, units: int, lanes: Floats, p: Product) -> Floats:
    """Effective flops of a product, with the fastest tile size.

    They include tiles that exceed the product, idle multiprocessors in the last wave, and the
    loading of words.
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
    """Seconds of a compute step on a device of the catalog.

    Raises
    ------
    InputError
        The model does not know the layer's `kernel_family`.
    """
    model = fitted()
    if work.dtype == "float64":
        device = device.of_doubles
    rate = device.rate_of(OF_WORK[work.dtype].rates)
    if work.family == "matmul" and rate:
        busy_s = tensor_product_s(model, device, work.op, product_of(work), rate,
                                  work.dtype == "tf32")
    elif work.family == "matmul":
        busy_s = product_s(model, device, work.op, product_of(work), model.direct)
    else:
        if work.family not in model.bandwidth:
            raise unknown(f"kernel_family of a layer {work.kind}", work.family, model.bandwidth)
        busy_s = work.bytes / (model.bandwidth[work.family] * device.bandwidth_bytes_per_s)
        if work.layer is not None and work.layer.whole_samples:  # its products beside the traffic
            busy_s = busy_s + work.flops / (rate or device.flops_per_s)
    if device.kind == "cpu":
        busy_s = CPU_SLOWDOWN * busy_s
    return work.fraction * busy_s + device.launch_s + model.host_s
