"""Conversion of the operators of a network to layers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from hpcpar.errors import InputError, one_line
from hpcpar.network.builder import Graph, Option
from hpcpar.network.layers.base import Layer, Shape, image_of, shape_text
from hpcpar.network.layers.loss import Loss
from hpcpar.network.read.folded_size import most_values
from hpcpar.network.read.operations import (
    BATCH,
    REMEDIES,
    Array,
    Constant,
    Node,
    NodeError,
    Operations,
    decimal,
    grouped,
)
from hpcpar.network.read.tensor_view import TensorView, layer_of

#: A computed constant with more values, and more than any that it is made of, is refused.
MOST_VALUES = 1 << 20
#: Values of a sample whose order is followed, at most.
MOST_PLACES = 1 << 28


class Importer:
    """Converts operators to layers, in order.

    Attributes
    ----------
    graph : Graph
        The network built so far.
    layer_names : dict
        Name of the layer that produces each tensor of the source.
    constants : dict
        Tensors that do not depend on the input.
    readers : dict
        Nodes that read each tensor.
    """

    def __init__(self, operations: Operations, graph: Graph,
                 operators: Mapping[str, Callable[[Importer, Node], str | TensorView]],
                 loss: type[Loss]) -> None:
        self.operations, self.graph, self.operators = operations, graph, operators
        self.loss = loss
        #: Image axes of the source's tensors; signals (C, W) are images with one row here.
        self.dimensions = len(operations.input_dims) - 2
        self.layer_names: dict[str, str] = {operations.input: graph.last}
        self.constants: dict[str, Constant] = dict(operations.constants)
        self.readers: dict[str, list[Node]] = {}
        for node in operations.nodes:
            for name in node.inputs:
                self.readers.setdefault(name, []).append(node)
        self._remarks: list[NodeError] = []
        self._owners: dict[str, Node] = {}
        #: Modules with weights: other layers do not take their names.
        self._modules = {name.rpartition(".")[0] for name in operations.constants
                         if name.endswith(".weight")}
        #: Tensors of nodes that were refused, or read such a tensor.
        self._lost: set[str] = set()
        self._lost_constants: set[str] = set()
        #: Tensors that have a layer's values in another order, and nodes that no layer may need.
        self.views: dict[str, TensorView] = {}
        self.later: dict[str, Node] = {}
        #: Views whose order no layer gives.
        self._apart: set[str] = set()
        #: Names of the stored tensors that are a layer's weight and bias, as they are; else "".
        self.origins: dict[str, tuple[str, ...]] = {}
        self._weights_of: dict[str, tuple[str, ...]] = {}
        #: The first layer with each of these.
        self._layers_of: dict[tuple[str, ...], str] = {}
        #: `Layer.weights` of the layers that have those of a node.
        self._trained: dict[str, Literal["frozen", "otherwise"]] = {}

    def run(self) -> None:
        """Convert all nodes.

        Raises
        ------
        InputError
            Some have no layer: one line names all of them.
        """
        errors = []
        for node in self.operations.nodes:
            try:
                self._convert(node)
            except NodeError as err:
                errors.append(err)
                self._lost.update(node.outputs)
            except (ArithmeticError, LookupError, TypeError, ValueError) as err:
                # constants of a file may have any type and shape, each operator takes a few
                errors.append(node.error(f"constants or attributes do not fit it ({one_line(err)});"
                                         " export it again"))
                self._lost.update(node.outputs)
        if errors:
            raise InputError(f"{self.operations.source}: {'; '.join(grouped(errors))}")

    def notes(self) -> tuple[str, ...]:
        """Where the network differs from its source."""
        return tuple(grouped(self._remarks))

    def _convert(self, node: Node) -> None:
        """Convert a node to a layer, a constant, or another name of a layer."""
        output = node.outputs[0]
        if output in self.layer_names:  # a bias that a matrix product merged into its layer
            return
        constant = all(i in self.constants or not i for i in node.inputs)
        if self._is_lost_constant(node):
            self._lost_constants.add(output)
        elif node.op not in (*self.operators, "Shape") and not constant:
            key = node.op.lower().replace("_", "")
            remedy = REMEDIES.get(key, "leave it out, or use one of docs/reference/networks.md")
            raise node.error(f"operator {node.op} is not supported; {remedy}")
        elif (self._lost | self._lost_constants).intersection(node.inputs):
            self._lost.update(node.outputs)
        elif node.op == "Shape" and not constant:
            self.constants[output] = self._shape(node)
        elif constant:
            self.constants[output] = self._fold(node)
        else:
            self._make(node)

    def _make(self, node: Node) -> None:
        """The layer, or the view, that a node's output is."""
        output = node.outputs[0]
        made = self.operators[node.op](self, node)
        if isinstance(made, TensorView):
            self.views[output] = made
        else:
            self.layer_names[output] = made
            self._check_shape(node)

    def view(self, node: Node, which: int = 0) -> TensorView:
        """An input of a node as a view, of itself if nothing moved its values."""
        name = node.inputs[which]
        if name in self.views:
            if self.views[name].index.shape[0] != 1:
                raise node.error("reads tensors that were stacked along the samples' axis; stack "
                                 "them along another")
            return self.views[name]
        shape = self.sample_shape(node, which)
        if math.prod(shape) > MOST_PLACES:
            raise node.error(f"moves values of samples of {shape_text(shape)}, which are too large "
                             "for it; leave it out")
        dims = self.operations.shapes.get(name) or (shape[0], *self.pixels_of(shape))
        places = np.arange(math.prod(shape), dtype=np.int32)
        return TensorView(name, places.reshape(1, *dims), node)

    def unread(self, node: Node, which: int = 0) -> TensorView | None:
        """The view that an input is, where no layer gives its order."""
        name = node.inputs[which]
        if name not in self.views or self.made(name) is not None:
            return None
        return self.views[name]

    def made(self, name: str) -> str | None:
        """The layer that gives a tensor, added now where it is a view; None where none does."""
        if name in self.later:
            self._make(self.later.pop(name))
        if name in self.views and name not in self.layer_names and name not in self._apart:
            made = layer_of(self, self.views[name])
            if made is None:
                self._apart.add(name)
            else:
                self.layer_names[name] = made
        return self.layer_names.get(name)

    def layer(self, name: str) -> str:
        """The layer that gives a tensor.

        Raises
        ------
        NodeError
            None does.
        """
        found = self.made(name)
        if found is None:
            self._lost.add(name)
            given = self.views[name]
            raise given.node.error(
                f"its values (samples {shape_text(given.index.shape[1:])}) stand in an order that "
                "no layer has; chosen channels, boxes of pixels and features are supported")
        return found

    def _is_lost_constant(self, node: Node) -> bool:
        """Whether a node computes with the shape of a lost tensor."""
        if node.op == "Shape" and self._lost.intersection(node.inputs):
            return True
        known = {"", *self.constants, *self._lost_constants}
        return bool(self._lost_constants.intersection(node.inputs)) and known >= set(node.inputs)

    def _check_shape(self, node: Node) -> None:
        """Compare a layer's shape with the source's; features may be images of one pixel there."""
        wanted = image_of(self.operations.shapes.get(node.outputs[0], ()))
        shape = self.graph.shapes[self.layer_names[node.outputs[0]]]
        if wanted and shape != wanted:
            pixel = len(shape) == 1 and wanted[:1] == shape and math.prod(wanted[1:]) == 1
            if not pixel:
                raise node.error(f"gives samples {shape_text(wanted)} in the source, as a layer "
                                 f"{shape_text(shape)}; this use of it is not supported")

    def _shape(self, node: Node) -> Constant:
        shape = np.array([BATCH, *self.sample_shape(node)[:1], *self.pixels(node)])
        start = node.integer("start", 0)
        return Constant.of(shape[start:node.integer("end", len(shape))])

    def _fold(self, node: Node) -> Constant:
        """The output of a node whose inputs are all constants, or left out.

        Exporters compute the target of a reshape from shapes. Weights stay unread: they may lie in
        an external file.
        """
        constants = [self.constants.get(name) for name in node.inputs]
        first = constants[0] if constants else None
        if first is not None:
            dims, read = first.dims, first.read
            if node.op == "Identity":
                return first
            if node.op == "Transpose":
                order = node.integers("perm", range(len(dims))[::-1])
                return Constant(tuple(dims[i] for i in order), lambda: np.transpose(read(), order),
                                first.origins, first.remark)
        origins = frozenset[str]().union(*(c.origins for c in constants if c is not None))
        try:
            assert node.compute is not None
            given = [c for c in constants if c is not None]
            values = most_values(node, given)
            if values > max(MOST_VALUES, *(math.prod(c.dims) for c in given), 0):
                raise ValueError(f"it has {values} values")
            value = node.compute([None if c is None else c.read() for c in constants])
            return Constant.of(value, origins)
        except Exception as err:  # the values may not fit the operator in many ways
            why = " ".join(str(err).split())
            raise node.error(f"cannot be computed from constants ({why})") from err

    def source(self, node: Node, which: int = 0) -> str:
        """Name of the layer that produces an input of the node."""
        name = node.inputs[which] if which < len(node.inputs) else ""
        if name in self.layer_names or name in self.views or name in self.later:
            return self.layer(name)
        if name in self.constants:
            raise node.error(
                f"input '{name}' is a constant; only what depends on the images is supported there")
        raise node.error(
            f"input '{name}' is a second output of another node, which is not supported")

    def sample_shape(self, node: Node, which: int = 0) -> Shape:
        """Sample shape of an input of the node."""
        return self.graph.shapes[self.source(node, which)]

    def pixels_of(self, sample: Shape) -> Shape:
        """Extents of the image axes of a sample, as the source has them."""
        return sample[-self.dimensions:] if len(sample) > 1 else ()

    def pixels(self, node: Node) -> Shape:
        """Extents of the image axes of the node's first input, as the source has them."""
        return self.sample_shape(node)[-self.dimensions:] if self.is_image(node) else ()

    def is_image(self, node: Node) -> bool:
        """Whether the node's first input has image axes."""
        return len(self.sample_shape(node)) > 1

    def axis(self, node: Node, axis: int) -> int:
        """Number of an axis of the node's first input, from 0."""
        rank = self.dimensions + 2 if self.is_image(node) else 2
        return axis if axis >= 0 else axis + rank

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
            why = one_line(err)
            raise node.error(f"cannot read the constant '{node.inputs[which]}' ({why})") from err

    def number(self, node: Node, which: int, default: float) -> float:
        """The value of an input that must be one constant number."""
        value = self.value(node, which)
        if value is not None and value.size != 1:
            raise node.error(f"input '{node.inputs[which]}' must be one number")
        return default if value is None else decimal(value)

    def weights(self, node: Node, *which: int, transposed: bool = False) -> tuple[Constant, ...]:
        """Inputs that are the weights of one layer; those left out are skipped.

        Parameters
        ----------
        transposed : bool
            The first is stored as [in, out].

        Raises
        ------
        NodeError
            Another layer has the same weights.
        """
        found = [(i, constant) for i in which if (constant := self.constant(node, i)) is not None]
        if not found:
            raise node.error("has no weights")
        stored = [constant.stored for _, constant in found]
        names = ("" if transposed else stored[0], *stored[1:])
        for _, constant in found if names not in self._layers_of else ():
            for origin in sorted(constant.origins):
                owner = self._owners.setdefault(origin, node)
                if owner is not node:
                    self._shared(node, owner, origin, len(constant.dims))
        if node.folded:
            self.remark(node, "the exporter folded a batch normalisation into it, which is missing "
                              "here; give the PyTorch module itself as --network")
        self._note_training(node, [constant for _, constant in found])
        self._weights_of[node.outputs[0]] = names
        return tuple(constant for _, constant in found)

    def _note_training(self, node: Node, found: Sequence[Constant]) -> None:
        """Note how the source trains weights, if not as they are."""
        if all(constant.frozen for constant in found):
            self._trained[node.outputs[0]] = "frozen"
            return
        for constant in found:
            otherwise = self.operations.exact_sharing and bool(constant.origins)
            if constant.remark and otherwise:
                self._trained[node.outputs[0]] = "otherwise"
                self.remark(node, f"what it multiplies or adds {constant.remark}: it can be "
                                  "planned, but not run, as its weights are trained otherwise")
            elif constant.remark:
                self.remark(node, f"what it multiplies or adds {constant.remark}; here it is "
                                  "trained")

    def _shared(self, node: Node, owner: Node, origin: str, dimensions: int) -> None:
        if dimensions > 1 or self.operations.exact_sharing:
            raise node.error(f"shares the weights '{origin}' with node '{owner.name}', but not all "
                             "of them as they are; give each layer its own")
        self.remark(node, f"shares the vector '{origin}' with '{owner.name}' in the file, as "
                          "exporters also write equal ones; here each has its own")

    def remark(self, node: Node, why: str) -> None:
        """Note where a layer differs from its source."""
        self._remarks.append(node.error(why))

    def add(self, layer: type[Layer], node: Node, sources: Sequence[str] = (), suffix: str = "",
            **options: Option) -> str:
        """Add a layer named after the node; it reads the node's first input by default."""
        inputs = tuple(sources) or self.source(node)
        try:
            name = self.graph.add(layer, self._name(node, suffix), after=inputs, **options)
        except InputError as err:
            raise node.error(str(err)) from err
        if self.graph.layers[-1].has_weights:
            stored = self._weights_of.pop(node.outputs[0], ())
            exact = self.operations.exact_sharing and stored and "" not in stored
            owner = self._layers_of.setdefault(stored, name) if exact else name
            self.origins[name] = stored
            self.graph.layers[-1] = replace(
                self.graph.layers[-1], weights_of="" if owner == name else owner,
                weights=self._trained.pop(node.outputs[0], "trained"))
        return name

    def _name(self, node: Node, suffix: str) -> str:
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
        own = module if field == "weight" else ""
        candidates = itertools.chain(
            (name + suffix for name in (own, ".".join(parts[:-1]), path) if name),
            (f"{path}_{i}{suffix}" for i in itertools.count(2)))
        taken = {"loss", *self.graph.shapes, *(self._modules - {own})}
        return next(name for name in candidates if name not in taken)
