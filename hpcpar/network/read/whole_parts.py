"""Finds the parts of a PyTorch module that no layer describes; each becomes one `Whole` layer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from hpcpar.errors import InputError
from hpcpar.network.graph import Network
from hpcpar.network.layers import Whole
from hpcpar.network.layers.base import image_of
from hpcpar.network.read.importer import Importer
from hpcpar.network.read.operations import Node, NodeError, NodeErrors, Operations
from hpcpar.network.read.traced_calls import Called, TracedCalls, reached, read_by

#: The operator that stands for a part.
WHOLE = "Whole"


@dataclass(frozen=True)
class WholePart:
    """Operators that become one layer: the tensors that it reads and the one that it makes."""

    nodes: frozenset[int]
    inputs: tuple[str, ...]
    output: str


@dataclass
class _Nodes:
    """The operators that depend on the images, as a graph."""

    operations: Operations
    trace: TracedCalls
    #: Whether outputs of the module may have any shape.
    any_outputs: bool = False
    makers: dict[str, int] = field(default_factory=dict)
    readers: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = {self.operations.input}
        for number, node in enumerate(self.operations.nodes):
            if known.isdisjoint(node.inputs):
                continue
            known.update(node.outputs)
            for name in node.inputs:
                self.readers.setdefault(name, []).append(number)
            self.makers.update(dict.fromkeys(node.outputs, number))

    def inputs(self, number: int) -> list[str]:
        """Tensors that depend on the images and that an operator reads."""
        return [name for name in dict.fromkeys(self.operations.nodes[number].inputs)
                if name in self.makers or name == self.operations.input]

    def outputs(self, numbers: Iterable[int]) -> list[str]:
        """Tensors that operators make and others, or the caller, read."""
        inside = set(numbers)
        made = [name for number in sorted(inside)
                for name in self.operations.nodes[number].outputs]
        return [name for name in made if name in self.operations.outputs
                or not inside.issuperset(self.readers.get(name, ()))]

    def is_regular(self, name: str) -> bool:
        """Whether a layer can make a tensor: features, images, or an output of any shape."""
        if name == self.operations.input:
            return True
        any_shape = self.any_outputs and name in self.operations.outputs
        return is_regular(self.trace.calls[name], self.trace.samples, self.operations, any_shape)

    def wholes_beside(self, part: set[int], inputs: Iterable[str],
                      outputs: Sequence[str]) -> set[int]:
        """Parts found before whose only reader is this part, or that alone read its output."""
        before = {self.makers[name] for name in inputs if name in self.makers
                  and part.issuperset(self.readers[name]) and name not in self.operations.outputs}
        after = {n for name in outputs for n in self.readers.get(name, ())} - part
        near = before | (after if len(after) == 1 and not {*outputs}.intersection(
            self.operations.outputs) else set())
        return {n for n in near if self.operations.nodes[n].op == WHOLE}

    @cached_property
    def weights(self) -> dict[int, set[str]]:
        """The parameters that each operator reads, also through computed constants."""
        behind: dict[str, set[str]] = {name: {name} for name in self.trace.stored}
        for name, call in self.trace.calls.items():
            if name not in self.makers:
                behind[name] = set().union(*(behind.get(n, set()) for n in read_by(call)))
        return {number: {name for n in self.operations.nodes[number].inputs
                         for name in behind.get(n, ()) if self.trace.stored[name].requires_grad}
                for number in set(self.makers.values())}

    def reach(self, numbers: set[int], forward: bool) -> set[int]:
        """All operators after (or before) some of them."""
        found: set[int] = set()
        stack = list(numbers)
        while stack:
            number = stack.pop()
            names = self.operations.nodes[number].outputs if forward else self.inputs(number)
            for name in names:
                nexts = self.readers.get(name, ()) if forward else (
                    [self.makers[name]] if name in self.makers else [])
                stack += [n for n in nexts if n not in found]
                found.update(nexts)
        return found

    def one_of(self, part: set[int], outputs: Sequence[str]) -> WholePart | None:
        """A part with the last of several outputs, which computes anew what the others need; None
        if it draws random numbers.
        """
        from hpcpar.network.read.program_of import draws

        *others, last = outputs
        makers = {self.makers[name] for name in others}
        kept = makers | self.reach(makers, False)
        own = {self.makers[last]}
        own |= self.reach(own, False) & part
        inputs = dict.fromkeys(i for n in sorted(own) for i in self.inputs(n)
                               if self.makers.get(i) not in part)
        calls = self.trace.calls
        if any(draws(calls[name]) for name in reached(calls, inputs, last) if name in calls):
            return None
        return WholePart(frozenset(part - kept), tuple(inputs), last)

    def normalizes(self, part: WholePart) -> bool:
        """Whether a part keeps running statistics, which a layer of its own cannot."""
        calls = (self.trace.calls.get(name) for n in part.nodes
                 for name in self.operations.nodes[n].outputs)
        return any(call is not None and call.values.get("running_mean") for call in calls)


def is_regular(call: Called, samples: int, operations: Operations, any_shape: bool = False) -> bool:
    """Whether a call's result is samples of features or images, or with `any_shape` of others."""
    fits = any_shape or len(call.shape) in (2, operations.dimensions + 2)
    return fits and call.real and call.shape[:1] == (samples,) and min(call.shape) > 0


def part_around(operations: Operations, trace: TracedCalls, name: str,
                any_outputs: bool = False, apart: bool = False) -> WholePart | None:
    """The smallest part with the operator that makes a tensor, whose inputs and output are samples
    of features or images, or an output that may have any shape; None if there is none.

    With `apart`, operators without weights that make several such tensors become one part for each
    of them. Otherwise, or where that part would normalize by batches, they belong to one part with
    what reads the tensors.
    """
    graph = _Nodes(operations, trace, any_outputs)
    if name not in graph.makers:
        return None
    part = {graph.makers[name]}
    while True:
        before = len(part)
        part |= graph.reach(part, True) & graph.reach(part, False)
        names = set().union(*(graph.weights[n] for n in part))
        part |= {n for n, read in graph.weights.items() if read & names}
        inputs = dict.fromkeys(i for n in sorted(part) for i in graph.inputs(n)
                               if graph.makers.get(i) not in part)
        part |= {graph.makers[i] for i in inputs if not graph.is_regular(i)}
        outputs = graph.outputs(part)
        irregular = [o for o in outputs if not graph.is_regular(o)]
        if any(o in operations.outputs for o in irregular):
            return None
        if apart and len(outputs) > 1 and not (irregular or names):
            return graph.one_of(part, outputs)
        for output in irregular or outputs[:-1]:
            part.update(graph.readers.get(output, ()))
        part |= graph.wholes_beside(part, inputs, outputs)
        if len(part) == before:
            found = None if len(outputs) != 1 else WholePart(frozenset(part), tuple(inputs),
                                                             outputs[0])
            if apart or not (found is None or graph.normalizes(found)):
                return found
            return part_around(operations, trace, name, any_outputs, apart=True)


def with_parts(operations: Operations, trace: TracedCalls, errors: NodeErrors,
               reasons: dict[str, NodeError], any_outputs: bool) -> Operations:
    """The operators with parts in place of those that have no layer.

    `reasons` collects why there is a part, by its output. With `any_outputs`, an output of the
    module may have any shape.

    Raises
    ------
    NodeErrors
        A part cannot be a layer, or no part helps.
    """
    found = operations
    for err in errors.errors:
        name = err.node.outputs[0].partition("@")[0]  # converters add nodes, as in "add@1"
        if err.node.op == WHOLE:
            why = reasons[name]
            raise NodeErrors(operations.source, [why.node.error(
                f"{why.why}; as a layer of its own: {err.why}")]) from errors
        part = part_around(found, trace, name, any_outputs)
        if part is not None:
            reasons.setdefault(part.output, err)
            found = replaced(found, part)
    if found is operations:
        raise errors
    return found


def go_on(trace: TracedCalls, importer: Importer, node: Node) -> None:
    """Put a stand-in of the right shape where a layer's output is missing, so that one pass finds
    the errors behind it, too.
    """
    name, images = node.outputs[0], importer.layer_names[importer.operations.input]
    call = trace.calls.get(name)
    if call is not None and is_regular(call, trace.samples, importer.operations):
        importer.layer_names[name] = importer.add(
            Whole, replace(node, inputs=(images,)), [images], program="{}",
            output=image_of(call.shape[1:]))


def replaced(operations: Operations, part: WholePart) -> Operations:
    """The operators with one in place of a part."""
    last = max(part.nodes)
    node = operations.nodes[last]
    whole = Node(WHOLE, node.name, part.inputs, (part.output,), {})
    nodes = [whole if number == last else node for number, node in enumerate(operations.nodes)
             if number == last or number not in part.nodes]
    return replace(operations, nodes=tuple(nodes))


def whole_layer(trace: TracedCalls, importer: Importer, node: Node) -> str:
    """Convert a part to a layer."""
    from hpcpar.network.read.program_of import layer_options, written

    shapes = {name: trace.shape(name) for name in node.inputs}
    try:
        states = trace.states_of(shapes, node.outputs[0], importer.operations.constants
                                 ) if importer.loss.outside else {}
        program = written(trace.calls, trace.stored, trace.samples, shapes, node.outputs[0], states)
        key = program.text, program.weights
        if key not in trace.measured:
            trace.measured[key] = layer_options(program, trace.shape(node.outputs[0]))
    except InputError as err:
        raise node.error(str(err)) from err
    sources = [importer.source(node, which) for which in range(len(node.inputs))]
    frozen = [not tensor.requires_grad for tensor in program.tensors]
    output = trace.shape(node.outputs[0])
    regular = len(output) in (1, importer.dimensions + 1)
    options = {**trace.measured[key], "output": image_of(output) if regular else (
        math.prod(output),)}
    made = importer.add_whole(node, sources, program.weights, frozen, **options)
    trace.parts[made] = node, program
    return made


def require_apart(operations: Operations, trace: TracedCalls, network: Network) -> None:
    """Check on two random samples that the parts of a network treat them apart.

    Raises
    ------
    NodeErrors
        A part mixes samples.
    """
    from hpcpar.network.read.program_of import treats_apart

    known: dict[object, bool] = {}
    for layer in network.layers:
        if not isinstance(layer, Whole):
            continue
        node, program = trace.parts[layer.name]
        key = program.text, program.weights
        try:
            if key not in known:
                known[key] = treats_apart(program)
            if not known[key]:
                raise InputError("its result for a sample depends on the other samples of the "
                                 "batch, so samples cannot be cut; normalize each by itself")
        except InputError as err:
            raise NodeErrors(operations.source, [node.error(str(err))]) from err
