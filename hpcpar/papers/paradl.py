"""ParaDL's closed forms (Kahira et al., HPDC 2021): Table 3, one function a row, and the
communication model behind it.

Layers are l = 1..G, as the caller lists them: `layer_costs` makes the list from a network. D
samples make an epoch of D / B iterations of B samples; FW_l and BW_l are seconds a sample, WU_l
seconds an iteration. A `Link` holds alpha (s per message) and beta (s per item: delta bytes an item
are in it already). Every term is seconds per epoch, as printed.

Where what is printed leaves a choice:

* Gradients are exchanged for weights, not for biases.
* In filter and channel parallelism convolutions and fully connected layers gather (``sum_{l<G}``:
  all but the last of them);
  pooling, activations and batch normalisation are computed by every PE (section 4.5.2), and move
  nothing.
* A layer without a halo (1 x 1, or windows that do not overlap) sends no message; Eq 10 charges 2
  alpha even for it.
* A limit holds for every axis that is split: section 3.2 has p_w <= W beside Table 3's p <= min(W H
  D).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hpcpar.network.graph import Network
from hpcpar.network.layers import Input, Layer, Loss, Shape, Windowed
from hpcpar.papers.gholami import Link

#: How ds exchanges gradients (section 4.5.1).
Exchange = Literal["flat", "leaders", "segmented"]


@dataclass(frozen=True)
class LayerCost:
    """What Table 3 needs of a layer.

    Attributes
    ----------
    x, y : float
        Items of a sample's input and output.
    w, bias : float
        Weights and biases.
    channels, filters : int
        C and F: input and output channels.
    extents : tuple of int
        The input's image extents, (H, W) or (D, H, W); empty where the layer cannot be split so
        (fully connected layers).
    halo_x, halo_dy : tuple of float
        Items of a sample of x, and of dL/dy, that cross a cut of each image axis one way, over the
        whole face, channels included.
    gathers : bool
        Whether filter and channel parallelism exchange the layer's activations.
    fw_s, bw_s : float
        Forward and backward seconds a sample.
    wu_s : float
        Seconds of the weight update.
    """

    name: str
    x: float = 0.0
    y: float = 0.0
    w: float = 0.0
    bias: float = 0.0
    channels: int = 1
    filters: int = 1
    extents: tuple[int, ...] = ()
    halo_x: tuple[float, ...] = ()
    halo_dy: tuple[float, ...] = ()
    gathers: bool = True
    fw_s: float = 0.0
    bw_s: float = 0.0
    wu_s: float = 0.0


@dataclass(frozen=True)
class Job:
    """What is trained how (Table 2).

    Attributes
    ----------
    samples : int
        D, samples an epoch.
    batch : int
        B, samples an iteration of all PEs.
    item_bytes : float
        delta, bytes per item in memory.
    reuse : float
        gamma, what the naive memory estimate is multiplied by.
    """

    samples: int
    batch: int
    item_bytes: float = 4.0
    reuse: float = 1.0

    @property
    def iterations(self) -> float:
        """D / B."""
        return self.samples / self.batch


@dataclass(frozen=True)
class Row:
    """A row of Table 3: seconds per epoch term by term, and memory.

    Attributes
    ----------
    compute_s, update_s : float
        FW and BW; WU.
    gradient_s, halo_s, layerwise_s, p2p_s : float
        Gradient exchange, halo exchange, collectives of the layers, messages between pipeline
        stages.
    memory_bytes : float
        Of the PE that needs most.
    parts, limits : tuple of int
        Parts along every axis that is split, and the most that each axis allows.
    """

    compute_s: float
    update_s: float
    memory_bytes: float
    parts: tuple[int, ...]
    limits: tuple[int, ...]
    gradient_s: float = 0.0
    halo_s: float = 0.0
    layerwise_s: float = 0.0
    p2p_s: float = 0.0

    @property
    def pes(self) -> int:
        """p."""
        return math.prod(self.parts)

    @property
    def limit(self) -> int:
        """The most PEs (Table 3, last column)."""
        return math.prod(self.limits)

    @property
    def within_limits(self) -> bool:
        return all(part <= most for part, most in zip(self.parts, self.limits, strict=True))

    @property
    def communication_s(self) -> float:
        return self.gradient_s + self.halo_s + self.layerwise_s + self.p2p_s

    @property
    def epoch_s(self) -> float:
        return self.compute_s + self.update_s + self.communication_s

    def fits(self, memory_bytes: float) -> bool:
        """Whether PEs with so much memory can run it: neither memory nor a limit on p stands
        against it.
        """
        return self.within_limits and self.memory_bytes <= memory_bytes


def layer_costs(network: Network, layers: Iterable[Layer] | None = None,
                seconds: Mapping[str, tuple[float, float, float]] | None = None) -> list[LayerCost]:
    """Table 3's values from a network's shapes.

    Parameters
    ----------
    layers : iterable of Layer, optional
        l = 1..G; by default every layer but the input and the loss.
    seconds : mapping, optional
        Layer name -> (FW, BW, WU); what is missing counts nothing.
    """
    chosen = [layer for layer in network.layers
              if not isinstance(layer, Input | Loss)] if layers is None else layers
    return [_layer_cost(network, layer, *(seconds or {}).get(layer.name, (0.0, 0.0, 0.0)))
            for layer in chosen]


def _layer_cost(network: Network, layer: Layer, fw_s: float, bw_s: float, wu_s: float) -> LayerCost:
    x, y = network.input_shape(layer), network.shapes[layer.name]
    image = len(x) > 1 and len(y) > 1
    halo_x, halo_dy = _faces(layer, x, y) if image else ((), ())
    w, bias = layer.weight_shape(x), layer.bias_shape(x)
    return LayerCost(
        layer.name, float(sum(math.prod(shape) for shape in network.input_shapes(layer))), float(math.prod(y)),
        float(math.prod(w)) if w else 0.0, float(math.prod(bias)) if bias else 0.0, x[0], y[0], x[1:] if image else (),
        halo_x, halo_dy, layer.is_matmul, fw_s, bw_s, wu_s,
    )


def _faces(layer: Layer, x: Shape, y: Shape) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """halo(x) and halo(dL/dy) of a cut across each image axis: floor(K / 2) rows of x and as many
    of y as read them.

    Windows that do not overlap have none.
    """
    if not isinstance(layer, Windowed):
        return (0.0,) * (len(x) - 1), (0.0,) * (len(x) - 1)
    windows = layer.windows()
    rows = [max(0, min(win.span // 2, win.span - win.stride)) for win in windows]
    of_y = [-(-row // win.stride) for row, win in zip(rows, windows, strict=True)]
    return (
        tuple(row * math.prod(x) / extent for row, extent in zip(rows, x[1:], strict=True)),
        tuple(row * math.prod(y) / extent for row, extent in zip(of_y, y[1:], strict=True)),
    )


def contended(link: Link, flows: float) -> Link:
    """Section 4.3: a link's bandwidth is divided by phi, the number of flows of this job that share
    it.
    """
    return replace(link, beta_s=link.beta_s * flows)


def p2p_s(items: float, link: Link) -> float:
    """Hockney (section 4.3): alpha + m beta."""
    return link.alpha_s + items * link.beta_s


def ring_allreduce_s(p: int, items: float, link: Link) -> float:
    """Section 4.3: 2 (p - 1) (alpha + m / p beta), m items in every PE's buffer."""
    return 2 * (p - 1) * p2p_s(items / p, link)


def ring_allgather_s(p: int, items: float, link: Link) -> float:
    """Section 4.3: (p - 1) (alpha + m beta), m items from every PE."""
    return (p - 1) * p2p_s(items, link)


def tree_allreduce_s(p: int, items: float, link: Link, chunks: int) -> float:
    """Section 4.3, footnote 4, for small messages: 2 (log p + k) (alpha + m / (2 k) beta), in k
    pipelined chunks; log is ceil(log2 p).
    """
    return 2 * (math.ceil(math.log2(p)) + chunks) * p2p_s(items / (2 * chunks),
                                                          link) if p > 1 else 0.0


def _compute_s(layers: Sequence[LayerCost], job: Job, p: int) -> float:
    return job.samples / p * sum(layer.fw_s + layer.bw_s for layer in layers)


def _update_s(layers: Sequence[LayerCost], job: Job, shards: int = 1) -> float:
    return job.iterations / shards * sum(layer.wu_s for layer in layers)


def _memory_bytes(layers: Sequence[LayerCost], job: Job, batch_parts: float,
                  weight_parts: int = 1) -> float:
    """gamma delta sum (2 B (x + y) / batch_parts + 2 w / weight_parts + bias)."""
    items = sum(2 * job.batch / batch_parts * (a.x + a.y) + 2 * a.w / weight_parts + a.bias
                for a in layers)
    return job.reuse * job.item_bytes * items


def _weights(layers: Sequence[LayerCost]) -> float:
    return sum(layer.w for layer in layers)


def _halo_s(layers: Sequence[LayerCost], job: Job, samples: float, parts: tuple[int, ...],
            link: Link) -> float:
    """Eq 10: 2 D / B sum (p2p(B halo(x)) + p2p(B halo(dL/dy))), a face divided by the cuts of the
    other axes.
    """
    out = 0.0
    for layer in layers:
        for faces in (layer.halo_x, layer.halo_dy) if layer.extents else ():
            halo = sum(face * part / math.prod(parts) for face, part in zip(faces, parts, strict=True) if part > 1)
            out += p2p_s(samples * halo, link) if halo else 0.0
    return 2 * job.iterations * out


def _layerwise_s(layers: Sequence[LayerCost], job: Job, p1: int, p2: int, link: Link,
                 reduce_scatter: bool) -> float:
    """Eq 15, 19, first sum of 22: 3 D / B (p2 - 1) sum_{l<G} (alpha + B y_l / p beta); 2 D / B with
    reduce-scatters.
    """
    gathering = [layer for layer in layers if layer.gathers][:-1]
    turns = (2 if reduce_scatter else 3) * job.iterations * (p2 - 1)
    return turns * sum(p2p_s(job.batch * layer.y / (p1 * p2), link) for layer in gathering)


def _image_limits(layers: Sequence[LayerCost], axes: int) -> tuple[int, ...]:
    """The least extent of each image axis over the layers that have images; 1 where none has."""
    extents = [layer.extents for layer in layers if layer.extents]
    return tuple(min(sizes) for sizes in zip(*extents, strict=True)) if extents else (1,) * axes


def _least_filters(layers: Sequence[LayerCost]) -> int:
    return min((layer.filters for layer in layers if layer.gathers), default=1)


def table3_serial(layers: Sequence[LayerCost], job: Job) -> Row:
    """Table 3, serial (appendix A.1): D sum (FW + BW) + D / B sum WU on one PE."""
    return Row(_compute_s(layers, job, 1), _update_s(layers, job), _memory_bytes(layers, job, 1),
               (1,), (1,))


def table3_data(layers: Sequence[LayerCost], job: Job, p: int, link: Link) -> Row:
    """Table 3, data (Eq 5 to 7): gradients 2 D / B (p - 1) (alpha + sum w / p beta), memory sum (2
    B / p (x + y) + 2 w + bias), p <= B.
    """
    gradient_s = job.iterations * ring_allreduce_s(p, _weights(layers), link)
    return Row(
        _compute_s(layers, job, p), _update_s(layers, job), _memory_bytes(layers, job, p), (p,), (job.batch,), gradient_s=gradient_s
    )


def table3_spatial(layers: Sequence[LayerCost], job: Job, parts: tuple[int, ...], link: Link,
                   gathered_items: float = 0.0) -> Row:
    """Table 3, spatial (Eq 8 to 10): data's terms, halos 2 D / B sum (2 alpha + B beta (halo(x) +
    halo(dL/dy))), p <= min(W H D).

    Parameters
    ----------
    parts : tuple of int
        Parts of each image axis, (h, w) or (d, h, w); p is their product.
    gathered_items : float
        Items of a sample's activation that is gathered in front of the layers that are not split
        (section 4.5.1; not in the table).
    """
    return table3_ds(layers, job, 1, parts, link, gathered_items=gathered_items)


def table3_pipeline(layers: Sequence[LayerCost], job: Job, stages: Sequence[int], segments: int,
                    link: Link) -> Row:
    """Table 3, pipeline (Eq 12 to 14), p stages and S segments of a batch.

    Compute D (p + S - 1) / S (max FW_Gi + max BW_Gi) + D / B max WU_Gi; p2p 2 D (p + S - 2) / B
    max_{i<p} (alpha + B / S y_Gi beta); memory of the largest stage, with the activations of the
    whole batch; p <= G.

    Parameters
    ----------
    stages : sequence of int
        Layers of each stage, in order.
    segments : int
        S, micro-batches.
    """
    if sum(stages) != len(layers) or min(stages) < 1:
        raise ValueError(
            f"stages of {', '.join(map(str, stages))} layers do not make up {len(layers)} layers")
    ends = [sum(stages[: i + 1]) for i in range(len(stages))]
    groups = [layers[end - size:end] for end, size in zip(ends, stages, strict=True)]
    p = len(groups)
    slowest_s = max(sum(a.fw_s for a in g) for g in groups) + max(sum(a.bw_s for a in g) for g in groups)
    message_s = max((p2p_s(job.batch / segments * g[-1].y, link) for g in groups[:-1]), default=0.0)
    return Row(
        job.samples * (p + segments - 1) / segments * slowest_s,
        job.iterations * max(sum(a.wu_s for a in g) for g in groups),
        max(_memory_bytes(g, job, 1) for g in groups),
        (p,),
        (len(layers),),
        p2p_s=2 * job.iterations * (p + segments - 2) * message_s,
    )


def table3_filter(layers: Sequence[LayerCost], job: Job, p: int, link: Link,
                  reduce_scatter: bool = False) -> Row:
    """Table 3, filter (Eq 15, 16, 18): collectives 3 D / B (p - 1) sum_{l<G} (alpha + B y_l / p
    beta), WU / p, 2 w / p, p <= min F.

    Parameters
    ----------
    reduce_scatter : bool
        In place of the backward allreduce (section 3.3, footnote 2): a third less.
    """
    return replace(table3_df(layers, job, 1, p, link, reduce_scatter=reduce_scatter), parts=(p,),
                   limits=(_least_filters(layers),))


def table3_channel(layers: Sequence[LayerCost], job: Job, p: int, link: Link,
                   reduce_scatter: bool = False) -> Row:
    """Table 3, channel (Eq 17 to 19): as filter (allreduce forward, allgather backward), p <= min
    C.

    It starts at the second layer (section 4.5.1): the channels of the images do not limit p.
    """
    least = min((layer.channels for layer in [a for a in layers if a.gathers][1:]), default=1)
    return replace(table3_filter(layers, job, p, link, reduce_scatter), limits=(least,))


def table3_df(layers: Sequence[LayerCost], job: Job, p1: int, p2: int, link: Link,
              inner: Link | None = None, reduce_scatter: bool = False) -> Row:
    """Table 3, data + filter (Eq 20 to 22), p = p1 p2: filter within groups of p2, data between p1
    groups.

    Collectives 3 D / B (p2 - 1) sum_{l<G} (alpha + B y_l / p beta), gradients 2 D / B (p1 - 1)
    (alpha + sum w / p beta) (segmented: p2 allreduces side by side; the paper counts them with phi
    = 2), memory sum (2 B / p1 (x + y) + 2 w / p2 + bias), p <= B min F.

    Parameters
    ----------
    link, inner : Link
        Between groups, and within a group (by default the same).
    reduce_scatter : bool
        As in `table3_filter`.
    """
    return Row(
        _compute_s(layers, job, p1 * p2),
        _update_s(layers, job, p2),
        _memory_bytes(layers, job, p1, p2),
        (p1, p2),
        (job.batch, _least_filters(layers)),
        gradient_s=job.iterations * ring_allreduce_s(p1, _weights(layers) / p2, link),
        layerwise_s=_layerwise_s(layers, job, p1, p2, inner or link, reduce_scatter),
    )


def table3_ds(
    layers: Sequence[LayerCost],
    job: Job,
    p1: int,
    parts: tuple[int, ...],
    link: Link,
    inner: Link | None = None,
    exchange: Exchange = "flat",
    gathered_items: float = 0.0,
) -> Row:
    """Table 3, data + spatial, p = p1 p2: halos within groups of p2 = prod(parts) for B / p1
    samples, gradients over all p.

    Memory sum (2 B / p (x + y) + 2 w + bias), p <= B min(W H D).

    Parameters
    ----------
    parts, gathered_items
        As in `table3_spatial`.
    link, inner : Link
        Between groups, and within a group (by default the same).
    exchange : {"flat", "leaders", "segmented"}
        One ring over all p (the table); or, as sections 4.5.1 and 5.3.1 describe without pricing
        it: a reduction to each group's leader, an allreduce between leaders, and a broadcast; or a
        reduce-scatter in each group, p2 allreduces side by side, and an allgather. A reduction to a
        leader, and a broadcast from it, are counted as 2 (p2 - 1) messages of W / p2 items each.
    """
    within, p2, weights = inner or link, math.prod(parts), _weights(layers)
    gradient_s = {
        "flat": ring_allreduce_s(p1 * p2, weights, link),
        "leaders": 2 * ring_allreduce_s(p2, weights, within) + ring_allreduce_s(p1, weights, link),
        "segmented": ring_allreduce_s(p2, weights, within) + ring_allreduce_s(p1, weights / p2, link),
    }[exchange]
    limits = _image_limits(layers, len(parts))
    return Row(
        _compute_s(layers, job, p1 * p2),
        _update_s(layers, job),
        _memory_bytes(layers, job, p1 * p2),
        (p1, *parts) if p1 > 1 else parts,
        (job.batch, *limits) if p1 > 1 else limits,
        gradient_s=job.iterations * gradient_s,
        halo_s=_halo_s(layers, job, job.batch / p1, parts, within),
        layerwise_s=job.iterations * ring_allgather_s(p2, job.batch / p1 * gathered_items / p2, within),
    )
