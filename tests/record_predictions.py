"""Record what the code predicts, or compare it with what was recorded.

``python -m tests.record_predictions --write`` computes every case and writes `RECORD`. Without
``--write`` it compares, prints each difference, and exits with 1 if there is any.
``--only SUBSTRING`` restricts both to the cases whose key contains it.

Every case goes through the command line's own entry point, called in this process with ``--json``.
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
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from hpcpar.cli.main import main as hpcpar

RECORD = Path(__file__).with_name("golden_predictions.json")
#: Largest relative difference of two floats that count as equal.
TOLERANCE = 1e-9
#: Smaller differences (s) are rounding: an exposed time of 0 may come out as 1e-18.
NEGLIGIBLE_S = 1e-15
#: Quantities of a prediction that are recorded as they are.
QUANTITIES = (
    "iteration_s",
    "compute_s",
    "communication_s",
    "exposed_communication_s",
    "communication_bytes",
    "memory_bytes",
    "fits",
)
#: Those that are recorded where they are not 0.
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
#: Phases of an iteration, in the order of the file, and the sums of each.
PHASES = ("forward", "loss", "backward", "gradient", "update")
PHASE = ("compute_s", "communication_s", "exposed_communication_s")
#: Numbers of a layer; their sums, each layer weighted by its position, tell layers apart.
LAYER_SUMS = ("compute_s", "communication_s", "communication_bytes", "memory_bytes")
#: What a layer-wise search tells of itself, its times left out.
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
#: Parts of a case that the file holds as lists: their names in order.
LISTS = {"cost": QUANTITIES, "memory": MEMORY, "layers": LAYER_SUMS, "search": SEARCH}
#: Runs of layers that a summary of configurations shows; a digest stands for all of them.
SHOWN_RUNS = 3


@dataclass(frozen=True)
class Command:
    """One command line, of one case or several.

    Attributes
    ----------
    ranks, strategies : tuple
        ``predict`` takes all of them in one call, ``plan`` one of each.
    options : str
        Other options, as they are written.
    quick : bool
        The test runs it; the script runs all.
    """

    network: str
    machine: str
    batch: int
    ranks: tuple[int, ...]
    strategies: tuple[str, ...]
    options: str = ""
    quick: bool = True
    kind: str = "predict"

    @property
    def words(self) -> list[str]:
        """The command line."""
        ranks, strategies = ",".join(map(str, self.ranks)), ",".join(self.strategies)
        line = f"{self.kind} --network {self.network} --machine {self.machine} --ranks {ranks}"
        line += f" --batch {self.batch} --strategy {strategies} {self.options} --json"
        return line.split()

    @property
    def cases(self) -> dict[str, tuple[int, str]]:
        """Ranks and strategy of every case, by its key, in the order of the command's output."""
        where, plan = f"{self.network} {self.machine}", "plan " * (self.kind == "plan")
        rest = f" {self.options}".replace("--", "").rstrip()
        return {
            f"{where} {ranks} ranks batch {self.batch} {plan}{strategy}{rest}": (ranks, strategy)
            for ranks in self.ranks
            for strategy in self.strategies
        }

    def record(self) -> dict[str, dict[str, Any]]:
        """Run it; returns what is recorded of every case.

        Raises
        ------
        RuntimeError
            The command failed, or its output does not hold one prediction for each case.
        """
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = hpcpar(self.words)
        if status != 0:
            raise RuntimeError(
                f"hpcpar {' '.join(self.words)}: exit status {status}: {err.getvalue().strip()}"
            )
        document = json.loads(out.getvalue())
        several = "predictions" in document
        rows: Iterator[dict[str, Any]] = iter(document["predictions"] if several else [document])
        skipped = {(s["ranks"], s["strategy"]) for s in document["skipped"]} if several else set()
        found: dict[str, dict[str, Any]] = {}
        for key, case in self.cases.items():
            if case in skipped:
                found[key] = {"skipped": True}
                continue
            row = next(rows, None)
            if row is None:
                raise RuntimeError(f"hpcpar {' '.join(self.words)}: fewer predictions than cases")
            found[key] = summary(row)
            if found[key]["strategy"] == case[1]:
                del found[key]["strategy"]  # it says more only where a search chose it
        if next(rows, None) is not None:
            raise RuntimeError(f"hpcpar {' '.join(self.words)}: more predictions than cases")
        return found


def summary(document: dict[str, Any]) -> dict[str, Any]:
    """What is recorded of one prediction in a ``--json`` document."""
    out: dict[str, Any] = {"strategy": document["strategy"]}
    out["cost"] = {name: document[name] for name in QUANTITIES}
    out |= {name: document[name] for name in RARE if document[name]}
    out["memory"] = {name: document["memory"][name] for name in MEMORY}
    out["phases"] = {
        name: {quantity: document["phases"][name][quantity] for quantity in PHASE}
        for name in PHASES
    }
    out["layers"] = {
        name: sum(at * row[name] for at, row in enumerate(document["layers"], 1))
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
    """Configurations by runs of layers that share one: the first runs, and a digest of all."""
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
    """A layer's configuration: its cuts, its ranks, and its placement where that is outer."""
    cuts = "".join(f"{axis}{degree}" for axis, degree in row["config"].items() if degree > 1)
    ranks = f"{row['ranks']}@{row['first_rank']}"
    return f"{cuts or 'whole'}/{ranks}" + ("/outer" if row["placement"] == "outer" else "")


def differences(old: Any, new: Any, at: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Quantities that differ: floats by more than `TOLERANCE`, anything else at all."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys()):
            yield from differences(old.get(name), new.get(name), f"{at}.{name}" if at else name)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (a, b) in enumerate(zip(old, new, strict=True)):
            yield from differences(a, b, f"{at}[{index}]")
    elif isinstance(old, float) and isinstance(new, float):
        if not math.isclose(old, new, rel_tol=TOLERANCE, abs_tol=NEGLIGIBLE_S):
            yield at, old, new
    elif type(old) is not type(new) or old != new:
        yield at, old, new


def packed(row: dict[str, Any]) -> dict[str, Any]:
    """A case as the file holds it: without the names that every case shares, and without zeros."""
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
    """A case of the file as `summary` returns it."""
    out = dict(row)
    for name in LISTS.keys() & row.keys():
        out[name] = dict(zip(LISTS[name], row[name], strict=True))
    if "phases" in row:
        whole = [sums + [0.0] * (len(PHASE) - len(sums)) for sums in row["phases"]]
        each = [dict(zip(PHASE, sums, strict=True)) for sums in whole]
        out["phases"] = dict(zip(PHASES, each, strict=True))
    return out


def load() -> dict[str, dict[str, Any]]:
    """The record: what was predicted, by the key of the case."""
    text = RECORD.read_text(encoding="utf-8")
    return {key: unpacked(row) for key, row in json.loads(text).items()}


def save(record: dict[str, dict[str, Any]]) -> None:
    """Write the record, one line for each case."""
    lines = [
        f"{json.dumps(key)}:{json.dumps(packed(row), separators=(',', ':'))}"
        for key, row in record.items()
    ]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def plans(
    network: str,
    machine: str,
    batch: int,
    ranks: tuple[int, ...],
    options: str = "",
    quick: bool = True,
) -> list[Command]:
    """The search ``plan --strategy layerwise`` on every number of ranks."""
    return [
        Command(network, machine, batch, (p,), ("layerwise",), options, quick, "plan")
        for p in ranks
    ]


def best(
    network: str,
    machine: str,
    batch: int,
    ranks: tuple[int, ...],
    options: str = "",
    quick: bool = True,
) -> list[Command]:
    """The search ``plan --strategy auto`` on every number of ranks."""
    return [
        Command(network, machine, batch, (p,), ("auto",), options, quick, "plan") for p in ranks
    ]


#: Strategies without a grid that every network can be asked for.
PLAIN = ("data", "filter", "channel", "spatial", "owt")
#: Strategies of 4 and of 16 ranks with a grid.
FOUR = ("grid:2x2", "grid-fc:2x2", "domain:2x2", "df:2x2", "ds:2x2", "pipeline:2x2")
SIXTEEN = ("grid:4x4", "grid-fc:4x4", "domain:4x4", "df:4x4", "ds:4x4", "pipeline:4x4")
OUTER = ("grid:4x4/outer", "grid-fc:4x4/outer", "domain:4x4/outer", "df:4x4/outer", "ds:4x4/outer")

# fmt: off
COMMANDS: list[Command] = [
    # every network, every kind of strategy
    Command("lenet5", "local", 64, (1,), ("data",)),
    Command("lenet5", "local", 64, (4,), (*PLAIN, "owt-b", "owt-c", *FOUR, "pipeline")),
    Command("lenet5", "h100x8", 64, (16,), (*PLAIN, *SIXTEEN)),
    Command("lenet5", "abci-v100", 64, (3, 5, 6, 7, 12), ("data", "spatial", "filter", "pipeline")),
    Command("mlp", "local", 64, (1, 3, 4, 6), ("data", "filter", "channel", "owt-b")),
    Command("mlp", "cori-knl", 256, (16,), ("data", "grid:4x4", "grid-fc:2x8", "df:4x4")),
    Command("alexnet", "p100x4x4", 128, (4,), (*PLAIN, "owt-b", "owt-c", *FOUR, "pipeline")),
    Command("alexnet", "p100x4x4", 256, (16,), (*PLAIN, "owt-b", "owt-c", *SIXTEEN, *OUTER)),
    Command("alexnet", "k20x8", 128, (2, 8), (*PLAIN, "owt-b", "owt-c")),
    Command("alexnet-owt", "k20x8", 128, (4, 8), ("data", "owt", "owt-b", "owt-c")),
    Command("alexnet-owt", "k80x16", 512, (16,), (*PLAIN, "owt-b", "owt-c", *SIXTEEN)),
    Command("vgg16", "p100x4x4", 128, (16,), (*PLAIN, "owt-b", "owt-c", *SIXTEEN, *OUTER)),
    Command(
        "vgg16", "k80x16", 256, (3, 6, 12), ("data", "spatial", "filter", "owt", "pipeline"),
        quick=False,
    ),
    Command("resnet50", "abci-v100", 512, (16,), (*PLAIN, *SIXTEEN), quick=False),
    Command("resnet50", "h100x8", 256, (8,), ("data", "df:2x4", "pipeline:2x4")),
    Command("resnet50", "abci-v100", 420, (3, 5, 6, 7, 12), ("data", "filter"), quick=False),
    Command("resnet152", "abci-v100", 256, (8,), ("data", "pipeline:4x2", "ds:2x4"), quick=False),
    Command("resnet152", "p100x4x4", 128, (16,), ("filter", "df:4x4", "grid:4x4"), quick=False),
    Command(
        "inception_v3", "abci-v100", 256, (8,), ("data", "pipeline:4x2", "ds:2x4", "df:2x4"),
        quick=False,
    ),
    Command(
        "inception_v3", "k80x16", 128, (16,), ("filter", "channel", "domain:4x4", "grid:4x4"),
        quick=False,
    ),
    Command("cosmoflow", "abci-v100", 64, (4, 16), PLAIN),
    Command("cosmoflow", "abci-v100", 64, (16,), SIXTEEN),
    Command("cosmoflow", "h100x8", 60, (3, 5, 6, 12), ("data", "spatial", "pipeline")),
    # uneven numbers of ranks
    Command(
        "alexnet", "p100x4x4", 128, (3, 5, 6, 7, 12), ("data", "filter", "spatial", "owt", "owt-c",
        "pipeline"), quick=False,
    ),
    Command(
        "alexnet", "abci-v100", 100, (6,), ("grid:3x2", "grid-fc:3x2", "domain:3x2", "df:2x3",
        "ds:2x3", "pipeline:3x2"),
    ),
    Command(
        "alexnet", "h100x8", 96, (12,), ("grid:3x4/outer", "domain:3x4/outer", "df:4x3/outer",
        "pipeline:3x4"),
    ),
    # large numbers of ranks
    Command("alexnet", "cori-knl", 2048, (64, 512), ("data", "filter", "spatial", "owt")),
    Command(
        "alexnet", "cori-knl", 2048, (512,), ("grid:16x32", "grid-fc:16x32", "domain:2x256",
        "df:64x8", "ds:128x4"),
    ),
    Command(
        "alexnet", "cori-knl", 4096, (4096,), ("data", "grid:64x64", "grid-fc:64x64",
        "domain:4x1024", "ds:1024x4"),
    ),
    Command("alexnet", "cori-knl", 512, (2048, 4096), ("data", "filter"), "--accounting paper"),
    Command(
        "vgg16", "abci-v100", 4096, (64, 256, 1024), ("data", "owt", "spatial"),
        "--collectives tree",
    ),
    Command("resnet50", "abci-v100", 8192, (64, 256, 1024), ("data",), quick=False),
    Command(
        "resnet50", "abci-v100", 2048, (1024,), ("df:256x4/outer", "ds:256x4", "pipeline:4x256"),
        quick=False,
    ),
    Command(
        "cosmoflow", "abci-v100", 256, (512,), ("ds:128x4", "ds:64x8/outer", "df:128x4", "data"),
    ),
    # the formulas of Gholami et al.
    Command("alexnet", "cori-knl", 2048, (32, 128), PLAIN, "--accounting paper"),
    Command(
        "alexnet", "cori-knl", 2048, (32,), ("grid:4x8", "grid-fc:4x8", "domain:4x8"),
        "--accounting paper",
    ),
    # orders of a pipeline, micro-batches
    Command(
        "alexnet", "p100x4x4", 128, (16,), ("pipeline:4x4", "pipeline:2x8", "pipeline:8x2"),
        "--order 1f1b",
    ),
    Command(
        "vgg16", "p100x4x4", 128, (16,), ("pipeline:4x4", "pipeline:2x8", "pipeline"),
        "--order 1f1b", quick=False,
    ),
    Command(
        "vgg16", "p100x4x4", 128, (16,), ("pipeline:4x4", "pipeline:4x4/outer"),
        "--order 1f1b --microbatches 8",
    ),
    Command("resnet50", "abci-v100", 512, (16,), ("pipeline:4x4", "pipeline:2x8"), "--order 1f1b",
        quick=False,
    ),
    Command(
        "cosmoflow", "abci-v100", 64, (4,), ("pipeline", "pipeline:2x2"),
        "--order 1f1b --microbatches 8",
    ),
    Command(
        "alexnet", "p100x4x4", 128, (4,), ("data", "grid:2x2", "domain:2x2", "owt", "pipeline:2x2"),
        "--microbatches 4",
    ),
    Command(
        "lenet5", "local", 64, (3, 4), ("data", "spatial", "pipeline"),
        "--microbatches 3 --order 1f1b",
    ),
    Command("alexnet", "p100x4x4", 128, (16,), ("pipeline:4x4",), "--order 1f1b --overlap none"),
    Command(
        "alexnet", "p100x4x4", 128, (16,), ("pipeline:4x4",), "--order 1f1b --overlap gradient",
    ),
    # what overlaps
    Command(
        "alexnet", "p100x4x4", 256, (16,), (*PLAIN, "owt-b", "owt-c", *SIXTEEN), "--overlap none",
        quick=False,
    ),
    Command(
        "alexnet", "p100x4x4", 256, (16,), (*PLAIN, "owt-b", "owt-c", *SIXTEEN),
        "--overlap gradient", quick=False,
    ),
    Command(
        "vgg16", "h100x8", 256, (16,), ("data", "spatial", "df:4x4", "domain:4x4"),
        "--overlap none",
    ),
    Command(
        "vgg16", "h100x8", 256, (16,), ("data", "spatial", "df:4x4", "domain:4x4"),
        "--overlap gradient",
    ),
    Command(
        "inception_v3", "abci-v100", 256, (8,), ("data", "spatial"), "--overlap gradient",
        quick=False,
    ),
    # synchronisation, collectives, buckets, optimizers, types
    Command(
        "alexnet", "p100x4x4", 256, (16,), ("data", "grid:4x4", "owt", "pipeline:4x4"),
        "--synchronisation sharded",
    ),
    Command(
        "alexnet", "p100x4x4", 256, (16,), ("data", "grid:4x4", "owt", "pipeline:4x4"),
        "--synchronisation server",
    ),
    Command(
        "lenet5", "local", 64, (3, 6), ("data", "spatial"),
        "--synchronisation sharded --optimizer adam",
    ),
    Command(
        "lenet5", "local", 64, (3, 6), ("data", "spatial"),
        "--synchronisation server --overlap none",
    ),
    Command(
        "resnet50", "abci-v100", 512, (16,), ("data",),
        "--synchronisation sharded --optimizer adam",
    ),
    Command("alexnet", "k80x16", 256, (6, 16), ("data", "filter", "owt"), "--collectives ring"),
    Command("alexnet", "k80x16", 256, (6, 16), ("data", "filter", "owt"), "--collectives tree"),
    Command("alexnet", "k80x16", 256, (6, 16), ("data", "filter", "owt"), "--collectives mpi"),
    Command("resnet50", "abci-v100", 512, (16,), ("data", "df:4x4"), "--bucket 0"),
    Command(
        "resnet50", "abci-v100", 512, (16,), ("data", "df:4x4"), "--bucket 4194304", quick=False,
    ),
    Command("alexnet", "p100x4x4", 256, (16,), ("data", "grid-fc:4x4"), "--bucket 26214400"),
    Command(
        "alexnet", "p100x4x4", 256, (16,), ("data", "grid-fc:4x4"),
        "--bucket 0 --synchronisation sharded",
    ),
    Command(
        "alexnet", "p100x4x4", 256, (4,), ("data", "domain:2x2"), "--dtype float64 --optimizer sgd",
    ),
    Command(
        "alexnet", "p100x4x4", 256, (4,), ("data", "channel"),
        "--optimizer adam --io 1e8 --io-item-bytes 4",
    ),
    Command("alexnet", "p100x4x4", 256, (16,), ("data", "filter"), "--contention 2 --gamma 0.5"),
    # gather, recompute, batch norm, inference
    Command(
        "alexnet", "p100x4x4", 256, (16,), ("filter", "channel", "grid:4x4", "grid-fc:4x4",
        "domain:4x4", "df:4x4"), "--gather layer",
    ),
    Command(
        "inception_v3", "abci-v100", 256, (4,), ("filter", "channel"), "--gather layer",
        quick=False,
    ),
    Command("resnet50", "k80x16", 128, (4,), ("data", "spatial", "pipeline:2x2"), "--recompute 8"),
    Command("vgg16", "p100x4x4", 512, (4,), ("data", "domain:2x2", "owt"), "--recompute 4"),
    Command(
        "resnet50", "k80x16", 256, (4,), ("pipeline", "pipeline:2x2"), "--recompute 4 --order 1f1b",
        quick=False,
    ),
    Command(
        "cosmoflow", "abci-v100", 64, (4,), ("data", "spatial"), "--recompute 3 --microbatches 2",
    ),
    Command("resnet50", "abci-v100", 512, (16,), ("data", "spatial"), "--batch-norm local"),
    Command(
        "resnet50", "abci-v100", 512, (16,), ("pipeline:4x4", "ds:4x4"),
        "--batch-norm local --overlap none", quick=False,
    ),
    Command("inception_v3", "h100x8", 256, (8,), ("data",), "--batch-norm local"),
    Command(
        "alexnet", "p100x4x4", 128, (4,), ("data", "filter", "spatial", "pipeline"),
        "--forward-only",
    ),
    Command("resnet50", "abci-v100", 128, (4,), ("data", "spatial"), "--forward-only"),
    # searches
    *plans("lenet5", "local", 64, (3,)),
    *plans("lenet5", "local", 64, (2, 4), quick=False),
    *best("lenet5", "local", 64, (4, 6)),
    *best("lenet5", "local", 64, (2,), quick=False),
    *plans("mlp", "cori-knl", 64, (4, 16)),
    *plans("alexnet", "p100x4x4", 128, (4,)),
    *plans("alexnet", "p100x4x4", 128, (2, 16), quick=False),
    *plans("alexnet", "p100x4x4", 128, (5, 6, 12), quick=False),
    *plans("alexnet", "p100x4x4", 128, (4,), "--overlap none", quick=False),
    *plans("alexnet", "k20x8", 128, (8,), "--overlap gradient", quick=False),
    *plans("alexnet", "k80x16", 128, (8,), "--synchronisation sharded", quick=False),
    *best("alexnet", "p100x4x4", 128, (4,)),
    *best("alexnet", "p100x4x4", 128, (7, 16, 64), quick=False),
    *best("alexnet", "cori-knl", 2048, (64,), quick=False),
    *best("alexnet-owt", "k20x8", 128, (8,), quick=False),
    *plans("alexnet-owt", "k80x16", 512, (16,), quick=False),
    *plans("vgg16", "p100x4x4", 128, (4, 16), quick=False),
    *plans("vgg16", "abci-v100", 512, (64,), quick=False),
    *best("vgg16", "p100x4x4", 128, (8,), "--order 1f1b", quick=False),
    *best("vgg16", "p100x4x4", 512, (16,), "--microbatches 4", quick=False),
    *plans("resnet50", "abci-v100", 128, (4,), quick=False),
    *plans("resnet50", "abci-v100", 512, (16,), "--overlap none", quick=False),
    *best("resnet50", "abci-v100", 256, (8,), quick=False),
    *plans("inception_v3", "abci-v100", 128, (4,), quick=False),
    *plans("resnet152", "abci-v100", 64, (2,), quick=False),
    *plans("cosmoflow", "abci-v100", 64, (4,)),
    *plans("cosmoflow", "abci-v100", 64, (16,), quick=False),
    *best("cosmoflow", "abci-v100", 64, (8,), quick=False),
    *best("cosmoflow", "h100x8", 16, (32,), quick=False),
    # plans that the memory limits, and those that do not fit
    Command("vgg16", "k20x8", 512, (4, 8), ("data", "spatial", "filter", "owt")),
    Command("resnet50", "k80x16", 2048, (4, 16), ("data",)),
    *plans("vgg16", "k20x8", 512, (8,), quick=False),
    *plans("vgg16", "k20x8", 384, (8,), quick=False),
    *plans("alexnet", "k20x8", 4096, (8,), quick=False),
    *plans("resnet50", "k80x16", 1024, (8,), quick=False),
    *best("vgg16", "k80x16", 2048, (16,), quick=False),
    *best("cosmoflow", "k20x8", 128, (8,), quick=False),
]
# fmt: on


def chosen(only: str) -> list[Command]:
    """Commands of which a case's key contains `only`."""
    return [c for c in COMMANDS if any(only in key for key in c.cases)]


def main() -> int:
    """Write the record or compare with it; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--write", action="store_true", help="write the record (with --only, those cases of it)"
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
        found = command.record()
        if args.times:
            mark = "quick" if command.quick else "slow"
            print(
                f"{time.process_time() - begin:6.2f} s {mark:5} {' '.join(command.words)}",
                file=sys.stderr,
                flush=True,
            )
        new |= {key: row for key, row in found.items() if args.only in key}
    if args.write:
        known = load() | new if args.only else new
        keys = [key for command in COMMANDS for key in command.cases if key in known]
        save({key: known[key] for key in keys})
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
