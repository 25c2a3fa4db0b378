"""The built-in networks and the layers' shapes against PyTorch, on tensors without data."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from hpcpar.network.builtin import network
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    Loss,
)

torch = pytest.importorskip("torch", reason="PyTorch is the reference of these tests",
                            exc_type=ImportError)
nn = torch.nn

Call = tuple[str, tuple[int, ...], tuple[int, ...], int]


class Sum(nn.Module):
    def forward(self, *xs: Any) -> Any:
        return sum(xs[1:], xs[0])


class Cat(nn.Module):
    def forward(self, *xs: Any) -> Any:
        return torch.cat(xs, 1)


class Mean(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.mean((2, 3))


KINDS = {
    nn.Conv2d: "conv2d",
    nn.Conv3d: "conv3d",
    nn.ConvTranspose2d: "convtranspose2d",
    nn.ConvTranspose3d: "convtranspose3d",
    nn.Linear: "linear",
    nn.BatchNorm2d: "batchnorm",
    nn.BatchNorm3d: "batchnorm",
    nn.ReLU: "relu",
    nn.ReLU6: "clip",
    nn.MaxPool2d: "maxpool2d",
    nn.MaxPool3d: "maxpool3d",
    nn.AvgPool2d: "avgpool2d",
    nn.LocalResponseNorm: "lrn",
    nn.Dropout: "dropout",
    nn.Flatten: "flatten",
    Sum: "add",
    Cat: "concat",
    Mean: "globalavgpool",
}


def plain(*layers: Any) -> Any:
    return nn.Sequential(*layers)


def classifier(features: int, classes: int, width: int = 4096) -> list[Any]:
    hidden = [nn.Linear(features, width), nn.ReLU(), nn.Dropout(), nn.Linear(width, width),
              nn.ReLU(), nn.Dropout()]
    return [nn.Flatten(), *hidden, nn.Linear(width, classes)]


def alexnet(filters: tuple[int, ...], groups: int, padding: int) -> Any:
    a, b, c, d, e = filters
    pool = nn.MaxPool2d(3, 2)
    return plain(
        nn.Conv2d(3, a, 11, 4, padding), nn.ReLU(), nn.LocalResponseNorm(5), pool,
        nn.Conv2d(a, b, 5, 1, 2, groups=groups), nn.ReLU(), nn.LocalResponseNorm(5), pool,
        nn.Conv2d(b, c, 3, 1, 1), nn.ReLU(), nn.Conv2d(c, d, 3, 1, 1, groups=groups), nn.ReLU(),
        nn.Conv2d(d, e, 3, 1, 1, groups=groups), nn.ReLU(), pool, *classifier(36 * e, 1000),
    )


def vgg16(normalized: bool = False) -> Any:
    layers: list[Any] = []
    before = 3
    for width in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0):
        if width:
            layers += [nn.Conv2d(before, width, 3, 1, 1),
                       *([nn.BatchNorm2d(width)] if normalized else []), nn.ReLU()]
        else:
            layers.append(nn.MaxPool2d(2))
        before = width or before
    return plain(*layers, *classifier(512 * 49, 1000))


class Bottleneck(nn.Module):
    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.down = None
        if stride != 1 or inside != out:
            self.down = plain(nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        self.body = plain(
            nn.Conv2d(inside, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out),
        )
        self.sum, self.relu = Sum(), nn.ReLU()

    def forward(self, x: Any) -> Any:
        shortcut = x if self.down is None else self.down(x)
        return self.relu(self.sum(self.body(x), shortcut))


def resnet(*depths: int) -> Any:
    blocks: list[Any] = []
    inside = 64
    for stage, depth in enumerate(depths):
        for i in range(depth):
            blocks.append(Bottleneck(inside, 64 << stage, 2 if stage and not i else 1))
            inside = 256 << stage
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
            nn.MaxPool2d(3, 2, 1)]
    return plain(*stem, *blocks, Mean(), nn.Linear(2048, 1000))


def cbr(inside: int, out: int, kernel: Any, stride: int = 1, padding: Any = 0) -> Any:
    return plain(nn.Conv2d(inside, out, kernel, stride, padding, bias=False),
                 nn.BatchNorm2d(out, eps=0.001), nn.ReLU())


class Branches(nn.Module):
    """Parallel branches; a branch that ends in a list has several outputs."""

    def __init__(self, *branches: Any) -> None:
        super().__init__()
        self.stems = nn.ModuleList(plain(*b[:-1]) if isinstance(b, list) else b for b in branches)
        self.ends = nn.ModuleList(nn.ModuleList(b[-1] if isinstance(b, list) else ())
                                  for b in branches)
        self.cat = Cat()

    def forward(self, x: Any) -> Any:
        out: list[Any] = []
        for stem, ends in zip(self.stems, self.ends, strict=True):
            y = stem(x)
            out += [end(y) for end in ends] if len(ends) else [y]
        return self.cat(*out)


def pooled(inside: int, out: int) -> Any:
    return plain(nn.AvgPool2d(3, 1, 1), cbr(inside, out, 1))


def inception_v3() -> Any:
    def a(n: int, features: int) -> Any:
        return Branches(cbr(n, 64, 1), plain(cbr(n, 48, 1), cbr(48, 64, 5, 1, 2)),
                        plain(cbr(n, 64, 1), cbr(64, 96, 3, 1, 1), cbr(96, 96, 3, 1, 1)),
                        pooled(n, features))

    def c(m: int) -> Any:
        wide, tall = ((1, 7), 1, (0, 3)), ((7, 1), 1, (3, 0))
        return Branches(
            cbr(768, 192, 1),
            plain(cbr(768, m, 1), cbr(m, m, *wide), cbr(m, 192, *tall)),
            plain(cbr(768, m, 1), cbr(m, m, *tall), cbr(m, m, *wide), cbr(m, m, *tall),
                  cbr(m, 192, *wide)),
            pooled(768, 192),
        )

    def ends() -> list[Any]:
        return [cbr(384, 384, (1, 3), 1, (0, 1)), cbr(384, 384, (3, 1), 1, (1, 0))]

    def e(n: int) -> Any:
        return Branches(cbr(n, 320, 1), [cbr(n, 384, 1), ends()],
                        [cbr(n, 448, 1), cbr(448, 384, 3, 1, 1), ends()], pooled(n, 192))

    b = Branches(cbr(288, 384, 3, 2),
                 plain(cbr(288, 64, 1), cbr(64, 96, 3, 1, 1), cbr(96, 96, 3, 2)),
                 nn.MaxPool2d(3, 2))
    d = Branches(
        plain(cbr(768, 192, 1), cbr(192, 320, 3, 2)),
        plain(cbr(768, 192, 1), cbr(192, 192, (1, 7), 1, (0, 3)), cbr(192, 192, (7, 1), 1, (3, 0)),
              cbr(192, 192, 3, 2)),
        nn.MaxPool2d(3, 2),
    )
    return plain(
        cbr(3, 32, 3, 2),
        cbr(32, 32, 3),
        cbr(32, 64, 3, 1, 1),
        nn.MaxPool2d(3, 2),
        cbr(64, 80, 1),
        cbr(80, 192, 3),
        nn.MaxPool2d(3, 2),
        a(192, 32),
        a(256, 64),
        a(288, 64),
        b,
        c(128),
        c(160),
        c(160),
        c(192),
        d,
        e(1280),
        e(2048),
        Mean(),
        nn.Dropout(),
        nn.Linear(2048, 1000),
    )


class InvertedResidual(nn.Module):
    def __init__(self, inside: int, out: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = expansion * inside
        expand = [nn.Conv2d(inside, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU6()]
        self.body = plain(
            *(expand if expansion > 1 else []),
            nn.Conv2d(width, width, 3, stride, 1, groups=width, bias=False),
            nn.BatchNorm2d(width), nn.ReLU6(),
            nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out),
        )
        self.sum = Sum() if stride == 1 and inside == out else None

    def forward(self, x: Any) -> Any:
        return self.body(x) if self.sum is None else self.sum(self.body(x), x)


def mobilenet_v2() -> Any:
    layers: list[Any] = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6()]
    inside = 32
    for expansion, out, depth, stride in ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2),
                                          (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
                                          (6, 320, 1, 1)):
        for i in range(depth):
            layers.append(InvertedResidual(inside, out, 1 if i else stride, expansion))
            inside = out
    return plain(*layers, nn.Conv2d(320, 1280, 1, bias=False), nn.BatchNorm2d(1280), nn.ReLU6(),
                 Mean(), nn.Dropout(0.2), nn.Linear(1280, 1000))


def cosmoflow(*widths: int) -> Any:
    layers: list[Any] = []
    for before, width in zip((4, *widths), widths, strict=False):
        layers += [nn.Conv3d(before, width, 3, 1, 1), nn.ReLU(), nn.MaxPool3d(2)]
    hidden = [nn.Linear(64 * 256, 128), nn.ReLU(), nn.Dropout(), nn.Linear(128, 64), nn.ReLU(),
              nn.Dropout()]
    return plain(*layers, nn.Flatten(), *hidden, nn.Linear(64, 4))


class UNet(nn.Module):
    """Blocks of two convolutions, halved and enlarged again, joined with what they were."""

    def __init__(self, channels: int, widths: tuple[int, ...], classes: int, axes: int) -> None:
        super().__init__()
        conv, norm = getattr(nn, f"Conv{axes}d"), getattr(nn, f"BatchNorm{axes}d")
        up = getattr(nn, f"ConvTranspose{axes}d")

        def block(inside: int, out: int) -> Any:
            parts = ((conv(i, out, 3, 1, 1, bias=False), norm(out), nn.ReLU())
                     for i in (inside, out))
            return plain(*(layer for part in parts for layer in part))

        pairs = list(itertools.pairwise(widths))
        self.first = block(channels, widths[0])
        self.pool = getattr(nn, f"MaxPool{axes}d")(2)
        self.downs = nn.ModuleList(block(a, b) for a, b in pairs)
        self.enlarge = nn.ModuleList(up(b, a, 2, 2) for a, b in reversed(pairs))
        self.ups = nn.ModuleList(block(2 * a, a) for a, _ in reversed(pairs))
        self.cat, self.last = Cat(), conv(widths[0], classes, 1)

    def forward(self, x: Any) -> Any:
        skips = [self.first(x)]
        for down in self.downs:
            skips.append(down(self.pool(skips[-1])))
        x = skips.pop()
        for enlarge, up in zip(self.enlarge, self.ups, strict=True):
            x = up(self.cat(skips.pop(), enlarge(x)))
        return self.last(x)


def lenet5() -> Any:
    return plain(
        nn.Conv2d(1, 6, 5, 1, 2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5, 1, 2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(784, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


def mlp() -> Any:
    return plain(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(),
                 nn.Linear(128, 10))


def calls(model: Any, sample: tuple[int, ...]) -> tuple[list[Call], float]:
    """Calls of leaf modules: kind, calls that made the inputs (0: the image), output shape."""
    from torch.utils.flop_counter import FlopCounterMode

    x = torch.empty((1, *sample), device="meta")
    made, keep, out = {id(x): 0}, [x], []

    def hook(module: Any, inputs: tuple[Any, ...], result: Any) -> None:
        out.append(
            (KINDS[type(module)], tuple(made[id(i)] for i in inputs), tuple(result.shape[1:]),
             sum(p.numel() for p in module.parameters()))
        )
        made[id(result)] = len(out)
        keep.append(result)  # keeps its id from being reused

    for module in model.modules():
        if type(module) in KINDS:
            module.register_forward_hook(hook)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model(x)
    return out, float(counter.get_total_flops())


def ours(net: Network) -> list[Call]:
    """The same for our network without its loss."""
    at = {layer.name: i for i, layer in enumerate(net.layers)}
    return [
        (layer.kind, tuple(at[i] for i in layer.inputs), net.shapes[layer.name],
         layer.parameters(net.input_shape(layer)))
        for layer in net.layers[1:]
        if not isinstance(layer, Loss)
    ]


MODELS: dict[str, tuple[Callable[[], Any], int]] = {
    "lenet5": (lenet5, 28),
    "mlp": (mlp, 28),
    "alexnet": (lambda: alexnet((96, 256, 384, 384, 256), 2, 0), 227),
    "alexnet-owt": (lambda: alexnet((64, 192, 384, 384, 256), 1, 2), 224),
    "vgg16": (vgg16, 224),
    "vgg16_bn": (lambda: vgg16(True), 224),
    "resnet50": (lambda: resnet(3, 4, 6, 3), 224),
    "resnet152": (lambda: resnet(3, 8, 36, 3), 224),
    "inception_v3": (inception_v3, 299),
    "mobilenet_v2": (mobilenet_v2, 224),
    "unet": (lambda: UNet(3, (64, 128, 256, 512, 1024), 2, 2), 256),
    "unet3d": (lambda: UNet(1, (32, 64, 128, 256), 3, 3), 64),
    "cosmoflow": (lambda: cosmoflow(16, 32, 64, 128, 256), 128),
    "cosmoflow-512": (lambda: cosmoflow(16, 32, 64, 128, 256, 256, 256), 512),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_layer_equals_pytorchs(name: str) -> None:
    build, size = MODELS[name]
    base = name.partition("-5")[0]
    net = network(base, (4, size, size, size) if base == "cosmoflow" else None)
    with torch.device("meta"):
        model = build()
    theirs, flops = calls(model, net.image_shape)
    assert ours(net) == theirs
    assert sum(layer.forward_flops(net.input_shape(layer)) for layer in net.matmul_layers) == flops
    assert net.parameters == sum(p.numel() for p in model.parameters())
    buffers = sum(b.numel() for name, b in model.named_buffers() if "running" in name)
    assert sum(layer.buffers(net.input_shape(layer)) for layer in net.layers) == buffers


#: Layers with the same names in PyTorch.
