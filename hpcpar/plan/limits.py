"""How many ranks a strategy can use (the last column of ParaDL's Table 3)."""

from __future__ import annotations

import math

from hpcpar.network.graph import Network
from hpcpar.plan.stages import cuts
from hpcpar.plan.strategies import parse


def limit(network: Network, strategy: str, batch: int) -> int:
    """The most ranks that a strategy can use (ParaDL, Table 3)."""
    name, grid = ("layerwise", None) if strategy == "layerwise" else parse(strategy)
    images = [network.shapes[layer.name] for layer in network.layers
              if len(network.shapes[layer.name]) > 1]
    products = network.matmul_layers
    space = min((math.prod(s[1:]) for s in images), default=1)
    filters = min((network.shapes[layer.name][0] for layer in products[:-1]), default=1)
    channels = min((network.input_shape(layer)[0] for layer in products[1:]), default=1)
    most = {
        "data": batch, "spatial": space, "filter": filters, "channel": channels, "pipeline": len(cuts(network)) - 1, "ds": batch * space,
        "layerwise": batch * max(space, filters), "df": batch * filters, "grid": batch * filters, "domain": batch * space,
        "grid-fc": batch, "owt": batch,
    }
    if name == "pipeline" and grid is not None:
        return most["pipeline"] * batch
    return most.get(name, batch)
