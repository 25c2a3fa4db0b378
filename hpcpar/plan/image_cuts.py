"""Factoring a number of image parts into parts of depth, height and width."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpcpar.network.graph import Network
from hpcpar.plan.config import Config
from hpcpar.plan.strategy import StrategyRequest, sections


def image_cut(request: StrategyRequest, image_parts: int, sample_parts: int) -> Config:
    """Configuration with image parts times sample parts."""
    return request.config(n=sample_parts, **image_degrees(request.network, image_parts))


def image_degrees(network: Network, parts: int) -> dict[str, int]:
    """Degree of each image axis ("d", "h", "w") that cuts an image into `parts` parts.

    Rows come first, because their halos are contiguous; if an image layer has too few rows, columns
    are cut too. If nothing fits, the first axis takes all parts.
    """
    images, _ = sections(network)
    extents = np.array([network.shapes[layer.name][1:] for layer in images]).min(axis=0)
    axes = "dhw"[3 - len(extents):]
    degrees = _factor(parts, extents.tolist()) or [parts] + [1] * (len(extents) - 1)
    return dict(zip(axes, degrees, strict=True))


def _factor(parts: int, extents: Sequence[int]) -> list[int] | None:
    """Writes `parts` as a product of one degree per extent, the first as large as possible."""
    first, *rest = extents
    if not rest:
        return [parts] if parts <= first else None
    for degree in range(min(parts, first), 0, -1):
        others = _factor(parts // degree, rest) if parts % degree == 0 else None
        if others is not None:
            return [degree, *others]
    return None
