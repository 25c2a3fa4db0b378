"""The time in which a rank reads the images of its next mini-batch."""

from __future__ import annotations

import math

import numpy as np

from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.plan.config import Floats
from hpcpar.plan.layout import owned
from hpcpar.plan.plan import Plan


def reading_s(network: Network, plan: Plan, machine: Machine, bytes_per_s: float | None,
              item_bytes: float, node_samples_per_s: float | None) -> Floats:
    """Seconds of reading at a rank's rate, or at the rate that a node's ranks share, the larger.

    A rate of None is not limited. Ranks that share a sample read a part of it each.
    """
    images = network.layers[0]
    read = owned(network, images, plan.configs[images.name], plan.batch).largest_items
    seconds: Floats = 0.0 if bytes_per_s is None else read * item_bytes / bytes_per_s
    if node_samples_per_s is not None:
        of_node = min(machine.ranks_of_node or plan.ranks, plan.ranks)
        samples = of_node * read / math.prod(network.image_shape)
        seconds = np.maximum(seconds, samples / node_samples_per_s)
    return seconds
