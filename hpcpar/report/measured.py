"""The measured side of a comparison: the ranks and times that make up an iteration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcpar.report.late_senders import Clocked
from hpcpar.report.rows import Split, Times
from hpcpar.train.run_record import RunRecord


@dataclass
class MeasuredView:
    """The times of every step on the rank that represents it."""

    #: [compared, steps]
    seconds: NDArray[np.float64]
    #: [steps] mean without the slowest and fastest tenth of the iterations.
    mean_s: NDArray[np.float64]
    #: [steps] waiting for other ranks, a part of `mean_s`.
    waiting_s: NDArray[np.float64]
    #: [kept] compared iterations whose waiting is known, by index.
    kept: NDArray[np.int64]
    #: [kept, steps] waiting (s).
    kept_waiting: NDArray[np.float64]
    #: [kept, steps] the late sender.
    who: NDArray[np.int64]


def computing(record: RunRecord) -> NDArray[np.bool_]:
    """[steps] True for steps that compute."""
    return np.array([step.kind == "compute" for step in record.steps], np.bool_)


def busiest(record: RunRecord) -> NDArray[np.int64]:
    """[compared, steps] the rank that represents each step.

    In each iteration, it is the rank that computes longest, as in the prediction: the others wait
    for it. The choice is made for each set of ranks that share steps, such as a pipeline's stage,
    so their steps add up. Movements between stages compute nothing: the rank that waits longest
    represents them.
    """
    seconds, computes = record.compared_seconds, computing(record)
    taking_part = seconds.any(axis=1)
    out = np.zeros(seconds.shape[1:], np.int64)
    for ranks in np.unique(taking_part, axis=1).T:
        shared = (taking_part == ranks[:, None]).all(axis=0)
        if (shared & computes).any():
            busy_s = seconds[:, :, shared & computes].sum(axis=2, dtype=np.float64)
            out[:, shared] = busy_s.argmax(axis=0)[:, None]
        else:
            out[:, shared] = seconds[:, :, shared].argmax(axis=0)
    return out


def stage_by_stage(record: RunRecord, stages: Sequence[int]) -> list[NDArray[np.int64]]:
    """For every stage of a pipeline, [compared, steps] the stage's rank that computes longest.

    The stage's steps on this rank add up to its iteration.
    """
    seconds = record.compared_seconds
    busy_s = seconds[:, :, computing(record)].sum(axis=2, dtype=np.float64)
    ends = [*stages[1:], len(record.ranks)]
    longest = [busy_s[first:end].argmax(axis=0) + first
               for first, end in zip(stages, ends, strict=True)]
    return [np.repeat(ranks[:, None], seconds.shape[2], axis=1) for ranks in longest]


def view(record: RunRecord, ranks: NDArray[np.int64], times: Clocked) -> MeasuredView:
    """The times of the steps on the ranks that `busiest` or `stage_by_stage` chose."""
    seconds = np.take_along_axis(record.compared_seconds.astype(np.float64), ranks[None],
                                 axis=0)[0]
    order = np.argsort(record.iteration_s[record.slowest, record.compared], kind="stable")
    cut = len(order) // 10
    mean_s = seconds[order[cut:len(order) - cut]].mean(axis=0)
    kept = np.searchsorted(record.compared, times.iterations)
    chosen = ranks[kept][None]
    waiting = np.minimum(np.take_along_axis(times.waiting_s, chosen, axis=0)[0], seconds[kept])
    total = seconds[kept].sum(axis=0)
    part = np.divide(waiting.sum(axis=0), total, out=np.zeros_like(total), where=total > 0)
    return MeasuredView(seconds, mean_s, mean_s * part, kept, waiting,
                        np.take_along_axis(times.who, chosen, axis=0)[0])


def measure(views: Sequence[MeasuredView], steps: NDArray[np.bool_], computes: NDArray[np.bool_],
            bubble: NDArray[np.bool_]) -> Split:
    """Times of some steps, averaged over the views, without the waiting in `bubble` steps.

    Parameters
    ----------
    steps, computes, bubble : ndarray
        [steps] masks.
    """
    busy, comm = steps & computes, steps & ~computes
    exchanging = [v.seconds[:, comm].sum(axis=1) for v in views]
    if len(views[0].kept):
        exchanging = [seconds[v.kept] - v.kept_waiting[:, comm].sum(axis=1)
                      for v, seconds in zip(views, exchanging, strict=True)]
    return {
        "compute": _times([v.seconds[:, busy].sum(axis=1) for v in views],
                          [v.mean_s[busy].sum() for v in views]),
        "communication": _times(exchanging, [(v.mean_s - v.waiting_s)[comm].sum() for v in views]),
        "waiting": waited(views, comm & ~bubble),
    }


def waited(views: Sequence[MeasuredView], steps: NDArray[np.bool_]) -> Times:
    """Waiting in some steps, averaged over the views."""
    return _times([v.kept_waiting[:, steps].sum(axis=1) for v in views],
                  [v.waiting_s[steps].sum() for v in views])


def waited_for(
    views: Sequence[MeasuredView], steps: NDArray[np.bool_], ranks: int
) -> tuple[int, float] | None:
    """The late sender that caused most waiting in some steps, and its share of the waiting."""
    by_rank = np.zeros(ranks)
    for v in views:
        who, seconds = v.who[:, steps], v.kept_waiting[:, steps]
        by_rank += np.bincount(who[who >= 0], seconds[who >= 0], ranks)
    total = by_rank.sum()
    return (int(by_rank.argmax()), float(by_rank.max() / total)) if total > 0 else None


def _times(series: Sequence[NDArray[np.float64]], means_s: Sequence[float]) -> Times:
    """The mean over the views, with quartiles over the iterations."""
    seconds, out = np.mean(series, axis=0), Times(float(np.mean(means_s)))
    if len(seconds):
        out.low_s, out.high_s = map(float, np.percentile(seconds, (25, 75)))
    return out
