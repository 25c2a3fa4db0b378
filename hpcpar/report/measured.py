"""The measured side of a comparison: from the times of all ranks to those that make up an
iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcpar.report.late_senders import Clocked
from hpcpar.report.rows import Split, Times, split
from hpcpar.train.record import RunRecord


@dataclass
class MeasuredView:
    """Every step on the rank that counts.

    Attributes
    ----------
    seconds : ndarray
        [iterations compared, steps]
    mean_s, waiting_s : ndarray
        [steps] mean without the iterations that took longest and shortest; and what of it is
        waiting for others.
    kept : ndarray
        Places, among the iterations compared, of those whose waiting is known.
    kept_waiting : ndarray
        [kept, steps]
    who : ndarray
        [kept, steps] the rank that was waited for.
    """

    seconds: NDArray[np.float64]
    mean_s: NDArray[np.float64]
    waiting_s: NDArray[np.float64]
    kept: NDArray[np.int64]
    kept_waiting: NDArray[np.float64]
    who: NDArray[np.int64]


def computing(record: RunRecord) -> NDArray[np.bool_]:
    """[steps] which of them compute."""
    return np.array([step.kind == "compute" for step in record.steps], np.bool_)


def busiest(record: RunRecord) -> NDArray[np.int64]:
    """For every iteration compared and every step the rank that counts, such that steps on the same
    ranks add up to their time.

    In each iteration the rank that computes longest counts, as in the prediction: the others wait
    for it. Where layers live on some ranks only (stages of a pipeline), that is the longest of
    those ranks, for each set of them; of movements between them, where none computes, the rank that
    waits longest.
    """
    seconds, computes = record.seconds[:, record.measured], computing(record)
    taking_part = seconds.any(axis=1)
    out = np.zeros(seconds.shape[1:], np.int64)
    for ranks in np.unique(taking_part, axis=1).T:
        here = (taking_part == ranks[:, None]).all(axis=0)
        if (here & computes).any():
            busy_s = seconds[:, :, here & computes].sum(axis=2, dtype=np.float64)
            out[:, here] = busy_s.argmax(axis=0)[:, None]
        else:
            out[:, here] = seconds[:, :, here].argmax(axis=0)
    return out


def stage_by_stage(record: RunRecord, stages: Sequence[int]) -> list[NDArray[np.int64]]:
    """For every stage of a pipeline the same, with its rank that computes longest in all steps:
    each stage's add up to its iteration.
    """
    seconds, computes = record.seconds[:, record.measured], computing(record)
    ends = [*stages[1:], len(record.ranks)]
    out = []
    for first, end in zip(stages, ends, strict=True):
        longest = seconds[first:end][:, :, computes].sum(axis=2,
                                                         dtype=np.float64).argmax(axis=0) + first
        out.append(np.repeat(longest[:, None], seconds.shape[2], axis=1))
    return out


def view(record: RunRecord, ranks: NDArray[np.int64], times: Clocked | None) -> MeasuredView:
    """The steps on the ranks that `busiest` or `stage_by_stage` chose."""
    seconds = np.take_along_axis(record.seconds[:, record.measured], ranks[None],
                                 axis=0)[0].astype(np.float64)
    order = np.argsort(record.slowest_s, kind="stable")
    cut = len(order) // 10
    mean = seconds[order[cut:len(order) - cut]].mean(axis=0)
    if times is None:
        none = np.zeros((0, seconds.shape[1]))
        return MeasuredView(seconds, mean, np.zeros_like(mean), np.zeros(0, np.int64), none,
                    none.astype(np.int64))
    kept = times.iterations - (record.measured.start or 0)
    chosen = ranks[kept][None]
    waiting = np.minimum(np.take_along_axis(times.waiting_s, chosen, axis=0)[0], seconds[kept])
    total = seconds[kept].sum(axis=0)
    part = np.divide(waiting.sum(axis=0), total, out=np.zeros_like(total), where=total > 0)
    return MeasuredView(seconds, mean, mean * part, kept, waiting,
                np.take_along_axis(times.who, chosen, axis=0)[0])


def measure(views: Sequence[MeasuredView], steps: NDArray[np.bool_], computes: NDArray[np.bool_],
            bubble: NDArray[np.bool_]) -> Split:
    """Times of some of the steps, the mean of the views: waiting in steps of `bubble` is left out.
    """
    out = split()
    comm, n = steps & ~computes, len(views)
    waits = comm & ~bubble
    busy = steps & computes
    out["compute"] = _times([v.seconds[:, busy].sum(axis=1) for v in views],
                            sum(v.mean_s[busy].sum() for v in views) / n)
    if len(views[0].kept):
        gone = [v.seconds[v.kept][:, comm].sum(axis=1) - v.kept_waiting[:, comm].sum(axis=1)
                for v in views]
        out["waiting"] = _times([v.kept_waiting[:, waits].sum(axis=1) for v in views],
                                sum(v.waiting_s[waits].sum() for v in views) / n)
    else:
        gone = [v.seconds[:, comm].sum(axis=1) for v in views]
    out["communication"] = _times(gone,
                                  sum(v.mean_s[comm].sum() - v.waiting_s[comm].sum() for v in views)
                                  / n)
    return out


def waited(views: Sequence[MeasuredView], steps: NDArray[np.bool_]) -> Times:
    """Waiting in some of the steps, the mean of the views."""
    return _times([v.kept_waiting[:, steps].sum(axis=1) for v in views],
                  sum(v.waiting_s[steps].sum() for v in views) / len(views))


def waited_for(
    views: Sequence[MeasuredView], steps: NDArray[np.bool_], ranks: int
) -> tuple[int, float] | None:
    """The late sender waited for longest in some of the steps, and its part of that time."""
    by_rank = np.zeros(ranks)
    for v in views:
        who, seconds = v.who[:, steps], v.kept_waiting[:, steps]
        by_rank += np.bincount(who[who >= 0], seconds[who >= 0], ranks)
    total = by_rank.sum()
    return (int(by_rank.argmax()), float(by_rank.max() / total)) if total > 0 else None


def _times(series: Sequence[NDArray[np.float64]], mean_s: float) -> Times:
    """A mean, with the quartiles of the iterations' values (each the mean of the views)."""
    each = sum(series[1:], series[0]) / len(series)
    low, high = np.percentile(each, (25, 75)) if len(each) else (None, None)
    return Times(float(mean_s), None, None if low is None else float(low),
                 None if high is None else float(high))
