"""Factoring a number of image parts into parts of depth, height and width."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpcpar.errors import InputError
from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer
from hpcpar.plan.config import Config
from hpcpar.plan.strategy import StrategyRequest, sections


def image_cut(request: StrategyRequest, image_parts: int, sample_parts: int, *,
              images: Sequence[Layer] = ()) -> Config:
    """Configuration with image parts times sample parts, for some layers or all on images."""
    degrees = image_degrees(request.network, image_parts, images)
    return request.config(n=sample_parts, **degrees)


def first_images(network: Network, count: int) -> list[Layer]:
    """The layers on images before convolution number `count` + 1.

    Raises
    ------
    InputError
        The network has fewer convolutions on images.
    """
    images, _ = sections(network)
    ends = [*(i for i, layer in enumerate(images) if layer.is_matmul), len(images)]
    if count >= len(ends):
        raise InputError(f"network '{network.name}' has {len(ends) - 1} convolutions, so that "
                         f"images cannot be cut up to number {count}; use a smaller number")
    return images[:ends[count]]


def image_degrees(network: Network, parts: int, images: Sequence[Layer] = ()) -> dict[str, int]:
    """Degree of each image axis ("d", "h", "w") that cuts an image into `parts` parts.

    Rows come first, because their halos are contiguous; if an image layer has too few rows, columns
    are cut too. If nothing fits, the first axis takes all parts.

    Raises
    ------
    InputError
        The network has no layers on images.
    """
    images = images or sections(network)[0]
    if not images:
        raise InputError(f"network '{network.name}' has no layers on images to cut; use a strategy "
                         "that cuts samples or channels, as data or filter")
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
