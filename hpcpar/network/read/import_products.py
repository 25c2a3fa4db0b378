"""Import of matrix products and softmax."""

from __future__ import annotations

import math
from dataclasses import replace

from hpcpar.network.layers import Affine, Linear, Pointwise
from hpcpar.network.layers.base import Shape, shape_text
from hpcpar.network.read import import_reductions as reductions
from hpcpar.network.read.import_views import channels_behind, identity, softmax_of_two
from hpcpar.network.read.import_windows import pixelwise
from hpcpar.network.read.importer import Importer
from hpcpar.network.read.operations import Node
from hpcpar.network.read.tensor_view import TensorView, channels_last

#: Operators after the softmax at the end of a network.
_MOVES = ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose")


def _product(imp: Importer, node: Node, weight: Shape, bias: bool) -> str | TensorView:
    """A linear layer with a weight of shape [in, out], or a 1x1 convolution if the input has its
    channels last.
    """
    apart = channels_behind(imp, node)
    whole = imp.graph.shapes[imp.layer(apart.tensor)] if apart else ()
    if apart and weight[:1] == whole[:1] and len(weight) == 2:
        made = f"{node.outputs[0]}@"
        imp.layer_names[made] = pixelwise(imp, node, imp.layer(apart.tensor), weight[1], bias)
        index = channels_last((weight[1], *whole[1:]))
        return TensorView(made, index.reshape(*apart.index.shape[:-1], weight[1]), node)
    x = imp.sample_shape(node)
    if len(weight) != 2 or x != weight[:1]:
        raise node.error(
            f"has weights {shape_text(weight)} for input samples {shape_text(x)}; flatten before "
            "it, and leave --input out if the file fixes the image size")
    return imp.add(Linear, node, out_features=weight[1], bias=bias)


def gemm(imp: Importer, node: Node) -> str | TensorView:
    """Gemm: a linear layer, with factors of the product and of the bias as layers after it."""
    if node.integer("transA", 0):
        raise node.error("transA is not supported, because it mixes samples; leave it out")
    out_first = bool(node.integer("transB", 0))
    alpha, beta = node.number("alpha", 1.0), node.number("beta", 1.0)
    if alpha != 1 or beta != 1:
        return _scaled(imp, node, alpha, beta)
    weight, *bias = imp.weights(node, 1, 2, transposed=not out_first)
    shape = weight.dims[::-1] if out_first else weight.dims
    if bias and math.prod(bias[0].dims) != shape[-1]:
        raise node.error(f"adds {shape_text(bias[0].dims)} to {shape[-1]} features; give each its "
                         "own bias")
    return _product(imp, node, shape, bool(bias))


def _scaled(imp: Importer, node: Node, alpha: float, beta: float) -> str:
    """beta * (alpha / beta * product + bias)."""
    plain, biased = f"{node.outputs[0]}@", imp.constant(node, 2) is not None and beta != 0
    attributes = {"transB": node.integer("transB", 0)}
    imp.layer_names[plain] = str(gemm(imp, replace(
        node, inputs=node.inputs[:2], outputs=(plain,), attributes=attributes)))
    if not biased:
        return imp.add(Affine, node, [imp.layer(plain)], ".alpha", scale=alpha, shift=0.0)
    scaled = imp.add(Affine, node, [imp.layer(plain)], ".alpha", scale=alpha / beta, shift=0.0)
    (bias,) = imp.weights(node, 2)
    made = imp.add(Pointwise, node, [scaled], ".bias", steps=(("add", "x0", "w"),),
                   parameter=(math.prod(bias.dims),), initial=0.0)
    return imp.add(Affine, node, [made], ".beta", scale=beta, shift=0.0)


def matmul(imp: Importer, node: Node) -> str | TensorView:
    """MatMul, merged with a bias if its only reader adds a vector."""
    if node.inputs[1] not in imp.constants:
        raise node.error("multiplies two tensors, as in attention; multiply by weights, or give "
                         "the PyTorch module itself as --network")
    readers = imp.readers.get(node.outputs[0], [])
    features, sums = imp.constants[node.inputs[1]].dims[-1:], ""
    if len(readers) == 1 and readers[0].op == "Add":
        addends = [i for i in readers[0].inputs if i in imp.constants]
        if [(math.prod(imp.constants[i].dims),) for i in addends] == [features]:
            sums, node = readers[0].outputs[0], replace(node, inputs=(*node.inputs[:2], *addends))
    weight, *bias = imp.weights(node, 1, 2, transposed=True)
    made = _product(imp, node, weight.dims, bool(bias))
    if isinstance(made, TensorView):
        imp.views |= {sums: made} if sums else {}
    elif sums:
        imp.layer_names[sums] = made
    return made


def softmax(imp: Importer, node: Node) -> str | TensorView:
    """Softmax, LogSoftmax: part of the loss at the end of a network, else a layer."""
    ends = _ends(imp, node)
    if ends and not imp.loss.outside and reductions.over_channels(imp, node):
        return identity(imp, node)
    gates = softmax_of_two(imp, node) if node.op == "Softmax" and not ends else None
    made = gates or reductions.softmax(imp, node)
    if made is None:
        raise node.error("is over parts of a layer's axes, which is not supported; write it over "
                         "whole axes")
    return made


def _ends(imp: Importer, node: Node) -> bool:
    """Whether a node's result is the output, or only its axes are moved before."""
    output = node.outputs[0]
    while len(readers := imp.readers.get(output, [])) == 1 and readers[0].op in _MOVES:
        output = readers[0].outputs[0]
    return output in imp.operations.outputs
