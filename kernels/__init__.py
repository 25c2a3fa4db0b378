"""Compute kernels behind one interface: NumPy on CPUs, CuPy and CUDA C on GPUs.

The package is installed as ``hpcpar.kernels``. A function with the name of a `Backend` method
implements it. Only `backend` imports CuPy and PyTorch.
"""

from __future__ import annotations

from hpcpar.errors import InputError, unknown
from hpcpar.kernels.conv_choice import NUMPY, TORCH, Choice, chosen
from hpcpar.kernels.interface import Backend, MathMode


def backend(device: str, math: str = "fp32", local_rank: int = 0, kernels: str = NUMPY,
            calibrated: Choice | None = None) -> Backend:
    """The backend of a device.

    Parameters
    ----------
    device
        ``cpu`` or ``gpu``.
    math
        Precision of float32 products: ``fp32``, or ``tf32`` on a GPU.
    local_rank
        Rank of this process on its node, which selects the GPU.
    kernels
        Library for convolutions, from `conv_choice.CONVOLUTIONS`; a GPU's own is cuDNN.
    calibrated
        The machine's choice for ``auto`` on a CPU (`Machine.convolutions`).

    Raises
    ------
    InputError
        The device or precision is unknown, no GPU is usable, or a library is missing.
    """
    if math not in list(MathMode):
        raise unknown("math mode", math, MathMode)
    if device == "cpu":
        if math != MathMode.FP32:
            raise InputError(f"math mode '{math}' needs a GPU; use fp32, or --device gpu")
        choice = chosen(kernels, calibrated or {})
        if set(choice.values()) != {NUMPY}:
            try:
                from hpcpar.kernels.torch_backend import TorchBackend
            except ImportError as err:
                raise _needs_torch(err) from err
            return TorchBackend(choice)
        from hpcpar.kernels.numpy_backend import NumpyBackend

        return NumpyBackend()
    if device == "gpu":
        try:
            from hpcpar.kernels.cupy_backend import CupyBackend
        except ImportError as err:
            raise InputError(f"--device gpu needs CuPy ({err}); install it with: pip install "
                             "'hpcpar[gpu]', or use --device cpu") from err
        if kernels != TORCH:
            return CupyBackend(local_rank=local_rank, math=MathMode(math))
        try:
            from hpcpar.kernels.cupy_torch import TorchGpuBackend
        except ImportError as err:
            raise _needs_torch(err) from err
        return TorchGpuBackend(local_rank, MathMode(math))
    raise unknown("device", device, ("cpu", "gpu"))


def _needs_torch(err: ImportError) -> InputError:
    return InputError(f"--kernels torch needs PyTorch ({err}); install it with: pip install "
                      "'hpcpar[torch]', or drop it")
