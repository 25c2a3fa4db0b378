"""ParaDL (Kahira et al., HPDC 2021): Table 3, one function per row, and its communication model.

Layers are l = 1..G in the caller's order; `paradl_values.layer_values` lists a network's layers. An
epoch of D samples has D / B iterations of B samples. FW_l and BW_l are seconds per sample, WU_l
seconds per iteration. A `HockneyLink` has alpha in seconds per message and beta in seconds per
item; delta, the bytes per item, is part of beta. All terms are seconds per epoch, as in the paper;
memory is in bytes.

Choices that the paper leaves open, and deviations:

* The gradient exchange includes weights, not biases.
* In filter and channel parallelism, convolutions and fully connected layers gather; ``sum_{l<G}``
  runs over all but the last of them. Every PE computes pooling, activations and batch normalization
  (section 4.5.2), without communication.
* A layer without a halo (1 x 1, or windows that do not overlap) sends no message; Eq 10 charges
  2 alpha.
* Each split axis has its own limit, p_w <= W (section 3.2); Table 3 has p <= min(W H D).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from bench.papers.equations.paradl_values import Table3Layer, Table3Row, TrainingRun
from hpcpar.papers.gholami import HockneyLink

#: Gradient exchange of data + spatial parallelism (section 4.5.1).
Exchange = Literal["flat", "leaders", "segmented"]


def contended(link: HockneyLink, flows: float) -> HockneyLink:
    """Section 4.3: a link whose bandwidth is divided by phi, the number of flows sharing it."""
    return replace(link, beta_s=link.beta_s * flows)


def p2p_s(items: float, link: HockneyLink) -> float:
    """Hockney model in seconds (section 4.3): alpha + m beta for m items."""
    return link.alpha_s + items * link.beta_s


def ring_allreduce_s(p: int, items: float, link: HockneyLink) -> float:
    """Section 4.3, seconds: 2 (p - 1) (alpha + m / p beta), with m items in the buffer of a PE."""
    return 2 * (p - 1) * p2p_s(items / p, link)


def ring_allgather_s(p: int, items: float, link: HockneyLink) -> float:
    """Section 4.3, seconds: (p - 1) (alpha + m beta), with m items from each PE."""
    return (p - 1) * p2p_s(items, link)


def tree_allreduce_s(p: int, items: float, link: HockneyLink, chunks: int) -> float:
    """Section 4.3, footnote 4, seconds: 2 (log p + k) (alpha + m / (2 k) beta), in k chunks.

    The tree suits small messages. The logarithm is ceil(log2 p).
    """
    if p == 1:
        return 0.0
    return 2 * (math.ceil(math.log2(p)) + chunks) * p2p_s(items / (2 * chunks), link)


def _compute_s(layers: Sequence[Table3Layer], run: TrainingRun, p: int) -> float:
    return run.samples / p * sum(layer.fw_s + layer.bw_s for layer in layers)


def _update_s(layers: Sequence[Table3Layer], run: TrainingRun, shards: int = 1) -> float:
    return run.iterations / shards * sum(layer.wu_s for layer in layers)


def _memory_bytes(layers: Sequence[Table3Layer], run: TrainingRun, batch_parts: float,
                  weight_parts: int = 1) -> float:
    """Bytes of a PE: gamma delta sum (2 B (x + y) / batch_parts + 2 w / weight_parts + bias)."""
    items = sum(2 * run.batch / batch_parts * (a.x + a.y) + 2 * a.w / weight_parts + a.bias
                for a in layers)
    return run.reuse * run.item_bytes * items


def _weights(layers: Sequence[Table3Layer]) -> float:
    return sum(layer.w for layer in layers)


def _halo_s(layers: Sequence[Table3Layer], run: TrainingRun, samples: float, parts: tuple[int, ...],
            link: HockneyLink) -> float:
    """Eq 10: 2 D / B sum (p2p(B halo(x)) + p2p(B halo(dL/dy))).

    Parts along the other axes divide an axis's halo.
    """
    seconds = 0.0
    for layer in layers:
        for faces in (layer.halo_x, layer.halo_dy) if layer.extents else ():
            halo = sum(face * part / math.prod(parts)
                       for face, part in zip(faces, parts, strict=True) if part > 1)
            seconds += p2p_s(samples * halo, link) if halo else 0.0
    return 2 * run.iterations * seconds


def _layerwise_s(layers: Sequence[Table3Layer], run: TrainingRun, p1: int, p2: int,
                 link: HockneyLink, reduce_scatter: bool) -> float:
    """Eq 15, Eq 19 and the first sum in Eq 22.

    3 D / B (p2 - 1) sum_{l<G} (alpha + B y_l / p beta), or 2 D / B with reduce-scatters.
    """
    gathering = [layer for layer in layers if layer.gathers][:-1]
    messages = (2 if reduce_scatter else 3) * run.iterations * (p2 - 1)
    return messages * sum(p2p_s(run.batch * layer.y / (p1 * p2), link) for layer in gathering)


def _image_limits(layers: Sequence[Table3Layer], axes: int) -> tuple[int, ...]:
    """Smallest extent of each image axis over all layers with images; 1 without such layers."""
    extents = [layer.extents for layer in layers if layer.extents]
    return tuple(min(sizes) for sizes in zip(*extents, strict=True)) if extents else (1,) * axes


def _least_filters(layers: Sequence[Table3Layer]) -> int:
    return min((layer.filters for layer in layers if layer.gathers), default=1)


def table3_serial(layers: Sequence[Table3Layer], run: TrainingRun) -> Table3Row:
    """Table 3, serial (Appendix A.1): D sum (FW + BW) + D / B sum WU on one PE."""
    return Table3Row(_compute_s(layers, run, 1), _update_s(layers, run),
                     _memory_bytes(layers, run, 1), (1,), (1,))


def table3_data(layers: Sequence[Table3Layer], run: TrainingRun, p: int,
                link: HockneyLink) -> Table3Row:
    """Table 3, data parallelism (Eq 5, Eq 6, Eq 7), p <= B.

    Gradients 2 D / B (p - 1) (alpha + sum w / p beta); memory sum (2 B / p (x + y) + 2 w + bias).
    """
    gradient_s = run.iterations * ring_allreduce_s(p, _weights(layers), link)
    return Table3Row(_compute_s(layers, run, p), _update_s(layers, run),
                     _memory_bytes(layers, run, p), (p,), (run.batch,), gradient_s=gradient_s)


def table3_spatial(layers: Sequence[Table3Layer], run: TrainingRun, parts: tuple[int, ...],
                   link: HockneyLink, gathered_items: float = 0.0) -> Table3Row:
    """Table 3, spatial parallelism (Eq 8, Eq 9, Eq 10), p <= min(W H D).

    Terms of data parallelism plus halos 2 D / B sum (2 alpha + B beta (halo(x) + halo(dL/dy))).

    Parameters
    ----------
    parts : tuple of int
        Parts along each image axis, (h, w) or (d, h, w); p is their product.
    gathered_items : float
        Items per sample of the activation that is gathered before the layers that are not split
        (section 4.5.1; not in Table 3).
    """
    return table3_ds(layers, run, 1, parts, link, gathered_items=gathered_items)


def table3_pipeline(layers: Sequence[Table3Layer], run: TrainingRun, stages: Sequence[int],
                    segments: int, link: HockneyLink) -> Table3Row:
    """Table 3, pipeline parallelism (Eq 12, Eq 13, Eq 14) with p stages and S segments, p <= G.

    Compute D (p + S - 1) / S (max FW_Gi + max BW_Gi) + D / B max WU_Gi; messages
    2 D (p + S - 2) / B max_{i<p} (alpha + B / S y_Gi beta). Memory counts the largest stage with
    the activations of the whole batch.

    Parameters
    ----------
    stages : sequence of int
        Number of layers of each stage, in order.
    segments : int
        S, the number of micro-batches.
    """
    if sum(stages) != len(layers) or min(stages) < 1:
        raise ValueError(
            f"stages of {', '.join(map(str, stages))} layers do not add up to {len(layers)} layers")
    ends = [sum(stages[: i + 1]) for i in range(len(stages))]
    groups = [layers[end - size:end] for end, size in zip(ends, stages, strict=True)]
    p = len(groups)
    slowest_fw_s = max(sum(a.fw_s for a in g) for g in groups)
    slowest_bw_s = max(sum(a.bw_s for a in g) for g in groups)
    message_s = max((p2p_s(run.batch / segments * g[-1].y, link) for g in groups[:-1]), default=0.0)
    return Table3Row(
        run.samples * (p + segments - 1) / segments * (slowest_fw_s + slowest_bw_s),
        run.iterations * max(sum(a.wu_s for a in g) for g in groups),
        max(_memory_bytes(g, run, 1) for g in groups),
        (p,),
        (len(layers),),
        p2p_s=2 * run.iterations * (p + segments - 2) * message_s,
    )


def table3_filter(layers: Sequence[Table3Layer], run: TrainingRun, p: int, link: HockneyLink,
                  reduce_scatter: bool = False) -> Table3Row:
    """Table 3, filter parallelism (Eq 15, Eq 16, Eq 18), p <= min F.

    Collectives 3 D / B (p - 1) sum_{l<G} (alpha + B y_l / p beta); updates and weights are
    divided by p.

    Parameters
    ----------
    reduce_scatter : bool
        Whether a reduce-scatter replaces the backward allreduce (section 3.3, footnote 2), which
        removes a third of the communication.
    """
    return replace(table3_df(layers, run, 1, p, link, reduce_scatter=reduce_scatter), parts=(p,),
                   limits=(_least_filters(layers),))


def table3_channel(layers: Sequence[Table3Layer], run: TrainingRun, p: int, link: HockneyLink,
                   reduce_scatter: bool = False) -> Table3Row:
    """Table 3, channel parallelism (Eq 17, Eq 18, Eq 19), p <= min C.

    The terms equal filter parallelism's, with an allreduce forward and an allgather backward. The
    split starts at the second layer (section 4.5.1), so the images' channels do not limit p.
    """
    gathering = [layer for layer in layers if layer.gathers]
    least = min((layer.channels for layer in gathering[1:]), default=1)
    return replace(table3_filter(layers, run, p, link, reduce_scatter), limits=(least,))


def table3_df(layers: Sequence[Table3Layer], run: TrainingRun, p1: int, p2: int, link: HockneyLink,
              inner: HockneyLink | None = None, reduce_scatter: bool = False) -> Table3Row:
    """Table 3, data + filter parallelism (Eq 20, Eq 21, Eq 22), p = p1 p2 <= B min F.

    p1 groups are data parallel; the p2 PEs of a group are filter parallel. Collectives
    3 D / B (p2 - 1) sum_{l<G} (alpha + B y_l / p beta); gradients
    2 D / B (p1 - 1) (alpha + sum w / p beta), segmented into p2 concurrent allreduces, which the
    paper counts with phi = 2; memory sum (2 B / p1 (x + y) + 2 w / p2 + bias).

    Parameters
    ----------
    link, inner : HockneyLink
        Links between groups and within a group (by default the same).
    reduce_scatter : bool
        As in `table3_filter`.
    """
    return Table3Row(
        _compute_s(layers, run, p1 * p2),
        _update_s(layers, run, p2),
        _memory_bytes(layers, run, p1, p2),
        (p1, p2),
        (run.batch, _least_filters(layers)),
        gradient_s=run.iterations * ring_allreduce_s(p1, _weights(layers) / p2, link),
        layerwise_s=_layerwise_s(layers, run, p1, p2, inner or link, reduce_scatter),
    )


def table3_ds(
    layers: Sequence[Table3Layer],
    run: TrainingRun,
    p1: int,
    parts: tuple[int, ...],
    link: HockneyLink,
    inner: HockneyLink | None = None,
    exchange: Exchange = "flat",
    gathered_items: float = 0.0,
) -> Table3Row:
    """Table 3, data + spatial parallelism, p = p1 p2 <= B min(W H D).

    Groups of p2 = prod(parts) PEs exchange halos for B / p1 samples; all p PEs exchange gradients.
    Memory sum (2 B / p (x + y) + 2 w + bias).

    Parameters
    ----------
    parts, gathered_items
        As in `table3_spatial`.
    link, inner : HockneyLink
        As in `table3_df`.
    exchange : {"flat", "leaders", "segmented"}
        "flat" is one ring over all p PEs, as in Table 3. Sections 4.5.1 and 5.3.1 describe the
        others without a price. "leaders": a reduction to the leader of each group, an allreduce
        between leaders, and a broadcast; reduction and broadcast each count 2 (p2 - 1) messages of
        W / p2 items. "segmented": a reduce-scatter in each group, p2 concurrent allreduces, and an
        allgather.
    """
    within, p2, weights = inner or link, math.prod(parts), _weights(layers)
    if exchange == "flat":
        gradient_s = ring_allreduce_s(p1 * p2, weights, link)
    else:
        in_group_s = ring_allreduce_s(p2, weights, within)
        if exchange == "leaders":
            gradient_s = 2 * in_group_s + ring_allreduce_s(p1, weights, link)
        else:
            gradient_s = in_group_s + ring_allreduce_s(p1, weights / p2, link)
    gather_items = run.batch / p1 * gathered_items / p2
    limits = _image_limits(layers, len(parts))
    return Table3Row(
        _compute_s(layers, run, p1 * p2),
        _update_s(layers, run),
        _memory_bytes(layers, run, p1 * p2),
        (p1, *parts) if p1 > 1 else parts,
        (run.batch, *limits) if p1 > 1 else limits,
        gradient_s=run.iterations * gradient_s,
        halo_s=_halo_s(layers, run, run.batch / p1, parts, within),
        layerwise_s=run.iterations * ring_allgather_s(p2, gather_items, within),
    )
