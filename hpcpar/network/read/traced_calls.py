"""The calls of PyTorch's operators in an exported module."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpcpar.network.builder import Option
from hpcpar.network.layers.base import Shape
from hpcpar.network.read.operations import Node
from hpcpar.network.read.torch_call import Tensor

if TYPE_CHECKING:
    import torch

#: Batch size of the trace. It does not affect the layers; as a large prime number, it tells sizes
#: that count samples.
SAMPLES = 1009


@dataclass(frozen=True)
class Called:
    """A call of a PyTorch operator: arguments by name, and the shape of its (first) result."""

    operator: str
    values: Mapping[str, object]
    shape: Shape
    #: Whether the result is one tensor of real numbers.
    real: bool = True


@dataclass
class ProgramText:
    """A program, with the names of its weights and of the tensors whose numbers it holds."""

    text: str
    weights: tuple[str, ...]
    tensors: list[torch.Tensor] = field(default_factory=list)
    held: tuple[str, ...] = ()
    #: Buffers among its weights, which training changes.
    state: tuple[str, ...] = ()


@dataclass(frozen=True)
class TracedCalls:
    """All calls of an exported module by their results, and its stored tensors.

    `samples` is the batch of the trace, a prime number.
    """

    calls: dict[str, Called]
    stored: Mapping[str, torch.Tensor]
    samples: int
    input: str
    input_shape: Shape
    #: Fields of `Whole` layers by their programs and weights, which take time to find.
    measured: dict[Hashable, Mapping[str, Option]] = field(default_factory=dict)
    #: The node and program of each `Whole` layer.
    parts: dict[str, tuple[Node, ProgramText]] = field(default_factory=dict)
    #: Names of functions whose gradients are not known to be usual ones (`own_gradients.py`).
    own_gradients: tuple[str, ...] = ()
    #: Stored tensors that the module changes, besides counts of batches and running statistics, and
    #: the tensors with their new values.
    changed: Mapping[str, str] = field(default_factory=dict)
    #: Those whose new values do not depend on the images: a part can keep them as its state.
    states: Mapping[str, str] = field(default_factory=dict)

    def refusal(self, module: str, outputs: Collection[str] = (), kept: Collection[str] = ()
                ) -> str:
        """Why a run would not train as the module with these outputs, where parts keep some tensors
        as their state; empty where it would.
        """
        if lost := [name for name in self.changed if name not in kept]:
            return (f"module '{module}': its forward pass changes {_listed(lost)}, which a "
                    "run would leave as they are; change them in the training loop, after each "
                    "step")
        if without := self._without_gradients(outputs):
            return (f"module '{module}': no gradient reaches {_listed(without)}, which only count "
                    "behind detach or torch.no_grad, so that PyTorch would not train them; freeze "
                    "them with requires_grad_(False)")
        return "" if not self.own_gradients else (
            f"module '{module}': {', '.join(self.own_gradients)} (torch.autograd.Function) defines "
            "a gradient of its own, which a trace does not show, and random numbers do not show "
            "that it equals its operators' gradient; write it with operators, as in "
            "y = x + (f(x) - x).detach()")

    def _without_gradients(self, outputs: Collection[str]) -> list[str]:
        """The trained tensors that outputs read, but not with gradients."""
        ends = {name for name, call in self.calls.items()
                if call.operator in ("aten.detach.default", "aten.item.default")}
        read, reach = ({name for output in outputs for name in reached(self.calls, given, output)}
                       for given in ((), ends))
        return sorted(name for name in read - reach if name in self.stored
                      and self.stored[name].requires_grad)

    def states_of(self, inputs: Collection[str], output: str, constants: Collection[str]
                  ) -> dict[str, str]:
        """The states that the part between some tensors reads after their change, not before, and
        that no other call on images reads.
        """
        part = {*reached(self.calls, inputs, output)}
        unchanged = reached(self.calls, {*inputs, *self.states.values()}, output)
        return {name: new for name, new in self.states.items()
                if new in part and name not in unchanged
                and self._readers({name, new}, constants) <= part}

    def _readers(self, names: set[str], constants: Collection[str]) -> set[str]:
        """The calls on images that read some tensors, also through calls on constants alone."""
        behind, found = {*names}, set[str]()
        for result, call in self.calls.items():
            if not behind.isdisjoint(read_by(call)):
                (behind if result in constants else found).add(result)
        return found

    def shape(self, name: str) -> Shape:
        """Shape of a sample of a tensor."""
        return self.input_shape if name == self.input else self.calls[name].shape[1:]


def _listed(names: Sequence[str]) -> str:
    """The first names of several, in quotes."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(f"'{name}'" for name in names[:3]) + more


def read_by(call: Called) -> list[str]:
    """The tensors that a call reads."""
    found: list[str] = []

    def visit(value: object) -> None:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            for item in value:
                visit(item)

    for value in call.values.values():
        visit(value)
    return found


def reached(calls: Mapping[str, Called], inputs: Collection[str], output: str) -> list[str]:
    """The tensors on which one depends, up to `inputs`, in order of computation."""
    found: dict[str, None] = {}
    stack = [(output, False)]
    while stack:
        name, done = stack.pop()
        if name in inputs or name in found:
            continue
        below = read_by(calls[name]) if name in calls else []
        if done or not below:
            found[name] = None
        else:
            stack.append((name, True))
            stack += [(other, False) for other in reversed(below)]
    return list(found)
