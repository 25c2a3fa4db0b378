"""Options for where ranks compute, and for how GPUs compute and communicate."""

from __future__ import annotations

from dataclasses import dataclass

from hpcpar.comm.transport import Transport
from hpcpar.comm.world import World
from hpcpar.errors import InputError
from hpcpar.kernels.conv_choice import AUTO, CONVOLUTIONS, NUMPY, has_torch
from hpcpar.kernels.interface import MathMode
from hpcpar.options import other_names
from hpcpar.options.checks import OneOf
from hpcpar.options.fields import OptionGroup, option
from hpcpar.plan.precision import PRECISIONS

#: Where ranks compute.
DEVICES = ("cpu", "gpu")
#: Whether GPUs replay iterations as CUDA graphs.
GRAPHS = ("auto", "off")


@dataclass(frozen=True, kw_only=True)
class DeviceOptions(OptionGroup, section="machine"):
    """Where ranks compute, and by which convolution kernels.

    Raises
    ------
    InputError
        NumPy's kernels are chosen for GPUs.
    """

    device: str = option("cpu", OneOf(DEVICES, other_names.DEVICES), "where ranks compute",
                         first=True)
    kernels: str = option(
        AUTO, OneOf(CONVOLUTIONS), "convolutions: hpcpar's own with NumPy, PyTorch's (oneDNN, or "
        "cuDNN on GPUs; needs the extra torch), or on CPUs for each kind the one that a "
        "calibration found faster, on GPUs hpcpar's own with cuDNN")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.device == "gpu" and self.kernels == NUMPY:
            raise InputError(f"--kernels {self.kernels} runs on CPUs, but --device is gpu: drop "
                             "one of them")


def kernels_of_all(world: World, kernels: str) -> str:
    """The kernels that all ranks can use: ``auto`` is NumPy's if a rank lacks PyTorch. Collective.
    """
    return NUMPY if kernels == AUTO and not world.min(has_torch()) else kernels


def _math(precision: str) -> MathMode:
    """How GPUs compute a precision's float32 products. TF32 holds bfloat16 numbers exactly."""
    on_cores = precision == MathMode.TF32 or PRECISIONS[precision].mixed
    return MathMode.TF32 if on_cores else MathMode.FP32


@dataclass(frozen=True, kw_only=True)
class GpuOptions(DeviceOptions, section="machine"):
    """How ranks compute and communicate on GPUs.

    Raises
    ------
    InputError
        GPU options are given without GPUs.
    """

    transport: str = option(
        Transport.STAGED.value, OneOf(Transport), "messages between GPUs: MPI staged through "
        "the host, MPI directly (needs a GPU-aware library), or NCCL")
    math: str | None = option(
        None, OneOf(MathMode), "float32 matrix products on GPUs: in fp32, or in tf32 on tensor "
        "cores (default: the plan's --precision)")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value, default in self._of_gpus():
            if self.device != "gpu" and value != default:
                raise InputError(f"{name} {value} needs GPUs, but --device is {self.device}: add "
                                 f"--device gpu, or drop {name}")

    def _of_gpus(self) -> list[tuple[str, str, str]]:
        """Options that need GPUs: name, value and default."""
        return [("--transport", self.transport, Transport.STAGED),
                ("--math", self.math or MathMode.FP32, MathMode.FP32)]

    def math_for(self, precision: str) -> str:
        """How GPUs compute float32 products under a plan with this precision."""
        return self.math or (_math(precision) if self.device == "gpu" else MathMode.FP32).value

    def math_notes(self, precision: str) -> list[str]:
        """A line if products are not computed in the precision of the plan and its prediction, or
        slowly.
        """
        if PRECISIONS[precision].mixed and self.device != "gpu":
            items = PRECISIONS[precision].item_dtype
            return [f"precision {precision} is slow on CPUs, which compute it in float32 and round "
                    f"every result to {items}: use it to check a plan for GPUs"]
        math = self.math_for(precision)
        if math == _math(precision) or precision == "fp64":
            return []
        where = f"--math {math}" if self.math else f"--device {self.device}"
        return [f"the plan's precision is {precision}, but {where} computes products in {math}, so "
                "its prediction does not hold for this run"]


@dataclass(frozen=True, kw_only=True)
class GraphOptions(GpuOptions, section="machine"):
    """Whether GPUs replay iterations."""

    graphs: str = option(
        GRAPHS[0], OneOf(GRAPHS), "training iterations on GPUs: replay them as CUDA graphs "
        "(except those whose step times are kept), or submit every step")

    def _of_gpus(self) -> list[tuple[str, str, str]]:
        return [*super()._of_gpus(), ("--graphs", self.graphs, GRAPHS[0])]
