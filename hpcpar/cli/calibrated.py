"""What a calibration found, as tables: numbers with their confidence."""

from __future__ import annotations

from collections.abc import Sequence

from hpcpar.machine.model import Machine
from hpcpar.report.tables import amount, say, seconds, show

#: A fit with larger errors than this is not to be trusted.
_LOOSE = 0.5


def show_machine(machine: Machine) -> None:
    """Levels with confidence intervals, collectives, rates, and how the compute steps' samples
    spread.
    """
    q = machine.quality
    rows = []
    for level, sure in zip(machine.levels, q["links"], strict=False):
        low, high = (1.0 / b for b in reversed(sure["beta_s_per_byte"]))
        rows.append((
            level.name, sure["ranks"], seconds(level.alpha_s), _between(sure["alpha_s"]), seconds(level.small_alpha_s),
            amount(1.0 / level.beta_s_per_byte, "B/s"), f"{amount(low, 'B/s')} - {amount(high, 'B/s')}",
            f"{level.links:.2g}" if level.links else "-", f"{sure['residual']:.0%}", f"{sure['outliers']} of {sure['samples']}",
        ))
    if rows:
        show("links (90% intervals; the bandwidth's with all ranks at work)",
             ("level", "ranks", "latency", "", "short", "bandwidth", "", "shared links", "fit's error", "outliers"), rows)
    if machine.collectives:
        show("movements beside what these links say",
             ("level", "movement", "algorithm", "times as long, by size of the buffer (direct: of a rank's messages)"),
             [(c.level, c.kind, c.algorithm, ", ".join(f"{amount(n)}: {f:.2f}" for n, f in zip(c.bytes, c.factors, strict=True)))
              for c in machine.collectives], left=4)
    memory, d = q["memory"], machine.device
    together, alone = (amount(memory[f"{how}_bytes_per_s"], "B/s") for how in ("together", "alone"))
    say(f"a rank: {amount(d.flops_per_s, 'flop/s')}; copies {together} with all ranks of its node copying, {alone} alone; computing hides "
        f"{machine.overlap:.0%} of a communication, which then goes on at {machine.progress:.0%} of its rate")
    if d.at_once:
        say(f"more ranks than cores: all ranks of a node together got the time of {d.at_once:.2f} cores, and take turns; "
            f"the last of them is up to {seconds(_most(machine.late))} late for a message, and one that is handed on takes a core up to "
            f"{seconds(_most(machine.relay))} more")
    if "compute" in q:
        c = q["compute"]
        each = c["samples"] // c["steps"]
        say(f"{c['steps']} compute steps, each in {each} iterations: spread {c['spread']:.0%} (the worst, {c['worst']}: "
            f"{c['worst_spread']:.0%}), {c['outliers']} outliers of {c['samples']}")
    worst = max((sure["residual"] for sure in q["links"]), default=0.0)
    if worst > _LOOSE:
        say(f"note: latency and bandwidth fit the messages with an error of {worst:.0%}: the machine was not quiet, or has more ranks than "
            "cores; calibrate again when it is, or trust communication less")


def _most(lines: Sequence[tuple[float, float]]) -> float:
    """The longest of times after computing for more or less long (s)."""
    return max((longer_s for _, longer_s in lines), default=0.0)


def _between(interval: Sequence[float]) -> str:
    return f"{seconds(interval[0])} - {seconds(interval[1])}"
