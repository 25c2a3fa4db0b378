"""Tables of a calibration's results, with confidence intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from hpcpar.calibrate.for_auto import AutoChoice
from hpcpar.calibrate.refine import Refined
from hpcpar.machine.model import Machine
from hpcpar.report.tables import amount, say, seconds, show, show_line
from hpcpar.report.tables.answer import words

#: Relative error above which a fit is not trusted.
_LOOSE = 0.5


def show_refined(found: Refined, path: str, wide: bool) -> None:
    """Prints the changes that a refinement makes to a machine file."""
    show_line(f"{path}: {found.new} new compute steps; {found.known} known ones now take "
              f"{found.ratio:.2f} times as long (median)")
    show("iterations of the records",
         ("record", "plan", "ranks", "compute steps", "predicted before", "now", "measured",
          "now/measured"),
         [(c.path, c.strategy, c.ranks, c.steps, seconds(c.before_s), seconds(c.after_s),
           seconds(c.measured_s), f"{c.after_s / c.measured_s:.2f}") for c in found.changes],
         left=2, drop=("compute steps", "predicted before", "plan"), wide=wide)
    for level in found.links:
        show_line(f"{level.level}: latency times {level.alpha:.2f}, inverse bandwidth times "
                  f"{level.beta:.2f}, from {level.steps} communication steps")


def show_machine(machine: Machine, choice: AutoChoice | None = None, wide: bool = False) -> None:
    """Prints the search's choice, rates, links with intervals, collectives, and the samples'
    spread.
    """
    if choice is not None:
        _show_choice(choice)
    q = cast(dict[str, Any], machine.quality)
    memory = q["memory"]
    together = amount(memory["together_bytes_per_s"], "B/s")
    alone = amount(memory["alone_bytes_per_s"], "B/s")
    show_line(f"per rank: {amount(machine.device.flops_per_s, 'flop/s')}; copies {together} while "
              f"all ranks of the node copy, {alone} alone; computing hides {machine.overlap:.0%} "
              f"of communication, which progresses at {machine.progress:.0%} of its rate meanwhile")
    _show_links(machine, q["links"], wide)
    if machine.collectives:
        _show_collectives(machine)
    if "compute" in q:
        c = q["compute"]
        show_line(f"{c['steps']} compute steps, each in {c['samples'] // c['steps']} iterations: "
            f"spread {c['spread']:.0%} (the worst, {c['worst']}: {c['worst_spread']:.0%}), "
            f"{c['outliers']} outliers of {c['samples']}")
    worst = max((fit["residual"] for fit in q["links"]), default=0.0)
    if worst > _LOOSE:
        say(f"note: the fit of latency and bandwidth has an error of {worst:.0%}: the machine was "
            "busy; calibrate again when it is quiet, or trust communication times less")


def _show_choice(choice: AutoChoice) -> None:
    """Prints the search's choice, and the share of shapes that were measured."""
    end = "unchanged" if choice.stands else "out of budget"
    show_line(f"auto chooses {words(choice.strategy)}, {seconds(choice.iteration_s)} per "
              f"iteration: {end} after {choice.searches} searches; {choice.measured} of "
              f"{choice.shapes} shapes in the plans near the fastest are measured")


def _show_links(machine: Machine, links: Sequence[Mapping[str, Any]], wide: bool) -> None:
    """Prints the levels, with confidence intervals (`hpcpar.calibrate.provenance`)."""
    rows = []
    for level, fit in zip(machine.levels, links, strict=False):
        low, high = (amount(1.0 / beta, "B/s") for beta in reversed(fit["beta_s_per_byte"]))
        rows.append((
            level.name, fit["ranks"],
            seconds(level.alpha_s), _between(fit["alpha_s"]), seconds(level.small_alpha_s),
            amount(1.0 / level.beta_s_per_byte, "B/s"), f"{low} - {high}",
            f"{level.links:.2g}" if level.links else "-",
            f"{fit['residual']:.0%}", f"{fit['outliers']} of {fit['samples']}",
        ))
    columns = ("level", "ranks", "latency", "from - to", "short", "bandwidth", "slow - fast",
               "shared links", "fit error", "outliers")
    if rows:
        show("links (90% intervals; bandwidth while all ranks communicate)", columns, rows,
             drop=("outliers", "fit error", "short", "slow - fast", "from - to"), wide=wide)


def _show_collectives(machine: Machine) -> None:
    rows = []
    for c in machine.collectives:
        factors = zip(c.bytes, c.factors, strict=True)
        by_size = ", ".join(f"{amount(size)}: {factor:.2f}" for size, factor in factors)
        rows.append((c.level, c.kind, c.algorithm, by_size))
    columns = ("level", "movement", "algorithm",
               "time factor, by buffer size (direct: by bytes of a rank's messages)")
    show("measured movements, relative to these links", columns, rows, left=4)


def _between(interval: Sequence[float]) -> str:
    return f"{seconds(interval[0])} - {seconds(interval[1])}"
