"""Reference implementations of all layers in PyTorch, for tests of kernels and of training."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hpcpar.network.layers import (
    AXES,
    LRN,
    Activation,
    AdaptiveAvgPool,
    Add,
    AvgPool2d,
    AvgPool3d,
    ChannelNorm,
    Concat,
    Conv2d,
    Conv3d,
    ConvTranspose,
    DiceCrossEntropy,
    Expand,
    Flatten,
    GlobalAvgPool,
    GlobalMaxPool,
    GroupNorm,
    Layer,
    LayerNorm,
    Linear,
    LogisticCrossEntropy,
    MaxPool2d,
    MaxPool3d,
    MeanSquaredError,
    Multiply,
    Pad,
    PixelShuffle,
    PixelUnshuffle,
    Pointwise,
    Reduce,
    Select,
    SoftmaxCrossEntropy,
    Unflatten,
    Upsample,
    Whole,
)

f = torch.nn.functional

#: A part of a batch with separate normalization statistics: slices of (samples, rows, ...), without
#: channels.
Block = tuple[slice, ...]


def dropout_mask(key: int, shape: tuple[int, ...], rate: float) -> np.ndarray:
    """The dropout mask, as `Backend.dropout_mask` defines it."""
    n = np.arange(1, int(np.prod(shape)) + 1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        z = np.uint64(key) + n * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    uniform = (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return ((uniform >= rate) / (1 - rate)).reshape(shape)


def forward(layer: Layer, xs: list[Any], weights: list[Any]) -> Any:
    """Output of a layer that does the same in training and evaluation; `weights`: weight, bias."""
    x = xs[0]
    if hasattr(layer, "torch"):  # a layer from outside the package
        return layer.torch(x, *weights)
    if isinstance(layer, ConvTranspose):
        transposed = f.conv_transpose2d if layer.dimensions == 2 else f.conv_transpose3d
        return transposed(x, torch_weight(weights[0], layer.groups),
                          weights[1] if layer.bias else None, layer.stride, layer.padding,
                          layer.output_padding, layer.groups, layer.dilation)
    if isinstance(layer, Upsample) and layer.size:
        kind = {2: "bilinear", 3: "trilinear"}[len(layer.size)]
        linear = {"mode": kind, "align_corners": layer.align_corners}
        return f.interpolate(x, layer.size, **(linear if layer.mode == "linear" else {}))
    if isinstance(layer, Upsample):
        kind = {2: "bilinear", 3: "trilinear"}[len(layer.scale)]
        linear = {"mode": kind, "align_corners": layer.align_corners}
        return f.interpolate(x, scale_factor=tuple(map(float, layer.scale)),
                             **(linear if layer.mode == "linear" else {}))
    if isinstance(layer, Pad):
        amounts = [n for ends in reversed(layer.amounts(tuple(x.shape[1:]))) for n in ends]
        if layer.mode == "constant":
            return f.pad(x, [*amounts, *layer.channels], value=layer.value)
        return f.pad(x, amounts, {"periodic": "circular", "edge": "replicate"}.get(
            layer.mode, layer.mode))
    if isinstance(layer, Select):
        x = x[:, list(layer.channels)] if layer.channels else x
        box = zip(layer.begin, layer.step, layer.size, strict=True)
        return x[(..., *(slice(b, b + s * (n - 1) + 1, s) for b, s, n in box))]
    if isinstance(layer, Expand):
        return x.reshape(*x.shape, *(1,) * len(layer.size)).expand(*x.shape, *layer.size)
    if isinstance(layer, PixelShuffle):
        return shuffled(x, layer.block)
    if isinstance(layer, PixelUnshuffle):
        return unshuffled(x, layer.block)
    if isinstance(layer, Unflatten):
        return x.reshape(len(x), *layer.shape)
    if isinstance(layer, AdaptiveAvgPool):
        pool = f.adaptive_avg_pool2d if len(layer.size) == 2 else f.adaptive_avg_pool3d
        return pool(x, layer.size)
    if isinstance(layer, ChannelNorm):
        last = f.layer_norm(x.movedim(1, -1), x.shape[1:2], *(weights or (None, None)), layer.eps)
        return last.movedim(-1, 1)
    if isinstance(layer, Conv2d | Conv3d):
        conv = f.conv2d if isinstance(layer, Conv2d) else f.conv3d
        bias = weights[1] if layer.bias else None
        return conv(x, weights[0], bias, layer.stride, layer.padding, layer.dilation, layer.groups)
    if isinstance(layer, Linear):
        return f.linear(x, *weights)
    if isinstance(layer, MaxPool2d | MaxPool3d):
        pool = f.max_pool2d if isinstance(layer, MaxPool2d) else f.max_pool3d
        return pool(x, layer.kernel, layer.stride, layer.padding, ceil_mode=layer.ceil_mode)
    if isinstance(layer, AvgPool2d):
        return f.avg_pool2d(x, layer.kernel, layer.stride, layer.padding, layer.ceil_mode,
                            layer.count_include_pad)
    if isinstance(layer, AvgPool3d):
        return average(layer, x)
    if isinstance(layer, LRN):
        return f.local_response_norm(x, layer.size, layer.alpha, layer.beta, layer.k)
    if isinstance(layer, GroupNorm):
        return f.group_norm(x, layer.groups, *(weights or (None, None)), layer.eps)
    if isinstance(layer, LayerNorm):
        return f.layer_norm(x, x.shape[1:], *(weights or (None, None)), layer.eps)
    if isinstance(layer, Concat):
        return torch.cat(xs, 1)
    if isinstance(layer, Add):
        return sum(xs[1:], x)
    if isinstance(layer, Multiply):
        return x * xs[1].reshape(xs[1].shape + (1,) * (x.ndim - xs[1].ndim))
    if isinstance(layer, Activation):
        return activation(layer, x)
    if isinstance(layer, Pointwise):
        return formula(layer, xs, weights)
    if isinstance(layer, Reduce):
        axes = tuple(AXES[x.ndim].index(axis) for axis in layer.axes)
        if layer.how == "first":
            return x.max(axes[0], keepdim=True).values
        return {"sum": torch.sum, "mean": torch.mean, "max": torch.amax}[layer.how](
            x, axes, keepdim=True)
    if isinstance(layer, Whole):  # of tests/whole_programs.py
        places, flat = x.reshape(*x.shape[:2], -1), weights[0].reshape(-1)
        w0, w1 = flat[:x.shape[1]**2].reshape(x.shape[1], -1), flat[x.shape[1]**2:]
        shares = f.softmax(torch.einsum("dc,ncp->ndp", w0, places) * places, 2)
        return x + (w1[:, None] * (shares * places).sum(1, keepdim=True)).reshape(x.shape)
    simple = {Flatten: lambda t: t.flatten(1),
              GlobalAvgPool: lambda t: t.flatten(2).mean(2),
              GlobalMaxPool: lambda t: t.flatten(2).max(2).values}
    return simple[type(layer)](x)


def shuffled(x: Any, block: tuple[int, ...]) -> Any:
    """PyTorch's pixel_shuffle with blocks of any extents, for any number of image axes."""
    n, axes = len(x), len(block)
    pairs = [axis for i in range(axes) for axis in (2 + axes + i, 2 + i)]
    apart = x.reshape(n, -1, *block, *x.shape[2:]).permute(0, 1, *pairs)
    return apart.reshape(n, -1, *(e * b for e, b in zip(x.shape[2:], block, strict=True)))


def unshuffled(x: Any, block: tuple[int, ...]) -> Any:
    """The inverse of `shuffled`."""
    n, axes = len(x), len(block)
    image = [e // b for e, b in zip(x.shape[2:], block, strict=True)]
    apart = x.reshape(n, -1, *(e for pair in zip(image, block, strict=True) for e in pair))
    order = (*range(3, 3 + 2 * axes, 2), *range(2, 2 + 2 * axes, 2))
    return apart.permute(0, 1, *order).reshape(n, -1, *image)


def torch_weight(weight: Any, groups: int) -> Any:
    """PyTorch's weight [in, out / groups, ...] of a transposed convolution."""
    out, per_group, *kernel = weight.shape
    grouped = weight.reshape(groups, out // groups, per_group, *kernel).swapaxes(1, 2)
    return grouped.reshape(groups * per_group, out // groups, *kernel)


def activation(layer: Activation, x: Any) -> Any:
    """An activation function, by the PyTorch function that users call for it."""
    a, b = layer.numbers
    functions = {
        "relu": f.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "silu": f.silu,
        "gelu": lambda t: f.gelu(t, approximate="tanh" if a else "none"),
        "leaky_relu": lambda t: f.leaky_relu(t, a), "clip": lambda t: f.hardtanh(t, a, b),
        "affine": lambda t: a * t + b, "mish": f.mish,
        "elu": lambda t: torch.where(t > 0, t, a * torch.expm1(t.clamp(max=0))) * b,
    }
    return functions[layer.kind](x)


#: PyTorch's functions where they have another name than the table's.
_OTHER_NAMES: dict[str, Any] = {
    "less": torch.lt, "less_equal": torch.le, "greater": torch.gt, "greater_equal": torch.ge,
    "equal": torch.eq, "not_equal": torch.ne, "softplus": f.softplus, "relu": f.relu,
    "clamp_min": lambda a, b: torch.clamp(a, min=b),
    "clamp_max": lambda a, b: torch.clamp(a, max=b),
    "heaviside": lambda a: torch.heaviside(a.detach(), torch.full_like(a, 0.5)) + 0 * a,
    "where": lambda a, b, c: torch.where(a != 0, b, c), "detach": lambda a: a.detach(),
}


def function(op: str) -> Any:
    """PyTorch's function for an operator of formulas."""
    return _OTHER_NAMES.get(op) or getattr(torch, op)


def formula(layer: Pointwise, xs: list[Any], weights: list[Any]) -> Any:
    """The value of a layer's formula."""
    values = {f"x{i}": x for i, x in enumerate(xs)}
    if layer.parameter:
        values["w"] = weights[0].reshape(layer.parameter + (1,) * (
            xs[0].ndim - 1 - len(layer.parameter)))
    for number, (op, *arguments) in enumerate(layer.steps):
        given = (values[a] if isinstance(a, str) else torch.full_like(xs[0], a) for a in arguments)
        result = function(op)(*given)
        values[f"t{number}"] = result.to(xs[0].dtype)
    return result


def average(layer: AvgPool3d, x: Any) -> Any:
    """Average pooling of volumes. PyTorch refuses padded volumes smaller than the kernel."""
    out, sides, ceiling = layer.output_shape(tuple(x.shape[1:]))[1:], [], []
    for n, size, k, s, p in zip(out, x.shape[2:], layer.kernel, layer.stride, layer.padding,
                                strict=True):
        # The partial window of ceil mode does not count as padding.
        beyond = max(0, (n - 1) * s + k - size - 2 * p)
        sides, ceiling = [p, p, *sides], [0, beyond, *ceiling]

    def sums(values: Any) -> Any:
        return f.avg_pool3d(f.pad(values, ceiling), layer.kernel, layer.stride, divisor_override=1)

    ones = torch.ones_like(x)
    return sums(f.pad(x, sides)) / sums(f.pad(ones, sides, value=float(layer.count_include_pad)))


def loss(layer: Layer, scores: Any, targets: np.ndarray, samples: int) -> Any:
    """Sum of the loss over the samples of `scores`, divided by the mini-batch size `samples`."""
    y = torch.from_numpy(targets)
    if isinstance(layer, MeanSquaredError):
        return f.mse_loss(scores, y, reduction="sum") / (samples * scores[0].numel())
    if isinstance(layer, LogisticCrossEntropy):
        target = f.one_hot(y, scores.shape[1]).to(scores.dtype)
        return f.binary_cross_entropy_with_logits(scores, target, reduction="sum") / samples
    assert isinstance(layer, SoftmaxCrossEntropy)
    entropy = f.cross_entropy(scores, y, reduction="sum", ignore_index=-1,
                              label_smoothing=layer.label_smoothing)
    dice = dice_sum(scores, y) / samples if isinstance(layer, DiceCrossEntropy) else 0
    return entropy / (samples * scores[0, 0].numel()) + dice


def dice_sum(scores: Any, labels: Any) -> Any:
    """MONAI's Dice loss with softmax, averaged over classes and summed over samples. Pixels with
    label -1 are ignored.
    """
    counts = (labels >= 0).unsqueeze(1)
    truth = f.one_hot(labels.clamp(min=0), scores.shape[1]).movedim(-1, 1) * counts
    p, pixels = scores.softmax(1) * counts, list(range(2, scores.ndim))
    both, total = (p * truth).sum(pixels), p.sum(pixels) + truth.sum(pixels)
    return (1 - (2 * both + 1e-5) / (total + 1e-5)).mean(1).sum()


def normalize(x: Any, gamma: Any, beta: Any, eps: float,
              blocks: list[Block]) -> tuple[Any, list[Any]]:
    """Batch normalization of each block by its own statistics.

    Returns
    -------
    y : tensor
    statistics : list of tensor or None
        Mean and unbiased variance [2, C] of each block; None for an empty one. The variance of a
        single value is 0.
    """
    y, statistics = torch.zeros_like(x), []
    for samples, *image in blocks:
        part = x[(samples, slice(None), *image)]
        count = part.numel() // part.shape[1]
        if count == 0:
            statistics.append(None)
            continue
        axes = [a for a in range(part.ndim) if a != 1]
        mean, variance = part.mean(axes), part.var(axes, correction=0)
        y[(samples, slice(None), *image)] = scaled(part, mean, variance, gamma, beta, eps)
        statistics.append(torch.stack([mean, variance * (count / max(count - 1, 1))]).detach())
    return y, statistics


def scaled(x: Any, mean: Any, variance: Any, gamma: Any, beta: Any, eps: float) -> Any:
    """(x - mean) / sqrt(variance + eps) * gamma + beta per channel; the last two may be numbers."""
    shape = (1, -1, *(1,) * (x.ndim - 2))
    factor = gamma / torch.sqrt(variance + eps)
    addend = torch.as_tensor(beta, dtype=x.dtype)
    return (x - mean.reshape(shape)) * factor.reshape(shape) + addend.reshape(shape)
