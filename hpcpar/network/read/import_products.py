"""Import of matrix products, and of the softmax at the end."""

from __future__ import annotations

import math

from hpcpar.network.layers import Linear
from hpcpar.network.layers.base import Shape, shape_text
from hpcpar.network.read.import_views import softmax_of_two
from hpcpar.network.read.import_windows import pixelwise
from hpcpar.network.read.importer import Importer
from hpcpar.network.read.operations import Node
from hpcpar.network.read.tensor_view import TensorView, channels_last


def linear(imp: Importer, node: Node, weight: Shape, bias: bool) -> str:
    """A linear layer with a weight of shape [in, out]."""
    x = imp.sample_shape(node)
    if len(weight) != 2 or x != weight[:1]:
        raise node.error(
            f"has weights {shape_text(weight)}, its input samples {shape_text(x)}; flatten "
            "before it, and leave --input out where the file fixes the size of images")
    return imp.add(Linear, node, out_features=weight[1], bias=bias)


def gemm(imp: Importer, node: Node) -> str | TensorView:
    """Gemm: a linear layer, or of channels that stand last a convolution of each pixel."""
    scaled = node.number("alpha", 1.0) != 1 or node.number("beta", 1.0) != 1
    if scaled or node.integer("transA", 0):
        raise node.error("alpha, beta and transA are not supported; export a plain linear layer")
    usual = bool(node.integer("transB", 0))
    weight, *bias = imp.weights(node, 1, 2, transposed=not usual)
    shape = weight.dims[::-1] if usual else weight.dims
    if bias and math.prod(bias[0].dims) != shape[-1]:
        raise node.error(f"adds {shape_text(bias[0].dims)} to {shape[-1]} features; give each its "
                         "own bias")
    apart = imp.unread(node)
    whole = imp.graph.shapes[imp.layer(apart.tensor)] if apart else ()
    if apart and apart.last_axis(whole) and shape[0] == whole[0]:
        made = f"{node.outputs[0]}@"
        imp.layer_names[made] = pixelwise(imp, node, imp.layer(apart.tensor), shape[1], bool(bias))
        index = channels_last((shape[1], *whole[1:]))
        return TensorView(made, index.reshape(*apart.index.shape[:-1], shape[1]), node)
    return linear(imp, node, shape, bool(bias))


def matmul(imp: Importer, node: Node) -> str:
    """A matrix product, merged with the bias if an Add of a vector is its only reader."""
    if node.inputs[1] not in imp.constants:
        raise node.error("is a product of two tensors, as in attention over pixels, which is out "
                         "of scope; multiply with weights")
    readers, (weight, ) = (imp.readers.get(node.outputs[0], []),
                             imp.weights(node, 1, transposed=True))
    bias = None
    if len(readers) == 1 and readers[0].op == "Add":
        addends = [imp.constants[i] for i in readers[0].inputs if i in imp.constants]
        if [math.prod(addend.dims) for addend in addends] == [weight.dims[-1]]:
            bias = readers[0]
    name = linear(imp, node, weight.dims, bias is not None)
    if bias is not None:
        imp.layer_names[bias.outputs[0]] = name
    return name


def softmax(imp: Importer, node: Node) -> str | TensorView:
    """Softmax, LogSoftmax at the end: part of the loss; elsewhere over two branches."""
    inside = node.outputs[0] not in imp.operations.outputs and node.op == "Softmax"
    of_two = softmax_of_two(imp, node) if inside else None
    if of_two:
        return of_two
    axis = imp.axis(node, node.integer("axis", -1))
    if node.outputs[0] not in imp.operations.outputs or axis != 1:
        raise node.error("is supported only at the end, over channels, where it belongs to the "
                         "loss")
    if imp.loss.outside:
        raise node.error("belongs to the loss here; leave it out of the module")
    return imp.source(node)
