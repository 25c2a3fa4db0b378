"""Random PyTorch modules as people write them: residual networks, MobileNets and U-Nets, small.

Each draws its depth, widths, kernels, strides, dilations, groups, padding, normalization,
activations, squeeze-and-excitation, pooling, and the way up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

Shape = tuple[int, ...]
#: Values that a normalization takes its statistics over, at least: of two it keeps only the sign.
LEAST_VALUES = 8
CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
BATCH_NORM = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
INSTANCE_NORM = {1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}
MAX_POOL = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}
AVERAGE_POOL = {1: nn.AvgPool1d, 2: nn.AvgPool2d, 3: nn.AvgPool3d}
GLOBAL_AVERAGE = {1: nn.AdaptiveAvgPool1d, 2: nn.AdaptiveAvgPool2d, 3: nn.AdaptiveAvgPool3d}
GLOBAL_MAX = {1: nn.AdaptiveMaxPool1d, 2: nn.AdaptiveMaxPool2d, 3: nn.AdaptiveMaxPool3d}


class Draw:
    """Random choices of one network."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng([seed, 25])
        self.batch = self.one(2, 6)
        self.dimensions = int(self.rng.choice([1, 2, 2, 2, 2, 3]))
        low, high = {1: (9, 33), 2: (7, 17), 3: (5, 9)}[self.dimensions]
        self.image = tuple(self.one(low, high) for _ in range(self.dimensions))
        self.norms = str(self.rng.choice(["batch", "batch", "group", "instance", "layer", "none"]))
        self.activation = self.one(0, 8)

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def one(self, low: int, high: int) -> int:
        """A number of low..high, inclusive."""
        return int(self.rng.integers(low, high + 1))

    def divisor(self, *numbers: int) -> int:
        """A common divisor of numbers."""
        common = math.gcd(*numbers)
        return int(self.rng.choice([d for d in range(1, common + 1) if common % d == 0]))

    def act(self) -> nn.Module:
        """The network's activation."""
        slope = float(self.rng.uniform(0.01, 0.3))
        kinds = (nn.ReLU(), nn.ReLU(inplace=True), nn.LeakyReLU(slope), nn.ReLU6(), nn.SiLU(),
                 nn.GELU(), nn.GELU("tanh"), nn.Hardswish(), nn.Tanh())
        return kinds[self.activation]

    def norm(self, shape: Shape) -> nn.Module:
        """The network's normalization for samples of this shape."""
        channels, values = shape[0], math.prod(shape[1:])
        affine = self.chance(0.8)
        if self.norms == "batch" and values * self.batch >= LEAST_VALUES:
            return BATCH_NORM[self.dimensions](channels, affine=affine, eps=1e-3)
        if self.norms == "group":
            groups = self.divisor(channels)
            if channels // groups * values >= LEAST_VALUES:
                return nn.GroupNorm(groups, channels, affine=affine, eps=1e-3)
        if self.norms == "instance" and values >= LEAST_VALUES:
            return INSTANCE_NORM[self.dimensions](channels, affine=affine, eps=1e-3)
        if self.norms == "layer" and math.prod(shape) >= LEAST_VALUES:
            return nn.LayerNorm(shape, elementwise_affine=affine, eps=1e-3)
        return nn.Identity()


def after(module: nn.Module, shape: Shape) -> Shape:
    """Shape of a sample after a module."""
    with torch.no_grad():
        return tuple(module(torch.zeros(2, *shape)).shape[1:])


def unit(draw: Draw, shape: Shape, channels: int, stride: int = 1, *, kernel: int = 0,
         groups: int = 0, keeps: bool = False, act: bool = True) -> nn.Sequential:
    """Padding, convolution, normalization, activation.

    Parameters
    ----------
    keeps : bool
        The image keeps its size (over stride).
    """
    kernel = kernel or draw.one(1, 4)
    dilation = draw.one(1, 2) if kernel > 1 and draw.chance(0.3) else 1
    reach = dilation * (kernel - 1)
    parts: list[nn.Module] = []
    options: dict[str, object] = {"stride": stride, "dilation": dilation,
                                  "groups": groups or draw.divisor(shape[0], channels)}
    way = draw.one(0, 4)
    if way == 0 and stride == 1:
        options["padding"] = "same"
    elif way == 1 and reach % 2 == 0 and reach // 2 <= min(shape[1:]):
        options |= {"padding": reach // 2, "padding_mode": "circular"}
    elif way == 2 and draw.dimensions == 2:
        left, top = draw.one(0, reach), draw.one(0, reach)
        parts.append(nn.ZeroPad2d((left, reach - left, top, reach - top)))
    elif reach % 2 == 0:
        options["padding"] = reach // 2
    elif keeps:
        sizes = [reach // 2, reach - reach // 2] * draw.dimensions
        parts.append(nn.ConstantPad1d(sizes, 0.0) if draw.dimensions == 1 else
                     {2: nn.ZeroPad2d, 3: nn.ZeroPad3d}[draw.dimensions](sizes))
    elif reach >= min(shape[1:]):
        options["padding"] = reach
    parts.append(CONV[draw.dimensions](shape[0], channels, kernel, bias=draw.chance(0.5),
                                       **options))
    parts.append(draw.norm(after(nn.Sequential(*parts), shape)))
    if act:
        parts.append(draw.act())
    return nn.Sequential(*parts)


class HardSigmoid(nn.Module):
    """relu6(x + 3) / 6; PyTorch's own has its derivative, 1 / 6, in single precision."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu6(x + 3) / 6


class Squeeze(nn.Module):
    """Squeeze-and-excitation."""

    def __init__(self, draw: Draw, channels: int) -> None:
        super().__init__()
        conv, inner = CONV[draw.dimensions], draw.one(1, 4)
        self.pool = GLOBAL_AVERAGE[draw.dimensions](1)
        self.linear = draw.chance(0.3)
        self.fc1: nn.Module = nn.Linear(channels, inner) if self.linear else conv(channels, inner,
                                                                                  1)
        self.fc2: nn.Module = nn.Linear(inner, channels) if self.linear else conv(inner, channels,
                                                                                  1)
        self.act, self.gate = draw.act(), HardSigmoid() if draw.chance(0.4) else nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        y = self.pool(x)
        if self.linear:
            y = y.flatten(1)
        y = self.gate(self.fc2(self.act(self.fc1(y))))
        if self.linear:
            y = y.view(*y.shape, *[1] * (x.dim() - 2))
        return x * y


class Residual(nn.Module):
    """A residual block, of two convolutions or, inverted, of three."""

    def __init__(self, draw: Draw, shape: Shape, channels: int, stride: int,
                 inverted: bool) -> None:
        super().__init__()
        if inverted:
            inner = shape[0] * draw.one(1, 3)
            parts = [unit(draw, shape, inner, kernel=1, groups=1, keeps=True)]
            parts += [unit(draw, (inner, *shape[1:]), inner, stride, groups=inner, keeps=True)]
            if draw.chance(0.5):
                parts.append(nn.Sequential(Squeeze(draw, inner)))
            middle = after(nn.Sequential(*parts), shape)
            parts.append(unit(draw, middle, channels, kernel=1, groups=1, keeps=True, act=False))
        else:
            parts = [unit(draw, shape, channels, stride, keeps=True)]
            middle = after(parts[0], shape)
            parts.append(unit(draw, middle, channels, keeps=True, act=False))
            if draw.chance(0.3):
                parts.append(nn.Sequential(Squeeze(draw, channels)))
        self.branch = nn.Sequential(*parts)
        out = after(self.branch, shape)
        self.skip: nn.Module = nn.Identity()
        self.adds = not inverted or out == shape
        if out != shape and self.adds:
            short = CONV[draw.dimensions](shape[0], channels, 1, stride, bias=draw.chance(0.5))
            self.skip = nn.Sequential(short, draw.norm(after(short, shape)))
            if after(self.skip, shape) != out:
                self.adds = False
                self.skip = nn.Identity()
        self.act: nn.Module = nn.Identity() if inverted else draw.act()

    def forward(self, x: Tensor) -> Tensor:
        y = self.branch(x)
        return self.act(y + self.skip(x) if self.adds else y)


class Classifier(nn.Module):
    """A residual network or a MobileNet."""

    def __init__(self, draw: Draw, inverted: bool) -> None:
        super().__init__()
        shape: Shape = (draw.one(1, 4), *draw.image)
        self.shape = shape
        parts: list[nn.Module] = [unit(draw, shape, draw.one(2, 8), draw.one(1, 2), groups=1)]
        if draw.chance(0.4):
            pool = MAX_POOL if draw.chance(0.5) else AVERAGE_POOL
            parts.append(pool[draw.dimensions](2, draw.one(1, 2), ceil_mode=draw.chance(0.5)))
        if draw.chance(0.1):
            parts.append(nn.LocalResponseNorm(3, alpha=0.1))
        for _ in range(draw.one(1, 4)):
            at = after(nn.Sequential(*parts), shape)
            stride = 2 if min(at[1:]) > 4 and draw.chance(0.4) else 1
            parts.append(Residual(draw, at, draw.one(2, 8), stride, inverted))
        self.features = nn.Sequential(*parts)
        channels, self.head = after(self.features, shape)[0], draw.one(0, 4)
        pools = GLOBAL_MAX if self.head == 1 else GLOBAL_AVERAGE
        self.pool = pools[draw.dimensions](1)
        classes = draw.one(2, 7)
        self.last: nn.Module = nn.Linear(channels, classes)
        if self.head == 2:
            self.last = CONV[draw.dimensions](channels, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        axes = list(range(2, x.dim()))
        if self.head == 2:
            return self.last(self.pool(x)).flatten(1)
        if self.head in (0, 1):
            return self.last(torch.flatten(self.pool(x), 1))
        return self.last(x.mean(axes) if self.head == 3 else x.amax(axes))


class UNet(nn.Module):
    """A U-Net with a prediction for every pixel."""

    def __init__(self, draw: Draw) -> None:
        super().__init__()
        shape: Shape = (draw.one(1, 3), *draw.image)
        self.shape = shape
        self.down, self.pools = nn.ModuleList(), nn.ModuleList()
        self.up, self.join = nn.ModuleList(), nn.ModuleList()
        skips: list[Shape] = []
        for _ in range(draw.one(1, 3)):
            if min(shape[1:]) < 4:
                break
            self.down.append(nn.Sequential(unit(draw, shape, draw.one(2, 6), keeps=True)))
            skips.append(after(self.down[-1], shape))
            self.pools.append(self._smaller(draw, skips[-1]))
            shape = after(self.pools[-1], skips[-1])
        self.middle = unit(draw, shape, draw.one(2, 8), keeps=True)
        shape = after(self.middle, shape)
        for skip in reversed(skips):
            self.up.append(self._larger(draw, shape, skip[0]))
            channels = after(self.up[-1], shape)[0] + skip[0]
            self.join.append(unit(draw, (channels, *skip[1:]), draw.one(2, 6), keeps=True))
            shape = after(self.join[-1], (channels, *skip[1:]))
        self.head = CONV[draw.dimensions](shape[0], draw.one(2, 4), 1)

    def _smaller(self, draw: Draw, shape: Shape) -> nn.Module:
        n = draw.dimensions
        return (MAX_POOL[n](2), AVERAGE_POOL[n](2),
                CONV[n](shape[0], shape[0], 2, 2))[draw.one(0, 2)]

    def _larger(self, draw: Draw, shape: Shape, channels: int) -> nn.Module:
        n = draw.dimensions
        if n > 1 and draw.chance(0.5):
            kernel, groups = draw.one(2, 3), draw.divisor(shape[0], channels)
            if kernel == 3:
                return TRANSPOSED[n](shape[0], channels, 3, 2, 1, 1, groups, draw.chance(0.5))
            return TRANSPOSED[n](shape[0], channels, 2, 2, groups=groups)
        linear = {1: "linear", 2: "bilinear", 3: "trilinear"}[n]
        up = nn.Upsample(scale_factor=2) if draw.chance(0.5) else nn.Upsample(
            scale_factor=2, mode=linear, align_corners=draw.chance(0.5))
        return nn.Sequential(up, CONV[n](shape[0], channels, 1)) if draw.chance(0.6) else up

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for down, pool in zip(self.down, self.pools, strict=True):
            x = down(x)
            skips.append(x)
            x = pool(x)
        x = self.middle(x)
        for up, join, skip in zip(self.up, self.join, reversed(skips), strict=True):
            x = fit(up(x), skip.shape[2:])
            x = join(torch.cat([skip, x], 1))
        return self.head(x)


def fit(x: Tensor, size: Sequence[int]) -> Tensor:
    """An image with zeros around it, as large as given."""
    missing = [want - have for want, have in zip(size, x.shape[2:], strict=True)]
    pads = [p for m in reversed(missing) for p in (m // 2, m - m // 2)]
    return functional.pad(x, pads) if any(pads) else x


def random_module(seed: int) -> tuple[nn.Module, Shape, int]:
    """A module of random float64 weights, the shape of its samples, and a batch."""
    draw = Draw(seed)
    torch.manual_seed(seed)
    made = UNet(draw) if seed % 3 == 0 else Classifier(draw, inverted=seed % 3 == 1)
    module = made.double()
    with torch.no_grad():
        for each in module.modules():
            if each.__class__.__name__.endswith(("Norm", "Norm1d", "Norm2d", "Norm3d")):
                for parameter in each.parameters():
                    parameter.add_(0.3 * torch.randn_like(parameter))
    return module, made.shape, draw.batch
