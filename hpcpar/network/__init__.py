"""Networks to train: layers, graph, shapes, flops and weights, independent of machine and ranks."""

from hpcpar.network.read.torch_module import from_torch

__all__ = ["from_torch"]
