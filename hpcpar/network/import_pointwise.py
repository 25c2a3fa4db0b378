"""Import of activations, arithmetic and normalisation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hpcpar.network.base import image_of, shape_text
from hpcpar.network.importer import Importer, decimal
from hpcpar.network.layers import (
    GELU,
    LRN,
    Add,
    Affine,
    BatchNorm,
    Clip,
    Dropout,
    GroupNorm,
    Layer,
    LayerNorm,
    LeakyReLU,
    Multiply,
    ReLU,
)
from hpcpar.network.operations import Node


def plain(kind: type[Layer]) -> Callable[[Importer, Node], str]:
    """Import as a layer without options."""
    return lambda imp, node: imp.add(kind, node)


def leaky_relu(imp: Importer, node: Node) -> str:
    """LeakyRelu."""
    return imp.add(LeakyReLU, node, slope=node.number("alpha", 0.01))


def gelu(imp: Importer, node: Node) -> str:
    """Gelu, exact or by tanh."""
    return imp.add(GELU, node, tanh=node.text("approximate", "none") == "tanh")


def clip(imp: Importer, node: Node) -> str:
    """Clip to numbers."""
    low = imp.number(node, 1, node.number("min", -math.inf))
    high = imp.number(node, 2, node.number("max", math.inf))
    if (low, high) == (0, math.inf):
        return imp.add(ReLU, node)
    return imp.add(Clip, node, low=low, high=high)


def hard_sigmoid(imp: Importer, node: Node, suffix: str = "") -> str:
    """HardSigmoid: clip(alpha x + beta, 0, 1)."""
    alpha, beta = node.number("alpha", 0.2), node.number("beta", 0.5)
    line = imp.add(Affine, node, suffix=f"{suffix}.line", scale=alpha, shift=beta)
    return imp.add(Clip, node, [line], suffix, low=0.0, high=1.0)


def hard_swish(imp: Importer, node: Node) -> str:
    """HardSwish: x clip(x / 6 + 1 / 2, 0, 1)."""
    gate = hard_sigmoid(imp, replace(node, attributes={"alpha": 1 / 6, "beta": 0.5}), ".gate")
    return imp.add(Multiply, node, [imp.source(node), gate])


def dropout(imp: Importer, node: Node) -> str:
    """Dropout."""
    return imp.add(Dropout, node, rate=imp.number(node, 1, node.number("ratio", 0.5)))


def _scalar(imp: Importer, node: Node) -> tuple[int, float] | None:
    """Position and value of the constant among two inputs, if there is one."""
    places = [i for i, name in enumerate(node.inputs) if name in imp.constants]
    if not places:
        return None
    name = node.inputs[places[0]]
    constant = imp.constants[name]
    fixed = not constant.origins or bool(constant.remark)
    single = math.prod(constant.dims) == 1 and not imp.operations.exact_sharing
    value = imp.value(node, places[0]) if single or fixed else None
    if value is None or np.ptp(value):
        raise node.error(f"input '{name}' is a constant of shape {shape_text(constant.dims)}; only "
                         "plain numbers are supported there: use a batch normalisation or a 1x1 "
                         "convolution")
    return places[0], decimal(value.ravel()[:1])


def _affine(imp: Importer, node: Node, which: int, scale: float, shift: float,
            suffix: str = "") -> str:
    return imp.add(Affine, node, [imp.source(node, which)], suffix, scale=scale,
                   shift=shift)


def add(imp: Importer, node: Node) -> str:
    """Add, Sum: of layers, or of a layer and a number."""
    scalar = _scalar(imp, node)
    if scalar:
        return _affine(imp, node, 1 - scalar[0], 1.0, scalar[1])
    sources = [imp.source(node, i) for i in range(len(node.inputs))]
    if len(sources) > 1 and len(set(sources)) == 1:
        return _affine(imp, node, 0, float(len(sources)), 0.0)
    return sources[0] if len(sources) == 1 else imp.add(Add, node, sources)


def subtract(imp: Importer, node: Node) -> str:
    """Sub: of layers, or of a layer and a number."""
    scalar = _scalar(imp, node)
    if scalar is None:
        minus = _affine(imp, node, 1, -1.0, 0.0, ".minus")
        return imp.add(Add, node, [imp.source(node), minus])
    place, number = scalar
    return _affine(imp, node, 0, 1.0, -number) if place else _affine(imp, node, 1, -1.0, number)


def multiply(imp: Importer, node: Node) -> str:
    """Mul: of layers, of an image and its channels' factors, or of a layer and a number."""
    scalar = _scalar(imp, node)
    if scalar:
        return _affine(imp, node, 1 - scalar[0], scalar[1], 0.0)
    first, second = sorted((0, 1), key=lambda i: -len(imp.sample_shape(node, i)))
    return imp.add(Multiply, node, [imp.source(node, first), imp.source(node, second)])


def divide(imp: Importer, node: Node) -> str:
    """Div by a number."""
    scalar = _scalar(imp, node)
    if scalar is None or scalar[0] == 0:
        raise node.error("is supported only as a division by a number; multiply layers instead")
    return _affine(imp, node, 0, 1 / scalar[1], 0.0)


def negate(imp: Importer, node: Node) -> str:
    """Neg."""
    return _affine(imp, node, 0, -1.0, 0.0)


def lrn(imp: Importer, node: Node) -> str:
    """LRN, the operator (odd sizes) or what PyTorch writes: pad, average, multiply, add, power."""
    pads = imp.value(node, 1)
    if pads is None:
        size = node.integer("size")
        if size % 2 == 0:
            raise node.error(
                f"an even size ({size}) is not supported: its window lies elsewhere here")
        return imp.add(LRN, node, size=size, alpha=node.number("alpha", 1e-4),
                       beta=node.number("beta", 0.75), k=node.number("bias", 1.0))
    size = math.prod(node.integers("kernel_shape"))
    before = [int(p) for p in pads.ravel()[:len(pads.ravel()) // 2] if p]
    if before not in ([size // 2], []):
        raise node.error(f"its window lies elsewhere than LRN's of size {size}")
    alpha, beta, k = (imp.number(node, i, 1.0) for i in (2, 3, 4))
    return imp.add(LRN, node, size=size, alpha=alpha, beta=beta, k=k)


def _affine_weights(imp: Importer, node: Node) -> bool:
    """Whether a normalisation has a scale and a shift to train: without, exporters write ones and
    zeros, literally.
    """
    found = [imp.constant(node, 1), imp.constant(node, 2)]
    neutral = [c is None or (bool(c.remark) and bool(np.all(imp.value(node, i) == i % 2)))
               for i, c in enumerate(found, 1)]
    if all(neutral):
        return False
    if None in found:
        raise node.error("has a scale without a shift, or the reverse; give it both, or none")
    imp.weights(node, 1, 2)
    return True


def _normalisation(imp: Importer, node: Node, kind: type[Layer], **options: float) -> str:
    return imp.add(kind, node, (), "", eps=node.number("epsilon", 1e-5),
                   affine=_affine_weights(imp, node), **options)


def batch_norm(imp: Importer, node: Node) -> str:
    """BatchNormalization."""
    # ONNX's momentum weights the old mean, PyTorch's (and ours) the new batch.
    momentum = round(1 - node.number("momentum", 0.9), 6)
    return _normalisation(imp, node, BatchNorm, momentum=momentum)


def group_norm(imp: Importer, node: Node) -> str:
    """GroupNormalization; InstanceNormalization is that of groups of one channel."""
    channels, reshaped = imp.sample_shape(node)[0], imp.value(node, 3)
    groups = channels if reshaped is None else int(reshaped.ravel()[1])
    groups = node.integer("num_groups", groups)
    scale = imp.constant(node, 1)
    if scale is not None and scale.origins and math.prod(scale.dims) != channels:
        raise node.error(f"has {math.prod(scale.dims)} scales for {channels} channels; export it "
                         "with one of each channel (opset 21)")
    return _normalisation(imp, node, GroupNorm, groups=groups)


def layer_norm(imp: Importer, node: Node) -> str:
    """LayerNormalization of whole samples."""
    x, scale = imp.sample_shape(node), imp.constant(node, 1)
    axis = imp.axis(node, node.integer("axis", -1))
    if axis != 1 or (scale is not None and image_of(scale.dims) != x):
        raise node.error(f"only the normalisation of whole samples {shape_text(x)} is supported; "
                         "use that, or a group normalisation")
    return _normalisation(imp, node, LayerNorm)
