"""An epoch of the integrated paper (Gholami et al., SPAA 2018): its setting, and Eq 8 on a grid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from hpcpar.machine import files
from hpcpar.network import builtin
from hpcpar.network.graph import Network
from hpcpar.network.layers import Linear
from hpcpar.papers import gholami as eq
from hpcpar.papers.gholami import CostTerm, HockneyLink, total_s

SAMPLES = 1_200_000
BATCH = 2048
ITEM_BYTES = 4
#: Memory accesses per weight of an update: read weight, velocity and gradient, write weight and
#: velocity.
UPDATE_TRAFFIC = 5

MACHINE = files.load("cori-knl")
LINK = HockneyLink(MACHINE.levels[-1].alpha_s, ITEM_BYTES * MACHINE.levels[-1].beta_s_per_byte)
ALEXNET = builtin.network("alexnet")

#: Terms of an iteration, by network, grid (Pr, Pc) and batch.
Terms = Callable[[Network, int, int, int], list[CostTerm]]
Grid = tuple[int, int]


@dataclass(frozen=True)
class Epoch:
    """Times of an epoch in seconds."""

    compute_s: float
    gradient_s: float
    other_s: float

    @property
    def communication_s(self) -> float:
        return self.gradient_s + self.other_s

    @property
    def total_s(self) -> float:
        return self.compute_s + self.communication_s

    def over(self, ours: Epoch) -> tuple[float, float]:
        """Speedups of `ours` over this: total and communication."""
        return self.total_s / ours.total_s, self.communication_s / ours.communication_s

    def overlapped(self) -> Epoch:
        """Fig 8: seconds with overlap.

        Two thirds of the communication hide behind backpropagation, which is two thirds of the
        compute time.
        """
        hidden_s = min(self.communication_s, self.compute_s) * 2 / 3
        left = 1 - hidden_s / self.communication_s
        return Epoch(self.compute_s, self.gradient_s * left, self.other_s * left)


def compute_s(ranks: int, batch: int) -> float:
    """Compute time of an epoch on `ranks` ranks, in seconds."""
    first = ALEXNET.matmul_layers[0]  # its input gradient is not needed
    flops = 3 * ALEXNET.forward_flops - first.forward_flops(ALEXNET.input_shape(first))
    update_s = (
        UPDATE_TRAFFIC * ITEM_BYTES * ALEXNET.parameters / MACHINE.device.bandwidth_bytes_per_s)
    return SAMPLES / ranks * flops / MACHINE.device.flops_per_s + SAMPLES / batch * update_s


def one_grid(network: Network, pr: int, pc: int, batch: int) -> list[CostTerm]:
    """Fig 6: Eq 8 for all layers, with activations gathered after pooling."""
    return eq.eq8_model_batch(network, pr, pc, batch, LINK, pooled=True)


def one_grid_unpooled(network: Network, pr: int, pc: int, batch: int) -> list[CostTerm]:
    """Eq 8 as printed: d_i is the output of the layer, before pooling."""
    return eq.eq8_model_batch(network, pr, pc, batch, LINK)


def fc_grid(network: Network, pr: int, pc: int, batch: int) -> list[CostTerm]:
    """Fig 7 to 9: Pr = 1 in convolutions, Eq 8 in fully connected layers."""
    return eq.eq8_fc_only(network, pr, pc, batch, LINK)


def domain_and_fc_grid(network: Network, pr: int, pc: int, batch: int) -> list[CostTerm]:
    """Fig 10: images in P / B parts (terms of Eq 9 for L_D), any grid for the other layers."""
    fully_connected = {layer.name for layer in network.matmul_layers if isinstance(layer, Linear)}
    domain = eq.eq9_integrated(network, pr * pc // batch, batch, batch, LINK)
    model = eq.eq8_fc_only(network, pr, pc, batch, LINK)
    return [t for t in domain if t.layer not in fully_connected] + [
        t for t in model if t.layer in fully_connected]


def counted_once(terms: Terms) -> Terms:
    """Eq 8 with activations counted once, instead of an allgather and a double allreduce."""

    def third(network: Network, pr: int, pc: int, batch: int) -> list[CostTerm]:
        return [t if t.phase == "gradient" else replace(
            t, latency_s=t.latency_s / 3, bandwidth_s=t.bandwidth_s / 3)
                for t in terms(network, pr, pc, batch)]

    return third


def epochs(terms: Terms, ranks: int, batch: int, network: Network = ALEXNET) -> dict[Grid, Epoch]:
    """Epoch times on all grids Pr x Pc = P of powers of two with Pc <= B."""
    out = {}
    for pr in (1 << i for i in range(ranks.bit_length())):
        if ranks // pr <= batch:
            found = terms(network, pr, ranks // pr, batch)
            gradient_s = total_s(found, "gradient")
            scale = SAMPLES / batch
            out[pr, ranks // pr] = Epoch(compute_s(ranks, batch), scale * gradient_s,
                                         scale * (total_s(found) - gradient_s))
    return out


def name(grid: Grid) -> str:
    return f"{grid[0]}x{grid[1]}"


def fastest(found: dict[Grid, Epoch]) -> Grid:
    return min(found, key=lambda grid: found[grid].total_s)
