"""Options that say where ranks compute, and how GPUs do and communicate."""

from __future__ import annotations

from dataclasses import dataclass

from hpcpar.checks import OneOf
from hpcpar.comm.transport import Transport
from hpcpar.errors import InputError
from hpcpar.kernels.interface import MathMode
from hpcpar.option_fields import OptionGroup, option

#: Where ranks compute.
DEVICES = ("cpu", "gpu")


@dataclass(frozen=True, kw_only=True)
class DeviceOptions(OptionGroup, section="machine"):
    """Where ranks compute."""

    device: str = option("cpu", OneOf(DEVICES), "where ranks compute")


@dataclass(frozen=True, kw_only=True)
class GpuOptions(DeviceOptions, section="machine"):
    """How ranks compute and communicate on GPUs.

    Raises
    ------
    InputError
        Options of GPUs are given without them.
    """

    transport: str = option(
        Transport.STAGED.value, OneOf(Transport), "messages between GPUs go by MPI, staged "
        "through the host; by MPI, direct (needs a GPU-aware library); or by nccl")
    math: str = option(
        MathMode.FP32.value, OneOf(MathMode), "float32 products on GPUs: fp32, or tf32 on tensor "
        "cores")

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [("--transport", self.transport, Transport.STAGED),
                 ("--math", self.math, MathMode.FP32)]
        for name, value, default in given:
            if self.device != "gpu" and value != default:
                raise InputError(f"{name} {value} needs GPUs, but --device is {self.device}: add "
                                 f"--device gpu, or drop {name}")
