"""The outputs of a PyTorch module in evaluation, looked up among its tensors in training."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hpcpar.errors import InputError
from hpcpar.network.read.operations import Operations
from hpcpar.network.read.torch_call import Tensor
from hpcpar.network.read.traced_calls import Called, TracedCalls, reached, read_by

#: A digest of how a tensor is computed, and a number by which it is multiplied.
Result: TypeAlias = "tuple[str, float]"
#: Operators whose result is their first tensor.
SAME = {"clone", "contiguous", "alias", "detach"}
#: Operators whose result is their first tensor in evaluation.
DROPOUTS = {"dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"}
#: Arguments that tell training from evaluation; the first two count with running statistics only.
MODES = ("training", "use_input_stats", "train", "dropout_p")


@dataclass(frozen=True)
class Evaluation:
    """The outputs of a module in evaluation.

    Attributes
    ----------
    places : tuple of int
        The output in training that each one equals.
    structure : object
        PyTorch's tree (pytree) of them.
    """

    places: tuple[int, ...]
    structure: object


def results(operations: Operations, trace: TracedCalls, training: bool,
            state: Collection[str] = ()) -> dict[str, Result]:
    """How each tensor is computed from the input and the stored tensors.

    In a trace of `training`, dropout, random factors of samples and the statistics of
    normalizations count as in an evaluation by the plan. In a trace of evaluation they count as
    the module has them, which may drop or take a batch's statistics there, too. A new value of a
    `state` counts as the stored one.
    """
    stored = {new: (name, 1.0) for name in state
              for new in (trace.states[name], trace.changed[name])}
    found: dict[str, Result] = {trace.input: ("input", 1.0)}
    factors = {name: constant.kept * (1 - constant.drops)
               for name, constant in operations.constants.items() if constant.kept and training}
    for name, call in trace.calls.items():
        modes = set() if training else _modes(call)
        found[name] = stored.get(name) or _result(call, found, factors, modes)
    return found


def _modes(call: Called) -> set[str]:
    """The arguments by which a call in evaluation computes as in training."""
    keeps = bool(call.values.get("running_mean"))
    return {name for name in (MODES if keeps else MODES[2:]) if call.values.get(name)}


def _result(call: Called, found: Mapping[str, Result], factors: Mapping[str, float],
            modes: Collection[str]) -> Result:
    operator, *_ = call.operator.removeprefix("aten.").split(".")
    read = [found.get(name, (name, 1.0)) for name in read_by(call)]
    if read and (operator in SAME or (operator in DROPOUTS and not modes)):
        return read[0]
    other = call.values.get("other")
    if operator in ("mul", "div") and read and "rounding_mode" not in call.values:
        if not isinstance(other, Tensor) and isinstance(other, int | float) and other:
            return read[0][0], read[0][1] * (other if operator == "mul" else 1 / other)
        names = read_by(call)
        random = [name for name in names if name in factors]
        if operator == "mul" and len(names) == 2 and len(random) == 1:
            base, factor = read[1 - names.index(random[0])]
            return base, factor * factors[random[0]]
    parts = [f"{key}={_text(value, found)}" for key, value in sorted(call.values.items())
             if key in modes or key not in MODES]
    return hashlib.sha256("\n".join((call.operator, *parts)).encode()).hexdigest(), 1.0


def _text(value: object, found: Mapping[str, Result]) -> str:
    if isinstance(value, Tensor):
        name, factor = found.get(value, (str(value), 1.0))
        return f"{name} * {factor:.6g}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_text(item, found) for item in value)}]"
    return repr(value)


def find_outputs(module: str, operations: Operations, trace: TracedCalls,
                 known: Mapping[str, Result], returned: Sequence[str]) -> tuple[int, ...]:
    """The place of each output in evaluation among those that are `returned` in training.

    Parameters
    ----------
    operations, trace
        The module in evaluation.
    known
        The results in training.

    Raises
    ------
    InputError
        Training does not return it.
    """
    evaluated, places = results(operations, trace, training=False), []
    for output in operations.outputs:
        place = next((i for i, name in enumerate(returned)
                      if _alike(evaluated[output], known[name])), None)
        if place is None:
            other = _first_other({name for name, _ in known.values()}, evaluated, trace, output)
            raise InputError(f"module '{module}' computes something else in evaluation than in "
                             f"training ({other}); make forward() the same in both modes, and do "
                             "the rest outside of the module")
        places.append(place)
    return tuple(places)


def _alike(one: Result, other: Result) -> bool:
    """Whether two tensors are computed in the same way."""
    return one[0] == other[0] and abs(one[1] - other[1]) <= 1e-6 * abs(one[1])


def _first_other(known: Collection[str], evaluated: Mapping[str, Result], trace: TracedCalls,
                output: str) -> str:
    """The first operator on the way to an output whose result training does not compute."""
    for name in reached(trace.calls, (trace.input,), output):
        if name in trace.calls and evaluated[name][0] not in known:
            return trace.calls[name].operator
    return "a product with a number"
