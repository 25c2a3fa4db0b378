"""Import of windowed operators: convolutions, pooling, padding, upsampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hpcpar.network import layers
from hpcpar.network.builder import Option
from hpcpar.network.layers import (
    AdaptiveAvgPool,
    Expand,
    GlobalAvgPool,
    GlobalMaxPool,
    Linear,
    Pad,
    Select,
    Upsample,
)
from hpcpar.network.layers.base import Layer, Shape, image_of, shape_text
from hpcpar.network.read import import_views as views
from hpcpar.network.read.importer import Importer
from hpcpar.network.read.operations import Node

_PAD_MODES = {"wrap": "periodic"}


class WindowPlaces(NamedTuple):
    """Options of windows over the image, and the padding before and after each image axis."""

    kernel: Shape
    stride: Shape
    dilation: Shape
    before: Shape
    after: Shape


def _image(imp: Importer, node: Node, dimensions: int) -> Shape:
    """Extents of a node's first input; signals may be images of one row, features one pixel."""
    shape = imp.sample_shape(node)
    return shape[-dimensions:] if len(shape) > dimensions else (1,) * dimensions


def _places(imp: Importer, node: Node, kernel: Shape) -> WindowPlaces:
    """A node's windows, with automatic padding resolved."""
    n, auto = len(kernel), node.text("auto_pad", "NOTSET")
    ones = (1,) * n
    stride, dilation = node.integers("strides", ones), node.integers("dilations", ones)
    pads = node.integers("pads", (0,) * 2 * n)
    before, after = pads[:n], pads[n:]
    if auto != "NOTSET":
        before = after = (0,) * n
    if auto.startswith("SAME"):
        windows = zip(_image(imp, node, n), kernel, stride, dilation, strict=True)
        totals = [max((-(-size // s) - 1) * s + d * (k - 1) + 1 - size, 0)
                  for size, k, s, d in windows]
        less, more = tuple(t // 2 for t in totals), tuple(t - t // 2 for t in totals)
        before, after = (less, more) if auto == "SAME_UPPER" else (more, less)
    return WindowPlaces(kernel, stride, dilation, before, after)


def _layer(node: Node, family: str, dimensions: int) -> type[Layer]:
    """The class of a family for this number of image axes, as Conv2d."""
    kind: type[Layer] | None = getattr(layers, f"{family}{dimensions}d", None)
    if kind is None:
        raise node.error(f"{dimensions} image axes are not supported; give it images of two or "
                         "three, or the PyTorch module itself as --network")
    return kind


def _padded(imp: Importer, node: Node, at: WindowPlaces, value: float = 0.0) -> tuple[str, Shape]:
    """The windows' input and padding; a Pad layer replaces padding that differs at the two ends."""
    if at.before == at.after:
        return imp.source(node), at.before
    return (imp.add(Pad, node, (), ".pad", begin=at.before, end=at.after, value=value),
            (0,) * len(at.before))


def pixelwise(imp: Importer, node: Node, source: str, channels: int, bias: bool) -> str:
    """A linear layer applied to each pixel: a 1x1 convolution."""
    return imp.add(_layer(node, "Conv", imp.dimensions), node, [source], out_channels=channels,
                   kernel=(1,) * imp.dimensions, bias=bias)


def convolution(imp: Importer, node: Node) -> str:
    """Conv: a convolution, or a linear layer on features (images with one pixel)."""
    weight, *bias = imp.weights(node, 1, 2)
    x, groups = imp.sample_shape(node), node.integer("group", 1)
    n = len(weight.dims) - 2
    if x[0] != weight.dims[1] * groups:
        raise node.error(f"has weights for {weight.dims[1] * groups} channels, but its input has "
                         f"{x[0]}; correct --input, or leave it out")
    at = _places(imp, node, weight.dims[2:])
    if len(x) == 1 and groups == math.prod(at.kernel) == 1 and not any(at.before + at.after):
        return imp.add(Linear, node, out_features=weight.dims[0], bias=bool(bias))
    kind = _layer(node, "Conv", n)
    node = _of_image(imp, node, n)
    source, padding = _padded(imp, node, at)
    return imp.add(kind, node, [source], out_channels=weight.dims[0], kernel=at.kernel,
                   stride=at.stride, padding=padding, dilation=at.dilation, groups=groups,
                   bias=bool(bias))


def _of_image(imp: Importer, node: Node, dimensions: int) -> Node:
    """The operator of an image with one pixel, if it is one of features."""
    if len(imp.sample_shape(node)) > 1:
        return node
    pixel = f"{node.outputs[0]}@pixel"
    imp.layer_names[pixel] = imp.add(Expand, node, (), ".pixel", size=(1,) * max(dimensions, 2))
    return replace(node, inputs=(pixel, *node.inputs[1:]))


def transposed(imp: Importer, node: Node) -> str:
    """ConvTranspose, with weights [in, out / groups, ...]."""
    weight, *bias = imp.weights(node, 1, 2)
    x, groups = imp.sample_shape(node), node.integer("group", 1)
    n = len(weight.dims) - 2
    if x[0] != weight.dims[0]:
        raise node.error(f"has weights for {weight.dims[0]} channels, but its input has {x[0]}; "
                         "correct --input, or leave it out")
    node = _of_image(imp, node, n)
    at, extra = _transposed_places(imp, node, weight.dims[2:])
    # the layer cuts off as many pixels at both ends, but adds some at the last: output_padding,
    # which has a limit; a Select cuts off the rest
    limits = [max(s, d) - 1 for s, d in zip(at.stride, at.dilation, strict=True)]
    axes = list(zip(at.before, at.after, extra, limits, strict=True))
    padding = tuple(b - max(0, b - a + e - limit) for b, a, e, limit in axes)
    if min(padding) < 0:
        raise node.error(f"pads {[*at.before, *at.after]} with output_padding {list(extra)} add "
                         "pixels that no input reaches; use a kernel of at least the stride")
    added = [p - a + e for p, (_, a, e, _) in zip(padding, axes, strict=True)]
    first = tuple(b - p for b, p in zip(at.before, padding, strict=True))
    last = tuple(max(0, -count) for count in added)
    crops = any(first + last)
    one, none = (1,) * (n == 1), (0,) * (n == 1)  # a signal is an image of one row
    made = imp.add(_layer(node, "ConvTranspose", max(n, 2)), node, (), ".whole" if crops else "",
                   out_channels=weight.dims[1] * groups, kernel=one + at.kernel,
                   stride=one + at.stride, padding=none + padding, dilation=one + at.dilation,
                   output_padding=none + tuple(max(0, count) for count in added), groups=groups,
                   bias=bool(bias))
    if not crops:
        return made
    extents = zip(imp.graph.shapes[made][1:], none + first, none + last, strict=True)
    return imp.add(Select, node, [made], begin=none + first, step=one + (1,) * n,
                   size=tuple(whole - b - a for whole, b, a in extents))


def _transposed_places(imp: Importer, node: Node, kernel: Shape) -> tuple[WindowPlaces, Shape]:
    """The windows of a ConvTranspose with the pixels that it cuts off, and its output padding."""
    auto, n = node.text("auto_pad", "NOTSET"), len(kernel)
    at = _places(imp, replace(node, attributes={**node.attributes, "auto_pad": b"NOTSET"}), kernel)
    extra = node.integers("output_padding", (0,) * n)[:n]
    size = node.integers("output_shape")[-n:]
    if auto.startswith("SAME") and not size:
        size = tuple(p * s for p, s in zip(_image(imp, node, n), at.stride, strict=True))
    if size:
        whole = zip(_image(imp, node, n), at.stride, at.dilation, kernel, extra, size, strict=True)
        totals = [(p - 1) * s + d * (k - 1) + 1 + e - o for p, s, d, k, e, o in whole]
        less, more = tuple(t // 2 for t in totals), tuple(t - t // 2 for t in totals)
        before, after = (less, more) if auto == "SAME_UPPER" else (more, less)
        at = at._replace(before=before, after=after)
    elif auto == "VALID":
        at = at._replace(before=(0,) * n, after=(0,) * n)
    return at, extra


def pool(imp: Importer, node: Node) -> str:
    """MaxPool, AveragePool; windows of one pixel become identities."""
    kernel, average = node.integers("kernel_shape"), node.op == "AveragePool"
    at = _places(imp, node, kernel)
    if set(at.dilation) != {1}:
        raise node.error(f"pooling with dilations {list(at.dilation)} is not supported; leave them "
                         "out")
    if math.prod(kernel) == 1 == math.prod(at.stride) and not any(at.before + at.after):
        return imp.source(node)  # from adaptive pooling to the size of its input
    include, ceil_mode = bool(node.integer("count_include_pad", 0)), node.integer("ceil_mode", 0)
    if at.before != at.after and average and not include:
        # windows that end beyond the image average the pixels inside
        if ceil_mode or not _ends_in_part(_image(imp, node, len(kernel)), at):
            raise node.error(
                f"pads {[*at.before, *at.after]} differ at the two ends; averages that leave the "
                "padding out need symmetric pads: put a padding layer before it")
        at, ceil_mode = at._replace(after=at.before), 1
    kind = _layer(node, "AvgPool" if average else "MaxPool", len(kernel))
    source, padding = _padded(imp, node, at, 0.0 if average else -math.inf)
    options: dict[str, Option] = {"kernel": kernel, "stride": at.stride, "padding": padding,
                                  "ceil_mode": bool(ceil_mode)}
    if average:
        options["count_include_pad"] = include
    return imp.add(kind, node, [source], "", **options)


def of_rows(convert: views.Conversion) -> views.Conversion:
    """Converter of a windowed operator that may make images of one row in a network of signals."""
    def convert_rows(imp: Importer, node: Node) -> str | views.TensorView:
        made = str(convert(imp, node))
        convolves = node.op in ("Conv", "ConvTranspose")
        kernel = imp.constants[node.inputs[1]].dims[2:] if convolves else node.integers(
            "kernel_shape")
        if len(kernel) <= imp.dimensions:
            return made
        imp.layer_names[f"{node.outputs[0]}@"], shape = made, imp.graph.shapes[made]
        places = np.arange(math.prod(shape), dtype=np.int32).reshape(1, *shape)
        return views.TensorView(f"{node.outputs[0]}@", places, node)
    return convert_rows


def _ends_in_part(image: Shape, at: WindowPlaces) -> bool:
    """Whether padding only the beginning, with partial windows at the end, gives all windows."""
    axes = zip(image, *at, strict=True)
    return all(a >= b and (n + b + a - k) // s == -(-(n + 2 * b - k) // s)
               and (n + b + a - k) // s * s < n + b for n, k, s, _, b, a in axes)


def pool_all(imp: Importer, node: Node) -> str:
    """The average or maximum of whole images; features stay unchanged."""
    if not imp.is_image(node):
        return imp.source(node)
    return imp.add(GlobalAvgPool if node.op == "GlobalAveragePool" else GlobalMaxPool, node)


def adaptive(imp: Importer, node: Node) -> str:
    """Adaptive pooling: ordinary pooling where the output size divides the input's."""
    image, size = imp.pixels(node), node.integers("output_size")
    average = node.op == "AdaptiveAveragePool"
    if set(size) == {1}:
        return pool_all(imp, replace(node, op="GlobalAveragePool" if average else "GlobalMaxPool"))
    if size == image:
        return imp.source(node)
    if not image:
        return imp.add(Expand, node, size=image_of((0, *size))[1:])
    if len(size) != len(image) or any(n % s for n, s in zip(image, size, strict=True)):
        if average and len(size) == len(image):
            return imp.add(AdaptiveAvgPool, node, size=size)
        raise node.error(f"images {shape_text(image)} cannot be cut into {shape_text(size)} equal "
                         "windows; use a size that divides the image, or average pooling")
    kernel = tuple(n // s for n, s in zip(image, size, strict=True))
    windows = {"kernel_shape": kernel, "strides": kernel}
    return pool(imp, replace(node, op="AveragePool" if average else "MaxPool", attributes=windows))


def pad(imp: Importer, node: Node) -> str | views.TensorView:
    """Pad with a number or with pixels of the image; negative pads crop."""
    rank, mode = imp.dimensions + 2, node.text("mode", "constant")
    pads = imp.integers(node, 1, node.integers("pads"))
    axes = [views.axis_in_layer(imp, node, a % rank) for a in imp.integers(node, 3, range(rank))]
    ends = dict.fromkeys(range(rank), (0, 0))
    ends |= dict(zip(axes, zip(pads, pads[len(pads) // 2:], strict=False), strict=False))
    before, after = (tuple(int(ends[a][i]) for a in range(2, rank)) for i in (0, 1))
    if not any(any(pair) for pair in ends.values()):
        return imp.source(node)
    if any(ends[0]):
        raise node.error(f"pads {list(pads)} are not supported; do not pad the sample axis")
    options: dict[str, Option] = {"mode": _PAD_MODES.get(mode, mode)}
    if mode == "constant":
        options["value"] = imp.number(node, 2, node.number("value", 0.0))
    cut = tuple((max(-a, 0), max(-b, 0)) for a, b in list(ends.values())[1:])
    sources: list[str] = []
    if any(map(any, cut)):
        given = imp.view(node)
        box = (slice(None), *(slice(a, n - b) for (a, b), n in zip(
            cut, given.index.shape[1:], strict=True)))
        given = views.TensorView(given.tensor, given.index[box], node)
        if max(before + after + ends[1]) <= 0:
            return given
        name = f"{node.outputs[0]}@"
        imp.views[name] = given
        sources = [imp.layer(name)]
    return imp.add(Pad, node, sources, "", begin=_positive(before), end=_positive(after),
                   channels=_positive(ends[1]), **options)


def _positive(numbers: Sequence[int]) -> Shape:
    return tuple(max(n, 0) for n in numbers)


#: Nearest interpolation by its places and rounding: of Upsample, and of Resize by default. All but
#: the first are the same for whole factors.
_NEAREST = (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"),
            ("half_pixel", "round_prefer_ceil"), ("tf_half_pixel_for_nn", "floor"))


def resize(imp: Importer, node: Node) -> str:
    """Resize, Upsample: nearest or linear interpolation."""
    if len(node.inputs) == 2:  # Resize of opset 10
        node = replace(node, op="Upsample")
    image, factors, extents = _resized(imp, node)
    usual = _NEAREST[0] if node.op == "Upsample" else _NEAREST[1]
    mode = node.text("mode", "nearest")
    where = node.text("coordinate_transformation_mode", usual[0])
    nearest = node.text("nearest_mode", usual[1])
    fits = _interpolates(mode, where, nearest, factors)
    if not imp.is_image(node) and fits and len(extents) == imp.dimensions:
        return imp.add(Expand, node, size=image_of((0, *extents))[1:])
    exact = [size / n for size, n in zip(extents, image, strict=False)] == factors
    if not fits or not exact or len(extents) != len(image) or min(extents) < 1:
        raise node.error(
            f"factors {[round(f, 3) for f in factors]} with mode '{mode}' ({where}, {nearest}) are "
            "not supported; use PyTorch's nearest or linear interpolation to whole extents")
    scale = tuple(size // n for size, n in zip(extents, image, strict=True))
    given = {"scale": scale} if list(scale) == factors else {"size": extents}
    return imp.add(Upsample, node, (), "", mode=mode, align_corners=where == "align_corners",
                   **given)


def _resized(imp: Importer, node: Node) -> tuple[Shape, list[float], Shape]:
    """Image extents before a resize, its factors, and the extents after it."""
    image = imp.pixels(node)
    scales, sizes = imp.value(node, 1 if node.op == "Upsample" else 2), imp.value(node, 3)
    given = [] if scales is None else views.in_layer(node, scales.tolist())
    if given and given[:2] != [1, 1]:
        raise node.error("resizes samples or channels; only image axes are supported")
    if sizes is not None and sizes.size:
        image, found = image or (1,) * imp.dimensions, views.in_layer(node, sizes.tolist())[2:]
        return (image, [size / n for size, n in zip(found, image, strict=False)],
                tuple(map(int, found)))
    return image, given[2:], tuple(round(n * f) for n, f in zip(image, given[2:], strict=False))


def _interpolates(mode: str, where: str, nearest: str, factors: Sequence[float]) -> bool:
    """Whether `Upsample` interpolates in this way."""
    if mode == "linear":
        return where in ("half_pixel", "pytorch_half_pixel", "align_corners")
    return mode == "nearest" and (where, nearest) in _NEAREST and (
        where == "asymmetric" or all(f == int(f) for f in factors))
