"""Operators in place of an exported program, as operators that return new tensors."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, cast

from hpcpar.errors import InputError
from hpcpar.network.layers.base import Shape
from hpcpar.network.read.operations import Constant, Node
from hpcpar.network.read.torch_call import Tensor
from hpcpar.network.read.torch_ops import RESHAPES
from hpcpar.network.read.traced_calls import Called

if TYPE_CHECKING:
    from torch.fx import Node as FxNode


class TracedTensors:
    """The tensors of a program; operators in place give some of them new values.

    Attributes
    ----------
    tensors : dict
        Name of the tensor with a node's current value.
    constants : dict
        The tensors that do not depend on the images.
    changed : dict
        The inputs of the program that get new values, in order.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.tensors: dict[FxNode, str] = {}
        self.shapes: dict[str, Shape] = {}
        self.nodes: list[Node] = []
        self.calls: dict[str, Called] = {}
        self.constants: dict[str, Constant] = {}
        self.changed: dict[str, None] = {}

    def copy(self, fx: FxNode) -> None:
        """A tensor copied over another, as in ``y[:, 0] = x``."""
        to, source = (cast("FxNode", value) for value in fx.args[:2])
        if to.meta["val"].dtype != source.meta["val"].dtype:
            raise InputError(f"module '{self.name}': '{fx.name}' copies numbers of one type into a "
                             "tensor of another type; convert the source with .to(...) first")
        value = Tensor(self.tensors[source])
        self.calls[fx.name] = Called("aten.expand.default", {"self": value, "size": [*dims(fx)]},
                                     dims(fx), fx.meta["val"].is_floating_point())
        self._append_new("expand", fx.name, (value,), dims(fx))
        self.replace(fx)

    def replace(self, fx: FxNode) -> None:
        """Gives the argument of an in-place operator, and what it is a part of, new values."""
        changed = cast("FxNode", fx.args[0])
        self.tensors[changed] = fx.name
        known = {fx, changed}
        whole, value = changed, fx.name
        stored = _root(changed).op == "placeholder"
        while _shares_memory(whole):
            part, whole = whole, cast("FxNode", whole.args[0])
            known.add(whole)
            if part.target is operator.getitem:  # of the parts of a tensor
                value = self._scattered(fx, part, cast("FxNode", whole.args[0]), value)
                whole = cast("FxNode", whole.args[0])
                known.add(whole)
            elif not (_is_same(part) or (stored and "detach" in str(part.target))):
                value = self._scattered(fx, part, whole, value)
            self.tensors[whole] = value
        if stored:
            self.changed[whole.name] = None
        views = [view for view in _sharing(whole, known) if view < fx and view not in known]
        if any(user > fx for view in views for user in view.users):
            raise InputError(f"module '{self.name}': '{fx.name}' changes a tensor in place that "
                             "has other views; use the operator that returns a new tensor")

    def _scattered(self, fx: FxNode, part: FxNode, whole: FxNode, value: str) -> str:
        """The tensor `whole` with new values of a view of it."""
        view, words = _view(part)
        name = f"{fx.name}_{view}_{whole.name}"
        old = Tensor(self.tensors[whole])
        if view in ("slice", "select"):
            values = {"self": old, "src": Tensor(value), **words}
            operator_ = f"aten.{view}_scatter.default"
            values = {k: v for k, v in values.items() if v is not None}
            inputs = old, Tensor(value)
        elif view in (*RESHAPES, "to"):
            values = {"self": Tensor(value), "shape": list(dims(whole))}
            operator_, inputs = "aten.reshape.default", (Tensor(value), Tensor(value))
        else:
            raise InputError(f"module '{self.name}': '{fx.name}' changes a part of a tensor in "
                             f"place ({view}); use the operator that returns a new tensor")
        self.calls[name] = Called(operator_, values, dims(whole),
                                  whole.meta["val"].is_floating_point())
        self.shapes[name] = sample_shape(whole)
        self._append_new(f"{view}_scatter", name, tuple(dict.fromkeys(inputs)), dims(whole))
        return name

    def _append_new(self, op: str, name: str, inputs: tuple[str, ...], shape: Shape) -> None:
        """Add an operator, or a constant with unknown values."""
        given = [self.constants[each] for each in inputs if each in self.constants]
        if len(given) < len(inputs):
            self.nodes.append(Node(op, name, inputs, (name,), {}))
            return
        origins = frozenset[str]().union(*(each.origins for each in given))
        self.constants[name] = Constant.unknown(shape, origins)


def _view(part: FxNode) -> tuple[str, dict[str, object]]:
    """Name and arguments of the view that a node is."""
    if part.target is operator.getitem:
        source, which = cast("tuple[FxNode, int]", tuple(part.args))
        name, words = _view(source)
        axis = cast(int, words.get("dim", 0))
        if name == "unbind":
            return "select", {"dim": axis, "index": which}
        extents = [value.shape[axis] for value in source.meta["val"]]
        return "slice", {"dim": axis, "start": sum(extents[:which]),
                         "end": sum(extents[:which + 1]), "step": 1}
    schema = part.target._schema
    words = {a.name: a.default_value for a in schema.arguments if a.name != "self"}
    words |= dict(zip(words, part.args[1:], strict=False)) | dict(part.kwargs)
    return schema.name.rpartition("::")[2], words


def _is_same(part: FxNode) -> bool:
    """Whether a node returns its whole first argument: as a view, or changed in place."""
    schema = part.target._schema
    return schema.name == "aten::alias" or any(r.alias_info.is_write for r in schema.returns)


def _shares_memory(fx: FxNode) -> bool:
    """Whether a node returns (a view of) its first argument, or one of several views."""
    if fx.target is operator.getitem:
        return _shares_memory(cast("FxNode", fx.args[0]))
    schema = getattr(fx.target, "_schema", None)
    if schema is not None and schema.name == "aten::to":  # a copy, if the type changes
        return bool(fx.meta["val"].dtype == cast("FxNode", fx.args[0]).meta["val"].dtype)
    return schema is not None and any(r.alias_info is not None for r in schema.returns)


def _root(fx: FxNode) -> FxNode:
    """The node whose memory a node's result has."""
    while _shares_memory(fx):
        fx = cast("FxNode", fx.args[0])
    return fx


def _sharing(fx: FxNode, known: Collection[FxNode]) -> Iterator[FxNode]:
    """A node and all views of its result, but for other parts than the `known` one of several."""
    yield fx
    parts = {user for user in fx.users if user.target is operator.getitem}
    for user in parts & {*known} or fx.users:
        if user.args[:1] == (fx,) and _shares_memory(user):
            yield from _sharing(user, known)


def dims(fx: FxNode) -> Shape:
    """Shape of a node's first value; 0 for an extent that depends on values."""
    value = fx.meta.get("val")
    value = value[0] if isinstance(value, list | tuple) else value
    return tuple(n if isinstance(n, int) else 0 for n in getattr(value, "shape", ()))


def sample_shape(fx: FxNode) -> Shape:
    """Sample shape of a node's first value."""
    return dims(fx)[1:]
