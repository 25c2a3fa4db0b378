"""Formulas as data: straight-line programs of elementwise operators, and their derivatives.

A step ``(operator, argument, ...)`` applies an operator of the table to numbers, inputs "x0", "x1",
..., the parameter "w", the output's gradient "g" and results of steps before it, "t0", "t1", ....
The last step is the value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace

import numpy as np

from hpcpar.network.layers.elementwise_table import ARGUMENTS, TABLE, Term

Argument = str | float
Step = tuple[Argument, ...]
Steps = tuple[Step, ...]

_NUMBERS = SimpleNamespace(xp=np, erf=math.erf)
#: Arguments that leave the other one unchanged: a + 0, a - 0, a * 1, a / 1.
_NEUTRAL = {"add": (0.0, 0.0), "sub": (None, 0.0), "mul": (1.0, 1.0), "div": (None, 1.0)}


def is_step(argument: Argument) -> bool:
    """Whether an argument is the result of a step."""
    return isinstance(argument, str) and argument[:1] == "t"


class StepList:
    """A growing list of steps, in which equal steps are one."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._known: dict[Step, str] = {}

    def put(self, op: str, *arguments: Argument) -> Argument:
        """The result of an operator: a number, an argument, or a step, appended if it is new."""
        if all(isinstance(a, float) for a in arguments):
            with np.errstate(all="ignore"):
                return float(TABLE[op].compute(_NUMBERS, *arguments))
        for place, neutral in enumerate(_NEUTRAL.get(op, ())):
            if neutral is not None and arguments[place] == neutral:
                return arguments[1 - place]
        step = (op, *arguments)
        if step not in self._known:
            self._known[step] = f"t{len(self.steps)}"
            self.steps.append(step)
        return self._known[step]

    def term(self, term: Term, names: Mapping[str, Argument]) -> Argument:
        """The result of a nested term."""
        if isinstance(term, tuple):
            op, *parts = term
            return self.put(str(op), *(self.term(part, names) for part in parts))
        return names[term] if isinstance(term, str) else term

    def inline(self, steps: Steps, names: Mapping[str, Argument]) -> Argument:
        """The value of a formula whose inputs and parameter are called otherwise here."""
        results = dict(names)
        for number, (op, *arguments) in enumerate(steps):
            results[f"t{number}"] = self.put(
                str(op), *(results[a] if isinstance(a, str) else a for a in arguments))
        return results[f"t{len(steps) - 1}"]

    def only(self, results: Sequence[Argument]) -> tuple[Steps, tuple[Argument, ...]]:
        """The steps that these results need, and the results' names among them."""
        needed = {a for a in results if is_step(a)}
        for number in range(len(self.steps) - 1, -1, -1):
            if f"t{number}" in needed:
                needed.update(a for a in self.steps[number][1:] if is_step(a))
        kept = [n for n in range(len(self.steps)) if f"t{n}" in needed]
        names: dict[Argument, Argument] = {f"t{n}": f"t{i}" for i, n in enumerate(kept)}
        steps = tuple((self.steps[n][0], *(names.get(a, a) for a in self.steps[n][1:]))
                      for n in kept)
        return steps, tuple(names.get(a, a) for a in results)


def formula(term: Term) -> Steps:
    """The steps of a nested term of inputs, the parameter and numbers."""
    program, leaves = StepList(), dict(_leaves(term))
    program.term(term, leaves)
    return tuple(program.steps)


def _leaves(term: Term) -> Iterable[tuple[str, Argument]]:
    if isinstance(term, tuple):
        for part in term[1:]:
            yield from _leaves(part)
    elif isinstance(term, str):
        yield term, term


def derivatives(steps: Steps, by: Sequence[str]) -> tuple[Steps, tuple[Argument, ...]]:
    """The gradients of inputs or of the parameter from the output's gradient "g".

    Returns
    -------
    steps : tuple of Step
        What all of them need.
    gradients : tuple of Argument
        Each one's result, or 0.0.
    """
    program = StepList()
    for op, *arguments in steps:
        program.steps.append((op, *arguments))
        program._known.setdefault((op, *arguments), f"t{len(program.steps) - 1}")
    depends = set(by)
    for number, (_, *arguments) in enumerate(steps):
        if depends.intersection(a for a in arguments if isinstance(a, str)):
            depends.add(f"t{number}")
    gradients: dict[Argument, Argument] = {f"t{len(steps) - 1}": "g"}
    for number in range(len(steps) - 1, -1, -1):
        result, (op, *arguments) = f"t{number}", steps[number]
        if result not in gradients:
            continue
        names = {"y": result, **dict(zip(ARGUMENTS, arguments, strict=False))}
        for argument, slope in zip(arguments, TABLE[str(op)].slopes, strict=True):
            if argument not in depends or slope == 0.0:
                continue
            gradient = _product(program, gradients[result], program.term(slope, names))
            before = gradients.get(argument)
            gradients[argument] = (gradient if before is None
                                   else program.put("add", before, gradient))
    return program.only([gradients.get(name, 0.0) for name in by])


def _product(program: StepList, gradient: Argument, slope: Argument) -> Argument:
    return program.put("neg", gradient) if slope == -1.0 else program.put("mul", gradient, slope)


def reads(steps: Steps, name: str) -> bool:
    """Whether steps read an argument."""
    return any(name in step[1:] for step in steps)


def flops(steps: Steps) -> float:
    """Floating-point operations of the steps, for one element."""
    return sum(TABLE[str(step[0])].flops for step in steps)


def fault(steps: Steps, names: Iterable[str]) -> str:
    """The fault of a formula over these inputs and parameters, and its remedy, or ''."""
    known, read = set(names), set[str]()
    if not steps:
        return "it has no steps; give a list such as [[\"exp\", \"x0\"]]"
    for number, (op, *arguments) in enumerate((step or ("",)) for step in steps):
        where = f"step {number}"
        if not isinstance(op, str) or op not in TABLE:
            return f"{where}: unknown operator '{op}'; use one of {', '.join(sorted(TABLE))}"
        count = len(TABLE[op].slopes)
        if len(arguments) != count:
            return f"{where}: '{op}' has {len(arguments)} arguments; give {count}"
        texts = [a for a in arguments if isinstance(a, str)]
        unknown = [a for a in texts if a not in known]
        if unknown:
            return (f"{where}: '{unknown[0]}' is not defined; name an input (x0, x1, ...), the "
                    "parameter (w) or a step before it (t0, t1, ...)")
        if not texts:
            return f"{where}: '{op}' reads only numbers; write its value instead"
        read.update(texts)
        known.add(f"t{number}")
    unread = known - read - {f"t{len(steps) - 1}"}
    return f"nothing reads '{sorted(unread)[0]}'; leave it out" if unread else ""
