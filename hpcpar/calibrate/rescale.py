"""How fast a machine computes now, against its calibration: a matrix product and a copy, within a
second at the start of ``hpcpar run``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hpcpar.calibrate.device_probe import DeviceProbe
from hpcpar.comm.world import World
from hpcpar.kernels.interface import Backend
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network

#: Samples of each.
SAMPLES = 9


@dataclass(frozen=True)
class Slowdown:
    """Times as long now as at the calibration, on the slowest rank: a matrix product, a copy."""

    product: float
    copy: float

    def rescaled(self, machine: Machine, network: Network) -> Machine:
        """The machine at its present speed: products and convolutions of `network` change as the
        product did, other computing as the copy. Links stay.
        """
        products = {layer.kind for layer in network.matmul_layers}
        device = replace(machine.device, flops_per_s=machine.device.flops_per_s / self.product,
                         bandwidth_bytes_per_s=machine.device.bandwidth_bytes_per_s / self.copy)
        return replace(machine, device=device, compute={
            key: seconds * (self.product if key.partition(".")[0] in products else self.copy)
            for key, seconds in machine.compute.items()})


def slowdown(world: World, backend: Backend, machine: Machine) -> Slowdown | None:
    """Measures it, on all ranks at once; None where `machine` was not calibrated on such a device.
    """
    origin = machine.quality.get("origin")
    device = origin.get("device") if isinstance(origin, Mapping) else None
    # without rounds the table is of records, and the rates are no measurements
    if "rounds" not in machine.quality or device != backend.name:
        return None
    probe = DeviceProbe(world, backend, world.rank == 0)
    for _ in range(SAMPLES):
        for timer in probe.speeds:
            timer.take()
    return Slowdown(machine.device.flops_per_s / probe.flops_per_s,
                    machine.device.bandwidth_bytes_per_s / probe.copy_bytes_per_s)
