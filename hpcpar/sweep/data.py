"""The data file of a study: the user's, or synthetic data in the folder."""

from __future__ import annotations

import os

from hpcpar.data import dataset
from hpcpar.data.loader import contents
from hpcpar.data.synthetic import synthetic
from hpcpar.errors import InputError
from hpcpar.network.graph import Network
from hpcpar.sweep.progress import SweepProgress


def data_of(network: Network, given: str, out: str, needed: int, dry: bool,
            tell: SweepProgress) -> tuple[str, int]:
    """The data file and its number of samples; makes synthetic data if there are too few.

    A dry run makes no data. A sweep over more ranks needs more samples.
    """
    path = os.path.abspath(given or os.path.join(out, "data.h5"))
    count = contents(path, network)[0] if given or os.path.exists(path) else 0
    if given or count >= needed:
        return path, count
    if count and not str(dataset.info(path).get("source", "")).startswith("synthetic"):
        raise InputError(f"{path} has {count} samples, but the sweep needs {needed}, and it does "
                         "not replace data that it did not make: name the file with --data, or "
                         "choose another --out")
    if not dry:
        tell.say(f"making {needed} synthetic images in {path}")
        targets = network.classes if network.loss.takes_targets else 0
        synthetic(path, network.image_shape, network.classes, needed, targets=targets,
                  pixels=bool(network.output_extents), extents=network.output_extents)
    return path, needed
