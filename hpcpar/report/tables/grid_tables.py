"""A plan in the words of Gholami et al.: Pr x Pc, and model or domain parallelism by layer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hpcpar.network.graph import Network
from hpcpar.papers.gholami_choice import PHASES, CostTerm, LayerChoice, total_s
from hpcpar.plan.plan import Plan
from hpcpar.report.tables import amount, seconds, show, show_line
from hpcpar.search.grids import GridAnswer, GridRow, grid_of

#: Most groups of layers in a sentence, and most layers with a row of their own.
MOST_GROUPS, MOST_ROWS = 4, 24
#: Explanations of the columns.
LAYERS_NOTE = ("forward: allgather (model) or halo (domain); batch: all ranks cut the samples; "
               "Eq 6: change of the cut in front of the layer, not in Eq 9")
GRIDS_NOTE = ("E: least communication by Eq 9; S: fastest iteration by the schedule; idle: ranks "
              "without work in some layer; fastest strategy on this grid; <: upper bound")


def in_words(network: Network, plan: Plan) -> str:
    """The plan's grid and the cuts of its layers; empty if it has none, or cuts only samples."""
    found = grid_of(network, plan)
    if found is None or set(found[2].values()) <= {"batch"}:
        return ""
    pr, pc, cuts = found
    groups = [(cut, list(names)) for cut, names in itertools.groupby(cuts, cuts.__getitem__)]
    if len(groups) <= MOST_GROUPS:
        each = [(_named(names), cut) for cut, names in groups]
    else:
        counts = {cut: sum(c == cut for c in cuts.values()) for cut in dict.fromkeys(cuts.values())}
        each = [(f"{count} layers", cut) for cut, count in counts.items()]
    first = {cut: name for name, cut in reversed(cuts.items())}
    phrases = [f"{what} by {cut} ({_parts(network, plan, first[cut])})" for what, cut in each]
    return f"Pr x Pc = {pr} x {pc}: {', '.join(phrases)}"


def _named(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} ... {names[-1]}"


def _parts(network: Network, plan: Plan, name: str) -> str:
    """The parts of a layer: 4 x 4 of the image."""
    config, axes = plan.configs[name], "dhw"[3 - len(network.shapes[name][1:]):]
    image = [int(getattr(config, axis)) for axis in axes]
    if max(image, default=1) > 1:
        return f"{' x '.join(map(str, image))} of the image"
    return f"{config.c} parts of the weights" if config.c > 1 else f"{config.n} parts of the batch"


def reason(answer: GridAnswer) -> str:
    """The best grids by Eq 9 and by the schedule, and why they differ."""
    a, b = answer.by_equation.candidate, answer.by_schedule.fastest
    least = seconds(answer.by_equation.choice.seconds)
    if a.strategy == b.strategy:
        return f"{b.strategy} communicates least by Eq 9 ({least}) and is fastest by the schedule"
    computes_s = a.prediction.compute_s - b.prediction.compute_s
    waits_s = a.prediction.exposed_communication_s - b.prediction.exposed_communication_s
    phrases = [f"{verb} {seconds(abs(gain_s))} {'less' if gain_s > 0 else 'more'} ({why})"
               for gain_s, verb, why in (
                   (computes_s, "computes", "Eq 9 does not count computing"),
                   (waits_s, "waits", "Eq 9 counts neither overlap nor changes of the cut"))
               if abs(gain_s) > 0.01 * b.iteration_s]
    return (f"{a.strategy} communicates least by Eq 9 ({least}), but {b.strategy} is faster by the "
            f"schedule: {seconds(b.iteration_s)} instead of {seconds(a.iteration_s)}"
            + f"; it {' and '.join(phrases)}" * bool(phrases))


def show_grids(answer: GridAnswer, wide: bool = False) -> None:
    """The layers on the plan's grid, and all grids."""
    columns, *rows = layers_table(answer)
    show(layers_title(answer), columns, rows, left=2, wide=wide,
         drop=("batch", "forward", "backward", "gradients"))
    show_line(LAYERS_NOTE)
    columns, *rows = grids_table(answer)
    show(grids_title(answer), columns, rows, left=2, text=("fastest strategy",), wide=wide,
         drop=("idle", columns[2], "fits", "takes", "fastest strategy"))
    show_line(GRIDS_NOTE)
    show_line(reason(answer))


def layers_title(answer: GridAnswer) -> str:
    return (f"layers on {answer.own.pr} x {answer.own.pc}: communication by Eq 9 in ms, latency + "
            "bandwidth, and in all under each cut")


def layers_table(answer: GridAnswer) -> list[tuple[str, ...]]:
    """Names of the columns, then one row per layer or per group of layers that are cut alike."""
    layers = list(answer.own.layers)
    groups = [[layer] for layer in layers] if len(layers) <= MOST_ROWS else [
        list(group) for _, group in itertools.groupby(layers, lambda layer: layer.cut)]
    return [("layer", "cut", *PHASES[:2], "gradients", "model", "domain", "batch", "Eq 6"),
            *((_named([layer.layer for layer in group]), group[0].cut,
               *(_sum([t for layer in group for t in layer.terms[layer.cut] if t.phase == phase])
                 for phase in PHASES),
               *(_under(group, cut) for cut in ("model", "domain", "batch")),
               _ms(sum(layer.change_s for layer in group))) for group in groups)]


def _sum(terms: Sequence[CostTerm]) -> str:
    """Latency + bandwidth (ms)."""
    latency_s, bandwidth_s = (sum(t.latency_s for t in terms), sum(t.bandwidth_s for t in terms))
    return f"{_ms(latency_s)}+{_ms(bandwidth_s)}" if latency_s + bandwidth_s else "-"


def _under(group: Sequence[LayerChoice], cut: str) -> str:
    """Time of layers under a cut; - if one of them cannot be cut so."""
    if any(cut not in layer.terms for layer in group):
        return "-"
    return _ms(sum(total_s(layer.terms[cut]) for layer in group))


def _ms(value_s: float) -> str:
    return f"{1e3 * value_s:.3g}" if value_s else "-"


def grids_title(answer: GridAnswer) -> str:
    first = answer.grids[0].choice
    base = "pure batch parallelism" if first.pr == 1 else f"{first.pr} x {first.pc}"
    return ("all grids: communication by Eq 9 (ms, latency + bandwidth), an iteration by the "
            f"schedule, and how many times as fast as {base}")


def grids_table(answer: GridAnswer) -> list[tuple[str, ...]]:
    """Names of the columns, then one row per grid."""
    return [("Pr x Pc", "", f"domain (of {len(answer.own.layers)})", "Eq 9", "x", "iteration",
             "x all", "memory", "fits", "idle", "fastest strategy", "takes"),
            *(_row(answer, row) for row in answer.grids)]


def _row(answer: GridAnswer, row: GridRow) -> tuple[str, ...]:
    communication, iteration = answer.speedups(row)
    marks = "E" * (row is answer.by_equation) + "S" * (row is answer.by_schedule)
    bound = "" if row.candidate.exact_costs else "<"
    return (f"{row.choice.pr} x {row.choice.pc}", marks, str(len(row.choice.cut_by("domain"))),
            _sum(row.choice.terms), f"{communication:.2f}",
            seconds(row.candidate.iteration_s), f"{iteration:.2f}",
            f"{bound}{amount(row.memory_bytes)}", "yes" if row.candidate.fits else "no",
            str(row.idle_ranks or "-"), row.fastest.strategy, seconds(row.fastest.iteration_s))
