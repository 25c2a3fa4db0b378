"""Converters of operators to layers, by ONNX name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from hpcpar.errors import InputError
from hpcpar.network import layers
from hpcpar.network.builder import Graph
from hpcpar.network.graph import Network
from hpcpar.network.layers.base import Shape
from hpcpar.network.layers.loss import Loss
from hpcpar.network.read import import_formulas as formulas
from hpcpar.network.read import import_pointwise as pointwise
from hpcpar.network.read import import_products as products
from hpcpar.network.read import import_reductions as reductions
from hpcpar.network.read import import_views as views
from hpcpar.network.read import import_windows as windows
from hpcpar.network.read.endings import Output, endings
from hpcpar.network.read.import_views import Conversion
from hpcpar.network.read.importer import Importer
from hpcpar.network.read.join_formulas import joined
from hpcpar.network.read.operations import (
    NodeError,
    NodeErrors,
    Operations,
    first_three,
)
from hpcpar.network.read.patterns import merged
from hpcpar.network.read.traced_calls import TracedCalls
from hpcpar.network.read.whole_parts import WHOLE, go_on, require_apart, whole_layer, with_parts

OPERATORS: dict[str, Conversion] = {
    "AdaptiveAveragePool": windows.adaptive,
    "AdaptiveMaxPool": windows.adaptive,
    "Add": pointwise.add,
    "AddScaled": pointwise.add_scaled,
    "AveragePool": windows.of_rows(windows.pool),
    "BatchNormalization": pointwise.batch_norm,
    "Cast": formulas.cast,
    "Clip": pointwise.clip,
    "Concat": views.channels_first(views.concat),
    "Conv": windows.of_rows(windows.convolution),
    "ConvTranspose": windows.of_rows(windows.transposed),
    "DepthToSpace": views.depth_to_space,
    "Div": pointwise.divide,
    "Dropout": pointwise.dropout,
    "Elu": pointwise.elu,
    "Expand": views.expand,
    "Flatten": views.flatten,
    "Gather": views.gather,
    "Gelu": pointwise.gelu,
    "Glu": formulas.glu,
    "Gemm": products.gemm,
    "GlobalAveragePool": windows.pool_all,
    "GlobalMaxPool": windows.pool_all,
    "GroupNormalization": pointwise.group_norm,
    "Identity": views.identity,
    "InstanceNormalization": pointwise.group_norm,
    "LRN": pointwise.lrn,
    "LayerNormalization": pointwise.layer_norm,
    "LeakyRelu": pointwise.leaky_relu,
    "LogSoftmax": products.softmax,
    "MatMul": products.matmul,
    "Max": formulas.folded("maximum"),
    "MaxPool": windows.of_rows(windows.pool),
    "Min": formulas.folded("minimum"),
    "Mish": pointwise.plain(layers.Mish),
    "Mul": pointwise.multiply,
    "Neg": pointwise.negate,
    "PRelu": pointwise.prelu,
    "Pad": views.channels_first(windows.pad),
    "Pow": pointwise.power,
    **dict.fromkeys(("ReduceFirst", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceStd",
                     "ReduceSum", "ReduceVar"), reductions.reduction),
    "Relu": pointwise.plain(layers.ReLU),
    "Repeat": views.repeat,
    "Reshape": views.reshape,
    "Resize": views.channels_first(windows.resize),
    "Selu": pointwise.elu,
    "Sigmoid": pointwise.plain(layers.Sigmoid),
    "Silu": pointwise.plain(layers.SiLU),
    "Slice": views.slices,
    "Softmax": products.softmax,
    "SpaceToDepth": views.space_to_depth,
    "Split": views.split,
    "Squeeze": views.squeeze,
    "Stack": views.stack,
    "Sub": pointwise.subtract,
    "Sum": pointwise.add,
    "Tanh": pointwise.plain(layers.Tanh),
    "Tile": views.tile,
    "Transpose": views.transpose,
    "Unsqueeze": views.unsqueeze,
    "Upsample": windows.resize,
    **dict.fromkeys(formulas.FORMULAS, formulas.by_table),
}
OPERATORS |= {name: views.elementwise(OPERATORS[name])
              for name in (*views.ELEMENTWISE, *formulas.FORMULAS)}


def reads_onnx(*operators: str) -> Callable[[Conversion], Conversion]:
    """Decorator that registers a function to convert ONNX operators, by name, to your own layer.

    The function takes the `Importer` and the `Node`, adds layers, and returns the last one's name.
    """

    def register(convert: Conversion) -> Conversion:
        OPERATORS.update(dict.fromkeys(operators, convert))
        return convert

    return register


def build(operations: Operations, name: str, shape: Shape,
          loss: type[Loss] = layers.SoftmaxCrossEntropy,
          trace: TracedCalls | None = None) -> Network:
    """The network of operators, with a loss appended; see `build_with_outputs`."""
    return build_with_outputs(operations, name, shape, loss, trace)[0]


def build_with_outputs(operations: Operations, name: str, shape: Shape, loss: type[Loss],
                       trace: TracedCalls | None) -> tuple[Network, list[Output]]:
    """The network of operators, with a loss appended, and its outputs if the caller computes it.

    With the `trace` of a PyTorch module, the parts that no layer describes become `Whole` layers.

    Raises
    ------
    InputError
        Operators have no layer, or shapes do not fit.
    """
    reasons: dict[str, NodeError] = {}
    while True:
        try:
            network, outputs = _build(operations, name, shape, loss, trace)
            if trace is not None:
                require_apart(operations, trace, network)
            return network, outputs
        except NodeErrors as err:
            if trace is None:
                raise
            operations = with_parts(operations, trace, err, reasons, loss.outside)


def _build(operations: Operations, name: str, shape: Shape, loss: type[Loss],
           trace: TracedCalls | None) -> tuple[Network, list[Output]]:
    """The network of operators that all have layers, and its outputs."""
    operations = merged(operations)
    operators = OPERATORS if trace is None else OPERATORS | {WHOLE: partial(whole_layer, trace)}
    importer = Importer(operations, Graph(name, shape), operators, loss)
    importer.run(None if trace is None else partial(go_on, trace))
    outputs: list[Output] = []
    try:
        if loss.outside:
            ends, outputs = endings(importer, operations.outputs)
        else:
            ends = [importer.layer(views.end(importer, output)) for output in operations.outputs]
    except NodeError as err:
        raise NodeErrors(operations.source, [err]) from err
    except KeyError as err:
        raise InputError(f"{operations.source}: the output '{err.args[0]}' does not depend on the "
                         f"input '{operations.input}'") from err
    if len(ends) > 1 and not loss.outside:
        raise InputError(f"{operations.source} returns {len(ends)} tensors in training, but a "
                         "network has one output; leave auxiliary ones out (or write the loop "
                         "yourself: hpcpar.torch takes several)")
    pixels = {"pixels": importer.graph.shapes[ends[0]][1:]} if loss.outside else {}
    try:
        importer.graph.keep(ends)
        origins = joined(importer.graph, ends, importer.origins)
        notes = (*operations.notes, *importer.notes(), *_frozen(importer.graph, loss),
                 *_unused(operations, importer), *_whole(importer.graph))
        importer.graph.add(loss, "loss", after=ends, **pixels)
        return replace(importer.graph.build(), notes=notes, origins=origins), outputs
    except InputError as err:
        raise InputError(f"{operations.source}: {err}") from err


def _frozen(graph: Graph, loss: type[Loss]) -> Iterator[str]:
    """A note on frozen layers, which keep their random initial weights."""
    frozen = [layer.name for layer in graph.layers if layer.weights == "frozen"]
    if frozen and not loss.outside:
        yield (f"the weights of {first_three(frozen)} are frozen: load the module's weights "
               "with hpcpar weights from-torch and hpcpar run --resume --partial")


def _whole(graph: Graph) -> Iterator[str]:
    """A note on parts that PyTorch computes."""
    flops = {layer.name: layer.forward_flops(graph.shapes[layer.inputs[0]])
             for layer in graph.layers if layer.inputs}
    wholes = [layer.name for layer in graph.layers if isinstance(layer, layers.Whole)]
    if wholes:
        share = sum(flops[name] for name in wholes) / max(1.0, sum(flops.values()))
        yield (f"no layers describe {first_three(wholes)} ({share:.0%} of the flops): PyTorch "
               "computes them on whole samples, so that only samples are cut there")


def _unused(operations: Operations, importer: Importer) -> Iterator[str]:
    """A note on parameters on which a module's output does not depend."""
    read = {name for node in operations.nodes for name in node.inputs}
    used = frozenset[str]().union(*(c.origins for name, c in operations.constants.items()
                                    if name in read), *importer.origins.values())
    unused = sorted(name for name, c in operations.constants.items()
                    if c.trained and not c.origins & used)
    if unused and operations.exact_sharing:
        yield (f"the output does not depend on the parameters {first_three(unused)}; they are left "
               "out")
