"""Conversion of ONNX operators to layers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np

from hpcpar.errors import InputError
from hpcpar.network.base import Layer, Shape, shape_text
from hpcpar.network.builder import Graph, Option
from hpcpar.network.layers import (
    LRN,
    Add,
    AvgPool2d,
    AvgPool3d,
    BatchNorm,
    Concat,
    Conv2d,
    Conv3d,
    Dropout,
    Flatten,
    GlobalAvgPool,
    Linear,
    MaxPool2d,
    MaxPool3d,
    ReLU,
)
from hpcpar.network.onnx_file import Array, Constant, Node, OnnxFile

#: Placeholder for the number of samples in shapes, whatever the file was exported with.
BATCH = -(1 << 40)
#: Advice in the error for some common operators without a layer.
REMEDIES = {
    "LeakyRelu": "use ReLU",
    "Clip": "use ReLU in place of ReLU6",
    "Pad": "give the padding to the convolution or the pooling itself",
    "GlobalMaxPool": "use a maximum pooling with a window, or the global average",
}


class OnnxImporter:
    """Converts nodes to layers, in order.

    Attributes
    ----------
    graph : Graph
        The network built so far.
    layer_names : dict
        Name of the layer that produces each tensor of the file.
    constants : dict
        Tensors that do not depend on the input.
    readers : dict
        Nodes that read each tensor.
    """

    def __init__(self, file: OnnxFile, graph: Graph) -> None:
        self.file, self.graph = file, graph
        self.layer_names: dict[str, str] = {file.input: graph.last}
        self.constants: dict[str, Constant] = dict(file.constants)
        self.readers: dict[str, list[Node]] = {}
        for node in file.nodes:
            for name in node.inputs:
                self.readers.setdefault(name, []).append(node)

    def convert(self, node: Node) -> None:
        """Convert a node to a layer, a constant, or another name of a layer."""
        output = node.outputs[0]
        if output in self.layer_names:  # a bias that `_matmul` merged into its layer
            return
        if node.op == "Shape":
            self.constants[output] = self._shape(node)
        elif all(i in self.constants or not i for i in node.inputs):
            self.constants[output] = self._fold(node)
        elif node.op in OPERATORS:
            self.layer_names[output] = OPERATORS[node.op](self, node)
        else:
            remedy = REMEDIES.get(node.op, f"the operators {', '.join(sorted(OPERATORS))} are")
            raise node.error(f"operator {node.op} is not supported; {remedy}")

    def _shape(self, node: Node) -> Constant:
        shape = np.array([BATCH, *self.sample_shape(node)])
        start = node.integer("start", 0)
        return Constant.of(shape[start:node.integer("end", len(shape))])

    def _fold(self, node: Node) -> Constant:
        """The output of a node whose inputs are all constants, or left out.

        Exporters compute the target of a reshape from shapes. Weights stay unread: they may lie in
        an external file.
        """
        constants = [self.constants.get(name) for name in node.inputs]
        if constants and constants[0] is not None:
            dims, read = constants[0].dims, constants[0].read
            if node.op == "Identity":
                return constants[0]
            if node.op == "Transpose":
                order = node.integers("perm", range(len(dims))[::-1])
                return Constant(tuple(dims[i] for i in order), lambda: np.transpose(read(), order))
        try:
            return Constant.of(node.compute([None if c is None else c.read() for c in constants]))
        except Exception as err:  # the values may not fit the operator in many ways
            why = " ".join(str(err).split())
            raise node.error(f"cannot be computed from constants ({why})") from err

    def source(self, node: Node, which: int = 0) -> str:
        """Name of the layer that produces an input of the node."""
        name = node.inputs[which] if which < len(node.inputs) else ""
        if name in self.layer_names:
            return self.layer_names[name]
        if name in self.constants:
            raise node.error(
                f"input '{name}' is a constant; only what depends on the images is supported there")
        raise node.error(
            f"input '{name}' is a second output of another node, which is not supported")

    def sample_shape(self, node: Node) -> Shape:
        """Sample shape of the node's first input."""
        return self.graph.shapes[self.source(node)]

    def constant(self, node: Node, which: int) -> Constant | None:
        """An input that must be a constant; None if it is left out."""
        if which >= len(node.inputs) or not node.inputs[which]:
            return None
        if node.inputs[which] not in self.constants:
            raise node.error(f"input '{node.inputs[which]}' must be a constant of the file")
        return self.constants[node.inputs[which]]

    def value(self, node: Node, which: int) -> Array | None:
        """The value of an input that must be a constant; None if it is left out."""
        constant = self.constant(node, which)
        if constant is None:
            return None
        try:
            return constant.read()
        except Exception as err:  # the constant lies in an external file
            raise node.error(f"cannot read the constant '{node.inputs[which]}'") from err

    def weight_shape(self, node: Node) -> Shape:
        """Shape of the second input."""
        weight = self.constant(node, 1)
        if weight is None:
            raise node.error("has no weights")
        return weight.dims

    def add(self, layer: type[Layer], node: Node, after: Sequence[str] = (),
            **options: Option) -> str:
        """Add a layer named after the node; it reads the node's first input by default."""
        inputs = tuple(after) or self.source(node)
        try:
            return self.graph.add(layer, self._name(node), after=inputs, **options)
        except InputError as err:
            raise node.error(str(err)) from err

    def _name(self, node: Node) -> str:
        """PyTorch's module name where it is free, from the weight's name or the node's path.

        The node ``/a/a.0/conv/Conv`` belongs to the module ``a.0.conv``.
        """
        weight = node.inputs[1].replace("/", ".") if len(node.inputs) > 1 else ""
        module, _, field = weight.rpartition(".")
        parts: list[str] = []
        for part in filter(None, node.name.removeprefix("node_").split("/")):
            if parts and part.startswith(parts[-1] + "."):
                parts.pop()
            parts.append(part)
        path = ".".join(parts) or node.op.lower()
        candidates = itertools.chain(
            (module if field == "weight" else "", ".".join(parts[:-1]), path),
            (f"{path}_{i}" for i in itertools.count(2)))
        taken = {"", "loss", *self.graph.shapes}
        return next(name for name in candidates if name not in taken)


def _decimal(x: float) -> float:
    """The decimal number of a single-precision attribute: 1e-05 for 9.999999747e-06."""
    return float(str(np.float32(x)))


def _padding(node: Node, dimensions: int) -> Shape:
    pads = node.integers("pads", (0,) * 2 * dimensions)
    auto = node.attributes.get("auto_pad", b"NOTSET")
    if isinstance(auto, bytes) and auto not in (b"NOTSET", b"VALID"):
        raise node.error(f"auto_pad {auto.decode()} is not supported; export explicit pads")
    if pads[:dimensions] != pads[dimensions:]:
        raise node.error(
            f"pads {list(pads)} differ at the two ends; only symmetric padding is supported")
    return pads[:dimensions] if auto == b"NOTSET" else (0,) * dimensions


def _conv(imp: OnnxImporter, node: Node) -> str:
    weight, x = imp.weight_shape(node), imp.sample_shape(node)
    dimensions, groups = len(weight) - 2, node.integer("group", 1)
    if dimensions not in (2, 3):
        raise node.error(f"convolutions of {dimensions} dimensions are not supported")
    channels = weight[1] * groups
    if x[0] != channels:
        raise node.error(f"has weights for {channels} channels, its input has {x[0]}; "
                         "give --input with as many, or leave it out")
    ones = (1,) * dimensions
    return imp.add(Conv2d if dimensions == 2 else Conv3d, node, out_channels=weight[0],
                   kernel=weight[2:], stride=node.integers("strides", ones),
                   padding=_padding(node, dimensions), dilation=node.integers("dilations", ones),
                   groups=groups, bias=imp.constant(node, 2) is not None)


def _pool(imp: OnnxImporter, node: Node) -> str:
    kernel = node.integers("kernel_shape")
    dimensions = len(kernel)
    if dimensions not in (2, 3):
        raise node.error(f"pooling of {dimensions} dimensions is not supported")
    dilations = node.integers("dilations", (1,))
    if set(dilations) != {1}:
        raise node.error(f"dilations {list(dilations)} are not supported in pooling")
    stride, padding = node.integers("strides", (1,) * dimensions), _padding(node, dimensions)
    if math.prod(kernel) == 1 == math.prod(stride) and not any(padding):
        return imp.source(node)  # adaptive pooling to the size of its input
    options: dict[str, Option] = {"kernel": kernel, "stride": stride, "padding": padding,
                                  "ceil_mode": bool(node.integer("ceil_mode", 0))}
    if node.op == "MaxPool":
        return imp.add(MaxPool2d if dimensions == 2 else MaxPool3d, node, after=(), **options)
    options["count_include_pad"] = bool(node.integer("count_include_pad", 0))
    return imp.add(AvgPool2d if dimensions == 2 else AvgPool3d, node, after=(), **options)


def _global_average(imp: OnnxImporter, node: Node) -> str:
    x = imp.sample_shape(node)
    if node.op == "ReduceMean":
        axes = list(node.integers("axes"))
        value = None if axes else imp.value(node, 1)
        if value is not None:
            axes = value.tolist()
        if {a % (len(x) + 1) for a in axes} != set(range(2, len(x) + 1)) or len(x) < 3:
            raise node.error(
                f"the mean over axes {axes} is not supported, only over all axes of an image")
    return imp.add(GlobalAvgPool, node)


def _batch_norm(imp: OnnxImporter, node: Node) -> str:
    # ONNX's momentum weights the old mean, PyTorch's (and ours) the new batch.
    momentum = round(1 - _decimal(node.number("momentum", 0.9)), 6)
    return imp.add(BatchNorm, node, eps=_decimal(node.number("epsilon", 1e-5)), momentum=momentum)


def _lrn(imp: OnnxImporter, node: Node) -> str:
    size = node.integer("size")
    if size % 2 == 0:
        raise node.error(f"an even size ({size}) is not supported: its window lies elsewhere here")
    return imp.add(LRN, node, size=size, alpha=_decimal(node.number("alpha", 1e-4)),
                   beta=_decimal(node.number("beta", 0.75)), k=_decimal(node.number("bias", 1.0)))


def _dropout(imp: OnnxImporter, node: Node) -> str:
    ratio = imp.value(node, 1)
    default = 0.5 if ratio is None else ratio.item()
    return imp.add(Dropout, node, rate=_decimal(node.number("ratio", default)))


def _flatten(imp: OnnxImporter, node: Node) -> str:
    x = imp.sample_shape(node)
    axis = node.integer("axis", 1)
    if axis % (len(x) + 1) != 1 and len(x) > 1:
        raise node.error(f"axis {axis} is not supported, only 1")
    return imp.source(node) if len(x) == 1 else imp.add(Flatten, node)


def _reshape(imp: OnnxImporter, node: Node) -> str:
    x, value = imp.sample_shape(node), imp.value(node, 1)
    target = [] if value is None else value.tolist()
    size = math.prod(x)
    if len(target) != 2 or target[1] not in (-1, size) or target == [-1, -1]:
        shown = shape_text(tuple("N" if t == BATCH else t for t in target))
        raise node.error(f"a reshape of samples {shape_text(x)} to {shown} is not supported, "
                         f"only to features N x {size}")
    return imp.source(node) if len(x) == 1 else imp.add(Flatten, node)


def _squeeze(imp: OnnxImporter, node: Node) -> str:
    if len(imp.sample_shape(node)) > 1:
        raise node.error(
            "is supported only after a global average, whose output counts as features already")
    return imp.source(node)


def _linear(imp: OnnxImporter, node: Node, weight: Shape, bias: bool) -> str:
    """A linear layer with a weight of shape [in, out]."""
    x = imp.sample_shape(node)
    if len(weight) != 2 or x != weight[:1]:
        raise node.error(
            f"has weights {shape_text(weight)}, its input samples {shape_text(x)}; flatten "
            "before it, and leave --input out where the file's images are of one size")
    return imp.add(Linear, node, out_features=weight[1], bias=bias)


def _gemm(imp: OnnxImporter, node: Node) -> str:
    scaled = node.number("alpha", 1.0) != 1 or node.number("beta", 1.0) != 1
    if scaled or node.integer("transA", 0):
        raise node.error("alpha, beta and transA are not supported")
    weight = imp.weight_shape(node)
    if node.integer("transB", 0):
        weight = weight[::-1]
    return _linear(imp, node, weight, imp.constant(node, 2) is not None)


def _matmul(imp: OnnxImporter, node: Node) -> str:
    """A matrix product, merged with the bias if an Add of a vector is its only reader."""
    readers, weight = imp.readers.get(node.outputs[0], []), imp.weight_shape(node)
    bias = None
    if len(readers) == 1 and readers[0].op == "Add":
        addends = [imp.constants[i] for i in readers[0].inputs if i in imp.constants]
        if [math.prod(addend.dims) for addend in addends] == [weight[-1]]:
            bias = readers[0]
    name = _linear(imp, node, weight, bias is not None)
    if bias is not None:
        imp.layer_names[bias.outputs[0]] = name
    return name


def _add(imp: OnnxImporter, node: Node) -> str:
    return imp.add(Add, node, [imp.source(node, i) for i in range(len(node.inputs))])


def _concat(imp: OnnxImporter, node: Node) -> str:
    axis = node.integer("axis")
    if axis % (len(imp.sample_shape(node)) + 1) != 1:
        raise node.error(f"axis {axis} is not supported, only channels (1)")
    return imp.add(Concat, node, [imp.source(node, i) for i in range(len(node.inputs))])


def _softmax(imp: OnnxImporter, node: Node) -> str:
    if node.outputs[0] != imp.file.output or len(imp.sample_shape(node)) != 1:
        raise node.error("is supported only at the end, where it belongs to the loss")
    return imp.source(node)


OPERATORS: dict[str, Callable[[OnnxImporter, Node], str]] = {
    "Add": _add,
    "AveragePool": _pool,
    "BatchNormalization": _batch_norm,
    "Concat": _concat,
    "Conv": _conv,
    "Dropout": _dropout,
    "Flatten": _flatten,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_average,
    "Identity": OnnxImporter.source,
    "LRN": _lrn,
    "LogSoftmax": _softmax,
    "MatMul": _matmul,
    "MaxPool": _pool,
    "ReduceMean": _global_average,
    "Relu": lambda imp, node: imp.add(ReLU, node),
    "Reshape": _reshape,
    "Softmax": _softmax,
    "Squeeze": _squeeze,
    "Sum": _add,
}
