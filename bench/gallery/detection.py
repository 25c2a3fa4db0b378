"""Networks that find objects: backbone and heads, without matching boxes to objects.

The loss is a squared error of all outputs; it moves as many bytes as the published ones read.
"""

from __future__ import annotations

from bench.gallery.efficientnet import B0, inverted
from bench.gallery.parts import conv_relu, flat
from hpcpar.network.builder import Graph
from hpcpar.network.builtin.resnet import conv_norm
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    Add,
    Conv2d,
    MaxPool2d,
    MeanSquaredError,
    ReLU,
    Shape,
    SiLU,
    Upsample,
)


def ssd300(shape: Shape) -> Network:
    """SSD300 v1.1 of NVIDIA: ResNet-50 to its fourth stage, whose stride is 1; 8,732 boxes."""
    net = Graph("ssd300_resnet50", shape)
    conv_relu(net, "conv1", 64, 7, 2)
    net.add(MaxPool2d, "pool1", kernel=3, stride=2, padding=1)
    for stage, depth in enumerate((3, 4, 6)):
        for i in range(depth):
            _bottleneck(net, f"stage{stage}.{i}", 64 << stage, 2 if stage == 1 and i == 0 else 1)
    maps = [net.last]
    for i, (middle, width, stride) in enumerate(
            ((256, 512, 2), (256, 512, 2), (128, 256, 2), (128, 256, 1), (128, 256, 1))):
        conv_relu(net, f"extra{i}.narrow", middle, 1)
        net.add(Conv2d, f"extra{i}", out_channels=width, kernel=3, stride=stride,
                padding=stride - 1, bias=False)
        maps.append(net.add(ReLU, f"extra{i}.relu"))
    heads = []
    for i, (x, boxes) in enumerate(zip(maps, (4, 6, 6, 6, 4, 4), strict=True)):
        for name, width in ("place", 4), ("class", 81):
            heads.append(net.add(Conv2d, f"head{i}.{name}", after=x, out_channels=boxes * width,
                                 kernel=3, padding=1))
    return _detector(net, heads)


def _bottleneck(net: Graph, name: str, width: int, stride: int) -> None:
    x = shortcut = net.last
    if stride > 1 or net.shapes[x][0] != 4 * width:
        shortcut = conv_norm(net, f"{name}.down", 4 * width, 1, stride)
    conv_relu(net, f"{name}.conv0", width, 1, after=x)
    conv_relu(net, f"{name}.conv1", width, 3, stride)
    net.add(Add, f"{name}.add", after=(conv_norm(net, f"{name}.conv2", 4 * width, 1), shortcut))
    net.add(ReLU, f"{name}.relu")


def _detector(net: Graph, heads: list[str]) -> Network:
    flat(net, "boxes", heads)
    net.add(MeanSquaredError, "loss")
    return net.build()


def efficientdet_d0(shape: Shape) -> Network:
    """EfficientDet-D0: EfficientNet-B0, three BiFPN layers of 64 channels, heads of three.

    Every level has heads of its own here, which the published network shares; their weights are
    0.2 of 4.0 million.
    """
    net = Graph("efficientdet_d0", shape)
    conv_norm(net, "stem", 32, 3, 2)
    net.add(SiLU, "stem.act")
    ends = {}
    for s, (fused, expansion, filters, depth, stride, kernel) in enumerate(B0):
        for i in range(depth):
            inverted(net, f"stage{s}.{i}", fused, expansion, filters, stride if i == 0 else 1,
                     kernel, False)
        ends[s] = net.last
    maps = [conv_norm(net, f"lateral{i}", 64, 1, after=ends[s]) for i, s in enumerate((2, 4, 6))]
    conv_norm(net, "lateral3", 64, 1, after=ends[6])
    maps.append(net.add(MaxPool2d, "pool3", kernel=3, stride=2, padding=1))
    maps.append(net.add(MaxPool2d, "pool4", kernel=3, stride=2, padding=1))
    for i in range(3):
        maps = _bifpn(net, f"bifpn{i}", maps)
    heads = []
    for i, x in enumerate(maps):
        for name, width in ("place", 36), ("class", 810):
            y = x
            for k in range(3):
                y = net.add(SiLU, f"{name}{i}.{k}.act", after=_separable(net, f"{name}{i}.{k}", y))
            net.add(Conv2d, f"{name}{i}.depthwise", out_channels=64, kernel=3, padding=1, groups=64,
                    bias=False)
            heads.append(net.add(Conv2d, f"{name}{i}", out_channels=width, kernel=1))
    return _detector(net, heads)


def _separable(net: Graph, name: str, x: str) -> str:
    net.add(Conv2d, f"{name}.depthwise", after=x, out_channels=64, kernel=3, padding=1, groups=64,
            bias=False)
    return conv_norm(net, f"{name}.point", 64, 1)


def _bifpn(net: Graph, name: str, maps: list[str]) -> list[str]:
    """A pass down to the finest map, and one up again."""
    down = [maps[-1]]
    for i in reversed(range(len(maps) - 1)):
        larger = net.add(Upsample, f"{name}.up{i}", after=down[0])
        down.insert(0, _fused(net, f"{name}.down{i}", (maps[i], larger)))
    out = [down[0]]
    for i in range(1, len(maps)):
        smaller = net.add(MaxPool2d, f"{name}.pool{i}", after=out[-1], kernel=3, stride=2,
                          padding=1)
        between = (down[i],) if i < len(maps) - 1 else ()
        out.append(_fused(net, f"{name}.out{i}", (maps[i], *between, smaller)))
    return out


def _fused(net: Graph, name: str, parts: tuple[str, ...]) -> str:
    net.add(Add, f"{name}.add", after=parts)
    return _separable(net, name, net.add(SiLU, f"{name}.act"))
