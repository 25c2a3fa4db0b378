"""How far predictions of rows are off that the model of kernels was not fitted to, row by row.

Usage: python -m bench.gallery.residuals

It fits the model again without each device, then without each network, predicts the counted rows
that were left out, and writes ``residuals.csv``: the logarithm of predicted over measured time.
It needs SciPy and takes about half an hour.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from unittest.mock import patch

from bench.fit_kernels import TOGETHER, Sample, conv_samples, fit, gemm_samples, run_samples
from bench.gallery.prediction import OWN_RATE, predict, unpredictable
from bench.gallery.rows import Row, forward_passes, runs
from hpcpar.cost.compute import kernel_model

FILE = Path(__file__).with_name("residuals.csv")
#: Columns beside the row's id.
LEFT = ("device", "network")


def family(device: str) -> str:
    """Devices that are left out together, by the name of the first."""
    return device.split("-")[0] if device[:4] in TOGETHER else device


def key(row: Row | Sample, by: str) -> str:
    """What is left out for this row."""
    if by == "device":
        return family(row.device)
    return row.graph_name if isinstance(row, Row) else row.network


def rows() -> list[Row]:
    """Rows that count, and whose devices the model of kernels prices."""
    return [row for row in chain(runs(), forward_passes())
            if not unpredictable(row) and not row.doubt and row.machine not in OWN_RATE]


def logs(by: str) -> Iterator[tuple[str, float]]:
    """Id and residual of every row, by a fit without its device or network."""
    samples = [*run_samples(), *conv_samples(), *gemm_samples()]
    fitted = [s for s in samples if s.device != "KNL-7250"]
    every = rows()
    for left in sorted({key(row, by) for row in every}):
        model = fit([s for s in fitted if key(s, by) != left])
        print(f"without {by} {left}", flush=True)
        with patch.object(kernel_model, "fitted", lambda model=model: model):
            yield from ((row.id, predict(row).log) for row in every if key(row, by) == left)


def read(path: Path = FILE) -> dict[str, dict[str, float]]:
    """Residuals by the id of a row: without its device, without its network."""
    with path.open(encoding="utf-8") as file:
        return {cells["id"]: {name: float(cells[name]) for name in LEFT}
                for cells in csv.DictReader(file)}


def write(found: dict[str, Iterable[tuple[str, float]]], path: Path = FILE) -> None:
    """Writes the residuals by what was left out."""
    columns = {by: dict(each) for by, each in found.items()}
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["id", *LEFT])
        writer.writerows([id_, *(f"{columns[by][id_]:.3f}" for by in LEFT)]
                         for id_ in columns[LEFT[0]])


if __name__ == "__main__":
    write({by: logs(by) for by in LEFT})
