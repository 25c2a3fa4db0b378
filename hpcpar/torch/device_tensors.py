"""Arrays of the executor as tensors of PyTorch and back, without copies, in the order of streams.

A GPU's conversions go by DLPack: whoever takes an array makes its current stream wait for the work
that the giver's current stream has so far. Converting any array thus also hands over all others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from hpcpar.kernels.interface import Array, Backend


class DeviceTensors:
    """Converts between a backend's arrays and tensors on the same device.

    Attributes
    ----------
    device : torch.device
        Where the tensors are.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        with backend.compute_stream():
            self._token = backend.zeros((1,), "float32")
            self._token_of_torch = self.to_torch(self._token)
        self.device: torch.device = self._token_of_torch.device

    def to_torch(self, array: Array) -> Tensor:
        """A tensor with the array's memory, for PyTorch's current stream.

        Call it in `turn`: the work of the current stream of the backend comes first.
        """
        if not self._backend.works_later:
            return torch.from_numpy(array)
        tensor: Tensor = torch.from_dlpack(array)
        return tensor

    def from_torch(self, tensor: Tensor) -> Array:
        """An array with the tensor's memory, for the current stream of the backend.

        Call it in `turn`, and keep the array until the end of the turn: PyTorch may give a dropped
        tensor's memory to later work. A tensor of another device is copied to this one first.
        """
        here = tensor.detach().to(self.device)
        if not self._backend.works_later:
            return here.numpy()
        return self._backend.xp.from_dlpack(here)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """A context for the executor's work: behind PyTorch's work so far, and before its later
        work. PyTorch may call from a thread of its own.
        """
        if not self._backend.works_later:
            yield
            return
        with self._backend.compute_stream():
            self.from_torch(self._token_of_torch)
            yield
            self.to_torch(self._token)
