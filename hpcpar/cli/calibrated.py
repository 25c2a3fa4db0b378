"""The result of a calibration as tables: numbers with their confidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from hpcpar.calibrate.for_auto import AutoChoice
from hpcpar.calibrate.refine import Refined
from hpcpar.machine.model import Machine
from hpcpar.report.tables import amount, say, seconds, show, show_line
from hpcpar.report.tables.answer import words

#: A fit with larger errors than this is not to be trusted.
_LOOSE = 0.5


def show_refined(found: Refined, path: str, wide: bool) -> None:
    """Prints what a refinement has changed in the machine file."""
    show_line(f"{found.new} compute steps are new in {path}, {found.known} were there and take "
              f"{found.ratio:.2f} times as long as they did (median)")
    show("iterations of the records",
         ("record", "plan", "ranks", "compute steps", "predicted before", "now", "measured",
          "now/measured"),
         [(c.path, c.strategy, c.ranks, c.steps, seconds(c.before_s), seconds(c.after_s),
           seconds(c.measured_s), f"{c.after_s / c.measured_s:.2f}") for c in found.changes],
         left=2, drop=("compute steps", "predicted before", "plan"), wide=wide)
    for level in found.links:
        show_line(f"{level.level}: latency {level.alpha:.2f} and inverse bandwidth "
                  f"{level.beta:.2f} times what they were, by {level.steps} communication steps")


def show_machine(machine: Machine, choice: AutoChoice | None = None, wide: bool = False) -> None:
    """Print the choice of the search, levels with confidence intervals, collectives, rates, and the
    spread of the samples.
    """
    if choice is not None:
        _show_choice(choice)
    q = cast(dict[str, Any], machine.quality)
    memory = q["memory"]
    together = amount(memory["together_bytes_per_s"], "B/s")
    alone = amount(memory["alone_bytes_per_s"], "B/s")
    show_line(f"a rank: {amount(machine.device.flops_per_s, 'flop/s')}; copies {together} with "
              f"all ranks of its node copying, {alone} alone; computing hides "
              f"{machine.overlap:.0%} of a communication, which then goes on at "
              f"{machine.progress:.0%} of its rate")
    _show_links(machine, q["links"], wide)
    if machine.collectives:
        _show_collectives(machine)
    if "compute" in q:
        c = q["compute"]
        show_line(f"{c['steps']} compute steps, each in {c['samples'] // c['steps']} iterations: "
            f"spread {c['spread']:.0%} (the worst, {c['worst']}: {c['worst_spread']:.0%}), "
            f"{c['outliers']} outliers of {c['samples']}")
    worst = max((sure["residual"] for sure in q["links"]), default=0.0)
    if worst > _LOOSE:
        say(f"note: latency and bandwidth fit the messages with an error of {worst:.0%}: the "
            "machine was not quiet; calibrate again when it is, or trust communication less")


def _show_choice(choice: AutoChoice) -> None:
    """The choice of the search, and how much was measured for that."""
    end = "it stands" if choice.stands else "the budget was spent"
    show_line(f"auto takes {words(choice.strategy)}, {seconds(choice.iteration_s)} an iteration: "
              f"{end} after {choice.searches} searches, with {choice.measured} of the "
              f"{choice.shapes} shapes of the plans near the fastest measured")


def _show_links(machine: Machine, links: Sequence[Mapping[str, Any]], wide: bool) -> None:
    """Levels, with what is known of the confidence in each (`hpcpar.calibrate.provenance`)."""
    rows = []
    for level, sure in zip(machine.levels, links, strict=False):
        low, high = (amount(1.0 / beta, "B/s") for beta in reversed(sure["beta_s_per_byte"]))
        rows.append((
            level.name, sure["ranks"],
            seconds(level.alpha_s), _between(sure["alpha_s"]), seconds(level.small_alpha_s),
            amount(1.0 / level.beta_s_per_byte, "B/s"), f"{low} - {high}",
            f"{level.links:.2g}" if level.links else "-",
            f"{sure['residual']:.0%}", f"{sure['outliers']} of {sure['samples']}",
        ))
    columns = ("level", "ranks", "latency", "from - to", "short", "bandwidth", "slow - fast",
               "shared links", "fit's error", "outliers")
    if rows:
        show("links (90% intervals; the bandwidth's with all ranks at work)", columns, rows,
             drop=("outliers", "fit's error", "short", "slow - fast", "from - to"), wide=wide)


def _show_collectives(machine: Machine) -> None:
    rows = []
    for c in machine.collectives:
        factors = zip(c.bytes, c.factors, strict=True)
        told = ", ".join(f"{amount(size)}: {factor:.2f}" for size, factor in factors)
        rows.append((c.level, c.kind, c.algorithm, told))
    columns = ("level", "movement", "algorithm",
               "times as long, by size of the buffer (direct: of a rank's messages)")
    show("movements beside what these links say", columns, rows, left=4)


def _between(interval: Sequence[float]) -> str:
    return f"{seconds(interval[0])} - {seconds(interval[1])}"
