"""The report of a sweep: report.json, pictures and one page in its folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from hpcpar.errors import InputError
from hpcpar.io.files import write_text
from hpcpar.network.data_sets import DATA_SETS
from hpcpar.network.layers.base import shape_text
from hpcpar.report import sweep_points as table
from hpcpar.report.pictures import pyplot
from hpcpar.report.pictures.sweep_plots import pictures
from hpcpar.report.sweep_points import Point
from hpcpar.report.tables.sweep_html import page
from hpcpar.sweep import folder
from hpcpar.sweep.collect import points
from hpcpar.sweep.folder import Status
from hpcpar.sweep.study import Case, Study


def title(study: Study) -> str:
    """One line that names the study."""
    batch = f"batch {study.batch}" + (" a rank" if study.kind == "weak" else "")
    return f"{study.kind} scaling of {study.spec.name} on {study.machine.name}, {batch}"


def settings(study: Study) -> list[tuple[str, str]]:
    """The study's settings, as (name, value)."""
    length = f"{study.steps} iterations" if study.steps else f"{study.epochs} epochs"
    options = ", ".join(f"{k} {v}" for k, v in study.planning.items() if v is not None)
    shape = shape_text(study.spec.shape)
    return [("network", f"{study.spec.name}, input {shape}, {study.spec.classes} classes"),
            ("machine", study.machine.name), ("data", f"{study.data}, {study.samples} samples"),
            ("epoch", _epoch(study)), ("each run", f"{length}, {study.device}"), ("plans", options)]


def _epoch(study: Study) -> str:
    """The size of an epoch."""
    if study.epoch_samples is None:
        return "of unknown size: the data is synthetic; give --data"
    known = {data.samples: f", {data.name}" for data in DATA_SETS}
    return f"{study.epoch_samples} samples{known.get(study.epoch_samples, '')}"


def write(study: Study, states: Mapping[Case, Status]) -> tuple[list[Point], dict[str, Any], str]:
    """Writes the report; returns its points, its JSON document, and why there are no pictures.

    Raises
    ------
    InputError
        A file cannot be written.
    """
    found = points(study, states)
    document: dict[str, Any] = {"kind": study.kind, "title": title(study),
                                "facts": dict(settings(study)), "ranks": list(study.ranks),
                                "strategies": list(study.strategies)} | table.to_json(found)
    stem, missing, drawn = os.path.join(study.out, ""), "", []
    if any(p.predicted for p in found):
        try:
            pyplot()
        except InputError as err:
            missing = f"no pictures: {err}"
        else:
            drawn = pictures(found, stem, title(study), study.kind == "weak")
    images = [(heading, f"{stem}{name}.svg") for name, heading in drawn]
    write_text(stem + folder.DATA, json.dumps(document, indent=1, allow_nan=False) + "\n", "report")
    html = page(title(study), settings(study), found, images, missing)
    write_text(stem + folder.PAGE, html, "report")
    return found, document, missing
