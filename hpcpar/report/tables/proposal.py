"""The page of a proposal for compute time: the request, scaling, and how it was predicted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcpar.cost.published_runs import published
from hpcpar.network.layers.base import shape_text
from hpcpar.plan.frameworks import OWN
from hpcpar.plan.limits import limits_in_words
from hpcpar.plan.optimizers import OPTIMIZERS
from hpcpar.plan.precision import PRECISIONS
from hpcpar.report.sweep_points import (
    Point,
    base,
    efficiency,
    mean_accuracy,
    predicted_efficiency,
    predicted_speedup,
    speedup,
)
from hpcpar.report.tables import amount, in_percent, percent, seconds, span, with_ends
from hpcpar.report.tables.anchors import fitted
from hpcpar.report.tables.answer import images, plural, words
from hpcpar.report.tables.document import Parts
from hpcpar.search.candidates import Candidate
from hpcpar.search.outside_model import outside_model
from hpcpar.version import __version__


def hours(value: float) -> str:
    """A number of node-hours."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def request(c: Mapping[str, Any], chosen: Candidate) -> str:
    """The campaign `c` in one sentence; `chosen` is the plan of its runs."""
    p = chosen.prediction
    data_set = f" of {p.data_set}" if p.data_set else ""
    return (f"{hours(c['node_hours'])} node-hours of {p.machine}: {plural(c['runs'], 'run')} of "
            f"{c['epochs']:g} epoch{'s' * (c['epochs'] != 1)}{data_set} on "
            f"{plural(p.ranks, p.processor)} ({plural(c['nodes'], 'node')}), "
            f"{seconds(c['run_s'])} and {hours(c['run_node_hours'])} node-hours each as "
            f"{c['times']}, and a reserve of {c['reserve']:.0%}")


def _method(chosen: Candidate) -> Iterator[str]:
    p, net, samples = chosen.prediction, chosen.task.network, chosen.task.samples or 0
    form, data_set = PRECISIONS[p.precision], f" ({p.data_set})" if p.data_set else ""
    rules = chosen.plan.framework
    yield (f"The network {net.name} has {net.parameters:,} weights and needs "
           f"{amount(net.forward_flops, 'flop')} for the forward pass of an image "
           f"({shape_text(net.image_shape)}). An epoch has {images(samples)}{data_set}. The "
           f"optimizer ({chosen.plan.optimizer}) updates the weights after each mini-batch of "
           f"{p.batch}, in {p.precision}. Parallelization: {words(p.strategy)}, one MPI rank on "
           f"each {p.processor}. hpcpar {__version__} (MIT license) makes one list of "
           "compute steps and messages from the plan. It predicts the time from this list, " + (
               f"by the rules of {rules}, and does not execute it." if rules != OWN else
               "executes it and checks that each rank sends what the list says."))
    values = net.parameters * (1 + len(OPTIMIZERS[chosen.plan.optimizer].state))
    item_bytes = chosen.task.options.get("io_item_bytes", 1.0)
    yield (f"Memory: {amount(p.memory_bytes)} of {amount(p.memory_limit_bytes)} on each "
           f"{p.processor}, and {amount(p.process.total_bytes)} on the host for each rank. "
           f"Storage: {amount(samples * math.prod(net.image_shape) * item_bytes)} of images, "
           f"{amount(values * form.weight_bytes)} for each checkpoint.")


def _scaling(points: Sequence[Point], unit: str) -> list[list[str]]:
    """One row for each size, without the columns that say nothing."""
    rows = [[f"{unit}s", "nodes", "strategy", "batch", "iteration", "90% interval", "measured",
             "epoch", "speedup", "efficiency", f"memory/{unit}", "node-hours/epoch"]]
    several = len({p.chosen for p in points}) > 1
    for p in points:
        over, parts = base(points, p.known), p.predicted
        assert parts is not None
        gain, share = f"{speedup(p, over, p.known):.2f}", percent(efficiency(p, over, p.known))
        sure = predicted_speedup(p, over) if p.known == "predicted" and p is not over else None
        sure_share = predicted_efficiency(p, over)
        if sure and sure_share:
            gain, share = with_ends(sure), in_percent(sure_share)
        rows.append([
            str(p.ranks), str(p.nodes), p.chosen if several else "-", str(p.batch),
            seconds(parts.iteration_s),
            span(parts.iteration_s, p.trust).partition(":")[0] if p.trust else "-",
            seconds(p.measured.iteration_s if p.measured else None), seconds(p.epoch_s(p.known)),
            gain, share, amount(p.memory_bytes), f"{p.node_hours(p.known):.3g}"])
    kept = [i for i, column in enumerate(zip(*rows[1:], strict=True)) if {*column} != {"-"}]
    return [[row[i] for i in kept] for row in rows]


def _trust(chosen: Candidate, points: Sequence[Point]) -> Iterator[str]:
    p = chosen.prediction
    yield (f"hpcpar prices the compute steps ({p.trust.source}) and the messages (latency and "
           f"bandwidth of each level of {p.machine}), and overlaps them as the run does.")
    if r := p.trust.runs:
        yield (f"The 90% interval of the request comes from {r.rows:,} published training runs of "
               f"the nearest kind: 90% of them took {r.low:.2f} to {r.high:.2f} times the time that"
               f" was predicted for them, with a median of {r.median:.2f}. The largest of all such "
               f"runs had {published().most_ranks} devices (docs/results/gallery.md of hpcpar).")
    if (anchoring := chosen.task.machine.anchored) is not None:
        yield f"Times follow measured iterations: {fitted(anchoring)}."
    if p.trust.calibrated:
        yield "The 90% intervals come from measurements that the calibration held out."
    if (mean := mean_accuracy(points)) is not None:
        yield (f"Predictions of the measured iterations are {percent(mean)} accurate on average. A "
               "measured time is the median of the iterations of a run.")
    yield f"Not in the prediction: {'; '.join(outside_model(chosen))}."
    if p.limits:
        yield f"The plan goes beyond the limits of scaling: {limits_in_words(p.limits)}."
    if p.trust.warning:
        yield p.trust.warning


def page(c: Mapping[str, Any], chosen: Candidate, series: Mapping[str, Sequence[Point]],
         picture: str, notes: Sequence[str]) -> Parts:
    """The parts of the page; the points of `series`, by ``strong`` and ``weak``, have predictions.
    """
    p, every = chosen.prediction, [q for points in series.values() for q in points]
    out: list[Any] = [("title", f"Compute time for training {p.network} on {p.machine}"),
                      ("text", f"{request(c, chosen)}."),
                      ("heading", "Network, method and code")]
    out += [("text", line) for line in _method(chosen)] + [("picture", picture)] * bool(picture)
    for kind, points in series.items():
        follow = " The columns to the right of a measured time follow from it."
        out += [("heading", f"{kind.capitalize()} scaling"),
                ("text", f"Speedup and efficiency are over {plural(points[0].ranks, p.processor)}."
                 + follow * any(q.measured for q in points)),
                ("table", _scaling(points, p.processor))]
    out.append(("heading", "How far to trust the predictions"))
    return out + [("text", line) for line in (*_trust(chosen, every), *notes)]
