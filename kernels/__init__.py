"""Compute kernels behind one interface: NumPy on CPUs, CuPy and CUDA C on GPUs.

The package is installed as ``hpcpar.kernels``. Only `backend` imports the libraries of a backend.
"""

from __future__ import annotations

from hpcpar.errors import InputError, unknown
from hpcpar.kernels.interface import Backend


def backend(device: str) -> Backend:
    """The backend of a device: ``cpu`` or ``gpu``.

    Raises
    ------
    InputError
        Unknown device, or no usable GPU (with what to do).
    """
    if device == "cpu":
        from hpcpar.kernels.numpy_backend import NumpyBackend

        return NumpyBackend()
    if device == "gpu":
        try:
            from hpcpar.kernels.cupy_backend import CupyBackend
        except ImportError as err:
            raise InputError(f"--device gpu needs CuPy ({err}); install it with: pip install "
                             "'hpcpar[gpu]', or use --device cpu") from err
        return CupyBackend()
    raise unknown("device", device, ("cpu", "gpu"))
