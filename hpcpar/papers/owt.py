"""One weird trick (Krizhevsky, 2014): the switch from data-parallel convolutions to model-parallel
fully connected (FC) layers.

K workers have a batch of images each (128 in the paper); `batch_bytes` are the last convolutional
activations of one worker's batch. Section 4's schemes for the forward pass, each undone by the
backward pass, which returns as many bytes of gradients:

=======  ==========================================================  ===========
================================= scheme   a turn
FC passes    busiest link in a turn
=======  ==========================================================  ===========
================================= (a)      every worker sends its batch to every other
1            (K - 1) batches (b)      one worker broadcasts its batch                             K
1 batch (c)      every worker broadcasts 1 / K of its batch                  K            1 / K of a
batch
=======  ==========================================================  ===========
=================================

This is the paper's accounting, with which its statements hold. A step's computing takes the same
for any K (K batches on K workers); beside it communication grows with K in (a) and (b), and not in
(c), since (b) "is bottlenecked by the outbound bandwidth of the worker that has to send". A
broadcast leaves its worker once, and what arrives is not counted in (b) and (c). `receivers` counts
it: (c) then takes (K - 1) / K of a batch a turn, and grows with K as well. Bytes received in all
are the same in the three.
"""

from __future__ import annotations

from typing import Literal

Scheme = Literal["a", "b", "c"]


def fc_passes(scheme: Scheme, workers: int) -> int:
    """Forward and backward passes through the FC layers in a step, one a turn (section 4.2)."""
    return 1 if scheme == "a" else workers


def fc_updates(scheme: Scheme, workers: int, variable_batch: bool) -> int:
    """Updates of the FC weights in a step: after every pass with a variable batch size, else one
    (section 4.2).
    """
    return fc_passes(scheme, workers) if variable_batch else 1


def fc_batch(scheme: Scheme, workers: int, batch: int, variable_batch: bool) -> int:
    """Samples behind an update of the FC weights, of `batch` images a worker; the convolutions have
    K x batch (section 4.2).
    """
    return workers * batch // fc_updates(scheme, workers, variable_batch)


def received_bytes(scheme: Scheme, workers: int, batch_bytes: float) -> float:
    """Bytes that all workers together receive in a step's forward pass: turns x senders x receivers
    x what each sends.
    """
    senders = 1 if scheme == "b" else workers
    part_bytes = batch_bytes / workers if scheme == "c" else batch_bytes
    return fc_passes(scheme, workers) * senders * (workers - 1) * part_bytes


def batch_memory_bytes(scheme: Scheme, workers: int, batch_bytes: float) -> float:
    """Memory of a worker for the batches of activations in the FC layers: (a) all K; (b), (c) the
    present one and the next that arrives.
    """
    return batch_bytes * (workers if scheme == "a" else min(workers, 2))


def turn_s(scheme: Scheme, workers: int, batch_bytes: float, bandwidth_bytes_per_s: float,
           receivers: bool = False) -> float:
    """Communication of a turn, one way, by the table above.

    Parameters
    ----------
    receivers : bool
        Count what the busiest receiver takes in as well; links carry both directions at once.
    """
    if workers == 1:
        return 0.0
    batches = {"a": workers - 1.0, "b": 1.0,
               "c": ((workers - 1.0) if receivers else 1.0) / workers}[scheme]
    return batches * batch_bytes / bandwidth_bytes_per_s


def switch_s(scheme: Scheme, workers: int, batch_bytes: float, bandwidth_bytes_per_s: float,
             receivers: bool = False) -> float:
    """Communication of all turns of a step: activations there, gradients back."""
    return 2 * fc_passes(scheme, workers) * turn_s(scheme, workers, batch_bytes,
                                                   bandwidth_bytes_per_s, receivers)


def hideable_fraction(scheme: Scheme, workers: int) -> float:
    """Part of the communication that can hide behind FC computing: (K - 1) / K in (b) and (c), none
    in (a) (section 4).
    """
    passes = fc_passes(scheme, workers)
    return (passes - 1) / passes


def exposed_s(scheme: Scheme, workers: int, batch_bytes: float, bandwidth_bytes_per_s: float,
              fc_s: float, receivers: bool = False) -> float:
    """Communication of a step that FC computing does not hide.

    The first turn's activations and the last turn's gradients are always exposed. While a turn
    computes, the next one's activations come and the one before's gradients go; what of them lasts
    longer than the turn is exposed.

    Parameters
    ----------
    fc_s : float
        FC forward and backward seconds of the whole step (K batches on K workers).
    """
    one_s = turn_s(scheme, workers, batch_bytes, bandwidth_bytes_per_s, receivers)
    passes = fc_passes(scheme, workers)
    if passes == 1:
        return 2 * one_s
    compute_s = fc_s / passes
    ends_s, between_s = max(0.0, one_s - compute_s), max(0.0, 2 * one_s - compute_s)
    return 2 * one_s + 2 * ends_s + (passes - 2) * between_s


def weight_sync_s(workers: int, conv_weight_bytes: float, bandwidth_bytes_per_s: float) -> float:
    """Section 4.1: each worker sums 1 / K of the gradient of the convolutions from the others, and
    sends the sum to them.

    A reduce-scatter and an allgather: 2 (K - 1) / K of the weights.
    """
    return 2 * (workers - 1) / workers * conv_weight_bytes / bandwidth_bytes_per_s


def iteration_s(
    scheme: Scheme,
    workers: int,
    conv_s: float,
    fc_s: float,
    batch_bytes: float,
    conv_weight_bytes: float,
    bandwidth_bytes_per_s: float,
    receivers: bool = False,
) -> float:
    """A step: convolutions, FC layers, the switch where it is exposed, and the convolutions'
    weights.

    Parameters
    ----------
    conv_s : float
        Forward and backward of the convolutions on one worker's batch.
    fc_s : float
        As in `exposed_s`.
    """
    switch = exposed_s(scheme, workers, batch_bytes, bandwidth_bytes_per_s, fc_s, receivers)
    return conv_s + fc_s + switch + weight_sync_s(workers, conv_weight_bytes, bandwidth_bytes_per_s)


def footnote4_fc_sample_s(inputs: int, outputs: int, workers: int, flops_per_s: float,
                          bandwidth_bytes_per_s: float, item_bytes: int = 4) -> tuple[float, float]:
    """Section 5.1, footnote 4: seconds a sample to compute a worker's share of an FC layer, and to
    receive the layer's whole input.
    """
    return 2 * inputs * outputs / workers / flops_per_s, inputs * item_bytes / bandwidth_bytes_per_s


def section5_weight_decay(rate: float, decay: float, k: float, new_rate: float) -> float:
    """Section 5: weight decay for a batch k times as large, (1 - (1 - rate decay)^k) / new_rate."""
    return (1 - (1 - rate * decay) ** k) / new_rate
