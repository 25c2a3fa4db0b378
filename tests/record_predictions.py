"""Record predictions of the code, or compare new predictions with the record.

``python -m tests.record_predictions --write`` computes all cases and writes `RECORD`. Without
``--write``, it compares, prints each difference, and exits with 1 if there is any.
``--only SUBSTRING`` restricts both to the cases whose key contains it.

Every case calls the entry point of the command line in this process, with ``--json``.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import math
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from hpcpar.cli.main import main as hpcpar
from tests.recorded_commands import COMMANDS, Command

RECORD = Path(__file__).with_name("golden_predictions.json")
#: Largest relative difference between equal floats.
TOLERANCE = 1e-9
#: Smaller differences (s) are rounding errors: an exposed time of 0 may become 1e-18.
NEGLIGIBLE_S = 1e-15
#: Quantities of a prediction in the record.
QUANTITIES = (
    "iteration_s",
    "compute_s",
    "communication_s",
    "exposed_communication_s",
    "communication_bytes",
    "memory_bytes",
    "fits",
)
#: Quantities that are recorded if they are not 0.
RARE = ("io_s", "measured_compute")
#: Parts of a rank's memory.
MEMORY = (
    "weights_bytes",
    "optimizer_bytes",
    "activations_bytes",
    "gradients_bytes",
    "kept_bytes",
    "wire_bytes",
)
#: Phases of an iteration, in the order of the file, and the quantities of each.
PHASES = ("forward", "loss", "backward", "gradient", "update")
PHASE = ("compute_s", "communication_s", "exposed_communication_s")
#: Quantities of layers. Their sums weight each layer by its position, to distinguish layers.
LAYER_SUMS = ("compute_s", "communication_s", "communication_bytes", "memory_bytes")
#: Results of a layer-wise search, without its times.
SEARCH = (
    "objective_s",
    "bound_s",
    "exact",
    "configurations",
    "kept_configurations",
    "node_eliminations",
    "edge_eliminations",
    "K",
)
#: Parts of a case that are lists in the file, with the names of their items.
LISTS = {"cost": QUANTITIES, "memory": MEMORY, "layers": LAYER_SUMS, "search": SEARCH}
#: Number of runs of layers that a summary of configurations shows, before a digest of all runs.
SHOWN_RUNS = 3


def record(command: Command) -> dict[str, dict[str, Any]]:
    """Run a command; returns the summaries of its cases by key.

    Raises
    ------
    RuntimeError
        The command failed, or its output does not have one prediction for each case.
    """
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = hpcpar(command.words)
    if status != 0:
        raise RuntimeError(
            f"hpcpar {' '.join(command.words)}: exit status {status}: {err.getvalue().strip()}"
        )
    document = json.loads(out.getvalue())
    several = "predictions" in document
    rows: Iterator[dict[str, Any]] = iter(document["predictions"] if several else [document])
    skipped = {(s["ranks"], s["strategy"]) for s in document["skipped"]} if several else set()
    summaries: dict[str, dict[str, Any]] = {}
    for key, case in command.cases.items():
        if case in skipped:
            summaries[key] = {"skipped": True}
            continue
        row = next(rows, None)
        if row is None:
            raise RuntimeError(f"hpcpar {' '.join(command.words)}: fewer predictions than cases")
        summaries[key] = summary(row)
        if summaries[key]["strategy"] == case[1]:
            del summaries[key]["strategy"]  # the key has it, unless a search chose it
    if next(rows, None) is not None:
        raise RuntimeError(f"hpcpar {' '.join(command.words)}: more predictions than cases")
    return summaries


def summary(document: dict[str, Any]) -> dict[str, Any]:
    """The recorded part of a prediction in a ``--json`` document."""
    out: dict[str, Any] = {"strategy": document["strategy"]}
    out["cost"] = {name: document[name] for name in QUANTITIES}
    out |= {name: document[name] for name in RARE if document[name]}
    out["memory"] = {name: document["memory"][name] for name in MEMORY}
    out["phases"] = {
        name: {quantity: document["phases"][name][quantity] for quantity in PHASE}
        for name in PHASES
    }
    out["layers"] = {
        name: sum(i * row[name] for i, row in enumerate(document["layers"], 1))
        for name in LAYER_SUMS
    }
    out["configs"] = configurations(document["layers"])
    if "steps" in document:
        out["steps"] = len(document["steps"])
    if "search" in document:
        out["search"] = {name: document["search"][name] for name in SEARCH}
    if "alternatives" in document:
        others = document["alternatives"]
        out["alternatives"] = [a["strategy"] for a in others[:4]]
        out["alternatives_count"] = len(others)
        out["alternatives_sum_s"] = math.fsum(a["iteration_s"] for a in others)
    return out


def configurations(layers: Iterable[dict[str, Any]]) -> str:
    """Runs of layers with equal configurations: the first few runs, and a digest of all."""
    runs = []
    for config, group in groupby(layers, key=_configuration):
        names = [row["name"] for row in group]
        runs.append((names[0] if len(names) == 1 else f"{names[0]}..{names[-1]}") + " " + config)
    whole = "; ".join(runs)
    if len(runs) <= SHOWN_RUNS:
        return whole
    digest = hashlib.sha256(whole.encode()).hexdigest()[:16]
    return "; ".join(runs[:SHOWN_RUNS]) + f"; ... {len(runs)} runs, sha256 {digest}"


def _configuration(row: dict[str, Any]) -> str:
    """A layer's cuts, its ranks, and its placement if that is outer."""
    cuts = "".join(f"{axis}{degree}" for axis, degree in row["config"].items() if degree > 1)
    ranks = f"{row['ranks']}@{row['first_rank']}"
    return f"{cuts or 'whole'}/{ranks}" + ("/outer" if row["placement"] == "outer" else "")


def differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Quantities that differ: floats by more than `TOLERANCE`, other values at all."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys()):
            yield from differences(old.get(name), new.get(name), f"{path}.{name}" if path else name)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (a, b) in enumerate(zip(old, new, strict=True)):
            yield from differences(a, b, f"{path}[{index}]")
    elif isinstance(old, float) and isinstance(new, float):
        if not math.isclose(old, new, rel_tol=TOLERANCE, abs_tol=NEGLIGIBLE_S):
            yield path, old, new
    elif type(old) is not type(new) or old != new:
        yield path, old, new


def packed(row: dict[str, Any]) -> dict[str, Any]:
    """A case in the form of the file: without names that all cases share, and without zeros."""
    out = dict(row)
    for name in LISTS.keys() & row.keys():
        out[name] = [row[name][quantity] for quantity in LISTS[name]]
    if "phases" in row:
        out["phases"] = [[row["phases"][name][q] for q in PHASE] for name in PHASES]
        for sums in out["phases"]:
            while sums and sums[-1] == 0.0:
                sums.pop()
    return out


def unpacked(row: dict[str, Any]) -> dict[str, Any]:
    """The inverse of `packed`."""
    out = dict(row)
    for name in LISTS.keys() & row.keys():
        out[name] = dict(zip(LISTS[name], row[name], strict=True))
    if "phases" in row:
        padded = [sums + [0.0] * (len(PHASE) - len(sums)) for sums in row["phases"]]
        phases = [dict(zip(PHASE, sums, strict=True)) for sums in padded]
        out["phases"] = dict(zip(PHASES, phases, strict=True))
    return out


def load() -> dict[str, dict[str, Any]]:
    """The recorded summaries by key of the case."""
    text = RECORD.read_text(encoding="utf-8")
    return {key: unpacked(row) for key, row in json.loads(text).items()}


def save(cases: dict[str, dict[str, Any]]) -> None:
    """Write the record, with one line for each case."""
    lines = [
        f"{json.dumps(key)}:{json.dumps(packed(row), separators=(',', ':'))}"
        for key, row in cases.items()
    ]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def chosen(only: str) -> list[Command]:
    """Commands with a case whose key contains `only`."""
    return [c for c in COMMANDS if any(only in key for key in c.cases)]


def main() -> int:
    """Write the record or compare with it; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--write", action="store_true", help="write the record (with --only, only these cases)"
    )
    parser.add_argument(
        "--only", default="", metavar="SUBSTRING", help="only cases whose key contains this"
    )
    parser.add_argument(
        "--times", action="store_true", help="print each command's CPU seconds on stderr"
    )
    args = parser.parse_args()
    new: dict[str, dict[str, Any]] = {}
    for command in chosen(args.only):
        begin = time.process_time()
        summaries = record(command)
        if args.times:
            mark = "quick" if command.quick else "slow"
            print(
                f"{time.process_time() - begin:6.2f} s {mark:5} {' '.join(command.words)}",
                file=sys.stderr,
                flush=True,
            )
        new |= {key: row for key, row in summaries.items() if args.only in key}
    if args.write:
        cases = load() | new if args.only else new
        keys = [key for command in COMMANDS for key in command.cases if key in cases]
        save({key: cases[key] for key in keys})
        print(f"wrote {len(new)} cases to {RECORD}")
        return 0
    old = {key: row for key, row in load().items() if args.only in key}
    count = 0
    for key in [*old, *(key for key in new if key not in old)]:
        for quantity, was, now in differences(old.get(key), new.get(key)):
            print(f"{key}: {quantity or 'case'}: {was!r} -> {now!r}")
            count += 1
    print(f"{len(new)} cases compared, {count} differences")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
