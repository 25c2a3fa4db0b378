"""The answer of a command in one plain sentence: the first line of its results."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpcpar.plan.plan import OTHER_NORM
from hpcpar.plan.strategy import STRATEGIES
from hpcpar.report.tables import amount, between, percent, seconds, trusted
from hpcpar.search import auto  # noqa: F401 - registers what it searches
from hpcpar.search.scaling import Scale
from hpcpar.simulation.price_plan import Prediction

if TYPE_CHECKING:  # planning loads no HDF5
    from hpcpar.report.rows import Row


#: Relative difference from which on both kinds of statistics are named.
DIFFERENT_STATISTICS = 0.05
_STATISTICS = {"sync": "over the whole batch",
               "local": "over each rank's part, as in PyTorch DDP"}


def plural(count: int, word: str) -> str:
    """A count and its word, as in 1 GPU, 32 GPUs."""
    return f"{count} {word}" + "s" * (count != 1)


def images(count: float) -> str:
    """A number of images, as in 1.28 M images."""
    return f"{count / 1e6:.3g} M images" if count >= 1e6 else f"{count:,.0f} images"


def words(strategy: str) -> str:
    """A strategy in words, with its name where that has a grid or a placement."""
    entry = STRATEGIES.get(re.split("[:/]", strategy)[0])
    if entry is None:
        return strategy
    return entry.words if strategy == entry.name else f"{entry.words} ({strategy})"


def cost(p: Prediction, epochs: float = 1.0) -> str:
    """Time and cost of some epochs; empty where their size is unknown."""
    if p.epoch_s is None or p.samples is None:
        return ""
    run_s = epochs * p.epoch_s
    hours = p.ranks * run_s / 3600
    count = "an epoch" if epochs == 1 else f"{epochs:g} epochs"
    return (f"{count} of {images(p.samples)} in {seconds(run_s)}, "
            f"{hours:{',.0f' if hours >= 100 else '.3g'}} {p.processor}-hours")


def of_plan(p: Prediction, epochs: float = 1.0, choice: bool = True) -> str:
    """The plan to take, or what a single plan costs, or why it does not fit.

    Parameters
    ----------
    choice : bool
        The plan was chosen from several.
    """
    how = f"{plural(p.ranks, p.processor)} of {p.machine}, {words(p.strategy)}"
    if not p.fits:
        return (f"{'Nothing that was tried fits' if choice else 'Does not fit'} in memory: {how}, "
                f"needs {amount(p.memory_bytes)} a rank of {amount(p.memory_limit_bytes)}")
    prices = ", ".join(filter(None, (_iteration(p), cost(p, epochs))))
    return f"{'Use ' * choice}{how}: {prices}"


def statistics(p: Prediction, other_s: float | None) -> str:
    """Which statistics batch normalisation takes, behind the answer; empty where none are divided.

    Parameters
    ----------
    other_s : float or None
        Time of an iteration with those of the other kind; it is named where it differs much.
    """
    parts = {layer.config[axis] for layer in p.layers for axis in "ndhw"}
    if other_s is None or not p.fits or parts == {1}:
        return ""
    differs = abs(other_s / p.iteration_s - 1) > DIFFERENT_STATISTICS
    return (f"; batch normalisation {_STATISTICS[p.batch_norm]}"
            + f" ({seconds(other_s)} {_STATISTICS[OTHER_NORM[p.batch_norm]]})" * differs)


def _iteration(p: Prediction) -> str:
    step = "an iteration" if p.training else "a forward pass"
    return trusted(p.iteration_s, f"{step} of {p.batch}", p.trust)


def of_scaling(choice: Scale | None, epochs: float) -> str:
    """The number of ranks to take."""
    if choice is None:
        return ("None of these meets the condition and fits in memory: try more ranks, another "
                "--strategy (auto), or a weaker condition")
    p = choice.candidate.prediction
    return (f"Use {plural(p.ranks, p.processor)}, {words(p.strategy)}: {cost(p, epochs)}, "
            f"{choice.efficiency:.1%} parallel efficiency; {_iteration(p)}")


def of_predictions(predictions: Sequence[Prediction], epochs: float) -> str:
    """The fastest that fits, by time for a sample, or the only one."""
    best = min(predictions, key=lambda p: (not p.fits, p.iteration_s / p.batch))
    return of_plan(best, epochs, choice=len(predictions) > 1)


def of_comparison(rows: Sequence[Row], mean: float | None) -> str:
    """Accuracy of one run, or the `mean` of several."""
    if len(rows) == 1:
        t, inside = rows[0].iteration, rows[0].inside
        where = {None: "", True: ", inside the 90% interval", False: ", outside the 90% interval"}
        return (f"Predicted {between(t.predicted_s, rows[0].interval_s)} an iteration, measured "
                f"{seconds(t.measured_s)}: {percent(t.accuracy)} right{where[inside]}")
    worst = min(rows, key=lambda row: row.iteration.accuracy or 0.0)
    known = [row.inside for row in rows if row.inside is not None]
    count = f"; {sum(known)} of {len(known)} lie inside their 90% intervals" if known else ""
    return (f"Predictions of {len(rows)} runs are {percent(mean)} right on average; "
            f"the worst, {worst.file}: {percent(worst.iteration.accuracy)}{count}")


def of_pixels(found: Mapping[str, Any]) -> str:
    """How far an accuracy of pixels tells of classes, from `ClassCounts.to_json`."""
    dice, iou = found["mean_dice"], found["mean_iou"]
    means = "" if dice is None else f", mean Dice of the other classes {dice:.4f}, IoU {iou:.4f}"
    return (f"{percent(found['most_frequent_share'])} are class {found['most_frequent_class']}"
            f"{means}")


def of_run(summary: Mapping[str, Any]) -> str:
    """The end of a run, from the document of ``hpcpar run --json``."""
    right, loss = summary["test_accuracy"], summary["test_loss"]
    pixels = summary.get("test_pixels")
    what = "images" if pixels is None else "pixels"
    held_out = [f"{percent(right)} of the held-out {what} right"] if right is not None else (
        [f"held-out loss {loss:.4g}"] if loss is not None else [])
    if pixels is not None:
        held_out[-1] += f" ({of_pixels(pixels)})"
    if "images_per_s" in summary:
        what, rate = "pass", [f"{summary['images_per_s']:.1f} images/s"]
        told = f"Saw {summary['samples']:,} images"
    else:
        what, rate = "iteration", [f"loss {summary['loss']:.4g}"]
        told = f"Trained to step {summary['steps']}"
    times = (f"{seconds(summary[f'measured_{what}_s'])} a{'n' * (what == 'iteration')} {what}, "
             f"predicted {seconds(summary[f'predicted_{what}_s'])}")
    return f"{told}: {', '.join([*rate, *held_out, times])}"


def of_verification(passes: bool, largest: float, tolerance: float, steps: int) -> str:
    """The verdict of a verification."""
    verdict = "trains as one rank does" if passes else "does not train as one rank does"
    return (f"The plan {verdict}: the worst difference in {plural(steps, 'step')} is "
            f"{largest:.1e}, its tolerance {tolerance:.1e}")


def of_diagnosis(findings: Sequence[tuple[str, str]]) -> str:
    """The verdict of a diagnosis, by the status (ok, warning, problem) and subject of findings."""
    problems, warnings = ([subject for found, subject in findings if found == status]
                          for status in ("problem", "warning"))
    if problems:
        return f"Not ready to run: fix {', '.join(problems)}"
    if warnings:
        return f"Ready to run, with {plural(len(warnings), 'warning')}: {', '.join(warnings)}"
    return f"Ready to run: {plural(len(findings), 'check')} without a fault"


def legend(strategies: Sequence[str], starred: str = "") -> list[str]:
    """Explanations of the marks that occur: ``*``, and a placement."""
    lines = [f"*: {starred}"] if starred else []
    if any(s.endswith("/outer") for s in strategies):
        lines.append("/outer: ranks that share a layer's channels or images sit on different "
                     "nodes, those that share samples beside each other")
    return lines
