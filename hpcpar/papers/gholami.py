"""The closed forms of the integrated paper (Gholami et al., SPAA 2018), term by term.

Layers are the weighted ones, i = 1..L. Layer i maps d_{i-1} = X_H X_W X_C items a sample to d_i =
Y_H Y_W Y_C: forward terms count the layer's own output, backward terms its input (pooled, where a
pooling lies between). |W_i| counts weights and biases, as they are sent together. log is ceil(log2
P). Items cost `beta_s` seconds each (inverse bandwidth times the item's size), messages `alpha_s`.

Three places where what is printed and what is executed part, the same in every function here (as
printed):

* A grouped convolution needs only its group's channels: the schedule moves less than Eq 3 and 8
  count for two-tower networks.
* Eq 7 and 9 count a backward halo for the first layer, whose input gradient nobody needs, and none
  for pooling.
* Eq 9 does not count the gather between domain-parallel convolutions and model-parallel layers (Eq
  6 prices one).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpcpar.network.graph import Network
from hpcpar.network.layers import Conv, Layer


@dataclass(frozen=True)
class Term:
    """One summand of an equation: the layer, ``forward``, ``backward`` or ``gradient``, and
    seconds.
    """

    layer: str
    phase: str
    seconds: float


@dataclass(frozen=True)
class Link:
    """alpha (s per message) and beta (s per item)."""

    alpha_s: float
    beta_s: float

    def log_s(self, p: int, items: float) -> float:
        """alpha ceil(log2 p) + beta (p - 1) / p items: an allgather of `items` in all over p ranks.
        """
        return self.alpha_s * math.ceil(math.log2(p)) + self.beta_s * (p - 1) / p * items


def total_s(terms: list[Term], phase: str | None = None) -> float:
    """The equation's sum, or that of one phase."""
    return sum(t.seconds for t in terms if phase is None or t.phase == phase)


def _d_in(network: Network, layer: Layer) -> int:
    return math.prod(network.input_shape(layer))


def _d_out(network: Network, layer: Layer, pooled: bool) -> int:
    """Items a sample of the layer's output; `pooled`: of what the next weighted layer reads of it.
    """
    following = network.matmul_layers[network.matmul_layers.index(layer) + 1:] if pooled else ()
    return _d_in(network, following[0]) if following else math.prod(network.shapes[layer.name])


def _model_and_batch(network: Network, layers: list[Layer], first: Layer, pr: int, pc: int,
                     batch: int, link: Link, pooled: bool = False) -> list[Term]:
    out = [Term(layer.name, "forward", link.log_s(pr, batch / pc * _d_out(network, layer, pooled)))
           for layer in layers]
    out += [Term(layer.name, "backward", 2 * link.log_s(pr, batch / pc * _d_in(network, layer)))
            for layer in layers if layer is not first]
    return out + [
        Term(layer.name, "gradient", 2 * link.log_s(pc, layer.parameters(network.input_shape(layer)) / pr)) for layer in layers
    ]


def _halos(network: Network, layers: list[Layer], p: int, samples: float, link: Link) -> list[Term]:
    """Halo terms of Eq 7 and 9: an alpha and floor(k / 2) rows each way; none for 1 x 1, none
    without neighbours.
    """
    out = []
    for layer in layers:
        if not isinstance(layer, Conv) or p == 1:
            continue
        (x_c, _, *x_rest), (y_c, _,
                            *y_rest) = network.input_shape(layer), network.shapes[layer.name]
        halos = (("forward", math.prod(x_rest) * x_c, layer.kernel[0]),
                 ("backward", math.prod(y_rest) * y_c, layer.kernel[1]))
        for phase, items, k in halos:
            if k > 1:
                out.append(Term(layer.name, phase,
                                link.alpha_s + link.beta_s * samples * items * (k // 2)))
    return out


def eq3_model(network: Network, p: int, batch: int, link: Link) -> list[Term]:
    """Eq 3, pure model: sum_i (a log + b B (P-1)/P d_i) + 2 sum_{i>1} (a log + b B (P-1)/P
    d_{i-1}).
    """
    layers = list(network.matmul_layers)
    return [t for t in _model_and_batch(network, layers, layers[0], p, 1, batch, link)
            if t.phase != "gradient"]


def eq4_batch(network: Network, p: int, link: Link) -> list[Term]:
    """Eq 4, pure batch: 2 sum_i (a log + b (P-1)/P |W_i|)."""
    return [Term(layer.name, "gradient",
                 2 * link.log_s(p, layer.parameters(network.input_shape(layer))))
            for layer in network.matmul_layers]


def eq5_volume_ratio(network: Network, layer: Conv, batch: int) -> float:
    """Eq 5, the batch volume of a convolution over its model volume: 2 k_h k_w X_C / (3 B Y_H Y_W).

    The model volume counts d_i three times (d_{i-1} taken as d_i); biases are not counted. Above 1,
    model parallelism moves less.
    """
    x_c = network.input_shape(layer)[0]
    _, y_h, y_w = network.shapes[layer.name]
    return 2 * layer.kernel[0] * layer.kernel[1] * x_c / (3 * batch * y_h * y_w)


def eq6_redistribute(network: Network, layer: Layer, p: int, batch: int, link: Link) -> float:
    """Eq 6, from batch to model parallel in front of `layer`: a log + b B (P-1)/P d, d the items of
    its input (s).
    """
    return link.log_s(p, batch * _d_in(network, layer))


def eq7_domain(network: Network, p: int, batch: int, link: Link) -> list[Term]:
    """Eq 7, pure domain.

    sum (a + b B X_W X_C floor(k_h/2)) + sum (a + b B Y_W Y_C floor(k_w/2)) + 2 sum (a log + b
    (P-1)/P |W_i|); halos of convolutions only.
    """
    return _halos(network, list(network.matmul_layers), p, batch, link) + eq4_batch(network, p, link)


def eq8_model_batch(network: Network, pr: int, pc: int, batch: int, link: Link,
                    pooled: bool = False) -> list[Term]:
    """Eq 8, 1.5D on a Pr x Pc grid.

    sum_i (a log Pr + b B/Pc (Pr-1)/Pr d_i) + 2 sum_{i>1} (a log Pr + b B/Pc (Pr-1)/Pr d_{i-1}) + 2
    sum_i (a log Pc + b (Pc-1)/Pc |W_i|/Pr).

    Parameters
    ----------
    pooled : bool
        Take d_i as what the next weighted layer reads (gathered after pooling, the reading that
        comes closest to the paper's figures) rather than as the layer's own output.
    """
    layers = list(network.matmul_layers)
    return _model_and_batch(network, layers, layers[0], pr, pc, batch, link, pooled)


def eq8_fc_only(network: Network, pr: int, pc: int, batch: int, link: Link) -> list[Term]:
    """Eq 8 with Pr = 1 in the convolutions and the grid in the fully connected layers (Fig 7)."""
    layers = list(network.matmul_layers)
    conv: list[Layer] = [layer for layer in layers if isinstance(layer, Conv)]
    rest = [layer for layer in layers if not isinstance(layer, Conv)]
    return _model_and_batch(network, conv, layers[0], 1, pr * pc, batch, link) + _model_and_batch(
        network, rest, layers[0], pr, pc, batch, link
    )


def eq9_integrated(network: Network, pr: int, pc: int, batch: int, link: Link) -> list[Term]:
    """Eq 9, convolutions (L_D) by domain and batch, the other weighted layers (L_M) by model and
    batch.

    Over L_M Eq 8's terms; over L_D halos as in Eq 7 with B/Pc samples, and 2 sum (a log P + b
    (P-1)/P |W_i|).
    """
    layers = list(network.matmul_layers)
    domain: list[Layer] = [layer for layer in layers if isinstance(layer, Conv)]
    model = [layer for layer in layers if not isinstance(layer, Conv)]
    out = _halos(network, domain, pr, batch / pc, link)
    out += [Term(x.name, "gradient", 2 * link.log_s(pr * pc, x.parameters(network.input_shape(x))))
            for x in domain]
    return out + _model_and_batch(network, model, layers[0], pr, pc, batch, link)


def eq9_shares(network: Network, pr: int, pc: int, batch: int,
               link: Link) -> dict[str, tuple[float, float | None]]:
    """Each layer's share of Eq 9, as (model and batch parallel, domain and batch parallel), in s.

    Layers that are no convolutions have no domain to cut: None.
    """
    layers = list(network.matmul_layers)
    out: dict[str, tuple[float, float | None]] = {}
    for layer in layers:
        model = total_s(_model_and_batch(network, [layer], layers[0], pr, pc, batch, link))
        domain = None
        if isinstance(layer, Conv):
            gradient = 2 * link.log_s(pr * pc, layer.parameters(network.input_shape(layer)))
            domain = total_s(_halos(network, [layer], pr, batch / pc, link)) + gradient
        out[layer.name] = (model, domain)
    return out
