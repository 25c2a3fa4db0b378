"""One Weird Trick (OWT; Krizhevsky, 2014): from data-parallel convolutions to model-parallel FC.

Each of K workers has a batch of images (128 in the paper). `batch_bytes` is the size of the last
convolutional activations of one worker's batch. Section 4 has three schemes for the forward pass
through the fully connected (FC) layers; the backward pass returns gradients of the same size.

======  ===========================================  =========  ======================
scheme  communication before an FC pass              FC passes  busiest link, per pass
======  ===========================================  =========  ======================
(a)     each worker sends its batch to all others    1          (K - 1) batches
(b)     one worker broadcasts its batch              K          1 batch
(c)     each worker broadcasts 1 / K of its batch    K          1 / K of a batch
======  ===========================================  =========  ======================

This is the paper's accounting: a broadcast leaves its worker once, and received bytes do not count
in (b) and (c). With K batches on K workers, the compute time of a step does not depend on K. The
communication time grows with K in (a) and (b), but not in (c), because (b) "is bottlenecked by the
outbound bandwidth of the worker that has to send".

The parameter `receivers` deviates from the paper: it counts received bytes, so that (c) takes
(K - 1) / K of a batch per pass and grows with K too. The three schemes receive the same number of
bytes in total. Times are in seconds, bandwidths in bytes per second.
"""

from __future__ import annotations

from typing import Literal

Scheme = Literal["a", "b", "c"]


def fc_passes(scheme: Scheme, workers: int) -> int:
    """Number of forward and backward passes through the FC layers per step (section 4.2)."""
    return 1 if scheme == "a" else workers


def fc_updates(scheme: Scheme, workers: int, variable_batch: bool) -> int:
    """Updates of the FC weights per step (section 4.2): one, or one per pass (variable batch)."""
    return fc_passes(scheme, workers) if variable_batch else 1


def fc_batch(scheme: Scheme, workers: int, batch: int, variable_batch: bool) -> int:
    """Samples per update of the FC weights, with `batch` images per worker (section 4.2).

    The convolutions have K x batch samples per update.
    """
    return workers * batch // fc_updates(scheme, workers, variable_batch)


def received_bytes(scheme: Scheme, workers: int, batch_bytes: float) -> float:
    """Bytes that all workers together receive in the forward pass of a step.

    This is the product of passes, senders, receivers per sender, and bytes per message.
    """
    senders = 1 if scheme == "b" else workers
    part_bytes = batch_bytes / workers if scheme == "c" else batch_bytes
    return fc_passes(scheme, workers) * senders * (workers - 1) * part_bytes


def batch_memory_bytes(scheme: Scheme, workers: int, batch_bytes: float) -> float:
    """Bytes of activations that a worker holds for the FC layers.

    (a) holds all K batches; (b) and (c) hold the current and the next batch.
    """
    return batch_bytes * (workers if scheme == "a" else min(workers, 2))


def pass_s(scheme: Scheme, workers: int, batch_bytes: float, bandwidth_bytes_per_s: float,
           receivers: bool = False) -> float:
    """Communication time of one FC pass in one direction, in seconds, by the table above.

    Parameters
    ----------
    receivers : bool
        Whether the busiest receiver's bytes count too; links are full duplex.
    """
    if workers == 1:
        return 0.0
    batches = {"a": workers - 1.0, "b": 1.0,
               "c": ((workers - 1.0) if receivers else 1.0) / workers}[scheme]
    return batches * batch_bytes / bandwidth_bytes_per_s


def switch_s(scheme: Scheme, workers: int, batch_bytes: float, bandwidth_bytes_per_s: float,
             receivers: bool = False) -> float:
    """Communication time of all FC passes of a step in seconds: activations and gradients."""
    one_s = pass_s(scheme, workers, batch_bytes, bandwidth_bytes_per_s, receivers)
    return 2 * fc_passes(scheme, workers) * one_s


def hideable_fraction(scheme: Scheme, workers: int) -> float:
    """Fraction of the communication that FC computation can hide (section 4).

    (K - 1) / K in (b) and (c), 0 in (a).
    """
    passes = fc_passes(scheme, workers)
    return (passes - 1) / passes


def exposed_s(scheme: Scheme, workers: int, batch_bytes: float, bandwidth_bytes_per_s: float,
              fc_s: float, receivers: bool = False) -> float:
    """Exposed communication of a step: the time that FC computation does not hide, in seconds.

    The first pass's activations and the last pass's gradients are always exposed. During a pass,
    the next pass's activations arrive and the previous pass's gradients leave; they are exposed as
    far as they take longer than the computation.

    Parameters
    ----------
    fc_s : float
        FC forward and backward time of the whole step (K batches on K workers).
    """
    one_s = pass_s(scheme, workers, batch_bytes, bandwidth_bytes_per_s, receivers)
    passes = fc_passes(scheme, workers)
    if passes == 1:
        return 2 * one_s
    compute_s = fc_s / passes
    ends_s, between_s = max(0.0, one_s - compute_s), max(0.0, 2 * one_s - compute_s)
    return 2 * one_s + 2 * ends_s + (passes - 2) * between_s


def weight_sync_s(workers: int, conv_weight_bytes: float, bandwidth_bytes_per_s: float) -> float:
    """Synchronization of the convolution weights in seconds (section 4.1).

    Each worker sums 1 / K of the gradient and sends the sum to the others: a reduce-scatter and an
    allgather, which move 2 (K - 1) / K of the weights.
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
    """Step time in seconds: convolutions, FC layers, exposed communication, weight exchange.

    Parameters
    ----------
    conv_s : float
        Forward and backward time of the convolutions on one worker's batch.
    fc_s : float
        As in `exposed_s`.
    """
    switch = exposed_s(scheme, workers, batch_bytes, bandwidth_bytes_per_s, fc_s, receivers)
    return conv_s + fc_s + switch + weight_sync_s(workers, conv_weight_bytes, bandwidth_bytes_per_s)


def footnote4_fc_sample_s(inputs: int, outputs: int, workers: int, flops_per_s: float,
                          bandwidth_bytes_per_s: float, item_bytes: int = 4) -> tuple[float, float]:
    """Section 5.1, footnote 4: seconds per sample to compute and to receive in an FC layer.

    The worker computes its share of the layer and receives the whole input.
    """
    return 2 * inputs * outputs / workers / flops_per_s, inputs * item_bytes / bandwidth_bytes_per_s


def section5_weight_decay(rate: float, decay: float, k: float, new_rate: float) -> float:
    """Section 5: weight decay for a k times larger batch, (1 - (1 - rate decay)^k) / new_rate."""
    return (1 - (1 - rate * decay) ** k) / new_rate
