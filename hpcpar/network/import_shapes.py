"""Import of operators that change the shape only, and of merges.

Features count as images of one pixel wherever the source has them so.
"""

from __future__ import annotations

import math

from hpcpar.network.base import Shape, shape_text
from hpcpar.network.importer import BATCH, Importer
from hpcpar.network.layers import Concat, Flatten, Linear
from hpcpar.network.operations import Node


def flatten(imp: Importer, node: Node) -> str:
    """Flatten, from the channels on."""
    axis = node.integer("axis", 1)
    if imp.axis(node, axis) != 1:
        raise node.error(f"axis {axis} is not supported, only 1")
    return imp.add(Flatten, node) if imp.is_image(node) else imp.source(node)


def reshape(imp: Importer, node: Node) -> str:
    """Reshape of images to features, of features to images of one pixel, or to the same shape."""
    x, value = imp.sample_shape(node), imp.value(node, 1)
    given = [] if value is None else value.ravel().tolist()
    same, size = [x[0], *imp.pixels(node)], math.prod(x)
    target = [same[i] if t == 0 and i < len(same) else t for i, t in enumerate(given[1:])]
    if -1 in target and given[0] != -1:
        target[target.index(-1)] = size // max(1, math.prod(t for t in target if t != -1))
    if target == [size] and imp.is_image(node):
        return imp.add(Flatten, node)
    pixel = not imp.is_image(node) and target[:1] == [size] == [math.prod(target)]
    if pixel or target == same:
        return imp.source(node)
    shown = shape_text(tuple("N" if t == BATCH else t for t in given))
    raise node.error(f"a reshape of samples {shape_text(x)} to {shown} is not supported, "
                     f"only to features N x {size}")


def squeeze(imp: Importer, node: Node) -> str:
    """Squeeze of images of one pixel: they become features."""
    x = imp.sample_shape(node)
    if math.prod(x[1:]) > 1:
        raise node.error(f"samples {shape_text(x)} have image axes of more than one pixel; it is "
                         "supported only after a global pooling, whose output counts as features")
    return imp.source(node) if len(x) == 1 else imp.add(Flatten, node)


def unsqueeze(imp: Importer, node: Node) -> str:
    """Unsqueeze of features to images of one pixel."""
    value = imp.value(node, 1)
    axes = node.integers("axes") if value is None else value.ravel().tolist()
    if len(imp.sample_shape(node)) > 1 or any(axis in (0, 1) or axis < -2 for axis in axes):
        raise node.error(f"axes {list(axes)} are not supported, only image axes after features")
    return imp.source(node)


def linear(imp: Importer, node: Node, weight: Shape, bias: bool) -> str:
    """A linear layer with a weight of shape [in, out]."""
    x = imp.sample_shape(node)
    if len(weight) != 2 or x != weight[:1]:
        raise node.error(
            f"has weights {shape_text(weight)}, its input samples {shape_text(x)}; flatten "
            "before it, and leave --input out where the file's images are of one size")
    return imp.add(Linear, node, out_features=weight[1], bias=bias)


def gemm(imp: Importer, node: Node) -> str:
    """Gemm: a linear layer."""
    scaled = node.number("alpha", 1.0) != 1 or node.number("beta", 1.0) != 1
    if scaled or node.integer("transA", 0):
        raise node.error("alpha, beta and transA are not supported; export a plain linear layer")
    weight, *bias = imp.weights(node, 1, 2)
    shape = weight.dims[::-1] if node.integer("transB", 0) else weight.dims
    if bias and math.prod(bias[0].dims) != shape[-1]:
        raise node.error(f"adds {shape_text(bias[0].dims)} to {shape[-1]} features; give each its "
                         "own bias")
    return linear(imp, node, shape, bool(bias))


def matmul(imp: Importer, node: Node) -> str:
    """A matrix product, merged with the bias if an Add of a vector is its only reader."""
    readers, (weight, ) = imp.readers.get(node.outputs[0], []), imp.weights(node, 1)
    bias = None
    if len(readers) == 1 and readers[0].op == "Add":
        addends = [imp.constants[i] for i in readers[0].inputs if i in imp.constants]
        if [math.prod(addend.dims) for addend in addends] == [weight.dims[-1]]:
            bias = readers[0]
    name = linear(imp, node, weight.dims, bias is not None)
    if bias is not None:
        imp.layer_names[bias.outputs[0]] = name
    return name


def concat(imp: Importer, node: Node) -> str:
    """Concat of channels; of one tensor the tensor."""
    axis = node.integer("axis")
    if len(node.inputs) == 1:
        return imp.source(node)
    if imp.axis(node, axis) != 1:
        raise node.error(f"axis {axis} is not supported, only channels (1)")
    return imp.add(Concat, node, [imp.source(node, i) for i in range(len(node.inputs))])


def softmax(imp: Importer, node: Node) -> str:
    """Softmax, LogSoftmax at the end: part of the loss."""
    axis = imp.axis(node, node.integer("axis", -1))
    if node.outputs[0] not in imp.operations.outputs or axis != 1:
        raise node.error("is supported only at the end, over channels, where it belongs to the "
                         "loss")
    if imp.loss.outside:
        raise node.error("belongs to the loss here; leave it out of the module")
    return imp.source(node)
