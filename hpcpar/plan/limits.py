"""Limits of scaling (ParaDL, Table 3, last column), layers that exceed them, and largest batch."""

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

#: Most values of a layer in a mini-batch; bytes and sums over ranks stay exact.
MOST_VALUES = 1 << 46


def require_batch(network: Network, batch: int) -> None:
    """Refuses absurdly large mini-batches: each layer may have at most `MOST_VALUES` values."""
    values = batch * max(map(math.prod, network.shapes.values()))
    if values > MOST_VALUES:
        raise InputError(f"a batch of {batch:,} samples makes {values:.1e} "
                         f"values in one layer of '{network.name}', more than {MOST_VALUES:.1e}; "
                         "use a smaller batch")


def limit(network: Network, strategy: str, batch: int) -> int:
    """Largest number of ranks that a strategy can use (ParaDL, Table 3)."""
    entry, (_, grid) = entry_of(strategy), parse(strategy)
    shapes = [network.shapes[layer.name] for layer in network.layers]
    products = network.matmul_layers
    pixels = min((math.prod(shape[1:]) for shape in shapes if len(shape) > 1), default=1)
    filters = min((network.shapes[layer.name][0] for layer in products[:-1]), default=1)
    channels = min((network.input_shape(layer)[0] for layer in products[1:]), default=1)
    counts = {"samples": batch, "pixels": pixels, "filters": filters, "channels": channels,
              "stages": len(cuts(network)) - 1, "parts": max(pixels, filters)}
    product = math.prod(counts[name] for name in entry.cuts)
    return product * batch if entry.pipeline and grid else product


#: Name of the items that each axis of a configuration cuts.
CUT_ITEMS = {"n": "samples", "c": "filters", "k": "channels", "d": "planes", "h": "rows",
             "w": "columns"}
#: Most limits in a sentence, and most layers for each.
_NAMED = 3


@dataclass(frozen=True)
class PassedLimit:
    """A layer that is cut into more parts than it has items.

    Attributes
    ----------
    axis : str
        Axis of the configuration, a key of `CUT_ITEMS`.
    extent, parts : int
        Number of items, and number of parts into which they are cut.
    ranks, idle_ranks : int
        Number of ranks on which the layer runs, and of idle ranks among them.
    """

    layer: str
    axis: str
    extent: int
    parts: int
    ranks: int
    idle_ranks: int


def passed_limits(network: Network, plan: Plan) -> tuple[PassedLimit, ...]:
    """The layers at which a plan exceeds the limits of scaling."""
    found = []
    for layer in network.layers[1:]:
        config, samples = plan.configs[layer.name], plan.samples_of_a_pass
        cuts_of_axis: dict[str, tuple[int, int]] = {}
        for layout in (needed(network, layer, config, samples),
                       computed(network, layer, config, samples)):
            for axis in layout.axes:
                extent, parts = int(axis.out_extent) // axis.granule, int(layout.degree(axis))
                if parts > extent and axis.name in CUT_ITEMS:
                    cuts_of_axis[axis.name] = (extent, parts)
        ranks = busy = int(config.ranks)
        for extent, parts in cuts_of_axis.values():
            busy = busy // parts * extent
        found += [PassedLimit(layer.name, axis, extent, parts, ranks, ranks - busy)
                  for axis, (extent, parts) in cuts_of_axis.items()]
    return tuple(found)


def limits_in_words(passed: Sequence[PassedLimit]) -> str:
    """The limits that leave the most ranks idle, with the layers that exceed them."""
    layers: dict[str, list[str]] = defaultdict(list)
    for x in sorted(passed, key=lambda x: -x.idle_ranks):
        layers[f"{x.extent} {CUT_ITEMS[x.axis]} in {x.parts} parts leave {x.idle_ranks} of "
               f"{x.ranks} ranks idle in"].append(x.layer)
    phrases = [f"{limit} {', '.join(names[:_NAMED])}"
               + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
               for limit, names in layers.items()]
    more = [f"{len(phrases) - _NAMED} more"] if len(phrases) > _NAMED else []
    return "; ".join(phrases[:_NAMED] + more)
