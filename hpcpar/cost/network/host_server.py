"""The price of a parameter server in a host's memory.

The host of a layer's first rank holds all weights of the layer. Every rank sends its gradient over
the link between device and host; other hosts pass gradients on over the network. The server reads
all gradients, writes their sum, updates the weights, and sends them to all ranks.
"""

from __future__ import annotations

import numpy as np

from hpcpar.cost.network.contention import Links, NetworkModel
from hpcpar.cost.network.links import FloatArray
from hpcpar.plan.config import Floats
from hpcpar.schedule.steps import Kind


def host_s(model: NetworkModel, kind: Kind, ranks: int, p: int, n_bytes: FloatArray) -> FloatArray:
    """Seconds until all ranks have sent their gradients and the host has summed them, or until all
    ranks have the weights.

    All messages travel at once, so the busiest link takes longest.

    Parameters
    ----------
    ranks, p : int
        Ranks that hold the layer, and ranks of a group, which have equal weights.
    n_bytes : ndarray
        Sizes of a rank's weights.
    """
    host = model.machine.host
    assert host is not None
    devices = min(host.ranks or ranks, ranks)
    s_per_byte = host.beta_s_per_byte * max(1.0, devices / (host.links or devices))
    far_s: Floats = 0.0
    for level, inner in zip(model.machine.levels, model.inner.tolist(), strict=True):
        unit = max(inner, devices)
        if unit < ranks and (level.ranks == 0 or level.ranks > unit):
            links, far = min(level.shared_links, inner) * unit / inner, Links.of(level)
            s_per_byte = max(s_per_byte, far.beta_s_per_byte * max(1.0, (ranks - unit) / links))
            far_s = far.latency_s(n_bytes)
    seconds = host.alpha_s + far_s + s_per_byte * n_bytes
    if kind is Kind.REDUCE:
        seconds += (p + 1) * (ranks / p) * n_bytes / host.memory_bytes_per_s
    return np.asarray(seconds)
