"""The plot of a simulation: its iterations, and the time of every rank in one."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcpar.report.pictures import finish, pyplot
from hpcpar.report.tables.simulated import SimulationReport, summary

_PARTS = (("compute", "#0072B2"), ("communication", "#E69F00"), ("waiting", "#DDDDDD"))


def plot(report: SimulationReport, path: str | None = None) -> Any:
    """Draws one panel of iterations and one of ranks; returns the figure."""
    plt = pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.6), layout="constrained")
    times_ms = 1e3 * report.played.iteration_s
    left.hist(times_ms, bins=min(30, max(5, len(times_ms) // 4)), color="#56B4E9")
    left.axvline(1e3 * report.predicted_s, color="black", linestyle="--", label="predicted")
    left.axvline(1e3 * report.played.mean_s, color="#D55E00", label="simulated, mean")
    left.set(xlabel="time of an iteration (ms)", ylabel="iterations")
    each = report.played
    order = np.argsort(each.compute_s, kind="stable")
    below = np.zeros(len(order))
    for (name, color), seconds in zip(
            _PARTS, (each.compute_s, each.exposed_s, each.waiting_s), strict=True):
        upto = below + 1e3 * seconds[order]
        right.fill_between(np.arange(len(order) + 1), np.append(below, below[-1]),
                           np.append(upto, upto[-1]), step="post", color=color, label=name,
                           linewidth=0)
        below = upto
    right.set(xlabel="ranks, by their computing", ylabel="time (ms)", xlim=(0, len(order)))
    for axes, entries in ((left, 2), (right, len(_PARTS))):
        axes.legend(fontsize=8, frameon=False, loc="lower center", ncols=entries,
                    bbox_to_anchor=(0.5, 1.0))
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(summary(report), fontsize=9)
    return finish(plt, figure, path, 130)
