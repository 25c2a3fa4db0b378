"""How far predictions of rows are off that the model of kernels was not fitted to, row by row.

Usage: python -m bench.gallery.residuals

It fits the model again without each device, then without each network, predicts the counted rows
that were left out, and writes ``residuals.csv``: the logarithms of predicted over measured times,
without the factors of lopsided classes (`class_factor`), which follow from them.
Two further columns have the same rows priced by one rate for all layers: the rate of the papers'
presets, in float32 alone, and the data sheet's peak. MI25 and KNL have no runs: for them it
predicts DeepBench's convolutions. It needs SciPy and takes a quarter of an hour on two cores.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path
from unittest.mock import patch

from bench.fit_kernels import (
    TOGETHER,
    Sample,
    Table,
    conv_samples,
    fit,
    fit_all,
    gemm_samples,
    run_samples,
)
from bench.gallery import prediction
from bench.gallery.prediction import OWN_RATE, machine_of, predict, unpredictable
from bench.gallery.rows import Row, forward_passes, runs
from hpcpar.cost.compute import kernel_model, step_time
from hpcpar.machine import catalog, files
from hpcpar.machine.model import Device

FILE = Path(__file__).with_name("residuals.csv")
COLUMNS = ("device", "network", "rate", "peak")
#: The papers' presets by device, and devices without runs that kernels stand for.
PRESETS = {"K80": "k80x16", "P100": "p100x4x4", "V100": "abci-v100"}
WITHOUT_RUNS = ("MI25", "KNL-7250")


def family(device: str) -> str:
    """Devices that are left out together, by the name of the first."""
    return device.split("-")[0] if device[:4] in TOGETHER else device


def key(row: Row | Sample, by: str) -> str:
    """The device or network that is left out for this row."""
    if by == "device":
        return family(row.device)
    return row.graph_name if isinstance(row, Row) else row.network


def rows() -> list[Row]:
    """Rows that count, and whose devices the model of kernels prices."""
    return [row for row in chain(runs(), forward_passes())
            if not unpredictable(row) and not row.doubt and row.machine not in OWN_RATE]


def left_out(by: str, every: list[Row]) -> Iterator[tuple[str, float]]:
    """Id and residual of every row, by a fit without its device or network."""
    samples = [*run_samples(), *conv_samples(), *gemm_samples()]
    known = [s for s in samples if s.device != "KNL-7250"]
    for left in sorted({key(row, by) for row in every}):
        model, _ = fit_all([s for s in known if key(s, by) != left])
        print(f"without {by} {left}", flush=True)
        with (patch.object(kernel_model, "fitted", lambda model=model: model),
              patch.object(step_time, "class_factor", lambda *_: 1.0)):
            yield from ((row.id, predict(row).log) for row in every if key(row, by) == left)
    for left in WITHOUT_RUNS if by == "device" else ():
        own = [s for s in samples if s.device == left and s.kind == "conv"]
        others = [s for s in known if s.device != left and s.precision == "fp32"]
        logs = Table(own).logs(fit(others))
        yield from ((f"conv-{left}-{i}", float(log)) for i, log in enumerate(logs))


def by_one_rate(device_of: Callable[[Row], Device], every: list[Row]
                ) -> Iterator[tuple[str, float]]:
    """Id and residual of every row, on its machine with another device."""
    with patch.object(prediction, "machine_of",
                      lambda row: replace(machine_of(row), device=device_of(row))):
        yield from ((row.id, predict(row).log) for row in every)


def of_preset(row: Row) -> Device:
    """The device of the papers' preset."""
    return files.load(PRESETS[family(row.device)]).device


def at_peak(row: Row) -> Device:
    """The device of the data sheet without the model of kernels."""
    sheet = Device(**catalog.figures(row.device, row.id))  # type: ignore[arg-type]
    return replace(sheet, multiprocessors=0, lanes=0)


def read(path: Path = FILE) -> dict[str, dict[str, float]]:
    """Residuals by the id of a row and the column, where a row has one."""
    with path.open(encoding="utf-8") as file:
        return {cells["id"]: {name: float(cells[name]) for name in COLUMNS if cells[name]}
                for cells in csv.DictReader(file)}


def column(name: str) -> dict[str, float]:
    """Residuals by the id of a row."""
    every = rows()
    if name in ("device", "network"):
        return dict(left_out(name, every))
    if name == "peak":
        return dict(by_one_rate(at_peak, every))
    return dict(by_one_rate(of_preset, [
        row for row in every if family(row.device) in PRESETS and row.precision == "fp32"]))


def main() -> None:
    """Writes the residuals."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    with ProcessPoolExecutor(2) as pool:
        found = dict(zip(COLUMNS, pool.map(column, COLUMNS), strict=True))
    with FILE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["id", *COLUMNS])
        for id_ in found["device"]:
            logs = [found[name].get(id_) for name in COLUMNS]
            writer.writerow([id_, *("" if log is None else f"{log:.3f}" for log in logs)])


if __name__ == "__main__":
    main()
