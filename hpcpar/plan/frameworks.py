"""Frameworks, one entry each: the rules by which a framework exchanges gradients.

They come from the framework's documentation; nothing here is fitted. A plan with another framework
than hpcpar's own can be priced, but not run. A module of yours may add entries to `FRAMEWORKS`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hpcpar.plan.precision import Precision

MIB = 2**20
#: Families of kernels that frameworks fuse with the layer before.
ELEMENTWISE = ("activation", "normalization", "other")


@dataclass(frozen=True)
class Framework:
    """The rules of a framework.

    Attributes
    ----------
    title : str
        The framework, and the source of its rules.
    bucket_bytes : int or None
        Size up to which gradients are summed together; None: the fastest size.
    overlap : str
        Communication that computing may hide, as `hpcpar.plan.plan.Overlap`.
    updates_at_end : bool
        True if no weight is updated before the last gradient is summed.
    cycle_s : float
        Time between the moments at which sums over samples may begin; 0 where they begin at once.
    elementwise : float
        Share of the time of element-wise layers that fused kernels leave, in formats with products
        on tensor cores (float32 runs do not show it).
    """

    title: str
    bucket_bytes: int | None = None
    overlap: str = "full"
    updates_at_end: bool = True
    cycle_s: float = field(default=0.0, kw_only=True)
    elementwise: float = field(default=1.0, kw_only=True)

    def left(self, formats: Precision, family: str) -> float:
        """Share of the time of a family's kernels that fused kernels leave."""
        return self.elementwise if formats.rates and family in ELEMENTWISE else 1.0


#: The executor of this package.
OWN = "hpcpar"
#: Share of the time that fused element-wise layers take (`bench/fit_kernels.py`).
FUSED = 0.65
FRAMEWORKS: dict[str, Framework] = {
    OWN: Framework("hpcpar run", updates_at_end=False),
    "ddp": Framework("PyTorch's DistributedDataParallel: bucket_cap_mb", 25 * MIB),
    "horovod": Framework("Horovod from 0.21 on: HOROVOD_FUSION_THRESHOLD, HOROVOD_CYCLE_TIME",
                         128 * MIB, cycle_s=1e-3),
    "horovod-0.20": Framework("Horovod up to 0.20: the same two, with their former defaults",
                              64 * MIB, cycle_s=5e-3),
    "horovod-xla": Framework("TensorFlow with XLA and Horovod: fused element-wise layers; sums "
                             "after the backward pass, its one cluster (horovod issue 1673)",
                             128 * MIB, "none", cycle_s=1e-3, elementwise=FUSED),
    "mxnet": Framework("MXNet of NVIDIA's containers, with Horovod: fused element-wise layers",
                       128 * MIB, cycle_s=1e-3, elementwise=FUSED),
    "paddle": Framework("PaddlePaddle's fleet: fuse_grad_size_in_MB, fused element-wise layers",
                        32 * MIB, elementwise=FUSED),
    "mirrored": Framework("TensorFlow's MirroredStrategy: NcclAllReduce(num_packs=1), one pack",
                          2**40),
    "replicated": Framework("TensorFlow 1's tf_cnn_benchmarks, replicated: sums after the backward "
                            "pass", 2**40, "none"),
}
