"""Networks to train: layers, the graph, shapes, flops and weights; no times and no ranks."""

from hpcpar.network.read.torch_module import from_torch

__all__ = ["from_torch"]
