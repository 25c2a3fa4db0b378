"""Limits of scaling (ParaDL, Table 3, last column): the most ranks that a strategy can use, and the
layers of a plan that are cut into more parts than they have; the largest batch.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from hpcpar.errors import InputError
from hpcpar.network.graph import Network
from hpcpar.plan.layout import computed, needed
from hpcpar.plan.plan import Plan
from hpcpar.plan.stages import cuts
from hpcpar.plan.strategies import entry_of, parse

#: Most values of a layer for a whole mini-batch: bytes and sums over ranks stay exact.
MOST_VALUES = 1 << 46


def require_batch(network: Network, batch: int) -> None:
    """Checks that a mini-batch is not absurdly large.

    Raises
    ------
    InputError
        It is.
    """
    if batch * network.largest > MOST_VALUES:
        raise InputError(f"a batch of {batch:,} samples makes {batch * network.largest:.1e} "
                         f"values of one layer of '{network.name}', more than {MOST_VALUES:.1e}; "
                         "use a smaller batch")


def limit(network: Network, strategy: str, batch: int) -> int:
    """The most ranks that a strategy can use (ParaDL, Table 3)."""
    entry, (_, grid) = entry_of(strategy), parse(strategy)
    shapes = [network.shapes[layer.name] for layer in network.layers]
    products = network.matmul_layers
    pixels = min((math.prod(shape[1:]) for shape in shapes if len(shape) > 1), default=1)
    filters = min((network.shapes[layer.name][0] for layer in products[:-1]), default=1)
    channels = min((network.input_shape(layer)[0] for layer in products[1:]), default=1)
    most = {"samples": batch, "pixels": pixels, "filters": filters, "channels": channels,
            "stages": len(cuts(network)) - 1, "parts": max(pixels, filters)}
    product = math.prod(most[name] for name in entry.cuts)
    return product * batch if entry.pipeline and grid else product


#: The things that an axis of a configuration cuts.
CUT_THINGS = {"n": "samples", "c": "filters", "k": "channels", "d": "planes", "h": "rows",
              "w": "columns"}
#: Limits, and layers of each, that a sentence names.
_NAMED = 3


@dataclass(frozen=True)
class PassedLimit:
    """A layer that is cut into more parts than it has.

    Attributes
    ----------
    axis : str
        The axis of the configuration, a key of `CUT_THINGS`.
    extent, parts : int
        How many there are, and into how many parts they are cut.
    ranks, idle_ranks : int
        Ranks that hold the layer, and those among them that have nothing of it to compute.
    """

    layer: str
    axis: str
    extent: int
    parts: int
    ranks: int
    idle_ranks: int


def passed_limits(network: Network, plan: Plan) -> tuple[PassedLimit, ...]:
    """Where a plan passes the limits of scaling, layer by layer."""
    found = []
    for layer in network.layers[1:]:
        config, samples = plan.configs[layer.name], plan.samples_of_a_pass
        cuts_of_axis: dict[str, tuple[int, int]] = {}
        for layout in (needed(network, layer, config, samples),
                       computed(network, layer, config, samples)):
            for axis in layout.axes:
                extent, parts = int(axis.out_extent) // axis.granule, int(layout.degree(axis))
                if parts > extent and axis.name in CUT_THINGS:
                    cuts_of_axis[axis.name] = (extent, parts)
        ranks = busy = int(config.ranks)
        for extent, parts in cuts_of_axis.values():
            busy = busy // parts * extent
        found += [PassedLimit(layer.name, axis, extent, parts, ranks, ranks - busy)
                  for axis, (extent, parts) in cuts_of_axis.items()]
    return tuple(found)


def limits_in_words(passed: Sequence[PassedLimit]) -> str:
    """The limits that leave most ranks idle, with the layers that pass them."""
    layers: dict[str, list[str]] = defaultdict(list)
    for x in sorted(passed, key=lambda x: -x.idle_ranks):
        layers[f"{x.extent} {CUT_THINGS[x.axis]} in {x.parts} parts leave {x.idle_ranks} of "
               f"{x.ranks} ranks idle in"].append(x.layer)
    told = [f"{what} {', '.join(names[:_NAMED])}"
            + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
            for what, names in layers.items()]
    more = [f"{len(told) - _NAMED} more"] if len(told) > _NAMED else []
    return "; ".join(told[:_NAMED] + more)
