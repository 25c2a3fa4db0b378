"""Calls of collectives over the size of their messages, in the style of ParaDL's Fig 6."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcpar.report.calls import OUTLIER, Calls
from hpcpar.report.pictures import finish, pyplot

_COLORS = ("#0072B2", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#999999")
_RED = "#D55E00"


def calls_figure(calls: Sequence[Calls], title: str, path: str | None = None) -> Any:
    """Draws every call; each kind and number of ranks has a line of predicted times."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(7.2, 4.6), layout="constrained")
    groups: dict[str, list[Calls]] = defaultdict(list)
    for each in calls:
        groups[f"{each.kind} of {each.ranks} ranks"].append(each)
    for i, (name, members) in enumerate(groups.items()):
        color = _COLORS[i % len(_COLORS)]
        members.sort(key=lambda c: c.sent_bytes)
        axes.plot([c.sent_bytes for c in members], [c.predicted_s for c in members], color=color,
                  marker="_", markersize=9, label=f"{name}, predicted")
        for c in members:
            slow = c.seconds > OUTLIER * c.median_s
            size = np.full(len(c.seconds), c.sent_bytes)
            axes.plot(size[~slow], c.seconds[~slow], ".", color=color, alpha=0.4, markersize=5)
            axes.plot(size[slow], c.seconds[slow], "x", color=_RED, markersize=5)
    axes.plot([], [], ".", color="#555555", label="a call, measured")
    axes.plot([], [], "x", color=_RED, label=f"outlier: over {OUTLIER:g} times its median")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("bytes that a rank sends in a call", fontsize=9)
    axes.set_ylabel("seconds", fontsize=9)
    axes.grid(alpha=0.3)
    axes.set_title(title, fontsize=10)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    return finish(plt, figure, path, 130)
