"""Gholami et al., SPAA 2018 (the integrated paper): communication times Eq 3 to Eq 9, by term.

Layers i = 1..L are the layers with matrix products. Layer i maps d_{i-1} = X_H X_W X_C items per
sample to d_i = Y_H Y_W Y_C. Forward terms count the layer's output, backward terms its input after
the pooling between two layers. |W_i| counts weights and biases, which are sent together. The
logarithm is ceil(log2 P). Costs are alpha in seconds per message and beta in seconds per item (the
item size is part of beta). All times are in seconds per iteration.

The functions evaluate the equations as published. The package's schedules deviate in three places:

* Ranks sum the input gradient of a grouped convolution within its group, and then gather the
  groups, so that a two-tower network moves less than Eq 3 and Eq 8 count. `grouped` computes this.
* Eq 7 and Eq 9 count a backward halo for the first layer, which needs no input gradient, and no
  halo for pooling, whose messages the accounting ``paper`` leaves out, too.
* Eq 8 and Eq 9 omit the gather between convolutions in batch or domain parallelism and
  model-parallel layers, which Eq 6 prices for B/Pc samples. A batch-parallel producer keeps its
  part of the gradient, so that the first model-parallel layer's allreduce is a reduce-scatter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hpcpar.network.graph import Network
from hpcpar.network.layers import Conv, Layer


@dataclass(frozen=True)
class CostTerm:
    """One summand of an equation.

    Attributes
    ----------
    phase : {'forward', 'backward', 'gradient'}
    latency_s, bandwidth_s : float
        The terms with alpha, and those with beta.
    """

    layer: str
    phase: str
    latency_s: float
    bandwidth_s: float

    @property
    def seconds(self) -> float:
        return self.latency_s + self.bandwidth_s


@dataclass(frozen=True)
class HockneyLink:
    """Hockney parameters of a link: alpha (s per message) and beta (s per item)."""

    alpha_s: float
    beta_s: float

    def gather(self, layer: str, phase: str, p: int, items: float, times: int = 1) -> CostTerm:
        """Allgathers of `items` in total over p ranks: alpha ceil(log2 p) + beta (p-1)/p items."""
        return CostTerm(layer, phase, times * self.alpha_s * math.ceil(math.log2(p)),
                        times * self.beta_s * (p - 1) / p * items)


def total_s(terms: list[CostTerm], phase: str | None = None) -> float:
    """Sum of the terms in seconds, optionally of one phase."""
    return sum(t.seconds for t in terms if phase is None or t.phase == phase)


def _d_in(network: Network, layer: Layer) -> int:
    """d_{i-1}: items per sample of the layer's input."""
    return math.prod(network.input_shape(layer))


def _d_out(network: Network, layer: Layer, pooled: bool) -> int:
    """d_i: items per sample of the layer's output or, if `pooled`, of the next layer's input."""
    following = network.matmul_layers[network.matmul_layers.index(layer) + 1:] if pooled else ()
    return _d_in(network, following[0]) if following else math.prod(network.shapes[layer.name])


def _model_and_batch(network: Network, layers: list[Layer], first: Layer, pr: int, pc: int,
                     batch: int, link: HockneyLink, pooled: bool = False,
                     grouped: bool = False) -> list[CostTerm]:
    """Terms of Eq 8 over some layers; `first` is the first layer of the network."""
    forward = [link.gather(layer.name, "forward", pr, batch / pc * _d_out(network, layer, pooled))
               for layer in layers]
    backward = [_input_gradient(layer, pr, batch / pc * _d_in(network, layer), link, grouped)
                for layer in layers if layer is not first]
    return forward + backward + _gradients(network, layers, pc, link, shards=pr)


def _input_gradient(layer: Layer, pr: int, items: float, link: HockneyLink,
                    grouped: bool) -> CostTerm:
    """An allreduce of `items`; if `grouped`, one within each group, and an allgather of groups."""
    parts = math.gcd(pr, getattr(layer, "groups", 1)) if grouped else 1
    total = link.gather(layer.name, "backward", pr // parts, items / parts, 2)
    gathered = link.gather(layer.name, "backward", parts, items)
    return CostTerm(layer.name, "backward", total.latency_s + gathered.latency_s,
                    total.bandwidth_s + gathered.bandwidth_s)


def _gradients(network: Network, layers: Sequence[Layer], p: int, link: HockneyLink,
               shards: int = 1) -> list[CostTerm]:
    """Gradient allreduces over p ranks, each of |W_i| / shards items."""
    return [link.gather(layer.name, "gradient", p,
                        layer.parameters(network.input_shape(layer)) / shards, 2)
            for layer in layers]


def _halos(network: Network, layers: list[Layer], p: int, samples: float,
           link: HockneyLink) -> list[CostTerm]:
    """Halo terms of Eq 7 and Eq 9: one message of floor(k / 2) rows in each phase if k > 1."""
    terms = []
    for layer in layers:
        if not isinstance(layer, Conv) or p == 1:
            continue
        x, y = network.input_shape(layer), network.shapes[layer.name]
        halos = (("forward", math.prod(x) // x[1], layer.kernel[0]),
                 ("backward", math.prod(y) // y[1], layer.kernel[1]))
        for phase, row_items, k in halos:
            if k > 1:
                items = samples * row_items * (k // 2)
                terms.append(CostTerm(layer.name, phase, link.alpha_s, link.beta_s * items))
    return terms


def eq3_model(network: Network, p: int, batch: int, link: HockneyLink,
              grouped: bool = False) -> list[CostTerm]:
    """Eq 3, pure model parallelism.

    sum_i (a log P + b B (P-1)/P d_i) + 2 sum_{i>1} (a log P + b B (P-1)/P d_{i-1}).
    """
    terms = eq8_model_batch(network, p, 1, batch, link, grouped=grouped)
    return [t for t in terms if t.phase != "gradient"]


def eq4_batch(network: Network, p: int, link: HockneyLink) -> list[CostTerm]:
    """Eq 4, pure batch parallelism: 2 sum_i (a log P + b (P-1)/P |W_i|)."""
    return _gradients(network, network.matmul_layers, p, link)


def eq5_volume_ratio(network: Network, layer: Conv, batch: int) -> float:
    """Eq 5, ratio of the volumes that batch and model parallelism move for one convolution.

    2 k_h k_w X_C / (3 B Y_H Y_W). The model volume counts d_i three times (with d_{i-1} = d_i),
    and biases are not counted. Above 1, model parallelism moves less.
    """
    x_c = network.input_shape(layer)[0]
    _, y_h, y_w = network.shapes[layer.name]
    return 2 * layer.kernel[0] * layer.kernel[1] * x_c / (3 * batch * y_h * y_w)


def eq6_redistribute(network: Network, layer: Layer, p: int, batch: float,
                     link: HockneyLink) -> float:
    """Eq 6, redistribution from batch to model parallelism in front of `layer`, in seconds.

    a log P + b B (P-1)/P d, where d is the number of items per sample of the layer's input.
    """
    return link.gather(layer.name, "forward", p, batch * _d_in(network, layer)).seconds


def eq7_domain(network: Network, p: int, batch: int, link: HockneyLink) -> list[CostTerm]:
    """Eq 7, pure domain parallelism.

    sum (a + b B X_W X_C floor(k_h/2)) + sum (a + b B Y_W Y_C floor(k_w/2))
    + 2 sum (a log P + b (P-1)/P |W_i|). The halo sums run over convolutions.
    """
    halos = _halos(network, list(network.matmul_layers), p, batch, link)
    return halos + eq4_batch(network, p, link)


def eq8_model_batch(network: Network, pr: int, pc: int, batch: int, link: HockneyLink,
                    pooled: bool = False, grouped: bool = False) -> list[CostTerm]:
    """Eq 8, integrated model and batch parallelism (1.5D) on a Pr x Pc grid.

    sum_i (a log Pr + b B/Pc (Pr-1)/Pr d_i) + 2 sum_{i>1} (a log Pr + b B/Pc (Pr-1)/Pr d_{i-1})
    + 2 sum_i (a log Pc + b (Pc-1)/Pc |W_i|/Pr).

    Parameters
    ----------
    pooled : bool
        Whether d_i is the next layer's input, gathered after pooling, instead of the layer's
        output. This reading comes closest to the paper's figures.
    grouped : bool
        Whether input gradients of grouped convolutions move as in the package's schedules instead
        of by the printed term.
    """
    layers = list(network.matmul_layers)
    return _model_and_batch(network, layers, layers[0], pr, pc, batch, link, pooled, grouped)


def eq8_fc_only(network: Network, pr: int, pc: int, batch: int,
                link: HockneyLink) -> list[CostTerm]:
    """Eq 8 with Pr = 1 in convolutions and the Pr x Pc grid in fully connected layers (Fig 7)."""
    first = network.matmul_layers[0]
    convs, others = _conv_and_other(network)
    return (_model_and_batch(network, convs, first, 1, pr * pc, batch, link)
            + _model_and_batch(network, others, first, pr, pc, batch, link))


def _conv_and_other(network: Network) -> tuple[list[Layer], list[Layer]]:
    """L_D and L_M: convolutions and other layers."""
    convs: list[Layer] = [layer for layer in network.matmul_layers if isinstance(layer, Conv)]
    return convs, [layer for layer in network.matmul_layers if not isinstance(layer, Conv)]


def eq9_integrated(network: Network, pr: int, pc: int, batch: int,
                   link: HockneyLink) -> list[CostTerm]:
    """Eq 9, convolutions (L_D) by domain and batch, other layers (L_M) by model and batch.

    L_M has the terms of Eq 8. L_D has the halos of Eq 7 for B/Pc samples, and the gradients
    2 sum (a log P + b (P-1)/P |W_i|) with P = Pr Pc.
    """
    first = network.matmul_layers[0]
    domain, model = _conv_and_other(network)
    return (_halos(network, domain, pr, batch / pc, link)
            + _gradients(network, domain, pr * pc, link)
            + _model_and_batch(network, model, first, pr, pc, batch, link))


def eq9_of_layer(network: Network, layer: Layer, pr: int, pc: int, batch: int,
                 link: HockneyLink) -> dict[str, list[CostTerm]]:
    """A layer's terms in Eq 9 by its cut: ``model`` and, for convolutions, ``domain``.

    ``batch`` cuts the samples over all P ranks (Eq 4).
    """
    first = network.matmul_layers[0]
    terms = {"model": _model_and_batch(network, [layer], first, pr, pc, batch, link)}
    gradients = _gradients(network, [layer], pr * pc, link)
    if isinstance(layer, Conv):
        terms["domain"] = _halos(network, [layer], pr, batch / pc, link) + gradients
    return terms | {"batch": gradients}
