"""The most ranks that a strategy can use (ParaDL, Table 3, last column); the largest batch."""

from __future__ import annotations

import math

import numpy as np

from hpcpar.errors import InputError
from hpcpar.network.graph import Network
from hpcpar.plan.config import Ints
from hpcpar.plan.stages import cuts
from hpcpar.plan.strategies import parse

#: Most values of a layer for a whole mini-batch: bytes and sums over ranks stay exact.
MOST_VALUES = 1 << 46


def require_batch(network: Network, batch: Ints) -> None:
    """Checks that a mini-batch is not absurdly large.

    Raises
    ------
    InputError
        It is.
    """
    largest = int(np.max(batch))
    if largest * network.largest > MOST_VALUES:
        raise InputError(f"a batch of {largest:,} samples makes {largest * network.largest:.1e} "
                         f"values of one layer of '{network.name}', more than {MOST_VALUES:.1e}; "
                         "use a smaller batch")


def limit(network: Network, strategy: str, batch: int) -> int:
    """The most ranks that a strategy can use (ParaDL, Table 3)."""
    name, grid = (strategy, None) if strategy in ("layerwise", "integrated") else parse(strategy)
    shapes = [network.shapes[layer.name] for layer in network.layers]
    products = network.matmul_layers
    pixels = min((math.prod(shape[1:]) for shape in shapes if len(shape) > 1), default=1)
    filters = min((network.shapes[layer.name][0] for layer in products[:-1]), default=1)
    channels = min((network.input_shape(layer)[0] for layer in products[1:]), default=1)
    most_stages = len(cuts(network)) - 1
    most = {
        "spatial": pixels, "filter": filters, "channel": channels,
        "pipeline": most_stages if grid is None else most_stages * batch,
        "ds": batch * pixels, "domain": batch * pixels,
        "df": batch * filters, "grid": batch * filters,
        **dict.fromkeys(("layerwise", "integrated"), batch * max(pixels, filters)),
    }
    return most.get(name, batch)
