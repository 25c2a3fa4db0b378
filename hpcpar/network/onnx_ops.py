"""The operators that become layers, by their names in ONNX."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from hpcpar.errors import InputError
from hpcpar.network import import_pointwise as pointwise
from hpcpar.network import import_shapes as shapes
from hpcpar.network import import_windows as windows
from hpcpar.network import layers
from hpcpar.network.base import Shape
from hpcpar.network.builder import Graph
from hpcpar.network.graph import Network
from hpcpar.network.importer import Importer
from hpcpar.network.loss import Loss
from hpcpar.network.operations import Node, Operations
from hpcpar.network.patterns import merged

Conversion: TypeAlias = Callable[[Importer, Node], str]

OPERATORS: dict[str, Conversion] = {
    "AdaptiveAveragePool": windows.adaptive,
    "AdaptiveMaxPool": windows.adaptive,
    "Add": pointwise.add,
    "AveragePool": windows.pool,
    "BatchNormalization": pointwise.batch_norm,
    "Clip": pointwise.clip,
    "Concat": shapes.concat,
    "Conv": windows.convolution,
    "ConvTranspose": windows.transposed,
    "Div": pointwise.divide,
    "Dropout": pointwise.dropout,
    "Flatten": shapes.flatten,
    "Gelu": pointwise.gelu,
    "Gemm": shapes.gemm,
    "GlobalAveragePool": windows.pool_all,
    "GlobalMaxPool": windows.pool_all,
    "GroupNormalization": pointwise.group_norm,
    "HardSigmoid": pointwise.hard_sigmoid,
    "HardSwish": pointwise.hard_swish,
    "Identity": Importer.source,
    "InstanceNormalization": pointwise.group_norm,
    "LRN": pointwise.lrn,
    "LayerNormalization": pointwise.layer_norm,
    "LeakyRelu": pointwise.leaky_relu,
    "LogSoftmax": shapes.softmax,
    "MatMul": shapes.matmul,
    "MaxPool": windows.pool,
    "Mul": pointwise.multiply,
    "Neg": pointwise.negate,
    "Pad": windows.pad,
    "ReduceMax": windows.pool_all,
    "ReduceMean": windows.pool_all,
    "Relu": pointwise.plain(layers.ReLU),
    "Reshape": shapes.reshape,
    "Resize": windows.resize,
    "Sigmoid": pointwise.plain(layers.Sigmoid),
    "Silu": pointwise.plain(layers.SiLU),
    "Softmax": shapes.softmax,
    "Squeeze": shapes.squeeze,
    "Sub": pointwise.subtract,
    "Sum": pointwise.add,
    "Tanh": pointwise.plain(layers.Tanh),
    "Unsqueeze": shapes.unsqueeze,
    "Upsample": windows.resize,
}


def reads_onnx(*operators: str) -> Callable[[Conversion], Conversion]:
    """Registers what converts operators of ONNX, by name, to a layer of one's own.

    The function takes the `Importer` and the `Node`, adds layers and returns the last one's name.
    """

    def register(convert: Conversion) -> Conversion:
        OPERATORS.update(dict.fromkeys(operators, convert))
        return convert

    return register


def build(operations: Operations, name: str, shape: Shape,
          loss: type[Loss] = layers.SoftmaxCrossEntropy) -> Network:
    """The network of operators, with a loss appended.

    Raises
    ------
    InputError
        Operators have no layer, or shapes do not fit.
    """
    return converted(operations, name, shape, loss)[0]


def converted(operations: Operations, name: str, shape: Shape,
              loss: type[Loss]) -> tuple[Network, dict[str, tuple[str, ...]]]:
    """The network, and the names in the source of the weight and bias of its layers."""
    importer = Importer(merged(operations), Graph(name, shape), OPERATORS, loss)
    importer.run()
    ends = [importer.layer_names.get(output, "") for output in operations.outputs]
    if "" in ends:
        raise InputError(f"{operations.source}: the output '{operations.outputs[ends.index('')]}' "
                         f"does not depend on the input '{operations.input}'")
    if len(ends) > 1 and not loss.outside:
        raise InputError(f"{operations.source} returns {len(ends)} tensors in training; a "
                         "network has one output, leave auxiliary ones out (or write the loop "
                         "yourself: hpcpar.torch takes several)")
    pixels = {"pixels": importer.graph.shapes[ends[0]][1:]} if loss.outside else {}
    try:
        importer.graph.add(loss, "loss", after=ends, **pixels)
        return replace(importer.graph.build(), notes=importer.notes()), importer.stored
    except InputError as err:
        raise InputError(f"{operations.source}: {err}") from err
