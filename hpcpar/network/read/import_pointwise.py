"""Import of activations, arithmetic and normalizations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hpcpar.network.layers import (
    ELU,
    GELU,
    LRN,
    Add,
    Affine,
    BatchNorm,
    ChannelNorm,
    Clip,
    Dropout,
    GroupNorm,
    Layer,
    LayerNorm,
    LeakyReLU,
    Multiply,
    Pointwise,
    ReLU,
)
from hpcpar.network.layers.base import image_of, shape_text
from hpcpar.network.layers.formula import formula
from hpcpar.network.read.import_formulas import clamp, number, of_one_shape, pointwise
from hpcpar.network.read.import_views import TensorView
from hpcpar.network.read.importer import Importer
from hpcpar.network.read.operations import Node


def plain(kind: type[Layer]) -> Callable[[Importer, Node], str]:
    """Converter to a layer without options."""
    return lambda imp, node: imp.add(kind, node)


def leaky_relu(imp: Importer, node: Node) -> str:
    """LeakyRelu."""
    return imp.add(LeakyReLU, node, slope=node.number("alpha", 0.01))


def gelu(imp: Importer, node: Node) -> str:
    """Gelu, exact or with the tanh approximation."""
    return imp.add(GELU, node, tanh=node.text("approximate", "none") == "tanh")


def clip(imp: Importer, node: Node) -> str:
    """Clip, by tensors or numbers; without an upper bound, a clip at zero is a ReLU."""
    if any(name in imp.layer_names or name in imp.views for name in node.inputs[1:]):
        return clamp(imp, node)
    low = imp.number(node, 1, node.number("min", -math.inf))
    high = imp.number(node, 2, node.number("max", math.inf))
    if (low, high) == (0, math.inf):
        return imp.add(ReLU, node)
    return imp.add(Clip, node, low=low, high=high)


def dropout(imp: Importer, node: Node) -> str:
    """Dropout of values or channels."""
    rate = imp.number(node, 1, node.number("ratio", 0.5))
    if rate == 0:
        return imp.source(node)
    return imp.add(Dropout, node, rate=rate, unit=node.text("unit", "value"))


def _fixed(imp: Importer, node: Node) -> tuple[int, float] | None:
    """Position and value of an untrained number among two inputs, if there is one."""
    place = _constant(imp, node)
    value = None if place is None else number(imp, node, node.inputs[place])
    return None if place is None or value is None else (place, value)


def _constant(imp: Importer, node: Node) -> int | None:
    """Position of the constant among two inputs, if there is one."""
    return next((i for i, name in enumerate(node.inputs) if name in imp.constants), None)


def _affine(imp: Importer, node: Node, which: int, scale: float, shift: float,
            suffix: str = "") -> str:
    return imp.add(Affine, node, [imp.source(node, which)], suffix, scale=scale,
                   shift=shift)


def add(imp: Importer, node: Node) -> str:
    """Add, Sum: layers, or a layer and numbers."""
    fixed = _fixed(imp, node)
    if fixed:
        return _affine(imp, node, 1 - fixed[0], 1.0, fixed[1])
    if _constant(imp, node) is not None:
        return pointwise(imp, node, ("add", "x0", "x1"), initial=0.0)
    sources = of_one_shape(imp, node, [imp.source(node, i) for i in range(len(node.inputs))])
    if len(sources) > 1 and len(set(sources)) == 1:
        return _affine(imp, node, 0, float(len(sources)), 0.0)
    return sources[0] if len(sources) == 1 else imp.add(Add, node, sources)


def add_scaled(imp: Importer, node: Node) -> str:
    """The sum of a tensor and a multiple of another."""
    name = f"{node.outputs[0]}@scaled"
    imp.layer_names[name] = _affine(imp, node, 1, node.number("alpha", 1.0), 0.0, ".scaled")
    return add(imp, replace(node, inputs=(node.inputs[0], name)))


def subtract(imp: Importer, node: Node) -> str:
    """Sub: layers, or a layer and a number."""
    fixed = _fixed(imp, node)
    if fixed is None:
        return pointwise(imp, node, ("sub", "x0", "x1"))
    place, value = fixed
    return _affine(imp, node, 0, 1.0, -value) if place else _affine(imp, node, 1, -1.0, value)


def multiply(imp: Importer, node: Node) -> str:
    """Mul: layers, an image and a factor per channel, or a layer and numbers."""
    place = _constant(imp, node)
    if place is not None and imp.constants[node.inputs[place]].kept:
        return _stochastic_depth(imp, node, place)
    fixed = _fixed(imp, node)
    if fixed:
        return _affine(imp, node, 1 - fixed[0], fixed[1], 0.0)
    if place is not None or node.inputs[0] == node.inputs[1]:
        return pointwise(imp, node, ("mul", "x0", "x1"))
    sources = sorted((imp.source(node, i) for i in (0, 1)),
                     key=lambda name: (-len(imp.graph.shapes[name]), -imp.graph.shapes[name][0]))
    sources = of_one_shape(imp, node, sources, gate=True)
    return imp.add(Multiply, node, sources)


def _stochastic_depth(imp: Importer, node: Node, place: int) -> str:
    """A product with random factors, one per sample."""
    factor = imp.constants[node.inputs[place]]
    if not factor.drops:
        return _affine(imp, node, 1 - place, factor.kept, 0.0)
    mean = factor.kept * (1 - factor.drops)
    source = imp.source(node, 1 - place)
    if abs(mean - 1) > 1e-6:
        source = _affine(imp, node, 1 - place, mean, 0.0, ".factor")
    return imp.add(Dropout, node, [source], "", rate=factor.drops, unit="sample")


def power(imp: Importer, node: Node) -> str:
    """Pow."""
    fixed = _fixed(imp, node)
    return pointwise(imp, node, ("square", "x0") if fixed == (1, 2.0) else ("pow", "x0", "x1"))


def prelu(imp: Importer, node: Node) -> str:
    """PRelu: one slope per channel, or one for all."""
    (slope,) = imp.weights(node, 1)
    x, count = imp.sample_shape(node), math.prod(slope.dims)
    if count not in (1, x[0]):
        raise node.error(f"has {count} slopes for {x[0]} channels; give it one in all, or one per "
                         "channel")
    return imp.add(Pointwise, node, (), "", parameter=(count,), initial=0.25, steps=formula(
        ("where", ("greater", "x0", 0.0), "x0", ("mul", "x0", "w"))))


def elu(imp: Importer, node: Node) -> str:
    """Elu, Selu."""
    selu = (1.67326319217681884765625, 1.05070102214813232421875)
    alpha, scale = selu if node.op == "Selu" else (1.0, 1.0)
    return imp.add(ELU, node, alpha=node.number("alpha", alpha), scale=node.number("gamma", scale))


def divide(imp: Importer, node: Node) -> str:
    """Div."""
    fixed = _fixed(imp, node)
    if fixed and fixed[0]:
        return _affine(imp, node, 0, 1 / fixed[1], 0.0)
    return pointwise(imp, node, ("div", "x0", "x1"))


def negate(imp: Importer, node: Node) -> str:
    """Neg."""
    return _affine(imp, node, 0, -1.0, 0.0)


def lrn(imp: Importer, node: Node) -> str:
    """LRN: ONNX's operator (odd sizes), or PyTorch's pattern of pad, average, and arithmetic."""
    pads = imp.value(node, 1)
    if pads is None:
        size = node.integer("size")
        if size % 2 == 0:
            raise node.error(
                f"an even size ({size}) is not supported: hpcpar centers its window differently")
        return imp.add(LRN, node, size=size, alpha=node.number("alpha", 1e-4),
                       beta=node.number("beta", 0.75), k=node.number("bias", 1.0))
    size = math.prod(node.integers("kernel_shape"))
    before = [int(p) for p in pads.ravel()[:len(pads.ravel()) // 2] if p]
    if before not in ([size // 2], []):
        raise node.error(f"its window is not centered like LRN's window of size {size}")
    alpha, beta, k = (imp.number(node, i, 1.0) for i in (2, 3, 4))
    return imp.add(LRN, node, size=size, alpha=alpha, beta=beta, k=k)


def _affine_weights(imp: Importer, node: Node) -> bool:
    """Whether a normalization trains scale and shift; if not, exporters write ones and zeros."""
    scale_and_shift = [imp.constant(node, 1), imp.constant(node, 2)]
    neutral = [c is None or (bool(c.remark) and not c.frozen
                             and bool(np.all(imp.value(node, i) == i % 2)))
               for i, c in enumerate(scale_and_shift, 1)]
    if all(neutral):
        return False
    if None in scale_and_shift:
        raise node.error("has a scale without a shift, or the reverse; give it both or neither")
    imp.weights(node, 1, 2)
    return True


def _normalization(imp: Importer, node: Node, kind: type[Layer], **options: float) -> str:
    return imp.add(kind, node, (), "", eps=node.number("epsilon", 1e-5),
                   affine=_affine_weights(imp, node), **options)


def batch_norm(imp: Importer, node: Node) -> str:
    """BatchNormalization."""
    # ONNX's momentum weights the old mean; PyTorch's, like this package's, weights the new batch
    momentum = round(1 - node.number("momentum", 0.9), 6)
    return _normalization(imp, node, BatchNorm, momentum=momentum)


def group_norm(imp: Importer, node: Node) -> str:
    """GroupNormalization, and InstanceNormalization, which has one channel per group."""
    channels, reshaped = imp.sample_shape(node)[0], imp.value(node, 3)
    groups = channels if reshaped is None else int(reshaped.ravel()[1])
    groups = node.integer("num_groups", groups)
    scale = imp.constant(node, 1)
    if scale is not None and scale.origins and math.prod(scale.dims) != channels:
        raise node.error(f"has {math.prod(scale.dims)} scales for {channels} channels; export it "
                         "with one per channel (opset 21)")
    return _normalization(imp, node, GroupNorm, groups=groups)


def layer_norm(imp: Importer, node: Node) -> str | TensorView:
    """LayerNormalization of whole samples, or of each pixel's channels if channels come last."""
    scale, apart = imp.constant(node, 1), imp.unread(node)
    axis = node.integer("axis", -1)
    whole = imp.graph.shapes[imp.layer(apart.tensor)] if apart else ()
    if apart and apart.last_axis(whole) and axis in (-1, apart.index.ndim - 1):
        inner = f"{node.outputs[0]}@"
        base = replace(node, inputs=(apart.tensor, *node.inputs[1:]))
        imp.layer_names[inner] = _normalization(imp, base, ChannelNorm)
        return TensorView(inner, apart.index, node)
    x, axis = imp.sample_shape(node), imp.axis(node, axis)
    if axis != 1 or (scale is not None and image_of(scale.dims) != x):
        raise node.error(f"supports only whole samples {shape_text(x)}; normalize those, or use a "
                         "group normalization")
    return _normalization(imp, node, LayerNorm)
