"""Where the time went that was not foreseen: an iteration's deviation term by term."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hpcpar.report.measured import MeasuredView, measure, waited, waited_for
from hpcpar.report.predicted import Expected
from hpcpar.report.rows import BUBBLE, Term, TermKind, Times
from hpcpar.report.tables import amount

_OPS = {"backward_weight": "backward of weights"}


@dataclass(frozen=True)
class TermGroups:
    """The steps of a record by phase and label.

    Attributes
    ----------
    kinds : tuple of TermKind
    members : tuple of ndarray
        [steps] which of the steps are of that kind.
    """

    kinds: tuple[TermKind, ...]
    members: tuple[NDArray[np.bool_], ...]


def ranked(terms: Sequence[Term]) -> list[Term]:
    """The largest deviations first, with their shares."""
    total = sum(abs(t.excess_s) for t in terms)
    out = [replace(t, share=t.excess_s / total if total > 0 else 0.0) for t in terms if t.excess_s]
    return sorted(out, key=lambda t: -abs(t.excess_s))


def terms(
    views: Sequence[MeasuredView], groups: TermGroups, foreseen: Sequence[Expected],
    iteration: Times,
    bubble: NDArray[np.bool_], computes: NDArray[np.bool_], ranks: int,
) -> list[Term]:
    """All terms of an iteration; what is left between the steps is one of them."""
    assert iteration.predicted_s is not None
    n = len(views)
    expect: dict[tuple[str, str], float] = {}
    for e in foreseen:
        expect[e.phase, e.label] = expect.get((e.phase, e.label), 0.0) + e.seconds / n
    out: list[Term] = []
    for kind, members in zip(groups.kinds, groups.members, strict=True):
        part = "compute" if kind.kind == "compute" else "communication"
        found = measure(views, members, computes, bubble)[part].measured_s
        predicted_s = expect.pop((kind.phase, kind.label), 0.0)
        out.append(Term(part, _what(kind), predicted_s, found, 0.0, kind.phase, kind.layer,
                        kind.op, kind.algorithm, kind.ranks, kind.sent_bytes))
    for (phase, label), seconds in expect.items():  # predicted, but not a step of the run
        out.append(Term("compute", f"{label}, which the run does not have", seconds, 0.0, 0.0,
                        phase))
    for phase in dict.fromkeys(kind.phase for kind in groups.kinds):
        here = np.logical_or.reduce([m for k, m in zip(groups.kinds, groups.members, strict=True)
                                     if k.phase == phase])
        out.append(_waiting("waiting", f"waiting in {phase}", views, here & ~computes & ~bubble,
                            phase, 0.0, ranks))
    spent = sum(e.seconds for e in foreseen) / n
    if n > 1:
        out.append(_waiting(BUBBLE, "stages wait for each other", views, bubble, "",
                            iteration.predicted_s - spent, ranks))
        spent = iteration.predicted_s
    between = iteration.measured_s - sum(t.measured_s for t in out)
    out.append(Term("between", "between the steps", iteration.predicted_s - spent, between))
    return ranked(out)


def _waiting(
    cause: str, what: str, views: Sequence[MeasuredView], steps: NDArray[np.bool_], phase: str,
    predicted_s: float, ranks: int,
) -> Term:
    """Waiting, and for whom most of all."""
    sender = waited_for(views, steps, ranks)
    if sender is not None:
        what += f", {sender[1]:.0%} for rank {sender[0]}"
    return Term(cause, what, predicted_s, waited(views, steps).measured_s, 0.0, phase,
                waited_for=sender[0] if sender else None)


def _what(kind: TermKind) -> str:
    """A step in words."""
    often = f", {kind.times} times" if kind.times > 1 else ""
    if kind.kind == "compute":
        return f"{kind.layer}: {_OPS.get(kind.op, kind.op)}{often}"
    facts = [f"{kind.ranks} ranks" if kind.ranks else "", amount(kind.sent_bytes), kind.algorithm]
    where = {"backward": " of the gradient", "gradient": " of weights' gradients",
             "update": " of weights"}.get(kind.phase, "")
    told = ", ".join(fact for fact in facts if fact)
    return f"{kind.layer}: {kind.op.replace('_', '-')}{where}, {told}{often}"
