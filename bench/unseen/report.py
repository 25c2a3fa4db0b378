"""The printed tables: every case, each group's summary, and the causes of deviations."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

from bench.unseen.cases import Result, accuracy
from hpcpar.report.tables import seconds

#: The accuracy that no case should be under.
LEAST = 0.85
#: Times that differ by less have no order that is worth predicting.
APART = 0.1
#: Columns of the tables.
_CASE = ("where", "network", "P", "strategy", "measured", "unseen", "accuracy", "jobs alone",
         "of the table", "steps known", "accuracy", "wire")
_SUMMARY = ("where", "network", "P", "cases", "unseen: mean", "least", "tau",
            f"{APART:.0%} apart", "job against job", "steps known: mean", "least",
            "auto over data: predicted", "measured")
_OFF = ("where", "network", "P", "of the iterations: compute, unseen", "compute, steps known",
        "communication", "waiting", "bubble", "between")


def agree(times: Sequence[tuple[float, float]], apart: float = 0.0) -> list[int]:
    """1 for every pair of predicted and measured times in the same order, -1 for others, 0 if
    equal.

    Only pairs whose measured times differ by the part `apart` of the longer one count: equal times
    have no order to predict.
    """
    pairs = [(p - q) * (m - n) for (p, m), (q, n) in combinations(times, 2)
             if abs(m - n) >= apart * max(m, n)]
    return [(x > 0) - (x < 0) for x in pairs]


def tau(agreeing: Sequence[int]) -> float | None:
    """Kendall's tau."""
    return statistics.mean(agreeing) if len(agreeing) > 1 else None


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table as Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + "\n"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"


def report(found: Sequence[Result]) -> str:
    """All tables; cases whose ranks share cores have tables of their own."""
    done = [r for r in found if r.runs]
    parts = []
    for title, shared in (("A core for each rank", False), ("Ranks share cores", True)):
        some = [r for r in done if r.shares_cores == shared]
        if some:
            parts += [f"## {title}\n", *_tables(some)]
    if done:
        runs = [run for r in done for run in r.runs]
        dates, loads = [run.date for run in runs], [run.load for run in runs]
        parts.append(f"{min(dates)} to {max(dates)}, {len(os.sched_getaffinity(0))} cores, "
                     f"load average before a case {min(loads):.1f} to {max(loads):.1f}\n")
    parts += [f"not run: {r.place}, {r.network}, {r.ranks} ranks, {r.strategy}: {r.note}"
              for r in found if r.note]
    return "\n".join(parts)


def _tables(done: Sequence[Result]) -> list[str]:
    """The cases, each group's summary, causes, and the sums over all cases."""
    groups: dict[tuple[Any, ...], list[Result]] = {}
    for r in done:
        groups.setdefault((r.place, r.network, r.image, r.ranks), []).append(r)
    each = groups.values()
    parts = [table(_CASE, map(_case, done)), table(_SUMMARY, map(_summary, each)),
             table(_OFF, map(_off, each))]
    sets = {
        "unseen": [r.accuracy for r in done],
        "steps known": [r.known_accuracy for r in done],
        "jobs alone": [a for r in done for a in r.single],
        "unseen, simulated": [accuracy(r.simulated_s, r.measured_s) for r in done
                              if r.simulated_s],
    }
    for name, values in sets.items():
        if not values:
            continue
        parts.append(f"{name}: {len(values)}, mean accuracy {percent(statistics.mean(values))}, "
                     f"least {percent(min(values))}, {sum(v < LEAST for v in values)} "
                     f"under {LEAST:.0%}\n")
    runs = [run for r in done for run in r.runs]
    for name, inside in (("unseen", [run.inside for run in runs]),
                         ("steps known", [run.known_inside for run in runs])):
        told = [one for one in inside if one is not None]
        if told:
            parts.append(f"90% intervals, {name}: {percent(sum(told) / len(told))} of {len(told)} "
                         "measured times inside\n")
    for what, apart in (("all", 0.0), (f"those {APART:.0%} apart", APART)):
        pairs = [one for group in each for one in ordered(group, apart)]
        order = tau(pairs)
        if order is not None:
            parts.append(f"Kendall's tau over pairs of strategies of the same row, {what}: "
                         f"{len(pairs)}, {order:.2f}\n")
    return parts


def _case(r: Result) -> tuple[object, ...]:
    return (
        r.place, r.network, r.ranks, f"{r.strategy}: {r.plan}" if r.plan else r.strategy,
        seconds(r.measured_s), f"{r.predicted_s / r.measured_s:.2f} x", percent(r.accuracy),
        " ".join(f"{100 * a:.0f}" for a in r.single),
        f"{r.median(lambda run: run.table_part):.0%}",
        f"{r.known_s / r.measured_s:.2f} x", percent(r.known_accuracy),
        f"{r.wire_ratio:.3f}" if r.wire_ratio else "-",
    )


def _summary(each: Sequence[Result]) -> tuple[object, ...]:
    first, by = each[0], {r.strategy: r for r in each}
    unseen, known = [r.accuracy for r in each], [r.known_accuracy for r in each]
    apart = [r for r in each if r.strategy != "auto"]
    told = ["-" if t is None else f"{t:.2f}"
            for t in (*(tau(ordered(each, least)) for least in (0.0, APART)), repeated(apart))]
    faster = ("-", "-")
    if "auto" in by and "data" in by:
        a, d = by["auto"], by["data"]
        faster = (f"{d.known_s / a.known_s:.2f}", f"{d.measured_s / a.measured_s:.2f}")
    return (
        first.place, first.network, first.ranks, len(each),
        percent(statistics.mean(unseen)), percent(min(unseen)), *told,
        percent(statistics.mean(known)), percent(min(known)), *faster,
    )


def ordered(each: Sequence[Result], apart: float) -> list[int]:
    """`agree` for a group's strategies; `auto` is left out, as its plan may be another's."""
    return agree([(r.predicted_s, r.measured_s) for r in each if r.strategy != "auto"], apart)


def repeated(each: Sequence[Result]) -> float | None:
    """Kendall's tau between two jobs' measurements, the mean over all pairs of jobs."""
    jobs = range(min((len(r.runs) for r in each), default=0))
    found = [tau(agree([(r.runs[a].measured_s, r.runs[b].measured_s) for r in each]))
             for a, b in combinations(jobs, 2)]
    known = [t for t in found if t is not None]
    return statistics.mean(known) if known else None


def _off(each: Sequence[Result]) -> tuple[object, ...]:
    """Measured less predicted time by cause over the measured iteration, of the median case."""
    first = each[0]

    def part(known: bool, cause: str) -> str:
        values = [r.cause_s(known, cause) / r.measured_s for r in each]
        return f"{100 * statistics.median(values):+.0f}%"

    causes = ("compute", "communication", "waiting", "bubble", "between")
    known = (part(True, cause) for cause in causes)
    return first.place, first.network, first.ranks, part(False, "compute"), *known
