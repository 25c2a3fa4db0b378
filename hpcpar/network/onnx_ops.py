"""ONNX operators as layers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcpar.errors import InputError
from hpcpar.network.base import Layer, Shape, text_of
from hpcpar.network.builder import Graph
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
from hpcpar.network.onnx_file import Constant, File, Node
from hpcpar.network.onnx_fold import BATCH, fold, literal

#: What to do instead of some operators that networks like to use.
REMEDIES = {
    "LeakyRelu": "use ReLU",
    "Clip": "use ReLU in place of ReLU6",
    "Pad": "give the padding to the convolution or the pooling itself",
    "GlobalMaxPool": "use a maximum pooling with a window, or the global average",
}


class Importer:
    """Turns nodes into layers, in order.

    Attributes
    ----------
    graph : Graph
        The network so far.
    names : dict
        Layer that makes each tensor of the file.
    constants : dict
        Tensors that are known without the input.
    """

    def __init__(self, file: File, graph: Graph) -> None:
        self.file, self.graph = file, graph
        self.names: dict[str, str] = {file.input: graph.last}
        self.constants: dict[str, Constant] = dict(file.constants)
        self.readers: dict[str, list[Node]] = {}
        for node in file.nodes:
            for name in node.inputs:
                self.readers.setdefault(name, []).append(node)

    def take(self, node: Node) -> None:
        """Add what the node means: a layer, a constant, or only another name."""
        made = node.outputs[0]
        if made in self.names:  # the bias of a product before
            return
        if node.op == "Constant":
            self.constants[made] = literal(node)
        elif node.op == "Shape":
            self.constants[made] = self._shape(node)
        elif node.inputs and all(i in self.constants or not i for i in node.inputs):
            self.constants[made] = fold(node, [self.constants.get(i) for i in node.inputs])
        elif node.op in OPERATORS:
            self.names[made] = OPERATORS[node.op](self, node)
        else:
            remedy = REMEDIES.get(node.op, f"the operators {', '.join(sorted(OPERATORS))} are")
            raise node.error(f"operator {node.op} is not supported; {remedy}")

    def _shape(self, node: Node) -> Constant:
        whole = np.array([BATCH, *self.sample(node)])
        return Constant.of(whole[node.attributes.get("start", 0):node.attributes.get("end")])

    def source(self, node: Node, which: int = 0) -> str:
        """The layer that makes an input of the node."""
        name = node.inputs[which] if which < len(node.inputs) else ""
        if name in self.names:
            return self.names[name]
        if name in self.constants:
            raise node.error(
                f"input '{name}' is a constant; only what depends on the images is supported there")
        raise node.error(
            f"input '{name}' is a second output of another node, which is not supported")

    def sample(self, node: Node, which: int = 0) -> Shape:
        """Shape of a sample of an input of the node."""
        return self.graph.shapes[self.source(node, which)]

    def constant(self, node: Node, which: int) -> Constant | None:
        """An input that must be a constant; None where it is left out."""
        if which >= len(node.inputs) or not node.inputs[which]:
            return None
        if node.inputs[which] not in self.constants:
            raise node.error(f"input '{node.inputs[which]}' must be a constant of the file")
        return self.constants[node.inputs[which]]

    def value(self, node: Node, which: int) -> Any:
        """The numbers of such an input; None where it is left out."""
        found = self.constant(node, which)
        if found is None:
            return None
        try:
            return found.read().tolist()
        except Exception as err:  # kept in a separate file
            raise node.error(f"cannot read the constant '{node.inputs[which]}'") from err

    def weight(self, node: Node) -> Shape:
        """Dimensions of the second input."""
        found = self.constant(node, 1)
        if found is None:
            raise node.error("has no weights")
        return found.dims

    def add(self, layer: type[Layer], node: Node, after: Sequence[str] = (), **options: Any) -> str:
        """A layer named after the node, reading its first input unless told otherwise."""
        try:
            return self.graph.add(layer, self._name(node), after=tuple(after) or self.source(node),
                                  **options)
        except InputError as err:
            raise node.error(str(err)) from err

    def _name(self, node: Node) -> str:
        """As PyTorch calls the module where that is free, by its weights or by its path:
        ``/a/a.0/conv/Conv`` is ``a.0.conv``.
        """
        weights, _, field = node.inputs[1].replace("/",
                                                   ".").rpartition(".") if len(
            node.inputs) > 1 else ("", "", "")
        parts: list[str] = []
        for part in filter(None, node.name.removeprefix("node_").split("/")):
            if parts and part.startswith(parts[-1] + "."):
                parts.pop()
            parts.append(part)
        whole = ".".join(parts) or node.op.lower()
        wanted = (weights if field == "weight" else "", ".".join(parts[:-1]), whole)
        names = itertools.chain(wanted, (f"{whole}_{i}" for i in itertools.count(2)))
        return next(name for name in names if name and name != "loss"
                    and name not in self.graph.shapes)


def _decimal(x: float) -> float:
    """Attributes are single precision: 9.999999747e-06 was written as 1e-05."""
    return float(str(np.float32(x)))


def _pads(node: Node, dimensions: int) -> Shape:
    pads = tuple(node.attributes.get("pads", (0,) * 2 * dimensions))
    auto = node.attributes.get("auto_pad", b"NOTSET")
    if auto not in (b"NOTSET", b"VALID"):
        raise node.error(f"auto_pad {auto.decode()} is not supported; export explicit pads")
    if pads[:dimensions] != pads[dimensions:]:
        raise node.error(
            f"pads {list(pads)} differ at the two ends; only symmetric padding is supported")
    return pads[:dimensions] if auto == b"NOTSET" else (0,) * dimensions


def _conv(imp: Importer, node: Node) -> str:
    weight, x, at = imp.weight(node), imp.sample(node), node.attributes
    dimensions, groups = len(weight) - 2, at.get("group", 1)
    if dimensions not in (2, 3):
        raise node.error(f"convolutions of {dimensions} dimensions are not supported")
    if x[0] != weight[1] * groups:
        raise node.error(f"has weights for {weight[1] * groups} channels, its input has {x[0]}; give --input with as many, or leave it out")
    ones = (1,) * dimensions
    return imp.add(
        Conv2d if dimensions == 2 else Conv3d, node, out_channels=weight[0], kernel=weight[2:], stride=tuple(at.get("strides", ones)),
        padding=_pads(node, dimensions), dilation=tuple(at.get("dilations", ones)), groups=groups, bias=imp.constant(node, 2) is not None,
    )


def _pool(imp: Importer, node: Node) -> str:
    at = node.attributes
    kernel = tuple(at["kernel_shape"])
    dimensions = len(kernel)
    if dimensions not in (2, 3):
        raise node.error(f"pooling of {dimensions} dimensions is not supported")
    if set(at.get("dilations", (1,))) != {1}:
        raise node.error(f"dilations {at['dilations']} are not supported in pooling")
    options: dict[str, Any] = {
        "kernel": kernel, "stride": tuple(at.get("strides", (1,) * dimensions)), "padding": _pads(node, dimensions),
        "ceil_mode": bool(at.get("ceil_mode", 0)),
    }
    if math.prod(kernel) == 1 == math.prod(options["stride"]) and not any(options["padding"]):
        return imp.source(node)  # adaptive pooling to the size that is there
    if node.op == "MaxPool":
        return imp.add(MaxPool2d if dimensions == 2 else MaxPool3d, node, **options)
    options["count_include_pad"] = bool(at.get("count_include_pad", 0))
    return imp.add(AvgPool2d if dimensions == 2 else AvgPool3d, node, **options)


def _global_average(imp: Importer, node: Node) -> str:
    x = imp.sample(node)
    if node.op == "ReduceMean":
        axes = node.attributes.get("axes") or imp.value(node, 1) or []
        if {a % (len(x) + 1) for a in axes} != set(range(2, len(x) + 1)) or len(x) < 3:
            raise node.error(
                f"the mean over axes {list(axes)} is not supported, only over all axes of an image")
    return imp.add(GlobalAvgPool, node)


def _batch_norm(imp: Importer, node: Node) -> str:
    # of the new batch here, of the old mean there
    momentum = round(1 - _decimal(node.attributes.get("momentum", 0.9)), 6)
    return imp.add(BatchNorm, node, eps=_decimal(node.attributes.get("epsilon", 1e-5)),
                   momentum=momentum)


def _lrn(imp: Importer, node: Node) -> str:
    at = node.attributes
    if at["size"] % 2 == 0:
        raise node.error(
            f"an even size ({at['size']}) is not supported: its window lies elsewhere here")
    return imp.add(LRN, node, size=at["size"], alpha=_decimal(at.get("alpha", 1e-4)), beta=_decimal(at.get("beta", 0.75)),
                   k=_decimal(at.get("bias", 1.0)))


def _dropout(imp: Importer, node: Node) -> str:
    rate = node.attributes.get("ratio", imp.value(node, 1))
    return imp.add(Dropout, node, rate=0.5 if rate is None else _decimal(rate))


def _flatten(imp: Importer, node: Node) -> str:
    x = imp.sample(node)
    if node.attributes.get("axis", 1) % (len(x) + 1) != 1 and len(x) > 1:
        raise node.error(f"axis {node.attributes['axis']} is not supported, only 1")
    return imp.source(node) if len(x) == 1 else imp.add(Flatten, node)


def _reshape(imp: Importer, node: Node) -> str:
    x, target = imp.sample(node), imp.value(node, 1)
    size = math.prod(x)
    if len(target) != 2 or target[1] not in (-1, size) or target == [-1, -1]:
        shown = text_of(tuple("N" if t == BATCH else t for t in target))
        raise node.error(f"a reshape of samples {text_of(x)} to {shown} is not supported, only to features N x {size}")
    return imp.source(node) if len(x) == 1 else imp.add(Flatten, node)


def _squeeze(imp: Importer, node: Node) -> str:
    if len(imp.sample(node)) > 1:
        raise node.error(
            "is supported only after a global average, whose output counts as features already")
    return imp.source(node)


def _linear(imp: Importer, node: Node, weight: Shape, bias: bool) -> str:
    """Weight as [in, out]."""
    x = imp.sample(node)
    if len(weight) != 2 or x != weight[:1]:
        raise node.error(f"has weights {text_of(weight)}, its input samples {text_of(x)}; flatten before it, and leave --input out "
                         "where the file's images are of one size")
    return imp.add(Linear, node, out_features=weight[1], bias=bias)


def _gemm(imp: Importer, node: Node) -> str:
    at = node.attributes
    if at.get("alpha", 1.0) != 1 or at.get("beta", 1.0) != 1 or at.get("transA", 0):
        raise node.error("alpha, beta and transA are not supported")
    weight = imp.weight(node)
    return _linear(imp, node, weight[::-1] if at.get("transB", 0) else weight,
                   imp.constant(node, 2) is not None)


def _matmul(imp: Importer, node: Node) -> str:
    """A product, with the bias that is added to it alone."""
    readers, weight = imp.readers.get(node.outputs[0], []), imp.weight(node)
    bias = None
    if len(readers) == 1 and readers[0].op == "Add":
        biases = [imp.constants[i] for i in readers[0].inputs if i in imp.constants]
        bias = readers[0] if [math.prod(b.dims) for b in biases] == [weight[-1]] else None
    name = _linear(imp, node, weight, bias is not None)
    if bias is not None:
        imp.names[bias.outputs[0]] = name
    return name


def _add(imp: Importer, node: Node) -> str:
    return imp.add(Add, node, [imp.source(node, i) for i in range(len(node.inputs))])


def _concat(imp: Importer, node: Node) -> str:
    if node.attributes["axis"] % (len(imp.sample(node)) + 1) != 1:
        raise node.error(f"axis {node.attributes['axis']} is not supported, only channels (1)")
    return imp.add(Concat, node, [imp.source(node, i) for i in range(len(node.inputs))])


def _softmax(imp: Importer, node: Node) -> str:
    if node.outputs[0] != imp.file.output or len(imp.sample(node)) != 1:
        raise node.error("is supported only at the end, where it belongs to the loss")
    return imp.source(node)


OPERATORS: dict[str, Callable[[Importer, Node], str]] = {
    "Add": _add,
    "AveragePool": _pool,
    "BatchNormalization": _batch_norm,
    "Concat": _concat,
    "Conv": _conv,
    "Dropout": _dropout,
    "Flatten": _flatten,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_average,
    "Identity": Importer.source,
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
