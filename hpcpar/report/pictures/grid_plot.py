"""All grids Pr x Pc in the style of Gholami et al., Fig 6 and 10, for any network and machine."""

from __future__ import annotations

from typing import Any

from hpcpar.prediction.prediction import Prediction
from hpcpar.report.pictures import COLORS, finish, pyplot
from hpcpar.schedule.steps import Phase
from hpcpar.search.grids import GridAnswer

#: Parts of the communication, from the bottom of a bar, and the phases of each.
PARTS = {"forward": (Phase.FORWARD, Phase.LOSS, Phase.RECOMPUTE), "backward": (Phase.BACKWARD,),
         "gradients": (Phase.GRADIENT, Phase.UPDATE)}


def parts_s(p: Prediction) -> list[float]:
    """Communication of an iteration (s), in the order of `PARTS`."""
    phases = p.phases
    return [sum(phases[phase.value]["communication_s"] for phase in of) for of in PARTS.values()]


def grids_figure(answer: GridAnswer, path: str | None = None) -> Any:
    """Draws the grids near the fastest: communication by the schedule and by Eq 9, and computing.
    """
    plt = pyplot()
    rows = [row for row in answer.grids if row.candidate.exact_costs]
    figure, axes = plt.subplots(figsize=(7.2, 4.2), layout="constrained")
    predictions = [row.candidate.prediction for row in rows]
    at, bottom = range(len(rows)), [0.0] * len(rows)
    for (name, of), values in zip(
            PARTS.items(), zip(*map(parts_s, predictions), strict=True), strict=True):
        in_ms = [1e3 * value for value in values]
        axes.bar(at, in_ms, 0.7, bottom=bottom, color=COLORS[of[0].value], label=name)
        bottom = [low + value for low, value in zip(bottom, in_ms, strict=True)]
    axes.plot(at, [1e3 * row.choice.seconds for row in rows], "D", color="black", markersize=5,
              markeredgecolor="white", label="all communication by Eq 9")
    axes.plot(at, [1e3 * p.compute_s for p in predictions], color="#777777", marker=".",
              label="computing")
    axes.plot(at, [1e3 * p.iteration_s for p in predictions], color="black", linestyle="--",
              marker=".", label="iteration")
    axes.set_xticks(at, [f"{row.choice.pr} x {row.choice.pc}" for row in rows], rotation=45,
                    ha="right", fontsize=8)
    axes.set_xlabel("grid Pr x Pc, with model or domain parallelism by layer", fontsize=9)
    axes.set_ylabel("ms per iteration", fontsize=9)
    axes.tick_params(axis="y", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    first = predictions[0]
    left_out = len(answer.grids) - len(rows)
    axes.set_title(f"{first.network} on {first.ranks} ranks of {first.machine}, batch {first.batch}"
                   + f"; {left_out} much slower grids left out" * bool(left_out), fontsize=10)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return finish(plt, figure, path, 130)
