"""Predictions of the model of kernels for rows that it was not fitted to: ``left_out.csv``.

``python -m bench.fit_kernels --leave device`` and ``--leave network`` write the file; the page
reads it.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FILE = Path(__file__).with_name("left_out.csv")
#: Kinds of rows, in the words of the page.
_KINDS = {"run": "", "conv": ", of convolutions", "gemm": ", of products",
          "amp": ", in mixed precision", "tf32": ", in TF32"}


@dataclass(frozen=True)
class LeftOut:
    """How far predictions are off, with each device or network (or nothing) left out of the fit.

    Attributes
    ----------
    within_20, within_2 : str
        Shares within 20% and within a factor of 2.
    """

    left_out: str
    kind: str
    rows: str
    accuracy: str
    median_ratio: str
    within_20: str
    within_2: str

    @classmethod
    def of(cls, left_out: str, kind: str, logs: NDArray[np.float64]) -> LeftOut:
        """The figures of logarithms of predicted over measured times."""
        off = np.abs(np.exp(logs) - 1)
        figures = (np.mean(1 - np.minimum(off, 1)), np.exp(np.median(logs)), np.mean(off <= 0.2),
                   np.mean(np.abs(logs) <= np.log(2)))
        return cls(left_out, kind, str(len(logs)), *(f"{figure:.2f}" for figure in figures))

    @property
    def label(self) -> str:
        """The first cell of its line."""
        each = self.left_out if self.left_out == "nothing" else f"each {self.left_out}"
        return each + _KINDS[self.kind]


def read(path: Path = FILE) -> list[LeftOut]:
    """All figures."""
    with path.open(encoding="utf-8") as file:
        return [LeftOut(**cells) for cells in csv.DictReader(file)]


def write(found: Iterable[LeftOut], path: Path = FILE) -> None:
    """Puts new figures in the place of older ones."""
    figures = {(each.left_out, each.kind): each for each in (*read(path), *found)}
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [f.name for f in fields(LeftOut)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(asdict, figures.values()))


def lines() -> list[str]:
    """The table of the page."""
    found = read()
    rows = {each.kind: int(each.rows) for each in found}
    return [
        f"The model of kernels is fitted to the rows of one device, {rows['run']} of them, and to",
        f"{rows['conv']:,} passes of convolutions and {rows['gemm']:,} products of DeepBench, in",
        f"float32; its numbers of tensor cores to {rows['amp']} rows in mixed precision and",
        f"{rows['tf32']} in TF32. What it predicts of what it was not fitted to",
        "(`python -m bench.fit_kernels --leave device` and `--leave network`):", "",
        "| left out in turn | rows | accuracy | median ratio | within 20% | within a factor of 2 |",
        "| --- | --- | --- | --- | --- | --- |", *map(_line, found), ""]


def _line(each: LeftOut) -> str:
    shares = each.accuracy, each.within_20, each.within_2
    accuracy, within_20, within_2 = (f"{100 * float(share):.0f}%" for share in shares)
    return (f"| {each.label} | {int(each.rows):,} | {accuracy} | {each.median_ratio} | "
            f"{within_20} | {within_2} |")
