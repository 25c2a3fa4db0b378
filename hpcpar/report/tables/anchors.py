"""Measured iterations that predictions follow: fitted factors, and terms that would explain them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from hpcpar.machine.anchored import Anchor, Anchoring
from hpcpar.machine.model import Machine
from hpcpar.report.tables import percent, seconds, show
from hpcpar.search.anchoring import NeededTerm, Why


def _residual(anchor: Anchor) -> float:
    """Measured over fitted time, minus 1."""
    return anchor.measured_s / anchor.fitted_s - 1.0


def anchors_json(machine: Machine, why: Sequence[Why] = ()) -> dict[str, Any]:
    """The factors and their anchors as JSON data; nothing without anchors."""
    if machine.anchored is None:
        return {}
    out: dict[str, Any] = asdict(machine.anchored.fitted)
    out["anchors"] = [asdict(a) | {"residual": _residual(a)} for a in machine.anchored.anchors]
    if why:
        out["why"] = [asdict(w) | {"terms": [asdict(t) | {"factor": t.factor} for t in w.terms]}
                      for w in why]
    return {"anchored": out}


def anchor_lines(machine: Machine) -> Iterator[str]:
    """The fitted factors and the anchors in sentences; nothing without anchors."""
    if machine.anchored is None:
        return
    fitted = machine.anchored.fitted
    yield (f"times follow measured iterations: computing takes {fitted.computing:.3g} times the "
           f"model's time, what several ranks lose {fitted.loss:.3g} times")
    for a in machine.anchored.anchors:
        yield (f"{a.name}: measured {seconds(a.measured_s)}, {seconds(a.predicted_s)} by the model "
               f"alone, {seconds(a.fitted_s)} with both factors")


def show_anchors(anchoring: Anchoring, wide: bool) -> None:
    """Prints the anchors and the factors that fit them."""
    fitted = anchoring.fitted
    show(f"anchors: computing x {fitted.computing:.3g}, loss on several ranks x {fitted.loss:.3g}",
         ("anchor", "measured", "model alone", "ratio", "fitted", "residual"),
         [(a.name, seconds(a.measured_s), seconds(a.predicted_s),
           f"{a.measured_s / a.predicted_s:.2f}", seconds(a.fitted_s), f"{_residual(a):+.1%}")
          for a in anchoring.anchors], wide=wide)


def show_why(why: Sequence[Why], wide: bool) -> None:
    """Prints how long each term would have to be to explain a measured time alone."""
    rows = [(w.name if i == 0 else "", t.name, seconds(t.predicted_s),
             seconds(t.needed_s) if t.factor is not None else "-", _factor(t))
            for w in why for i, t in enumerate(w.terms)]
    show("what would explain the measured time, each term alone",
         ("anchor", "term", "predicted", "needed", "factor"), rows, left=2, wide=wide)


def _factor(term: NeededTerm) -> str:
    return "cannot" if term.factor is None else f"x {term.factor:.3g}"


def explained(why: Sequence[Why]) -> str:
    """The measured iteration that is furthest from the model, in one sentence."""
    w = max(why, key=lambda each: abs(each.measured_s - each.predicted_s) / each.predicted_s)
    terms = [f"{t.name} {t.factor:.3g} times as long" for t in w.terms if t.factor is not None]
    return (f"{w.name} took {seconds(w.measured_s)}, where the model takes "
            f"{seconds(w.predicted_s)} ({percent(w.predicted_s / w.measured_s)} of it): "
            f"{', or '.join(terms) or 'no single term'} would explain it")
