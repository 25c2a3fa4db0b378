"""The serial truth: the same networks and the same SGD in PyTorch, float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcpar.network.graph import Network
from hpcpar.network.layers import LRN, AvgPool2d, Conv2d, Dropout, Flatten, Input, Linear, LogisticCrossEntropy, MaxPool2d, ReLU
from hpcpar.train.ops.pointwise import mask_key
from hpcpar.train.parameters import initial_rows


def dropout_mask(key: int, shape: tuple[int, ...], rate: float) -> np.ndarray:
    """Written anew from the interface's definition."""
    n = np.arange(1, int(np.prod(shape)) + 1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        z = np.uint64(key) + n * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    uniform = (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return ((uniform >= rate) / (1 - rate)).reshape(shape)


class Reference:
    """Serial training of a network in PyTorch.

    After `iterate`: `outputs` and `gradients` (of every layer's output) and `weight_gradients` by layer name.
    """

    def __init__(self, network: Network, seed: int) -> None:
        import torch

        self.torch, self.network, self.seed = torch, network, seed
        self.weights: dict[str, list[Any]] = {}
        self.velocity: dict[str, list[Any]] = {}
        for i, layer in enumerate(network.layers):
            if not layer.has_weights:
                continue
            shape = layer.weight_shape(network.input_shape(layer))
            tensors = [torch.from_numpy(initial_rows(seed, i, 0, shape[0], shape[1:], "float64"))]
            if layer.bias_shape(network.input_shape(layer)):
                tensors.append(torch.zeros(shape[0], dtype=torch.float64))
            self.weights[layer.name] = [t.requires_grad_() for t in tensors]
            self.velocity[layer.name] = [torch.zeros_like(t) for t in tensors]
        self.outputs: dict[str, np.ndarray] = {}
        self.gradients: dict[str, np.ndarray] = {}
        self.weight_gradients: dict[str, list[np.ndarray]] = {}

    def loss(self, images: np.ndarray, labels: np.ndarray, step: int, keep: dict[str, Any] | None = None) -> Any:
        torch, f = self.torch, self.torch.nn.functional
        x = torch.from_numpy(images.astype(np.float64)).requires_grad_()
        y = torch.from_numpy(labels)
        for i, layer in enumerate(self.network.layers):
            w = self.weights.get(layer.name, [])
            bias = w[1] if len(w) > 1 else None
            if isinstance(layer, Input):
                pass
            elif isinstance(layer, Conv2d):
                x = f.conv2d(x, w[0], bias, layer.stride, layer.padding, layer.dilation, layer.groups)
            elif isinstance(layer, Linear):
                x = f.linear(x, w[0], bias)
            elif isinstance(layer, ReLU):
                x = f.relu(x)
            elif isinstance(layer, MaxPool2d):
                x = f.max_pool2d(x, layer.kernel, layer.stride, layer.padding, ceil_mode=layer.ceil_mode)
            elif isinstance(layer, AvgPool2d):
                x = f.avg_pool2d(x, layer.kernel, layer.stride, layer.padding, layer.ceil_mode, layer.count_include_pad)
            elif isinstance(layer, LRN):
                x = f.local_response_norm(x, layer.size, layer.alpha, layer.beta, layer.k)
            elif isinstance(layer, Dropout):
                x = x * torch.from_numpy(dropout_mask(mask_key(self.seed, step, i), tuple(x.shape), layer.rate))
            elif isinstance(layer, Flatten):
                x = x.flatten(1)
            elif isinstance(layer, LogisticCrossEntropy):
                target = f.one_hot(y, self.network.classes).to(x.dtype)
                return f.binary_cross_entropy_with_logits(x, target, reduction="sum") / len(y)
            else:
                return f.cross_entropy(x, y)
            if keep is not None:
                x.retain_grad()
                keep[layer.name] = x
        raise AssertionError("a network ends with a loss")

    def iterate(self, images: np.ndarray, labels: np.ndarray, step: int, rate: float, momentum: float, decay: float) -> float:
        """One SGD step; returns the loss before it."""
        keep: dict[str, Any] = {}
        loss = self.loss(images, labels, step, keep)
        loss.backward()
        self.outputs = {k: v.detach().numpy().copy() for k, v in keep.items()}
        self.gradients = {k: v.grad.numpy().copy() for k, v in keep.items() if v.grad is not None}
        self.weight_gradients = {k: [t.grad.numpy().copy() for t in v] for k, v in self.weights.items()}
        with self.torch.no_grad():
            for name, tensors in self.weights.items():
                for t, v in zip(tensors, self.velocity[name], strict=True):
                    v.mul_(momentum).sub_(rate * (t.grad + decay * t))
                    t.add_(v)
                    t.grad = None
        return float(loss.detach())
