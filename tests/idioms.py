"""Idioms of PyTorch code that compute with values or move them: modules with one function between
convolutions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as f

SHAPE = (2, 6, 7)
WIDTH = 4


class Between(nn.Module):
    """A function of an image between two convolutions, with its own parameters and buffers."""

    def __init__(self, function: Callable[..., Tensor], branches: int = 1,
                 buffers: dict[str, Tensor] | None = None, **parameters: Tensor) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(SHAPE[0], WIDTH, 3, padding=1)
                                   for _ in range(branches))
        self.function = function
        for name, value in parameters.items():
            self.register_parameter(name, nn.Parameter(value))
        for name, value in (buffers or {}).items():
            self.register_buffer(name, value)
        self.names = [*parameters, *(buffers or {})]
        self.last = nn.LazyConv2d(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        branches = [conv(x) for conv in self.convs]
        y = self.function(*branches, *(getattr(self, name) for name in self.names))
        return self.last(y)


class Tokens(nn.Module):
    """A module of tokens [samples, pixels, channels], applied to an image's pixels."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(2).transpose(1, 2)
        attends = isinstance(self.inner, nn.MultiheadAttention)
        y = self.inner(tokens, tokens, tokens) if attends else self.inner(tokens)
        y = y[0] if isinstance(y, tuple) else y
        return x + y.transpose(1, 2).reshape(x.shape)


def _attention(x: Tensor, q: Tensor, k: Tensor) -> Tensor:
    pixels = x.flatten(2)
    shares = ((q @ pixels).transpose(1, 2) @ (k @ pixels)).softmax(2)
    return x + (pixels @ shares.transpose(1, 2)).view(x.shape)


def _layer_norm(x: Tensor, weight: Tensor) -> Tensor:
    centered = x - x.mean(1, keepdim=True)
    return weight * (centered / torch.sqrt(centered.pow(2).mean(1, keepdim=True) + 1e-6))


def _response_norm(x: Tensor) -> Tensor:
    norm = x.norm(p=2, dim=(2, 3), keepdim=True)
    return x * (norm / (norm.mean(1, keepdim=True) + 1e-6)) + x


def _mish(x: Tensor) -> Tensor:
    return x * torch.tanh(torch.log(1 + torch.exp(x)))


def _straight_through(x: Tensor) -> Tensor:
    return x + (torch.round(x) - x).detach()


def _gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def _gelu_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))


def _cubic(x: Tensor) -> Tensor:
    size = x.abs()
    near = 1.5 * size**3 - 2.5 * size**2 + 1
    return torch.where(size <= 1, near, torch.zeros_like(x))


def _gated(a: Tensor, b: Tensor) -> Tensor:
    return torch.tanh(a) * torch.sigmoid(b)


def _as_pixels(x: Tensor, rows: int, columns: int, places_first: bool = False) -> Tensor:
    """`pixel_shuffle` by hand."""
    n, c, h, w = x.shape
    if places_first:
        apart = x.view(n, rows, columns, -1, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        apart = x.view(n, -1, rows, columns, h, w).permute(0, 1, 4, 2, 5, 3)
    return apart.reshape(n, c // (rows * columns), h * rows, w * columns)


def _as_channels(x: Tensor, rows: int, columns: int) -> Tensor:
    """`pixel_unshuffle` by hand, the places before the channels."""
    n, c, h, w = x.shape
    apart = x.view(n, c, h // rows, rows, w // columns, columns).permute(0, 3, 5, 1, 2, 4)
    return apart.reshape(n, -1, h // rows, w // columns)


class Unpooled(nn.Module):
    """Values put back where their maxima were, with a normalization in between, as in SegNet."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y, places = f.max_pool2d(x, 2, return_indices=True)
        return f.max_unpool2d(self.norm(y).relu(), places, 2, output_size=x.shape[2:])


class Guided(nn.Module):
    """Attention, and a normalized convolution of what it attends to, as in YOLO12."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.BatchNorm2d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(2).transpose(1, 2)
        y = (rows @ rows.transpose(1, 2)).softmax(2) @ rows
        y, v = (t.transpose(1, 2).reshape(x.shape) for t in (y, rows.cumsum(1)))
        return y + self.norm(self.conv(v))


def _masked(x: Tensor) -> Tensor:
    y = 2 * x
    y[x > 0.2] = x[x > 0.2] ** 3
    return y


def _parts_in_place(x: Tensor) -> Tensor:
    y = x.detach().clone()
    a, b = y.chunk(2, 1)
    a.mul_(b)
    (c, d, *_) = y.unbind(2)
    c[:, 1].add_(d[:, 0])
    return x * y


def _some_channels(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, :2] = 0.0
    return y


def _into_zeros(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[:, 1:3, 2:] = 2 * x[:, 1:3, 2:]
    y[:, :, 0] += x[:, :, 1]
    return y


def _scaled_in_place(x: Tensor) -> Tensor:
    y = torch.sin(x)
    y[:, :2].mul_(3.0)
    y += 1
    return y.mul_(2.0) * x


def _numbers(*dims: int) -> Tensor:
    """Distinct numbers around 1."""
    return 0.5 + torch.arange(math.prod(dims), dtype=torch.float32).reshape(dims) / math.prod(dims)


#: Makers of modules, by what they do.
IDIOMS: dict[str, Callable[[], Between]] = {
    "softplus": lambda: Between(f.softplus),
    "softplus with beta": lambda: Between(lambda x: f.softplus(2 * x) / 2),
    "abs": lambda: Between(torch.abs),
    "exp": lambda: Between(lambda x: torch.exp(-x)),
    "log1p of abs": lambda: Between(lambda x: torch.sign(x) * torch.log1p(x.abs())),
    "log of a clamp": lambda: Between(lambda x: torch.log(x.clamp(min=1e-3))),
    "sqrt": lambda: Between(lambda x: torch.sqrt(x * x + 1e-3)),
    "rsqrt": lambda: Between(lambda x: x * torch.rsqrt(x.square() + 1.0)),
    "square": lambda: Between(torch.square),
    "squared relu": lambda: Between(lambda x: f.relu(x).square()),
    "pow": lambda: Between(lambda x: (x.abs() + 0.1).pow(1.7)),
    "power of a number": lambda: Between(lambda x: 2.0**x),
    "reciprocal": lambda: Between(lambda x: 1 / (1 + x.abs())),
    "division of tensors": lambda: Between(lambda a, b: a / (b.abs() + 1), 2),
    "division with a tensor below": lambda: Between(lambda x: 3.0 / (x * x + 1)),
    "sine": lambda: Between(torch.sin),
    "snake": lambda: Between(lambda x: x + torch.sin(3 * x).pow(2) / 3),
    "cosine": lambda: Between(lambda x: torch.cos(math.pi * x)),
    "arc tangent": lambda: Between(torch.atan),
    "gelu by hand": lambda: Between(_gelu),
    "gelu by tanh by hand": lambda: Between(_gelu_tanh),
    "mish by hand": lambda: Between(_mish),
    "swish with beta": lambda: Between(lambda x, b: x * torch.sigmoid(b * x), b=torch.ones(1)),
    "maximum of tensors": lambda: Between(torch.maximum, 2),
    "maxout": lambda: Between(lambda a, b: torch.max(a, torch.min(a, b)), 2),
    "maximum with a number": lambda: Between(
        lambda x: torch.maximum(x, torch.tensor(0.1, dtype=x.dtype))),
    "where": lambda: Between(lambda x: torch.where(x > 0.1, x, 0.3 * x)),
    "where of tensors": lambda: Between(lambda a, b: torch.where(a > b, a.square(), b), 2),
    "masked by a comparison": lambda: Between(lambda a, b: a * (b > 0).to(a.dtype), 2),
    "masked fill": lambda: Between(lambda a, b: a.masked_fill(b < 0, 0.5), 2),
    "clamp by tensors": lambda: Between(
        lambda a, b: torch.clamp(a, min=-b.abs(), max=b.abs()), 2),
    "glu": lambda: Between(lambda x: f.glu(x, dim=1)),
    "gated activation": lambda: Between(_gated, 2),
    "simple gate": lambda: Between(lambda x: math.prod(x.chunk(2, dim=1))),
    "celu": lambda: Between(lambda x: f.celu(x, alpha=0.5)),
    "selu": lambda: Between(f.selu),
    "softsign": lambda: Between(f.softsign),
    "logsigmoid": lambda: Between(f.logsigmoid),
    "hardsigmoid by hand": lambda: Between(lambda x: f.relu6(x + 3) / 6),
    "hardswish": lambda: Between(f.hardswish),
    "hardshrink": lambda: Between(lambda x: f.hardshrink(x, 0.2)),
    "softshrink": lambda: Between(lambda x: f.softshrink(x, 0.2)),
    "tanhshrink": lambda: Between(f.tanhshrink),
    "threshold": lambda: Between(lambda x: f.threshold(x, 0.1, -0.2)),
    "generalized divisive normalization": lambda: Between(
        lambda x, n, b: x / torch.sqrt(n.square() + b.square().reshape(-1, 1, 1)), 2,
        b=_numbers(WIDTH)),
    "cubic kernel": lambda: Between(_cubic),
    "detach": lambda: Between(lambda x: x * x.detach()),
    "data": lambda: Between(lambda x: x.data * x),
    "straight-through rounding": lambda: Between(_straight_through),
    "type_as": lambda: Between(lambda a, b: a.type_as(b) + b.to(a.dtype), 2),
    "positional embedding": lambda: Between(lambda x, p: x + p, p=_numbers(1, WIDTH, *SHAPE[1:])),
    "positional factor": lambda: Between(lambda x, p: x * p, p=_numbers(WIDTH, *SHAPE[1:])),
    "one map for all channels": lambda: Between(lambda x, p: x * p, p=_numbers(1, 1, *SHAPE[1:])),
    "a row for each channel": lambda: Between(lambda x, p: x + p, p=_numbers(WIDTH, 1, SHAPE[2])),
    "layer scale": lambda: Between(lambda x, p: x * p, p=_numbers(WIDTH, 1, 1)),
    "division by a parameter": lambda: Between(lambda x, p: x / p, p=_numbers(1, WIDTH, 1, 1)),
    "subtraction of a parameter": lambda: Between(lambda x, p: p - x, p=_numbers(1, WIDTH, 1, 1)),
    "learned temperature": lambda: Between(lambda x, p: x * p.exp(), p=torch.ones(1)),
    "power of a parameter": lambda: Between(
        lambda x, p: (x.abs() + 0.1) ** p, p=_numbers(WIDTH, 1, 1)),
    "learned gate": lambda: Between(lambda a, b, p: torch.sigmoid(p) * a + (1 - torch.sigmoid(p))
                                    * b, 2, p=torch.zeros(1)),
    "fixed mean and deviation": lambda: Between(
        lambda x, m, s: (x - m) / s,
        buffers={"m": _numbers(1, WIDTH, 1, 1), "s": _numbers(WIDTH, 1, 1) + 1}),
    "window function": lambda: Between(
        lambda x, w: x * w, buffers={"w": torch.hann_window(SHAPE[2])}),
    "subtraction of tensors": lambda: Between(lambda a, b: a - 0.5 * b, 2),
    "lerp by hand": lambda: Between(
        lambda a, b, c: torch.sigmoid(c) * a + (1 - torch.sigmoid(c)) * b, 3),
    "charbonnier": lambda: Between(lambda a, b: torch.sqrt((a - b) ** 2 + 1e-6), 2),
    "log of a sum of exponentials": lambda: Between(torch.logaddexp, 2),
    "addcmul": lambda: Between(lambda a, b, c: torch.addcmul(a, b, c, value=0.5), 3),
    "soft clipping": lambda: Between(lambda x: torch.where(
        torch.logical_and(x > -1, x < 1), x - x**3 / 3, torch.sign(x) * 2 / 3)),
    "mean of channels": lambda: Between(lambda x: x.mean(1, keepdim=True)),
    "mean of channels without their axis": lambda: Between(lambda x: x * x.mean(1)[:, None]),
    "maximum of channels": lambda: Between(lambda x: f.relu(x).amax(1, keepdim=True)),
    "minimum of channels": lambda: Between(lambda x: x.amin(1, keepdim=True)),
    "first maximum": lambda: Between(lambda x: f.relu(x).max(1, keepdim=True)[0]),
    "mean and maximum of channels": lambda: Between(lambda x: x * torch.sigmoid(torch.cat(
        [x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1).sum(1, keepdim=True))),
    "layer norm by hand": lambda: Between(_layer_norm, w=_numbers(WIDTH, 1, 1)),
    "rms norm": lambda: Between(
        lambda x, p: x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6) * p,
        p=_numbers(WIDTH, 1, 1)),
    "unit channels": lambda: Between(lambda x: f.normalize(x, dim=1)),
    "global response norm": lambda: Between(_response_norm),
    "softmax of channels": lambda: Between(lambda x: x.softmax(1)),
    "log softmax of channels": lambda: Between(lambda x: x.log_softmax(1)),
    "softmax along rows": lambda: Between(lambda x: x * x.softmax(-1)),
    "softmax of pixels": lambda: Between(
        lambda x: x * x.flatten(2).softmax(2).view(-1, WIDTH, *SHAPE[1:])),
    "mean of rows, then of columns": lambda: Between(
        lambda x: x * x.mean(-1).mean(-1)[:, :, None, None]),
    "sum of pixels": lambda: Between(lambda x: x + x.sum((2, 3), keepdim=True) / 10),
    "mean of a column": lambda: Between(lambda x: x - x.mean(2, keepdim=True)),
    "deviation of pixels": lambda: Between(lambda x: x / x.std((2, 3), keepdim=True)),
    "variance of channels": lambda: Between(
        lambda x: x + x.var(1, keepdim=True, unbiased=False)),
    "mean of everything": lambda: Between(lambda x: x - x.mean((1, 2, 3), keepdim=True)),
    "channels last": lambda: Between(lambda x: (lambda y: y / y.sum(-1, keepdim=True))(
        x.permute(0, 2, 3, 1).exp()).permute(0, 3, 1, 2)),
    "pixel shuffle": lambda: Between(lambda x: f.pixel_shuffle(x, 2)),
    "pixel shuffle by hand": lambda: Between(lambda x: _as_pixels(x, 2, 1)),
    "pixel shuffle, the places first": lambda: Between(
        lambda a, b: _as_pixels(torch.cat([a, b], 1), 2, 2, places_first=True), 2),
    "pixel unshuffle": lambda: Between(lambda x: f.pixel_unshuffle(x[..., :6], 3)),
    "pixel unshuffle by hand": lambda: Between(lambda x: _as_channels(x[..., 1:], 2, 3)),
    "part of a pixel unshuffle": lambda: Between(
        lambda x: _as_channels(x[..., 1:], 2, 3)[:, 3:14, 1:]),
    "there and back": lambda: Between(
        lambda x: f.pixel_shuffle(f.pixel_unshuffle(x[..., :6], 2).sin(), 2)),
    "nearest by expansion": lambda: Between(
        lambda x: x[:, :, :, None, :, None].expand(-1, -1, -1, 2, -1, 3).reshape(
            len(x), WIDTH, 12, 21)),
    "nearest by repetition": lambda: Between(
        lambda x: x.repeat_interleave(2, dim=2).repeat_interleave(2, dim=-1)),
    "xielu": lambda: Between(lambda x: torch.where(
        x > 0, 0.8 * x * x + 0.5 * x, torch.expm1(torch.minimum(x, x * 0)) - 0.3 * x)),
    "an image from pooled features": lambda: Between(lambda x, w: f.conv_transpose2d(
        x.mean((2, 3), keepdim=True), w).relu(), w=_numbers(WIDTH, 3, 4, 5)),
}

#: Idioms with parts that need samples whole.
WHOLE: dict[str, Callable[[], nn.Module]] = {
    "attention over pixels": lambda: Between(_attention, q=_numbers(WIDTH, WIDTH),
                                             k=_numbers(WIDTH, WIDTH)),
    "multi-head attention": lambda: Between(Tokens(nn.MultiheadAttention(
        WIDTH, 2, batch_first=True))),
    "transformer encoder": lambda: Between(Tokens(nn.TransformerEncoderLayer(
        WIDTH, 2, 8, 0.0, batch_first=True))),
    "lstm along pixels": lambda: Between(Tokens(nn.LSTM(WIDTH, WIDTH, batch_first=True))),
    "linear layer of rows": lambda: Between(nn.Linear(SHAPE[2], SHAPE[2])),
    "mixing of rows": lambda: Between(
        lambda x, w: torch.einsum("nchw,hk->nckw", x, w), w=_numbers(SHAPE[1], SHAPE[1])),
    "filter of frequencies": lambda: Between(lambda x, w: torch.fft.irfft2(
        torch.fft.rfft2(x) * w, s=SHAPE[1:]), w=_numbers(WIDTH, SHAPE[1], SHAPE[2] // 2 + 1)),
    "bicubic": lambda: Between(lambda x: f.interpolate(x, scale_factor=1.5, mode="bicubic")),
    "running sum": lambda: Between(lambda x: x.cumsum(2)),
    "shifted windows": lambda: Between(lambda x: torch.roll(x, (1, -2), (2, 3))),
    "sorted pixels": lambda: Between(lambda x: x.flatten(2).sort(2)[0].view_as(x)),
    "largest of pixels": lambda: Between(
        lambda x: x * x.flatten(2).topk(3, 2)[0].mean(2)[:, :, None, None]),
    "spatial transformer": lambda: Between(lambda x: f.grid_sample(x, f.affine_grid(
        torch.eye(2, 3, dtype=x.dtype).expand(len(x), 2, 3) * 0.9, list(x.shape), False),
        align_corners=False)),
    "channels set to zero in place": lambda: Between(_some_channels),
    "maxima put back behind a normalization": lambda: Between(Unpooled()),
    "attention beside a normalization": lambda: Between(Guided()),
    "values where a mask is true": lambda: Between(_masked),
    "parts changed in place": lambda: Between(_parts_in_place),
    "a power by a number of a buffer": lambda: Between(
        lambda x, t: x.abs() ** t.item(), buffers={"t": torch.tensor(1.5)}),
    "boxes written into zeros": lambda: Between(_into_zeros),
    "channels scaled in place": lambda: Between(_scaled_in_place),
    "patches": lambda: Between(lambda x: f.unfold(x, 3, padding=1).view(
        -1, 9 * WIDTH, *SHAPE[1:])),
    "gram matrix": lambda: Between(lambda x: torch.bmm(
        x.flatten(2), x.flatten(2).transpose(1, 2)).mean(2)[:, :, None, None] + x),
    "positions by an index": lambda: Between(
        lambda x, t: x + t[(torch.arange(SHAPE[1])[:, None] - torch.arange(SHAPE[2])).abs()],
        t=_numbers(SHAPE[2])),
}


class Ending(nn.Module):
    """A function of two images, the second half as large, that ends a module."""

    def __init__(self, function: Callable[[Tensor, Tensor], Any], inner: nn.Module | None = None
                 ) -> None:
        super().__init__()
        self.first = nn.Conv2d(SHAPE[0], WIDTH, 3, padding=1)
        self.second = nn.Conv2d(WIDTH, WIDTH, 3, stride=2, padding=1)
        self.function, self.inner = function, inner or nn.Identity()

    def forward(self, x: Tensor) -> Any:
        x = self.inner(self.first(x))
        return self.function(x, self.second(x.relu()))


def _boxes(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).reshape(len(x), -1, 2)


#: Outputs of any shape and structure, for `hpcpar.torch`.
ENDINGS: dict[str, Callable[[], nn.Module]] = {
    "pixels as tokens": lambda: Ending(lambda x, y: x.flatten(2).transpose(1, 2)),
    "image with channels last": lambda: Ending(lambda x, y: x.permute(0, 2, 3, 1)),
    "columns first": lambda: Ending(lambda x, y: x.permute(0, 3, 1, 2)),
    "anchors": lambda: Ending(lambda x, y: x.view(-1, 2, WIDTH // 2, *SHAPE[1:])),
    "anchors with their values last": lambda: Ending(
        lambda x, y: x.view(-1, 2, 2, *SHAPE[1:]).permute(0, 1, 3, 4, 2).sigmoid()),
    "without the channel": lambda: Ending(lambda x, y: x.mean(1, keepdim=True).squeeze()),
    "with an axis more": lambda: Ending(lambda x, y: x[:, None]),
    "a number per sample": lambda: Ending(lambda x, y: x.mean((1, 2, 3))),
    "a row per sample": lambda: Ending(lambda x, y: x.mean((2, 3)).mean(1, keepdim=True).view(-1)),
    "one channel": lambda: Ending(lambda x, y: x[:, 1]),
    "image as rows": lambda: Ending(lambda x, y: x.flatten(2)),
    "a repeated view": lambda: Ending(lambda x, y: torch.stack([x, y.repeat_interleave(
        2, 2).repeat_interleave(2, 3)[:, :, :, :SHAPE[2]], x.flip(1)], 2)),
    "boxes of two levels": lambda: Ending(lambda x, y: torch.cat([_boxes(x), _boxes(y)], 1)),
    "classes of two levels": lambda: Ending(
        lambda x, y: torch.cat([x.flatten(2), y.flatten(2)], 2).softmax(1)),
    "two heads of detection": lambda: Ending(lambda x, y: {
        "boxes": torch.cat([_boxes(x), _boxes(y)], 1).tanh(),
        "classes": [torch.cat([x.flatten(2), y.flatten(2)], 2).transpose(1, 2)]}),
    "levels as tokens": lambda: Ending(
        lambda x, y: [t.flatten(2).transpose(1, 2) for t in (x, y)]),
    "image and classes": lambda: Ending(lambda x, y: (x, y.mean((2, 3)))),
    "the same twice": lambda: Ending(lambda x, y: (x, x, x.permute(0, 2, 3, 1), y)),
    "all channels apart": lambda: Ending(lambda x, y: x.unbind(1)),
    "attention": lambda: Ending(lambda x, y: x, Tokens(nn.MultiheadAttention(
        WIDTH, 2, batch_first=True))),
    "attention with channels last": lambda: Ending(lambda x, y: x.flatten(2).cumsum(2).transpose(
        1, 2).reshape(-1, *SHAPE[1:], WIDTH)),
    "attended tokens": lambda: Ending(lambda x, y: x.flatten(2).sort(2)[0].transpose(1, 2)),
}


def module(name: str) -> Any:
    """The float64 module of an idiom; its weights depend on the name only."""
    torch.manual_seed(sum(map(ord, name)))
    made = (IDIOMS | WHOLE | ENDINGS)[name]().double()
    with torch.no_grad():
        made(torch.zeros(1, *SHAPE, dtype=torch.float64))  # shapes the last convolution
    return made
