"""A command's answer in one plain sentence: the first line of its results."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpcpar.plan.plan import OTHER_NORM
from hpcpar.plan.strategy import STRATEGIES
from hpcpar.prediction.prediction import Prediction
from hpcpar.report.tables import (
    amount,
    between,
    in_percent,
    percent,
    seconds,
    trusted,
    with_ends,
)
from hpcpar.search import auto  # noqa: F401 - registers what it searches
from hpcpar.search.candidates import Candidate
from hpcpar.search.choice import rivals, times_as_fast
from hpcpar.search.scaling import Scale

if TYPE_CHECKING:  # planning does not load HDF5
    from hpcpar.report.rows import Row


#: Least relative gain that the answer names.
LEAST_GAIN = 0.0005
#: Relative difference above which the answer names both kinds of statistics.
DIFFERENT_STATISTICS = 0.05
_STATISTICS = {"sync": "over the whole batch",
               "local": "over each rank's part, as in PyTorch DDP"}


def plural(count: int, word: str) -> str:
    """A count and its noun: 1 GPU, 32 GPUs."""
    return f"{count} {word}" + "s" * (count != 1)


def images(count: float) -> str:
    """A number of images: 1.28 M images."""
    return f"{count / 1e6:.3g} M images" if count >= 1e6 else f"{count:,.0f} images"


def words(strategy: str) -> str:
    """A strategy in words, with its name if it has a grid or a placement."""
    entry = STRATEGIES.get(re.split("[:/]", strategy)[0])
    if entry is None:
        return strategy
    return entry.words if strategy == entry.name else f"{entry.words} ({strategy})"


def cost(p: Prediction, epochs: float = 1.0) -> str:
    """Time and cost of some epochs; empty if their size is unknown."""
    if p.epoch_s is None or p.samples is None:
        return ""
    run_s = epochs * p.epoch_s
    hours = p.ranks * run_s / 3600
    count = "an epoch" if epochs == 1 else f"{epochs:g} epochs"
    name = f" ({p.data_set})" if p.data_set else ""
    return (f"{count} of {images(p.samples)}{name} in {seconds(run_s)}, "
            f"{hours:{',.0f' if hours >= 100 else '.3g'}} {p.processor}-hours")


def of_plan(p: Prediction, epochs: float = 1.0, choice: bool = True) -> str:
    """The plan to use (the only plan, unless `choice`) and its price, or why it does not fit."""
    how = f"{plural(p.ranks, p.processor)} of {p.machine}, {words(p.strategy)}"
    if not p.fits:
        return (f"{'No plan tried fits' if choice else 'Does not fit'} in memory: {how}, needs "
                f"{amount(p.memory_bytes)} per rank, "
                f"but {amount(p.memory_limit_bytes)} is available")
    prices = ", ".join(filter(None, (_iteration(p), cost(p, epochs))))
    return f"{'Use ' * choice}{how}: {prices}"


def beside(choice: Candidate, candidates: Sequence[Candidate]) -> str:
    """How sure the choice is, to append to the answer; empty without another plan that fits."""
    return "".join(f"; {_beside(choice, other)}" for other in rivals(candidates, choice))


def _beside(choice: Candidate, other: Candidate) -> str:
    ratio, p, q = times_as_fast(choice, other), choice.prediction, other.prediction
    name = " on ".join([words(q.strategy)] * (q.strategy != p.strategy)
                       + [plural(q.ranks, q.processor)] * (q.ranks != p.ranks)) or "the next"
    if not ratio.about_equal:
        return f"{with_ends(ratio)} times as fast as {name}"
    gain = 1 / ratio.value - 1
    return (f"about equal to {name}: {with_ends(ratio)} times as fast"
            + f", it would gain {gain:.1%}" * (gain >= LEAST_GAIN))


def statistics(p: Prediction, other_s: float | None) -> str:
    """The statistics of batch normalization, to append to the answer; empty if nothing cuts them.

    Parameters
    ----------
    other_s : float or None
        Time of an iteration with the other kind of statistics; shown if it differs much.
    """
    parts = {layer.config[axis] for layer in p.layers for axis in "ndhw"}
    if other_s is None or not p.fits or parts == {1}:
        return ""
    differs = abs(other_s / p.iteration_s - 1) > DIFFERENT_STATISTICS
    return (f"; batch normalization {_STATISTICS[p.batch_norm]}"
            + f" ({seconds(other_s)} {_STATISTICS[OTHER_NORM[p.batch_norm]]})" * differs)


def _iteration(p: Prediction) -> str:
    step = "per iteration" if p.training else "per forward pass"
    return trusted(p.iteration_s, f"{step} of {p.batch}", p.trust)


def of_scaling(choice: Scale | None, epochs: float) -> str:
    """The number of ranks to use."""
    if choice is None:
        return ("None of these meets the condition and fits in memory: try more ranks, another "
                "--strategy (auto), or a weaker condition")
    p = choice.candidate.prediction
    prices = [cost(p, epochs), f"{in_percent(choice.of_one)} parallel efficiency"]
    return (f"Use {plural(p.ranks, p.processor)}, {words(p.strategy)}: "
            f"{', '.join(filter(None, prices))}; {_iteration(p)}")


def of_comparison(rows: Sequence[Row], mean: float | None) -> str:
    """Accuracy of one run's prediction, or the `mean` of several."""
    if len(rows) == 1:
        t, inside = rows[0].iteration, rows[0].inside
        where = {None: "", True: ", inside the 90% interval", False: ", outside the 90% interval"}
        return (f"Predicted {between(t.predicted_s, rows[0].interval_s)} per iteration, measured "
                f"{seconds(t.measured_s)}: {percent(t.accuracy)} accurate{where[inside]}")
    worst = min(rows, key=lambda row: row.iteration.accuracy or 0.0)
    known = [row.inside for row in rows if row.inside is not None]
    count = f"; {sum(known)} of {len(known)} lie inside their 90% intervals" if known else ""
    return (f"Predictions of {len(rows)} runs are {percent(mean)} accurate on average; the worst, "
            f"{worst.file}, is {percent(worst.iteration.accuracy)} accurate{count}")


def of_pixels(found: Mapping[str, Any]) -> str:
    """Class facts behind a pixel accuracy, from `ClassCounts.to_json`."""
    dice, iou = found["mean_dice"], found["mean_iou"]
    means = "" if dice is None else f", mean Dice of the other classes {dice:.4f}, IoU {iou:.4f}"
    return (f"{percent(found['most_frequent_share'])} belong to class "
            f"{found['most_frequent_class']}{means}")


def of_run(summary: Mapping[str, Any]) -> str:
    """The result of a run, from the document of ``hpcpar run --json``."""
    accuracy, loss = summary["test_accuracy"], summary["test_loss"]
    pixels = summary.get("test_pixels")
    what = "images" if pixels is None else "pixels"
    held_out = [f"{percent(accuracy)} accurate on held-out {what}"] if accuracy is not None else (
        [f"held-out loss {loss:.4g}"] if loss is not None else [])
    if pixels is not None:
        held_out[-1] += f" ({of_pixels(pixels)})"
    if "images_per_s" in summary:
        what, rate = "pass", [f"{summary['images_per_s']:.1f} images/s"]
        done = f"Saw {summary['samples']:,} images"
    else:
        what, rate = "iteration", [f"loss {summary['loss']:.4g}"]
        done = f"Trained to step {summary['steps']}"
    times = (f"{seconds(summary[f'measured_{what}_s'])} per {what}, "
             f"predicted {seconds(summary[f'predicted_{what}_s'])}")
    return f"{done}: {', '.join([*rate, *held_out, times])}"


def of_verification(passes: bool, largest: float, tolerance: float, steps: int) -> str:
    """The verdict of a verification."""
    verdict = "trains as one rank does" if passes else "does not train as one rank does"
    return (f"The plan {verdict}: the worst difference in {plural(steps, 'step')} is "
            f"{largest:.1e} (tolerance {tolerance:.1e})")


def of_diagnosis(findings: Sequence[tuple[str, str]]) -> str:
    """The verdict of a diagnosis, from (status, subject) of each finding."""
    problems, warnings = ([subject for status, subject in findings if status == kind]
                          for kind in ("problem", "warning"))
    if problems:
        return f"Not ready to run: fix {', '.join(problems)}"
    if warnings:
        return f"Ready to run, with {plural(len(warnings), 'warning')}: {', '.join(warnings)}"
    return f"Ready to run: {plural(len(findings), 'check')} passed"


def legend(strategies: Sequence[str], starred: str = "") -> list[str]:
    """Explanations of the marks in a table: ``*``, and a placement."""
    lines = [f"*: {starred}"] if starred else []
    if any(s.endswith("/outer") for s in strategies):
        lines.append("/outer: ranks that share a layer's channels or images sit on different "
                     "nodes; ranks that share samples are neighbors")
    return lines
