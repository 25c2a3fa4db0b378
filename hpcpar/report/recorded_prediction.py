"""The prediction in a run's record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from hpcpar.io.schema import convert
from hpcpar.prediction.prediction import PredictionFile

if TYPE_CHECKING:  # planning does not load HDF5
    from hpcpar.train.run_record import RunRecord


def recorded_prediction(record: RunRecord) -> PredictionFile:
    """Reads and checks the prediction in a record."""
    where = f"the prediction in run record {record.path}"
    found = convert(record.prediction, PredictionFile, where, "run again with this hpcpar")
    return structs.replace(found, ranks=len(record.ranks))
