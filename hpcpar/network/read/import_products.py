"""Import of matrix products and softmax."""

from __future__ import annotations

import math

from hpcpar.network.layers import Linear
from hpcpar.network.layers.base import Shape, shape_text
from hpcpar.network.read import import_reductions as reductions
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
            f"has weights {shape_text(weight)} for input samples {shape_text(x)}; flatten before "
            "it, and leave --input out if the file fixes the image size")
    return imp.add(Linear, node, out_features=weight[1], bias=bias)


def gemm(imp: Importer, node: Node) -> str | TensorView:
    """Gemm: a linear layer, or a 1x1 convolution if the input has its channels last."""
    scaled = node.number("alpha", 1.0) != 1 or node.number("beta", 1.0) != 1
    if scaled or node.integer("transA", 0):
        raise node.error("alpha, beta and transA are not supported; export a plain linear layer")
    out_first = bool(node.integer("transB", 0))
    weight, *bias = imp.weights(node, 1, 2, transposed=not out_first)
    shape = weight.dims[::-1] if out_first else weight.dims
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
    """MatMul, merged with a bias if its only reader adds a vector."""
    if node.inputs[1] not in imp.constants:
        raise node.error("multiplies two tensors, as in attention; multiply by weights, or give "
                         "the PyTorch module itself as --network")
    readers = imp.readers.get(node.outputs[0], [])
    weight, = imp.weights(node, 1, transposed=True)
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
    """Softmax, LogSoftmax: part of the loss at the end of a network, else a layer."""
    ends = node.outputs[0] in imp.operations.outputs
    if ends and not imp.loss.outside and imp.axis(node, node.integer("axis", -1)) == 1:
        return imp.source(node)
    gates = softmax_of_two(imp, node) if node.op == "Softmax" and not ends else None
    made = gates or reductions.softmax(imp, node)
    if made is None:
        raise node.error("is over parts of a layer's axes, which is not supported; write it over "
                         "whole axes")
    return made
