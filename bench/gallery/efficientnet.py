"""EfficientNet: inverted residuals with squeeze-and-excitation."""

from __future__ import annotations

from bench.gallery.parts import classifier
from hpcpar.network.builder import Graph
from hpcpar.network.builtin.resnet import conv_norm
from hpcpar.network.graph import Network
from hpcpar.network.layers import Add, GlobalAvgPool, Linear, Multiply, Shape, Sigmoid, SiLU

#: Fused or not, expansion, channels, blocks, stride, kernel of each stage.
B0 = ((0, 1, 16, 1, 1, 3), (0, 6, 24, 2, 2, 3), (0, 6, 40, 2, 2, 5), (0, 6, 80, 3, 2, 3),
       (0, 6, 112, 3, 1, 5), (0, 6, 192, 4, 2, 5), (0, 6, 320, 1, 1, 3))
B4 = ((0, 1, 24, 2, 1, 3), (0, 6, 32, 4, 2, 3), (0, 6, 56, 4, 2, 5), (0, 6, 112, 6, 2, 3),
       (0, 6, 160, 6, 1, 5), (0, 6, 272, 8, 2, 5), (0, 6, 448, 2, 1, 3))
V2_S = ((1, 1, 24, 2, 1, 3), (1, 4, 48, 4, 2, 3), (1, 4, 64, 4, 2, 3), (0, 4, 128, 6, 2, 3),
         (0, 6, 160, 9, 1, 3), (0, 6, 256, 15, 2, 3))


def _act(net: Graph, name: str) -> str:
    return net.add(SiLU, name)


def inverted(net: Graph, name: str, fused: int, expansion: int, filters: int, stride: int,
              kernel: int, wide: bool) -> None:
    """An inverted residual with squeeze-and-excitation (none where it is fused)."""
    x = net.last
    channels = net.shapes[x][0]
    width = expansion * channels
    if fused:
        conv_norm(net, f"{name}.fused", width if expansion > 1 else filters, kernel, stride)
        y = _act(net, f"{name}.act1")
    else:
        if expansion > 1:
            conv_norm(net, f"{name}.expand", width, 1)
            _act(net, f"{name}.act1")
        conv_norm(net, f"{name}.depthwise", width, kernel, stride, groups=width)
        y = _act(net, f"{name}.act2")
        net.add(GlobalAvgPool, f"{name}.mean")
        net.add(Linear, f"{name}.se1", out_features=max(1, (width if wide else channels) // 4))
        _act(net, f"{name}.act3")
        net.add(Linear, f"{name}.se2", out_features=width)
        gate = net.add(Sigmoid, f"{name}.gate")
        y = net.add(Multiply, f"{name}.se", after=(y, gate))
    if expansion > 1 or not fused:
        y = conv_norm(net, f"{name}.project", filters, 1, after=y)
    if stride == 1 and filters == channels:
        net.add(Add, f"{name}.add", after=(y, x))


def efficientnet(name: str, shape: Shape, stages: tuple[tuple[int, ...], ...], stem: int,
                  last: int, wide: bool = False) -> Network:
    net = Graph(name, shape)
    conv_norm(net, "stem", stem, 3, 2)
    _act(net, "stem.act")
    for s, (fused, expansion, filters, depth, stride, kernel) in enumerate(stages):
        for i in range(depth):
            inverted(net, f"stage{s}.{i}", fused, expansion, filters, stride if i == 0 else 1,
                      kernel, wide)
    conv_norm(net, "last", last, 1)
    _act(net, "last.act")
    return classifier(net)
