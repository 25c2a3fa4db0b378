"""Pictures of time and memory: what predictions, simulations and plans of memory say."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from matplotlib.patches import Rectangle

import hpcpar
from docs.drawings.style import (
    BLUE,
    GREEN,
    INK,
    OLIVE,
    ORANGE,
    PHASES,
    PURPLE,
    RED,
    WIDTH,
    Canvas,
    canvas,
    chart,
    legend,
)
from hpcpar.cost.published_runs import published
from hpcpar.report.compare import compare_one
from hpcpar.report.rows import PARTS, Row
from hpcpar.report.simulated_record import record_of
from hpcpar.report.tables.simulated import SimulationReport
from hpcpar.schedule.memory_plan.allocation import plan_memory
from hpcpar.schedule.memory_plan.views import Buffer
from hpcpar.schedule.steps import Compute


def iterations() -> Canvas:
    """What an iteration adds up, of five strategies, with the 90% interval."""
    strategies = ("data", "grid-fc:2x4", "grid-fc:8x1", "spatial", "pipeline:4x2")
    found = hpcpar.predict("vgg16", 8, 64, "dgx1-v100", ",".join(strategies), microbatches=4)
    page = canvas(275)
    axes = chart(page.figure, 100, 45, WIDTH - 120, 180)
    parts = {"compute": BLUE, "exposed communication": ORANGE, "bubble": INK}
    for y, p in enumerate(found.predictions):
        left = 0.0
        for color, seconds in zip(parts.values(), (
                p.compute_s, p.exposed_communication_s, p.bubble_s), strict=True):
            axes.barh(y, 1e3 * seconds, 0.44, left, color=color)
            left += 1e3 * seconds
        hidden = p.communication_s - p.exposed_communication_s
        axes.barh(y + 0.34, 1e3 * hidden, 0.16, color=OLIVE)
        low, high = p.interval_s
        axes.plot([1e3 * low, 1e3 * high], [y - 0.34] * 2, color=PURPLE, marker="|", linewidth=1.5)
    axes.set_yticks(range(len(strategies)), [p.strategy for p in found.predictions])
    axes.set(ylim=(len(strategies) - 0.4, -0.6), xlabel="one iteration (ms)")
    legend(page, 100, 20, {"compute": BLUE, "exposed": ORANGE, "bubble": INK,
                           "hidden": OLIVE, "90% interval": PURPLE}, 105)
    return page


def intervals() -> Canvas:
    """The 90% intervals of predictions without calibration, by what they rest on."""
    known = {"precision": "fp32", "samples": "many", "kind": "images"}
    bases = {"tables": "data sheet, published runs of the device", "sheet": "data sheet alone",
             "rate": "one fitted rate", "others": "data sheet of another maker",
             "cpu": "data sheet of a CPU",
             "peak": "peak rate, or a guess"}
    page = canvas(235)
    axes = chart(page.figure, 260, 15, WIDTH - 285, 165)
    for y, basis in enumerate(bases):
        found = published().of(basis, known)
        axes.barh(y, found.high - found.low, 0.5, found.low, color=BLUE)
        axes.plot([found.median] * 2, [y - 0.25, y + 0.25], color=ORANGE, linewidth=3)
        axes.text(found.high + 0.05, y, f"{found.low:.2f} to {found.high:.2f}", va="center")
    axes.axvline(1.0, color=INK, linewidth=1.2, linestyle="--")
    axes.set_yticks(range(len(bases)), bases.values())
    axes.set(ylim=(len(bases) - 0.5, -0.5), xlim=(0.0, 4.5),
             xlabel="measured time / predicted time: 90% of the runs, and the median")
    return page


def simulated() -> Canvas:
    """A pipeline with a slow rank in virtual time, and its critical path."""
    plan = hpcpar.plan("vgg16", 4, 96, "p100x4x4", "pipeline:2x2", microbatches=3)
    report = hpcpar.simulate(plan, slow={"rank1": 1.3}).simulated
    page = canvas(250)
    axes = chart(page.figure, 60, 40, WIDTH - 75, 165)
    for rank in range(4):
        for (phase, part), (start, end) in _passes(report, rank).items():
            axes.barh(rank, end - start, 0.6, start, color=PHASES[phase], edgecolor="white",
                      linewidth=0.4)
            if phase != "update":
                axes.text(start + 1.5, rank, str(part), color="white", fontsize=8, va="center")
    _path(axes, report)
    axes.set_yticks(range(4), [f"rank {rank}" for rank in range(4)])
    axes.set(ylim=(3.5, -0.6), xlabel="time (ms)", xlim=(0, 1010 * report.played.mean_s))
    legend(page, 60, 18, {"forward": BLUE, "backward": GREEN, "update": PURPLE,
                          "critical path": RED}, 110)
    return page


def _passes(report: SimulationReport, rank: int) -> dict[tuple[str, int], tuple[float, float]]:
    """Begin and end (ms) of every micro-batch's passes on a rank, and of the update."""
    times: dict[tuple[str, int], list[float]] = defaultdict(list)
    played = report.played
    for step, start, end in zip(report.schedule.steps, played.start_s[:, rank],
                                played.end_s[:, rank], strict=True):
        if isinstance(step, Compute) and end > start:
            times[step.phase.value, step.part] += [1e3 * start, 1e3 * end]
    return {key: (min(each), max(each)) for key, each in times.items()}


def _path(axes: Any, report: SimulationReport) -> None:
    """The critical path over the ranks that it passes."""
    xs, ys = [], []
    for piece in report.critical_path:
        start = report.played.start_s[piece.step, piece.rank]
        xs += [1e3 * start, 1e3 * (start + piece.seconds)]
        ys += [piece.rank - 0.38] * 2
    axes.plot(xs, ys, color=RED, linewidth=2.2)


def streams() -> Canvas:
    """A rank's streams from the loss to the end of an iteration, with the events between them."""
    p = hpcpar.plan("alexnet", 4, 384, "p100x4x4", "grid-fc:1x4").prediction
    first = next(i for i, s in enumerate(p.steps) if s.phase == "backward")
    shown = p.steps[first:]
    begin, total = shown[0].start_s, 1e3 * p.total_s
    page = canvas(255)
    axes = chart(page.figure, 105, 45, WIDTH - 120, 165)
    ends: dict[tuple[str, str], tuple[float, float]] = {}
    for step in shown:
        start, end = 1e3 * (step.start_s - begin), 1e3 * (step.end_s - begin)
        ends[step.layer, step.label.rpartition(".")[2]] = start, end
        axes.barh(int(step.is_comm), end - start, 0.42, start, color=PHASES[step.phase],
                  edgecolor="white", linewidth=0.3)
        if step.is_comm and end - start > 1.0:
            axes.text((start + end) / 2, 1, step.layer, color="white", ha="center", va="center",
                      fontsize=8)
    axes.barh(2, 0.55 * (total - 1e3 * begin), 0.42, 0.0, color="none", edgecolor=INK,
              linestyle="--")
    axes.text(0.3, 2, "images of the next iteration, copied meanwhile", va="center", fontsize=8)
    for layer in ("fc7", "conv2"):
        _event(axes, (ends[layer, "backward_weight"][1], 0.21), (ends[layer, "allreduce"][0], 0.79))
    for layer in ("fc6", "conv1"):
        _event(axes, (ends[layer, "allreduce"][1], 0.79), (ends[layer, "update"][0], 0.21))
    axes.set_yticks(range(3), ["compute", "messages", "reading"])
    axes.set(ylim=(2.5, -0.5), xlim=(0, total - 1e3 * begin),
             xlabel="time after the forward pass (ms)")
    legend(page, 105, 20, {"backward": GREEN, "allreduce of gradients": ORANGE, "update": PURPLE,
                           "event": RED}, 160)
    return page


def _event(axes: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    """An arrow from the stream that records an event to the one that waits for it."""
    axes.annotate("", end, start, arrowprops={
        "arrowstyle": "-|>", "color": RED, "linewidth": 1.3, "shrinkA": 0, "shrinkB": 0})


def comparison() -> Canvas:
    """Predicted and measured phases, and the terms whose sum is the difference."""
    plan = hpcpar.plan("alexnet", 4, 128, "p100x4x4", "grid-fc:1x4")
    row = compare_one(record_of(hpcpar.simulate(plan, slow={"rank3": 1.2}).simulated))
    page = canvas(305)
    _phases(chart(page.figure, 55, 55, 150, 180), row)
    axes = chart(page.figure, 440, 55, WIDTH - 455, 180)
    terms, others = row.terms[:6], row.terms[6:]
    bars = {t.what.partition(",")[0]: 1e3 * t.excess_s for t in terms}
    bars[f"{len(others)} other terms"] = 1e3 * sum(t.excess_s for t in others)
    axes.barh(range(len(bars)), list(bars.values()), 0.6, color=RED)
    for y, ms in enumerate(bars.values()):
        axes.text(max(ms, 0.0) + 0.08, y, f"{ms:+.2f}", fontsize=8, va="center")
    axes.set_yticks(range(len(bars)), list(bars), fontsize=8)
    axes.margins(x=0.2)
    axes.invert_yaxis()
    axes.axvline(0.0, color=INK, linewidth=1.0)
    axes.set_xlabel("measured less predicted (ms)")
    accuracy = row.iteration.accuracy or 0.0
    page.text(20, 20, f"{100 * accuracy:.0f}% accurate", left=True, bold=True)
    difference_s = row.iteration.measured_s - row.iteration.predicted_s
    page.text(270, 20, f"where the difference of {1e3 * difference_s:+.2f} ms comes from",
              left=True, bold=True)
    used = {name: PHASES[name] for name in ("forward", "backward", "gradient", "update")}
    legend(page, 55, 288, used, 85)
    page.text(405, 288, "hatched: exposed communication", left=True)
    return page


def _phases(axes: Any, row: Row) -> None:
    """Stacked bars of an iteration."""
    for x, side in enumerate(("predicted_s", "measured_s")):
        height = 0.0
        for part in PARTS:
            for phase, parts in row.phases.items():
                piece = 1e3 * getattr(parts[part], side)
                color = INK if part == "waiting" else PHASES.get(phase, OLIVE)
                axes.bar(x, piece, 0.62, bottom=height, color=color,
                         hatch="////" if part == "communication" else None, edgecolor="white",
                         linewidth=0.4)
                height += piece
    axes.set_xticks([0, 1], ["predicted", "measured"])
    axes.set_ylabel("one iteration (ms)")


def places() -> Canvas:
    """When the buffers of a rank are alive, and where they lie."""
    result = hpcpar.plan("lenet5", 2, 64, "local", "data")
    memory = plan_memory(result.best.task.network, result.plan, 0, [result.schedule], training=True)
    page = canvas(300)
    axes = chart(page.figure, 55, 40, WIDTH - 70, 205)
    items = memory.place()
    for buffer in memory.buffers:
        for life in buffer.lives:
            axes.add_patch(Rectangle(
                (life.start, buffer.first * 4e-6), len(life), buffer.items * 4e-6,
                facecolor=GREEN if buffer.gradient else BLUE, edgecolor="white", linewidth=0.5))
    axes.set(xlim=(0, len(result.schedule.steps)), ylim=(0, items * 4e-6 * 1.02),
             xlabel="steps of an iteration", ylabel="place in memory (MB)")
    legend(page, 55, 18, {"activations": BLUE, "their gradients": GREEN}, 110)
    apart = sum(buffer.items for buffer in memory.buffers) * 4e-6
    page.text(WIDTH - 15, 18, f"{items * 4e-6:.2f} MB; {apart:.2f} MB if none shared a place",
              right=True)
    return page


def recomputing() -> Canvas:
    """Bytes alive over an iteration, without and with recomputation, and the peaks."""
    page = canvas(290)
    axes = chart(page.figure, 55, 20, WIDTH - 70, 220)
    for color, segments in ((BLUE, 0), (ORANGE, 4)):
        result = hpcpar.plan("resnet50", 4, 128, "k80x16", "data", recompute=segments)
        memory = plan_memory(result.best.task.network, result.plan, 0, [result.schedule],
                             training=True)
        alive = _alive_bytes(memory.buffers, len(result.schedule.steps)) / 1e9
        alive = np.maximum.reduceat(alive, range(0, len(alive), 4))  # fewer points, the same peak
        x = np.linspace(0, 1, len(alive))
        axes.fill_between(x, alive, color=color, alpha=0.3, linewidth=0)
        axes.plot(x, alive, color=color, linewidth=1.2)
        top = int(alive.argmax())
        axes.plot(x[top], alive[top], "o", color=color, markersize=5)
        words = f"recomputed in {segments} segments" if segments else "everything kept"
        axes.annotate(f"{words}: peak {alive[top]:.2f} GB", (x[top], alive[top]), (6, 5),
                      textcoords="offset points", color=color)
    axes.set(xlim=(0, 1), ylim=(0, None), xlabel="an iteration, from its first to its last step",
             ylabel="activations, gradients (GB)")
    axes.set_xticks([])
    return page


def _alive_bytes(buffers: list[Buffer], steps: int) -> Any:
    """Bytes of all buffers (float32) that are alive at each step."""
    alive = np.zeros(steps + 1)
    for buffer in buffers:
        for life in buffer.lives:
            alive[life.start:life.stop] += buffer.items * 4
    return alive
