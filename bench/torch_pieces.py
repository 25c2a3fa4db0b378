"""Small PyTorch modules, each with what some published network does: slices, shuffles, gates,
normalized channels, stacked branches, resizing, padding.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

Forward = Callable[..., Tensor]
SHAPE = (4, 9, 8)


class Piece(nn.Module):
    """A convolution, a function of what it gives and of modules, pooling and a classifier."""

    def __init__(self, forward: Forward, *parts: nn.Module, head: bool = True) -> None:
        super().__init__()
        self.stem = nn.Conv2d(4, 8, 3, padding=1)
        self.function, self.parts = forward, nn.ModuleList(parts)
        with torch.no_grad():
            channels = forward(torch.zeros(2, 8, 9, 8), *parts).shape[1]
        self.head: nn.Module = nn.Conv2d(channels, 3, 1) if head else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.head(self.function(self.stem(x).tanh(), *self.parts))
        return y.mean((2, 3)) if y.dim() == 4 else y


class Number(nn.Module):
    """A parameter of this shape."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.randn(shape))


def shuffle(x: Tensor, groups: int) -> Tensor:
    n, c, h, w = x.shape
    return x.view(n, groups, c // groups, h, w).transpose(1, 2).contiguous().view(n, c, h, w)


def block(x: Tensor, depthwise: nn.Module, norm: nn.Module, wide: nn.Module, narrow: nn.Module,
          number: Number) -> Tensor:
    """ConvNeXt's block: the channels last."""
    y = norm(depthwise(x).permute(0, 2, 3, 1))
    y = narrow(functional.gelu(wide(y))) * number.gamma
    return x + y.permute(0, 3, 1, 2)


def selective(x: Tensor, squeeze: nn.Module, expand: nn.Module) -> Tensor:
    """Two branches, weighted by a softmax over them."""
    both = torch.stack([x, x.relu()], dim=1)
    y = expand(squeeze(both.sum(1).mean((2, 3), keepdim=True)).relu())
    weights = torch.softmax(y.view(len(x), 2, 8, 1, 1), dim=1)
    return (both * weights).sum(dim=1)


def split_attention(x: Tensor, expand: nn.Module) -> Tensor:
    """ResNeSt's."""
    n, c, h, w = x.shape
    y = x.reshape(n, 2, c // 2, h, w)
    gate = expand(y.sum(dim=1).mean((2, 3), keepdim=True))
    gate = functional.softmax(gate.view(n, 1, 2, -1).transpose(1, 2), dim=1).reshape(n, -1, 1, 1)
    return (y * gate.reshape(n, 2, c // 2, 1, 1)).sum(dim=1)


def parts(x: Tensor, conv: nn.Module) -> Tensor:
    """Res2Net's and CSPNet's: a part goes through a convolution, another stays."""
    a, b = x.chunk(2, dim=1)
    c, d, e = torch.split(b, [1, 2, 1], dim=1)
    return torch.cat([conv(a), d, e + c, x[:, 2:5], x[:, ::3]], 1)


def channel_attention(x: Tensor, conv: nn.Module) -> Tensor:
    """ECA: a convolution over the channels."""
    y = x.mean((2, 3)).view(len(x), 1, -1)
    y = conv(y).sigmoid().view(len(x), -1, 1, 1)
    return x * y.expand_as(x)


def pyramid(x: Tensor, conv: nn.Module) -> Tensor:
    """Image pooling, spread again; and windows that do not divide the image."""
    whole = functional.interpolate(conv(functional.adaptive_avg_pool2d(x, 1)), x.shape[2:],
                                   mode="bilinear")
    some = functional.interpolate(functional.adaptive_avg_pool2d(x, (4, 3)), x.shape[2:],
                                  mode="bilinear", align_corners=True)
    return torch.cat([x, whole, some], 1)


def resized(x: Tensor) -> Tensor:
    y = functional.interpolate(x, (5, 11), mode="nearest")
    return functional.interpolate(y, (14, 7), mode="bilinear") + functional.interpolate(
        x, (14, 7), mode="bilinear", align_corners=True)


def padded(x: Tensor, conv: nn.Module) -> Tensor:
    y = functional.pad(x, (2, 1, 0, 3), mode="reflect")
    y = functional.pad(y, (1, 2, 2, 0), mode="replicate")
    y = functional.pad(conv(y), (-1, 0, 1, -2), value=0.5)
    return functional.pad(y, (0, 0, 0, 0, 1, 2))


def broadcasts(x: Tensor, one: nn.Module) -> Tensor:
    """A gate of one channel, squares, a tensor and itself, multiples."""
    gate = one(x).sigmoid()
    y = x * gate + x.mean((2, 3), keepdim=True)
    return torch.cat([y * y, y, y], 1).add(torch.cat([x, x.pow(2), x.to(x.dtype)], 1), alpha=0.3)


def stacked(x: Tensor, a: nn.Module, b: nn.Module) -> Tensor:
    return torch.stack([a(x), b(x), x], dim=-1).sum(-1) + torch.stack([x, x.relu()]).sum(0)


def in_place(x: Tensor, *changes: nn.Module) -> Tensor:
    for change in changes:
        x = change(x + 0.1)
    return x


def pixels(x: Tensor, conv: nn.Module) -> Tensor:
    """Every other pixel, and shifted ones, as in NASNet's reductions; pixels as channels."""
    y = functional.pixel_unshuffle(x[:, :2, :8, :6], 2)
    n, c = y.shape[:2]
    blocks = x[:, :, 1:].view(n, 8, 4, 2, 4, 2).permute(0, 3, 5, 1, 2, 4).reshape(n, 32, 4, 4)
    x = x + torch.cat([y, blocks[:, 5:5 + c, :, 1:]], 1)[:, ::2].mean((2, 3), keepdim=True)
    return torch.cat([x[:, :, ::2, ::2], conv(functional.pad(x, (-1, 1, -1, 1))[:, :, ::2, ::2])],
                     1)


PIECES: dict[str, Callable[[], nn.Module]] = {
    "shuffle": lambda: Piece(lambda x: shuffle(x, 2).relu() * shuffle(x, 4)),
    "parts": lambda: Piece(parts, nn.Conv2d(4, 4, 3, padding=1)),
    "channels last": lambda: Piece(block, nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.LayerNorm(8),
                                   nn.Linear(8, 12), nn.Linear(12, 8), Number(8)),
    "stacked": lambda: Piece(stacked, nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, padding=1)),
    "selective": lambda: Piece(selective, nn.Conv2d(8, 4, 1), nn.Conv2d(4, 16, 1)),
    "split attention": lambda: Piece(split_attention, nn.Conv2d(4, 8, 1)),
    "channel attention": lambda: Piece(channel_attention, nn.Conv1d(1, 1, 3, padding=1)),
    "pyramid": lambda: Piece(pyramid, nn.Conv2d(8, 4, 1)),
    "resized": lambda: Piece(resized),
    "padded": lambda: Piece(padded, nn.Conv2d(8, 5, 3)),
    "broadcasts": lambda: Piece(broadcasts, nn.Conv2d(8, 1, 3, padding=1)),
    "pixels": lambda: Piece(pixels, nn.Conv2d(8, 3, 1)),
    "slopes": lambda: Piece(lambda x, a, b: b(a(x) * 2), nn.PReLU(), nn.PReLU(8)),
    "activations": lambda: Piece(lambda x: functional.selu(functional.mish(
        functional.elu(x, 0.7)))),
    "numbers": lambda: Piece(lambda x, a, b, c: x * a.gamma[:, None, None] * b.gamma + c.gamma,
                             Number(8), Number(), Number(1, 8, 1, 1)),
    "in place": lambda: Piece(in_place, nn.ReLU6(inplace=True),
                              nn.Dropout(0.0, inplace=True), nn.Hardswish(inplace=True),
                              nn.ELU(inplace=True), nn.LeakyReLU(inplace=True),
                              nn.Dropout2d(0.0, inplace=True), nn.SiLU(inplace=True),
                              nn.Mish(inplace=True)),
    "one pixel": lambda: Piece(lambda x, conv, norm: norm(conv(functional.adaptive_avg_pool2d(
        x, 1)).flatten(1)), nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.LayerNorm(8), head=False),
    "features": lambda: Piece(lambda x, up, conv: conv(up(x.flatten(1)).view(-1, 4, 3, 2)),
                              nn.Linear(576, 24), nn.Conv2d(4, 5, 3, padding=1)),
}


def piece(name: str) -> tuple[nn.Module, tuple[int, ...], int]:
    """A module of random float64 weights, the shape of its samples, and a batch."""
    torch.manual_seed(len(name))
    module = PIECES[name]().double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return module, SHAPE, 5
