"""The deviation of an iteration from its prediction, term by term."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hpcpar.prediction.prediction import StepCost
from hpcpar.report.measured import MeasuredView, measure, waited, waited_for
from hpcpar.report.rows import BUBBLE, Term, TermKind, Times
from hpcpar.report.tables import amount

_OPS = {"backward_weight": "backward of weights"}
_MOVED = {"backward": " of the gradient", "gradient": " of weights' gradients",
          "update": " of weights"}


def terms(
    views: Sequence[MeasuredView], groups: Sequence[tuple[TermKind, NDArray[np.bool_]]],
    predicted: Sequence[StepCost], iteration: Times, bubble: NDArray[np.bool_],
    computes: NDArray[np.bool_], ranks: int,
) -> list[Term]:
    """All terms of an iteration, largest deviation first; one is the time between steps.

    Parameters
    ----------
    views : sequence of MeasuredView
        One view, or one per stage of a pipeline.
    groups : sequence of (TermKind, ndarray)
        Kinds of steps, with [steps] masks of their occurrences.
    bubble, computes : ndarray
        [steps] masks of movements between stages, and of compute steps.
    """
    expected_s: dict[tuple[str, str], float] = defaultdict(float)
    for step in predicted:
        expected_s[step.phase, step.label] += step.exposed_s / len(views)
    spent_s = sum(expected_s.values())
    out: list[Term] = []
    for kind, members in groups:
        part = "compute" if kind.kind == "compute" else "communication"
        measured_s = measure(views, members, computes, bubble)[part].measured_s
        out.append(Term(part, _what(kind), expected_s.pop((kind.phase, kind.label), 0.0),
                        measured_s, phase=kind.phase, layer=kind.layer, op=kind.op,
                        algorithm=kind.algorithm, ranks=kind.ranks, sent_bytes=kind.sent_bytes))
    out += [Term("compute", f"{label}, missing in the run", seconds, 0.0, phase=phase)
            for (phase, label), seconds in expected_s.items()]
    for phase in dict.fromkeys(kind.phase for kind, _ in groups):
        steps = np.any([members for kind, members in groups if kind.phase == phase], axis=0)
        waiting = _waiting("waiting", f"waiting in {phase}", views, steps & ~computes & ~bubble,
                           ranks)
        out.append(replace(waiting, phase=phase))
    if len(views) > 1:
        idle = _waiting(BUBBLE, "stages wait for each other", views, bubble, ranks)
        out.append(replace(idle, predicted_s=iteration.predicted_s - spent_s))
        spent_s = iteration.predicted_s
    out.append(Term("between", "between the steps", iteration.predicted_s - spent_s,
                    iteration.measured_s - sum(t.measured_s for t in out)))
    total_s = sum(abs(t.excess_s) for t in out)
    out = [replace(t, share=t.excess_s / total_s) for t in out if t.excess_s]
    return sorted(out, key=lambda t: -abs(t.excess_s))


def _waiting(cause: str, what: str, views: Sequence[MeasuredView], steps: NDArray[np.bool_],
             ranks: int) -> Term:
    """A term of waiting, with the late sender that caused most of it."""
    seconds = waited(views, steps).measured_s
    sender = waited_for(views, steps, ranks)
    if sender is None:
        return Term(cause, what, 0.0, seconds)
    rank, part = sender
    return Term(cause, f"{what}, {part:.0%} for rank {rank}", 0.0, seconds, waited_for=rank)


def _what(kind: TermKind) -> str:
    """A kind of step in words."""
    often = f", {kind.times} times" if kind.times > 1 else ""
    if kind.kind == "compute":
        return f"{kind.layer}: {_OPS.get(kind.op, kind.op)}{often}"
    facts = [f"{kind.ranks} ranks"] * bool(kind.ranks) + [amount(kind.sent_bytes), kind.algorithm]
    details = ", ".join(fact for fact in facts if fact)
    moved = _MOVED.get(kind.phase, "")
    return f"{kind.layer}: {kind.op.replace('_', '-')}{moved}, {details}{often}"
