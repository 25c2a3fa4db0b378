"""Networks from PyTorch modules, traced with ``torch.export``."""

from __future__ import annotations

import importlib
import math
import operator
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from hpcpar.errors import InputError
from hpcpar.network.graph import Network
from hpcpar.network.layers import Loss, SoftmaxCrossEntropy
from hpcpar.network.layers.base import Shape
from hpcpar.network.read.endings import Output
from hpcpar.network.read.evaluation import Evaluation, Result, find_outputs, results
from hpcpar.network.read.in_place import TracedTensors, dims, sample_shape
from hpcpar.network.read.onnx_ops import build_with_outputs
from hpcpar.network.read.operations import Attribute, Constant, Node, Operations, unread
from hpcpar.network.read.torch_call import Call, Tensor, UnknownCall
from hpcpar.network.read.torch_ops import EMPTY, PARTS, RESHAPES, TRANSLATIONS
from hpcpar.network.read.traced_calls import SAMPLES, Called, TracedCalls, reached

if TYPE_CHECKING:
    from torch import Tensor as TorchTensor
    from torch.export import ExportedProgram
    from torch.fx import Node as FxNode
    from torch.nn import Module


def is_module(value: object) -> bool:
    """Whether a value is a ``torch.nn.Module``."""
    return any(cls.__module__ == "torch.nn.modules.module" and cls.__name__ == "Module"
               for cls in type(value).__mro__)


def from_torch(module: Module, shape: Shape, loss: type[Loss] = SoftmaxCrossEntropy) -> Network:
    """The network of a PyTorch module: layers and options, without the weights' values.

    Layers have the names of the modules and compute as in training. The module may be on any device
    and have any dtype.

    Parameters
    ----------
    module : torch.nn.Module
        Takes a batch of images and returns one tensor.
    shape : tuple of int
        Sample shape, (C, W), (C, H, W) or (C, D, H, W).
    loss : type of Loss
        The loss to append.

    Raises
    ------
    InputError
        PyTorch is missing or cannot trace the module, or an operator of the module has no layer.
    """
    found = traced(module, shape, loss).with_evaluation(module, needed=False)
    notes = found.network.notes
    if isinstance(found.evaluation, str):
        notes += f"evaluation computes what training computes: {found.evaluation}",
    if found.unlike:
        notes += f"a run trains otherwise: {found.unlike}",
    return replace(found.network, notes=notes)


@dataclass(frozen=True)
class TracedModule:
    """A module's network and the interface of the module.

    Attributes
    ----------
    input : tuple of int
        Sample shape of the input.
    outputs : tuple of Output
        The module's outputs, if the caller computes the loss.
    structure : object
        PyTorch's tree (pytree) of the returned outputs.
    read : frozenset of str
        Parameters and buffers on which the outputs depend.
    held : frozenset of str
        Buffers whose numbers parts that run whole hold.
    state : frozenset of str
        Buffers that parts that run whole change in training.
    results : dict
        How the module computes each tensor.
    returned : tuple of str
        The tensors that it returns.
    evaluation : Evaluation or str
        What it returns in evaluation, or why that is not known.
    unlike : str
        Why a run would not train as the module does, in one line; empty where it would.
    """

    network: Network
    input: Shape
    outputs: tuple[Output, ...]
    structure: object
    read: frozenset[str] = frozenset()
    held: frozenset[str] = frozenset()
    state: frozenset[str] = frozenset()
    results: Mapping[str, Result] = field(default_factory=dict)
    returned: tuple[str, ...] = ()
    evaluation: Evaluation | str = "the module was not traced in evaluation mode"
    unlike: str = ""

    def with_evaluation(self, module: Module, needed: bool) -> TracedModule:
        """The same with what the module returns in evaluation.

        Raises
        ------
        InputError
            That is `needed`, and the module computes what it does not compute in training.
        """
        try:
            operations, trace, structure = _trace(module, self.input, training=False)
            if trace.changed:
                raise InputError(trace.refusal(type(module).__name__))
            return replace(self, evaluation=Evaluation(find_outputs(
                type(module).__name__, operations, trace, self.results, self.returned), structure))
        except InputError as err:
            if needed:
                raise
            return replace(self, evaluation=str(err))


def traced(module: Module, shape: Shape, loss: type[Loss]) -> TracedModule:
    """The network of a module with the module's interface; see `from_torch`."""
    operations, trace, structure = _trace(module, tuple(shape))
    network, outputs = build_with_outputs(operations, type(module).__name__, tuple(shape), loss,
                                          trace)
    read = frozenset(name for output in operations.outputs
                     for name in reached(trace.calls, (), output) if name in trace.stored)
    parts = [trace.parts[layer.name][1] for layer in network.layers if layer.name in trace.parts]
    held = frozenset(name for part in parts for name in part.held)
    state = frozenset(name for part in parts for name in part.state)
    return TracedModule(network, tuple(shape), tuple(outputs), structure, read, held, state,
                        results(operations, trace, True, state), operations.outputs,
                        unlike=trace.refusal(type(module).__name__, operations.outputs, state))


def _trace(module: Module, shape: Shape, training: bool = True
           ) -> tuple[Operations, TracedCalls, object]:
    """The operators of a module in one mode, its calls, and the tree of its outputs."""
    name = type(module).__name__
    try:
        export = importlib.import_module("hpcpar.network.read.export")
    except ImportError as err:
        raise InputError(f"module '{name}' needs PyTorch: pip install hpcpar[torch]") from err
    program, own_gradients = export.exported(module, shape, training)
    reader = _Reader(program, module, name)
    operations = reader.read()
    trace = TracedCalls(reader.calls, reader.values, SAMPLES, operations.input, shape,
                        own_gradients=own_gradients, changed=reader.stored_changes(),
                        states=reader.states())
    return operations, trace, program.call_spec.out_spec


class _Reader(TracedTensors):
    """Translates an exported program."""

    def __init__(self, program: ExportedProgram, module: Module, name: str) -> None:
        super().__init__(name)
        self.program, self.module = program, module
        #: The module's parameters and buffers by the names of their tensors.
        self.values: dict[str, TorchTensor] = {}
        self.input = ""
        signature = program.graph_signature
        #: Buffers that are in no state.
        self._unsaved = {*signature.non_persistent_buffers}
        self._stored = {**signature.inputs_to_parameters, **signature.inputs_to_buffers,
                        **signature.inputs_to_lifted_tensor_constants}
        same: dict[int, str] = {}
        self._origins = {fqn: same.setdefault(id(value), fqn)
                         for fqn, value in module.named_parameters(remove_duplicate=False)}

    def read(self) -> Operations:
        """All operators."""
        outputs: list[object] = []
        stored = {*self._stored.values()}
        for fx in self.program.graph.nodes:
            if fx.op == "call_function" and fx.name in stored:  # a buffer has this name, too
                fx._rename(f"{fx.name}_result")
            if fx.op == "placeholder":
                self._placeholder(fx)
            elif fx.op == "get_attr":
                raise InputError(f"module '{self.name}': '{fx.target}' is a program of its own, as "
                                 "of torch.cond or torch.autocast, which cannot be read; use "
                                 "torch.where, and leave torch.autocast out")
            elif fx.op == "output":
                outputs = list(pytree_leaves(fx.args[0]))
            else:
                self._call(fx)
        if any(output not in self.tensors for output in outputs):
            raise InputError(f"module '{self.name}' returns None or a number among its "
                             "tensors; return tensors alone")
        names = tuple(self.tensors[cast("FxNode", output)] for output in outputs)
        return Operations(f"module '{self.name}'", tuple(self.nodes), self.constants, self.input,
                          (None, *self.shapes[self.input]), names, self.shapes,
                          exact_sharing=True)

    def stored_changes(self) -> dict[str, str]:
        """The parameters and buffers that get new values, but for counts of batches, and these."""
        return {name: self.tensors[fx] for fx in self.program.graph.find_nodes(op="placeholder")
                if (name := self._stored.get(fx.name, "")) and fx.name in self.changed
                and not name.endswith("num_batches_tracked")}

    def states(self) -> dict[str, str]:
        """The buffers of real numbers in the module's state whose new values are constants."""
        return {name: self._copied(new) for name, new in self.stored_changes().items()
                if new in self.constants and self.values[name].is_floating_point()
                and name not in self._unsaved | self._origins.keys()}

    def _copied(self, new: str) -> str:
        """The tensor whose copy a new value is, where it is one; others may read it, too."""
        call = self.calls[new]
        source = self.calls.get(str(call.values.get("self")))
        same = source is not None and source.shape == call.shape
        return str(call.values["self"]) if same and "expand" in call.operator else new

    def _placeholder(self, fx: FxNode) -> None:
        """The images, or a stored tensor."""
        fqn = self._stored.get(fx.name)
        self.tensors[fx] = fqn or fx.name
        if fqn is None:
            self.input = fx.name
            self.shapes[fx.name] = sample_shape(fx)
            return
        stored = self.program.state_dict
        tensor = stored[fqn] if fqn in stored else self.program.constants[fqn]
        self.values[fqn] = tensor
        remark = "has requires_grad=False" if fqn in self._origins else "is a buffer"
        frozen = not tensor.requires_grad
        remark = remark if frozen else ""
        origin = self._origins.get(fqn, fqn)
        self.constants[fqn] = Constant(tuple(tensor.shape), lambda: tensor.detach().cpu().numpy(),
                                       frozenset((origin,)), remark, frozen=frozen,
                                       computed=fqn in self._unsaved)

    def _call(self, fx: FxNode) -> None:
        """One operator."""
        self.tensors[fx] = fx.name
        self.shapes[fx.name] = sample_shape(fx)
        if fx.target is operator.getitem:
            self._item(fx)
            return
        if not hasattr(fx.target, "_schema") or fx.target._schema.name == "aten::sym_size":
            raise InputError(f"module '{self.name}': '{fx.name}' computes with a size that depends "
                             "on values, as of x[mask]; use torch.where, or a fixed size")
        call, inputs, in_place = self._arguments(fx)
        if call.name == "copy" and in_place:
            self.copy(fx)
            return
        self._note(fx, str(fx.target), call.values)
        if call.name in PARTS:
            self.tensors[fx] = inputs[0]
        elif call.name in EMPTY or all(name in self.constants for name in inputs):
            self.constants[fx.name] = self._computed(fx, call, inputs)
        else:
            translate = TRANSLATIONS.get(re.sub(r"[123]d$", "", call.name))
            try:
                words = (call.name, inputs, {}) if translate is None else translate(call)
            except UnknownCall:
                words = (str(fx.target).removeprefix("aten."), inputs, {})
            self.constants |= call.literals
            self._append(fx, *words)
        if in_place and not (call.name == "detach" and fx.name in self.constants):
            self.replace(fx)

    def _note(self, fx: FxNode, target: str, values: Mapping[str, object]) -> None:
        """Keep a call, of the operator that returns a new tensor, as PyTorch made it."""
        if target != "getitem":
            defaults = {a.name: a.default_value for a in fx.target._schema.arguments
                        if a.has_default_value()}
            values = {name: value for name, value in values.items()
                      if name != "pin_memory" and not (name in defaults
                                                       and _same(value, defaults[name]))}
        real = bool(getattr(fx.meta.get("val"), "is_floating_point", bool)())
        name, _, overload = target.rpartition(".")
        self.calls[fx.name] = Called(f"{name.removesuffix('_')}.{overload}" if name else target,
                                     values, dims(fx), real)

    def _item(self, fx: FxNode) -> None:
        """One of several tensors that an operator returns."""
        source, which = cast("tuple[FxNode, int]", tuple(fx.args))
        call, inputs, _ = self._arguments(source)
        self._note(fx, "getitem", {"self": Tensor(source.name), "which": which})
        if call.name not in PARTS and source.name in self.constants:  # as meshgrid's
            self.constants[fx.name] = replace(self.constants[source.name], dims=dims(fx))
            return
        if call.name not in PARTS:
            first = which == 0  # others are computed anew from what the operator reads
            self._append(fx, "Identity" if first else "second output of an operator",
                         (self.tensors[source],) if first else inputs, {})
            return
        axis = int(cast(int, call.values.get("dim", 0)))
        if call.name == "unbind":
            words = TRANSLATIONS["select"](replace(call, values={
                **call.values, "index": which, "dim": axis}, result=fx.name))
        else:
            extents = [value.shape[axis] for value in source.meta["val"]]
            start = sum(extents[:which])
            words = TRANSLATIONS["slice"](replace(call, values={
                **call.values, "start": start, "end": start + extents[which], "dim": axis,
                "step": 1}, result=fx.name))
        self.constants |= call.literals
        self._append(fx, *words)

    def _arguments(self, fx: FxNode) -> tuple[Call, tuple[str, ...], bool]:
        """The call of a node, the tensors that it reads, and whether it works in place."""
        schema = fx.target._schema
        values = {argument.name: argument.default_value for argument in schema.arguments}
        values |= dict(zip(values, fx.args, strict=False)) | dict(fx.kwargs)
        given = {name: self._named(value) for name, value in values.items()}
        name = schema.name.rpartition("::")[2]
        inputs = tuple(item for value in given.values()
                       for item in (value if isinstance(value, list) else [value])
                       if isinstance(item, Tensor))
        first = next((v for v in pytree_leaves(list(fx.args)) if v in self.tensors), fx)
        call = Call(name.removesuffix("_").removesuffix("_with_indices"), fx.name, given,
                    sample_shape(fx), sample_shape(cast("FxNode", first)))
        return call, inputs, name.endswith("_")

    def _named(self, value: object) -> object:
        """An argument with tensors replaced by their names."""
        if isinstance(value, list | tuple):
            return [self._named(item) for item in value]
        return Tensor(self.tensors[cast("FxNode", value)]) if hasattr(value, "users") else value

    def _append(self, fx: FxNode, op: str, inputs: tuple[str, ...],
                attributes: Mapping[str, Attribute]) -> None:
        stack = cast(Mapping[str, tuple[str, object]], fx.meta.get("nn_module_stack", {}))
        path = list(stack.values())[-1][0] if stack else ""
        name = fx.name.replace("__", "_").rstrip("_")
        self.nodes.append(Node(op, f"{path}/{name}" if path else name, inputs, (fx.name,),
                               attributes))

    def _computed(self, fx: FxNode, call: Call, inputs: tuple[str, ...]) -> Constant:
        """A tensor computed from constants: a reshaped stored tensor, random factors of samples, or
        a tensor with unknown values.
        """
        first = self.constants.get(inputs[0] if inputs else "", Constant((), unread))
        extent = math.prod(dims(fx))
        if call.name == "expand" and extent % SAMPLES and extent != math.prod(first.dims):
            return replace(first, dims=dims(fx), computed=True, read=unread)
        if call.name in (*RESHAPES, "expand", "to", "alias", "clone", "contiguous") or (
                first.frozen and call.name in ("detach", "lift_fresh_copy")):
            return replace(first, dims=dims(fx), read=lambda: first.read().reshape(dims(fx)))
        if call.name == "bernoulli" and dims(fx) == (SAMPLES, *(1,) * (len(dims(fx)) - 1)):
            return Constant(dims(fx), unread, drops=1 - call.number("p"), kept=1.0)
        if call.name == "div" and first.kept:
            return replace(first, kept=first.kept / call.number("other"))
        if call.name == "floor":
            share = self._share(cast("FxNode", fx.args[0]))
            if share is not None:
                return Constant(dims(fx), unread, drops=1 - share, kept=1.0)
        origins = frozenset[str]().union(*(self.constants[name].origins for name in inputs
                                           if name in self.constants))
        return Constant.unknown(dims(fx), origins, self._operator(fx, call) if origins else None)

    def _operator(self, fx: FxNode, call: Call) -> Node | None:
        """The operator of a call on constants; None if it has no translation."""
        try:
            op, inputs, attributes = TRANSLATIONS[call.name](call)
        except (KeyError, UnknownCall):
            return None
        self.constants |= call.literals
        return Node(op, fx.name, inputs, (fx.name,), attributes)

    def _share(self, sum_: FxNode) -> float | None:
        """The number added to one uniform random number per sample, or None."""
        numbers = [value for value in sum_.args if isinstance(value, int | float)]
        others = [value for value in sum_.args if hasattr(value, "target")]
        uniform = [value for value in others if "rand." in str(cast("FxNode", value).target)]
        return float(numbers[0]) if len(numbers) == 1 and uniform else None


def pytree_leaves(value: object) -> Iterator[object]:
    """The items of nested lists and tuples, or of a dictionary."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from pytree_leaves(item)
    else:
        yield value


def _same(value: object, default: object) -> bool:
    return type(value) is type(default) and value == default
