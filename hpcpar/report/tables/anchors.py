"""Measured iterations that predictions follow: fitted factors, and terms that would explain them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from hpcpar.machine.anchored import Anchoring
from hpcpar.report.tables import percent, seconds, show
from hpcpar.search.anchoring import NeededTerm

#: Terms that the sentence names.
NAMED = 3


def anchors_json(anchoring: Anchoring | None, why: Sequence[NeededTerm] = ()) -> dict[str, Any]:
    """The factors, their anchors and the terms as JSON data; nothing without anchors."""
    if anchoring is None:
        return {}
    anchors = [asdict(a) | {"residual": a.residual} for a in anchoring.anchors]
    terms = [asdict(t) | {"needed_s": t.needed_s, "factor": t.factor} for t in why]
    return {"anchored": asdict(anchoring.fitted) | {"anchors": anchors, "why": terms}}


def fitted(anchoring: Anchoring) -> str:
    """The fitted factors in words."""
    by = anchoring.fitted
    return f"computing x {by.computing:.3g}, loss on several ranks x {by.loss:.3g}"


def show_anchors(anchoring: Anchoring, why: Sequence[NeededTerm], wide: bool) -> None:
    """Prints the anchors, the factors that fit them, and the terms that would explain them."""
    show(f"anchors: {fitted(anchoring)}",
         ("anchor", "measured", "model alone", "ratio", "fitted", "residual"),
         [(a.name, seconds(a.measured_s), seconds(a.predicted_s),
           f"{a.measured_s / a.predicted_s:.2f}", seconds(a.fitted_s), f"{a.residual:+.1%}")
          for a in anchoring.anchors], wide=wide)
    if why:
        show("how long each term would have to be to explain the measured time alone",
             ("anchor", "term", "predicted", "needed", "factor"),
             [(t.anchor, t.name, seconds(t.predicted_s), *(("-", "cannot") if t.factor is None else
               (seconds(t.needed_s), f"x {t.factor:.3g}"))) for t in why], left=2, wide=wide)


def explained(why: Sequence[NeededTerm]) -> str:
    """The measured iteration that is furthest from the model, in one sentence."""
    w = max(why, key=lambda t: abs(t.measured_s / t.model_s - 1.0))
    known = sorted((t.factor, t.name) for t in why
                   if t.anchor == w.anchor and t.factor is not None)
    terms = [f"{name} {factor:.3g} times as long" for factor, name in known[:NAMED]]
    return (f"{w.anchor} took {seconds(w.measured_s)}, where the model takes {seconds(w.model_s)} "
            f"({percent(w.model_s / w.measured_s)} of it): "
            f"{', or '.join(terms) or 'no single term'} would explain it")
