"""Conversion of a source's operators to layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from hpcpar.errors import InputError, one_line
from hpcpar.network.builder import Graph, Option
from hpcpar.network.layers.base import Layer, Shape, image_of, shape_text
from hpcpar.network.layers.loss import Loss
from hpcpar.network.layers.whole import Whole
from hpcpar.network.read.folded_size import folded
from hpcpar.network.read.layer_names import LayerNames
from hpcpar.network.read.operations import (
    BATCH,
    REMEDIES,
    Array,
    Constant,
    Node,
    NodeError,
    NodeErrors,
    Operations,
    decimal,
    grouped,
)
from hpcpar.network.read.tensor_view import TensorView, channels_last, layer_of

#: Size limit of samples whose values are rearranged.
MOST_PLACES = 1 << 28


class Importer:
    """Converts operators to layers, in order.

    Attributes
    ----------
    graph : Graph
        The network built so far.
    layer_names : dict
        Name of the layer that produces each source tensor.
    constants : dict
        Tensors that do not depend on the input.
    readers : dict
        Nodes that read each tensor.
    views : dict
        Tensors with a layer's values in another order.
    later : dict
        Nodes by output that are converted only if a layer needs them.
    origins : dict
        As in `Network.origins`.
    """

    def __init__(self, operations: Operations, graph: Graph,
                 operators: Mapping[str, Callable[[Importer, Node], str | TensorView]],
                 loss: type[Loss]) -> None:
        self.operations, self.graph, self.operators = operations, graph, operators
        self.loss = loss
        #: Number of image axes in the source; a signal (C, W) has one, but its layers have two.
        self.dimensions = operations.dimensions
        self.layer_names: dict[str, str] = {operations.input: graph.last}
        self.constants: dict[str, Constant] = dict(operations.constants)
        self.readers: dict[str, list[Node]] = {}
        for node in operations.nodes:
            for name in node.inputs:
                self.readers.setdefault(name, []).append(node)
        self._names = LayerNames(operations, graph)
        self._remarks: list[NodeError] = []
        self._owners: dict[str, Node] = {}
        #: Memory of the computed constants, which are kept.
        self._computed_bytes = 0
        #: Tensors of refused nodes and of nodes that depend on them.
        self._lost, self._lost_constants = set[str](), set[str]()
        self.views: dict[str, TensorView] = {}
        if operations.channels_last:
            image, shape = f"{operations.input}@", graph.shapes[graph.last]
            node = Node("Input", operations.input, (), (operations.input,), {})
            self.layer_names = {image: graph.last}
            places = channels_last((shape[0], *self.pixels_of(shape)))
            self.views[operations.input] = TensorView(image, places, node)
        self.later: dict[str, Node] = {}
        #: Views in an order that no layer can produce.
        self._apart: set[str] = set()
        self.origins: dict[str, tuple[str, ...]] = {}
        #: Stored tensors behind a node's weights, and the first layer with them and its kind.
        self._weights_of: dict[str, tuple[str, ...]] = {}
        self._layers_of: dict[tuple[str, ...], tuple[str, type[Layer]]] = {}
        #: `Layer.weights` by node, if they are not simply trained.
        self._trained: dict[str, Literal["frozen", "otherwise"]] = {}

    def run(self, go_on: Callable[[Importer, Node], None] | None = None) -> None:
        """Convert all nodes; one error names all nodes without a layer.

        `go_on` may make layers in place of those that are missing; errors of what reads them wait.
        """
        errors, missing = [], set[str]()
        for node in self.operations.nodes:
            if (err := self._failed(node)) is not None:
                read = {self.views[i].tensor if i in self.views else i for i in node.inputs}
                errors += [err] if missing.isdisjoint(read) else []
                self._lost.update(node.outputs)
            if go_on is not None and node.outputs[0] in self._lost:
                go_on(self, node)
                missing.update(self._lost & {*self.layer_names})
                self._lost -= missing
            for name in node.inputs:  # the places of large views take memory
                if not (self.later or self.readers[name][-1] is not node
                        or name in self.operations.outputs):
                    self.views.pop(name, None)
        if errors:
            raise NodeErrors(self.operations.source, errors)

    def _failed(self, node: Node) -> NodeError | None:
        """Convert a node; why that failed, else None."""
        try:
            self._convert(node)
        except NodeError as err:
            return err
        except (ArithmeticError, LookupError, TypeError, ValueError) as err:
            # a file's constants can have types and shapes that the operator does not accept
            return node.error(f"its constants or attributes are invalid ({one_line(err)}); "
                              "export it again")
        return None

    def notes(self) -> tuple[str, ...]:
        """Differences between the network and its source."""
        return tuple(grouped(self._remarks))

    def _convert(self, node: Node) -> None:
        """Convert a node to a layer, a view, a constant, or another name of a layer."""
        output = node.outputs[0]
        if output in self.layer_names or output in self.views:  # a bias that `matmul` merged
            return
        constant = all(i in self.constants or not i for i in node.inputs)
        if self._is_lost_constant(node):
            self._lost_constants.add(output)
        elif not (constant or node.op == "Shape" or node.op in self.operators):
            key = node.op.lower().replace("_", "")
            remedy = REMEDIES.get(key, "leave it out, or use one from docs/reference/networks.md")
            raise node.error(f"operator {node.op} is not supported; {remedy}")
        elif not all(lost.isdisjoint(node.inputs) for lost in (self._lost, self._lost_constants)):
            self._lost.update(node.outputs)
        elif node.op == "Shape" and not constant:
            self.constants[output] = self._shape(node)
        elif constant:
            self.constants[output], more_bytes = folded(
                node, [self.constants.get(i) for i in node.inputs], self._computed_bytes)
            self._computed_bytes += more_bytes
        else:
            self._make(node)

    def _make(self, node: Node) -> None:
        """Convert a node whose output depends on the images to a layer or a view."""
        output = node.outputs[0]
        made = self.operators[node.op](self, node)
        if isinstance(made, TensorView):
            self.views[output] = made
        else:
            self.layer_names[output] = made
            self._check_shape(node)

    def view(self, node: Node, which: int = 0) -> TensorView:
        """Input number `which` of a node as a view, an identity if nothing moved its values."""
        name = node.inputs[which]
        if name in self.views:
            if self.views[name].index.shape[0] != 1:
                raise node.error("reads tensors that were stacked along the sample axis; stack "
                                 "them along another")
            return self.views[name]
        shape = self.sample_shape(node, which)
        if math.prod(shape) > MOST_PLACES:
            raise node.error(f"rearranges samples {shape_text(shape)}, which are too large for "
                             "it; leave it out")
        dims = self.operations.shapes.get(name) or (shape[0], *self.pixels_of(shape))
        places = np.arange(math.prod(shape), dtype=np.int32)
        return TensorView(name, places.reshape(1, *dims), node)

    def unread(self, node: Node, which: int = 0) -> TensorView | None:
        """The view behind an input if no layer can produce its order, else None."""
        name = node.inputs[which]
        if name not in self.views or self.made(name) is not None:
            return None
        return self.views[name]

    def made(self, name: str) -> str | None:
        """The layer that produces a tensor, added now for a view; None if no layer can."""
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
        """The layer that produces a tensor.

        Raises
        ------
        NodeError
            No layer can produce the order of its values.
        """
        made = self.made(name)
        if made is None:
            self._lost.add(name)
            view = self.views[name]
            raise view.node.error(
                f"its values (samples {shape_text(view.index.shape[1:])}) are in an order that no "
                "layer has; selections of channels, boxes of pixels and features are supported")
        return made

    def _is_lost_constant(self, node: Node) -> bool:
        """Whether a node computes with the shape of a lost tensor."""
        if node.op == "Shape" and self._lost.intersection(node.inputs):
            return True
        others = [name for name in node.inputs if name and name not in self._lost_constants]
        return (not self._lost_constants.isdisjoint(node.inputs)
                and all(name in self.constants for name in others))

    def _check_shape(self, node: Node) -> None:
        """Compare a layer's shape with the source's, where features may be images of one pixel."""
        expected = image_of(self.operations.shapes.get(node.outputs[0], ()))
        shape = self.graph.shapes[self.layer_names[node.outputs[0]]]
        if expected and shape != expected and not self.graph.layers[-1].whole_samples:
            pixel = len(shape) == 1 and expected[:1] == shape and math.prod(expected[1:]) == 1
            if not pixel:
                raise node.error(f"gives samples {shape_text(expected)} in the source, but "
                                 f"{shape_text(shape)} as a layer; this use is not supported")

    def _shape(self, node: Node) -> Constant:
        view = self.views.get(node.inputs[0])
        dims = view.index.shape[1:] if view else (*self.sample_shape(node)[:1], *self.pixels(node))
        shape = np.array([BATCH, *dims])
        return Constant.of(shape[node.integer("start", 0):node.integer("end", len(shape))])

    def owner(self, *stored: str) -> type[Layer] | None:
        """The kind of the layer that has these stored tensors as its weights, if there is one."""
        return self._layers_of[stored][1] if stored in self._layers_of else None

    def source(self, node: Node, which: int = 0) -> str:
        """Name of the layer that produces input number `which` of the node."""
        name = node.inputs[which] if which < len(node.inputs) else ""
        if name in self.layer_names or name in self.views or name in self.later:
            return self.layer(name)
        if name in self.constants:
            raise node.error(
                f"input '{name}' is a constant; it must depend on the images to be supported")
        raise node.error(
            f"input '{name}' is a second output of another node, which is not supported")

    def sample_shape(self, node: Node, which: int = 0) -> Shape:
        """Sample shape of input number `which` of the node."""
        return self.graph.shapes[self.source(node, which)]

    def pixels_of(self, sample: Shape) -> Shape:
        """Extents of a sample's image axes in the source; () for features."""
        return sample[-self.dimensions:] if len(sample) > 1 else ()

    def pixels(self, node: Node) -> Shape:
        """Extents of the image axes of the node's first input in the source."""
        return self.pixels_of(self.sample_shape(node))

    def is_image(self, node: Node) -> bool:
        """Whether the node's first input has image axes."""
        return len(self.sample_shape(node)) > 1

    def axis(self, node: Node, axis: int) -> int:
        """An axis of the node's first input, counted from 0."""
        return axis if axis >= 0 else axis + (self.dimensions + 2 if self.is_image(node) else 2)

    def constant(self, node: Node, which: int) -> Constant | None:
        """An input that must be a constant; None if it is omitted."""
        if which >= len(node.inputs) or not node.inputs[which]:
            return None
        if node.inputs[which] not in self.constants:
            raise node.error(f"input '{node.inputs[which]}' must be a constant of the file")
        return self.constants[node.inputs[which]]

    def value(self, node: Node, which: int) -> Array | None:
        """The value of an input that must be a constant; None if it is omitted."""
        constant = self.constant(node, which)
        if constant is None:
            return None
        try:
            return constant.read()
        except Exception as err:  # it may be in an external file
            why = str(err) if isinstance(err, InputError) else one_line(err)
            raise node.error(f"cannot read the constant '{node.inputs[which]}' ({why})") from err

    def integers(self, node: Node, which: int, default: Iterable[int] = ()) -> tuple[int, ...]:
        """The whole numbers in an input that must be a constant."""
        value = self.value(node, which)
        return tuple(default) if value is None else tuple(int(v) for v in value.ravel())

    def number(self, node: Node, which: int, default: float) -> float:
        """The value of an input that must be a single constant number."""
        value = self.value(node, which)
        if value is not None and value.size != 1:
            raise node.error(f"input '{node.inputs[which]}' must be one number")
        return default if value is None else decimal(value)

    def weights(self, node: Node, *which: int, transposed: bool = False) -> tuple[Constant, ...]:
        """The given inputs without omitted ones, as the weights of one layer.

        Parameters
        ----------
        transposed : bool
            Whether the first is stored as [in, out].

        Raises
        ------
        NodeError
            Another layer has the same weights.
        """
        weights = [constant for i in which if (constant := self.constant(node, i)) is not None]
        if not weights:
            raise node.error("has no weights")
        stored = [constant.stored for constant in weights]
        names = ("" if transposed else stored[0], *stored[1:])
        if self.loss.outside and "" in names:
            raise node.error("its weights are computed, or stored in another form")
        for constant in weights if names not in self._layers_of else ():
            for origin in sorted(constant.origins):
                owner = self._owners.setdefault(origin, node)
                if owner is not node:
                    self._shared(node, owner, origin, len(constant.dims))
        if node.folded:
            self.remark(node, "the exporter folded a batch normalization into it, which is missing "
                              "here; give the PyTorch module itself as --network")
        self._note_training(node, weights)
        self._weights_of[node.outputs[0]] = names
        return tuple(weights)

    def _note_training(self, node: Node, weights: Sequence[Constant]) -> None:
        """Note weights that the source does not train as they are stored."""
        if all(constant.frozen for constant in weights):
            self._trained[node.outputs[0]] = "frozen"
            return
        for constant in weights:
            otherwise = self.operations.exact_sharing and bool(constant.origins)
            if constant.remark and otherwise:
                self._trained[node.outputs[0]] = "otherwise"
                self.remark(node, f"a tensor used as weights {constant.remark}: the layer can be "
                                  "planned, but not run")
            elif constant.remark:
                self.remark(node, f"a tensor used as weights {constant.remark}; hpcpar trains it")

    def _shared(self, node: Node, owner: Node, origin: str, dimensions: int) -> None:
        if dimensions > 1 or self.operations.exact_sharing:
            raise node.error(f"shares the weights '{origin}' with node '{owner.name}'; give each "
                             "layer its own, or share all of them unchanged in a PyTorch module")
        self.remark(node, f"shares the vector '{origin}' with '{owner.name}' in the file, where "
                          "exporters merge equal vectors; in hpcpar each layer has its own")

    def remark(self, node: Node, why: str) -> None:
        """Note a difference between a layer and its source."""
        self._remarks.append(node.error(why))

    def add(self, layer: type[Layer], node: Node, sources: Sequence[str] = (), suffix: str = "",
            **options: Option) -> str:
        """Add a layer named after the node; by default, it reads the node's first input."""
        inputs = tuple(sources) or self.source(node)
        try:
            name = self.graph.add(layer, self._names.name_of(node, suffix), after=inputs, **options)
        except InputError as err:
            raise node.error(str(err)) from err
        if self.graph.layers[-1].has_weights:
            stored = self._weights_of.pop(node.outputs[0], ())
            exact = self.operations.exact_sharing and stored and "" not in stored
            own = name, layer
            owner, kind = self._layers_of.setdefault(stored, own) if exact else own
            if kind is not layer:
                raise node.error(f"uses the weights of '{owner}' in another way")
            self.origins[name] = stored
            self.graph.layers[-1] = replace(
                self.graph.layers[-1], weights_of="" if owner == name else owner,
                weights=self._trained.pop(node.outputs[0], "trained"))
        return name

    def add_whole(self, node: Node, sources: Sequence[str], weights: tuple[str, ...],
                  frozen: Sequence[bool], **options: Option) -> str:
        """Add a part of a module; `weights` are the module's tensors, `frozen` ones not trained."""
        self._weights_of[node.outputs[0]] = weights
        if weights and all(frozen):
            self._trained[node.outputs[0]] = "frozen"
        elif any(frozen) and not self.loss.outside:  # there, the user's optimizer decides
            self._trained[node.outputs[0]] = "otherwise"
        return self.add(Whole, node, sources, suffix="", **options)
