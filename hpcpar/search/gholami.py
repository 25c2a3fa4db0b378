"""Gholami et al., SPAA 2018: the grid and the parallelism per layer with the least time by Eq 9.

For a given grid Pr x Pc, Eq 9 is a sum over layers, so each layer takes the cheaper of model and
domain parallelism. The search tries all grids.

Layers i = 1..L are the layers with matrix products. Layer i maps d_{i-1} items per sample to d_i.
Forward terms count the layer's output, backward terms its input after the pooling between two
layers. |W_i| counts weights and biases, which are sent together. The logarithm is ceil(log2 P).
Costs are alpha in seconds per message and beta in seconds per item. All times are in seconds per
iteration.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hpcpar.network.graph import Network
from hpcpar.network.layers import Conv, Layer
from hpcpar.plan.strategy import grid_sizes


@dataclass(frozen=True)
class CostTerm:
    """One summand of an equation.

    Attributes
    ----------
    phase : {'forward', 'backward', 'gradient'}
    """

    layer: str
    phase: str
    seconds: float


@dataclass(frozen=True)
class HockneyLink:
    """Hockney parameters of a link: alpha (s per message) and beta (s per item)."""

    alpha_s: float
    beta_s: float

    def log_s(self, p: int, items: float) -> float:
        """Allgather of `items` in total over p ranks: alpha ceil(log2 p) + beta (p-1)/p items."""
        return self.alpha_s * math.ceil(math.log2(p)) + self.beta_s * (p - 1) / p * items


def total_s(terms: list[CostTerm], phase: str | None = None) -> float:
    """Sum of the terms in seconds, optionally of one phase."""
    return sum(t.seconds for t in terms if phase is None or t.phase == phase)


def items_in(network: Network, layer: Layer) -> int:
    """d_{i-1}: items per sample of the layer's input."""
    return math.prod(network.input_shape(layer))


def _items_out(network: Network, layer: Layer, pooled: bool) -> int:
    """d_i: items per sample of the layer's output or, if `pooled`, of the next layer's input."""
    following = network.matmul_layers[network.matmul_layers.index(layer) + 1:] if pooled else ()
    return items_in(network, following[0]) if following else math.prod(network.shapes[layer.name])


def model_and_batch(network: Network, layers: list[Layer], first: Layer, pr: int, pc: int,
                     batch: int, link: HockneyLink, pooled: bool = False) -> list[CostTerm]:
    """Terms of Eq 8 over some layers; `first` is the first layer of the network."""
    forward = [CostTerm(layer.name, "forward",
                    link.log_s(pr, batch / pc * _items_out(network, layer, pooled)))
               for layer in layers]
    backward = [CostTerm(layer.name, "backward",
                     2 * link.log_s(pr, batch / pc * items_in(network, layer)))
                for layer in layers if layer is not first]
    return forward + backward + gradients(network, layers, pc, link, shards=pr)


def gradients(network: Network, layers: Sequence[Layer], p: int, link: HockneyLink,
               shards: int = 1) -> list[CostTerm]:
    """Gradient allreduces over p ranks, each of |W_i| / shards items."""
    return [CostTerm(layer.name, "gradient",
                 2 * link.log_s(p, layer.parameters(network.input_shape(layer)) / shards))
            for layer in layers]


def halos(network: Network, layers: list[Layer], p: int, samples: float,
           link: HockneyLink) -> list[CostTerm]:
    """Halo terms of Eq 7 and Eq 9: one message of floor(k / 2) rows in each phase if k > 1."""
    terms = []
    for layer in layers:
        if not isinstance(layer, Conv) or p == 1:
            continue
        x, y = network.input_shape(layer), network.shapes[layer.name]
        sent = (("forward", math.prod(x) // x[1], layer.kernel[0]),
                ("backward", math.prod(y) // y[1], layer.kernel[1]))
        for phase, row_items, k in sent:
            if k > 1:
                items = samples * row_items * (k // 2)
                terms.append(CostTerm(layer.name, phase, link.alpha_s + link.beta_s * items))
    return terms


def eq9_shares(network: Network, pr: int, pc: int, batch: int,
               link: HockneyLink) -> dict[str, tuple[float, float | None]]:
    """Each layer's time in Eq 9 in seconds: (model and batch, domain and batch) parallel.

    The second time is None for layers other than convolutions, which have no domain.
    """
    first = network.matmul_layers[0]
    shares: dict[str, tuple[float, float | None]] = {}
    for layer in network.matmul_layers:
        model_s = total_s(model_and_batch(network, [layer], first, pr, pc, batch, link))
        domain_s = None
        if isinstance(layer, Conv):
            domain_s = total_s(halos(network, [layer], pr, batch / pc, link)
                               + gradients(network, [layer], pr * pc, link))
        shares[layer.name] = (model_s, domain_s)
    return shares


@dataclass(frozen=True)
class GridChoice:
    """A grid Pr x Pc with its model-parallel (L_M) and domain-parallel (L_D) layers.

    Attributes
    ----------
    seconds : float
        Communication time per iteration by Eq 9.
    """

    pr: int
    pc: int
    model: tuple[str, ...]
    domain: tuple[str, ...]
    seconds: float


def choose(network: Network, ranks: int, batch: int, link: HockneyLink,
           pr: int | None = None) -> GridChoice:
    """The choice with the least communication time by Eq 9, optionally with a given Pr."""
    choices = []
    for rows, columns in grid_sizes(ranks):
        if columns > batch or (pr is not None and rows != pr):
            continue
        shares = eq9_shares(network, rows, columns, batch, link)
        domain = tuple(name for name, (model_s, domain_s) in shares.items() if domain_s is not None
                       and domain_s < model_s)
        model = tuple(name for name in shares if name not in domain)
        seconds = sum(min(m, m if d is None else d) for m, d in shares.values())
        choices.append(GridChoice(rows, columns, model, domain, seconds))
    return min(choices, key=lambda choice: choice.seconds)
