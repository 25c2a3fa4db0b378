"""Tables that explain a prediction and compare numbers of ranks."""

from __future__ import annotations

from collections.abc import Sequence

from hpcpar.prediction.prediction import Prediction
from hpcpar.report.tables import amount, in_percent, seconds, show, show_line
from hpcpar.report.tables.answer import legend
from hpcpar.search.explain import Explanation
from hpcpar.search.memory_advice import MemoryAdvice
from hpcpar.search.scaling import Scale

#: Rows of the what-if table.
SHOWN = 6


def show_explanation(p: Prediction, explanation: Explanation, wide: bool = False) -> None:
    """Prints the limitations of a prediction (ParaDL, Table 6), and the changes that would help.

    A note comes first if the plan does not fit.
    """
    if explanation.memory is not None:
        show_line(memory_note(explanation.memory))
    show(
        f"{p.strategy} on {p.ranks} ranks: an iteration of {seconds(p.iteration_s)} is bound by "
        f"{explanation.bottleneck}",
        ("category", "limitation or bottleneck", "time", "exposed", "share", "why"),
        [
            (t.category, t.name, "-" if t.seconds is None else seconds(t.seconds),
             "-" if t.exposed_s is None else seconds(t.exposed_s),
             "-" if t.exposed_s is None else f"{t.exposed_s / p.iteration_s:.1%}", t.remark)
            for t in explanation.terms
        ],
        left=2, drop=("exposed", "category"), text=("why",), wide=wide,
    )
    if explanation.changes:
        show(
            "what would help", ("change", "iteration", "speedup", "fits"),
            [(c.what, seconds(c.iteration_s), f"{c.gain:.2f}", "yes" if c.fits else "no")
             for c in explanation.changes[:SHOWN]],
        )
    show_line("not in this prediction:")
    for line in explanation.not_in_prediction:
        show_line(f"  {line}")


def memory_note(advice: MemoryAdvice, taken: bool = False) -> str:
    """The memory that a plan needs, and the cheapest way to fit; `taken` if the plan uses it."""
    chosen, remedy = advice.chosen, advice.remedy
    limit = amount(chosen.task.machine.device.memory_bytes)
    need = (f"{chosen.strategy} needs {amount(chosen.memory_bytes)} per rank, but the machine "
            f"has {limit}")
    if remedy is not None:
        way = "remedy used" if taken else "cheapest remedy"
        return (f"{need}; {way}: {advice.options} needs {amount(remedy.memory_bytes)} and takes "
                f"{seconds(remedy.iteration_s)} instead of {seconds(chosen.iteration_s)}")
    least = f"no plan found needs less than {amount(advice.least_bytes or 0)}"
    if advice.ranks is None:
        return f"{need}; {least} or fits on 16 times as many ranks; use a smaller batch"
    return f"{need}; {least}; {advice.ranks} ranks are enough"


def show_scaling(scales: Sequence[Scale], choice: Scale | None, epochs: float,
                 wide: bool = False) -> None:
    """Prints efficiency, time and node-hours for each number of ranks; * marks the choice."""
    epoch = ["time", "node-hours"] if scales[0].run_s is not None else []
    show(
        f"{epochs:g} epoch{'s' if epochs != 1 else ''}" if epoch else "iterations",
        ("ranks", "", "strategy", "batch", "iteration", "efficiency", *epoch, "fits"),
        [
            (s.ranks, "*" if s is choice else "", s.candidate.strategy, s.batch,
             seconds(s.candidate.iteration_s), in_percent(s.of_one),
             *([] if s.run_s is None else [seconds(s.run_s), f"{s.node_hours:.4g}"]),
             "yes" if s.candidate.fits else "no")
            for s in scales
        ],
        left=3, drop=("batch", *epoch[1:]), wide=wide,
    )
    for line in legend([s.candidate.strategy for s in scales], "the choice" if choice else ""):
        show_line(line)
