"""Small networks written twice, for this project and in torch.nn by hand: the modules have the
layers' names.
"""

from __future__ import annotations

from typing import Any

import pytest

from hpcpar.network.builder import Graph
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    LRN,
    Add,
    AvgPool2d,
    AvgPool3d,
    BatchNorm,
    Concat,
    Conv2d,
    Conv3d,
    Flatten,
    GlobalAvgPool,
    Layer,
    Linear,
    LogisticCrossEntropy,
    MaxPool2d,
    MaxPool3d,
    MeanSquaredError,
    ReLU,
    SoftmaxCrossEntropy,
)

torch = pytest.importorskip("torch", reason="PyTorch is the reference of these tests",
                            exc_type=ImportError)
nn = torch.nn


class Residual(nn.Module):
    """A stem and a residual block with a projection, 2D."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stem_bn = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.down, self.down_bn = nn.Conv2d(4, 6, 1, 2, bias=False), nn.BatchNorm2d(6)
        self.a, self.a_bn = nn.Conv2d(4, 6, 3, 2, 1, bias=False), nn.BatchNorm2d(6, momentum=0.3)
        self.b, self.b_bn = nn.Conv2d(6, 6, 3, padding=1, groups=2,
                                      bias=False), nn.BatchNorm2d(6, eps=1e-3)
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.stem_bn(self.stem(x)))
        y = self.b_bn(self.b(torch.relu(self.a_bn(self.a(x)))))
        return self.fc(torch.relu(y + self.down_bn(self.down(x))).mean((2, 3)))


def residual() -> Network:
    net = Graph("residual", (3, 9, 7))
    net.add(Conv2d, "stem", out_channels=4, kernel=3, padding=1, bias=False)
    net.add(BatchNorm, "stem_bn")
    x = net.add(ReLU, "relu")
    net.add(Conv2d, "down", out_channels=6, kernel=1, stride=2, bias=False)
    shortcut = net.add(BatchNorm, "down_bn")
    net.add(Conv2d, "a", after=x, out_channels=6, kernel=3, stride=2, padding=1, bias=False)
    net.add(BatchNorm, "a_bn", momentum=0.3)
    net.add(ReLU, "a_relu")
    net.add(Conv2d, "b", out_channels=6, kernel=3, padding=1, groups=2, bias=False)
    y = net.add(BatchNorm, "b_bn", eps=1e-3)
    net.add(Add, "add", after=(y, shortcut))
    net.add(ReLU, "out")
    return head(net, GlobalAvgPool, 5, SoftmaxCrossEntropy)


class Branches(nn.Module):
    """An inception block: four branches, one with average pooling, and a normalization across
    channels.
    """

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(2, 3,
                                           1), nn.Conv2d(2, 4, (1, 3),
                                                         padding=(0, 1)), nn.Conv2d(4, 2, 3,
                                                                                    padding=2,
                                                                                    dilation=2)
        self.d = nn.Conv2d(2, 2, 1)
        self.fc = nn.Linear(9 * 4 * 3, 6)

    def forward(self, x: Any) -> Any:
        pooled = nn.functional.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
        x = torch.cat([self.a(x), self.c(torch.relu(self.b(x))), self.d(pooled),
                       nn.functional.max_pool2d(x, 3, 1, 1)], 1)
        return self.fc(nn.functional.max_pool2d(nn.functional.local_response_norm(x, 3, 0.5), 2, 2,
                                                ceil_mode=True).flatten(1))


def branches() -> Network:
    net = Graph("branches", (2, 7, 6))
    x = net.last
    a = net.add(Conv2d, "a", out_channels=3)
    net.add(Conv2d, "b", after=x, out_channels=4, kernel=(1, 3), padding=(0, 1))
    net.add(ReLU, "relu")
    c = net.add(Conv2d, "c", out_channels=2, kernel=3, padding=2, dilation=2)
    net.add(AvgPool2d, "average", after=x, kernel=3, stride=1, padding=1, count_include_pad=False)
    d = net.add(Conv2d, "d", out_channels=2)
    most = net.add(MaxPool2d, "most", after=x, kernel=3, stride=1, padding=1)
    net.add(Concat, "concat", after=(a, c, d, most))
    net.add(LRN, "norm", size=3, alpha=0.5, k=1.0)
    net.add(MaxPool2d, "pool", ceil_mode=True)
    return head(net, Flatten, 6, LogisticCrossEntropy)


class Volumes(nn.Module):
    """A regression on volumes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv3d(2, 4, (3, 2, 3), (1, 2, 1), (1, 0, 1),
                                       bias=False), nn.BatchNorm3d(4)
        self.fc = nn.Linear(4 * 2 * 2 * 2, 3)

    def forward(self, x: Any) -> Any:
        x = nn.functional.max_pool3d(torch.relu(self.bn(self.conv(x))), (3, 1, 2), (2, 1, 2),
                                     (1, 0, 0))
        return self.fc(nn.functional.avg_pool3d(x, 2, 1).flatten(1))


def volumes() -> Network:
    net = Graph("volumes", (2, 5, 6, 7))
    net.add(Conv3d, "conv", out_channels=4, kernel=(3, 2, 3), stride=(1, 2, 1), padding=(1, 0, 1),
            bias=False)
    net.add(BatchNorm, "bn")
    net.add(ReLU, "relu")
    net.add(MaxPool3d, "most", kernel=(3, 1, 2), stride=(2, 1, 2), padding=(1, 0, 0))
    net.add(AvgPool3d, "average", kernel=2, stride=1)
    return head(net, Flatten, 3, MeanSquaredError)


def head(net: Graph, end: type[Layer], outputs: int, loss: type[Layer]) -> Network:
    net.add(end, "end")
    net.add(Linear, "fc", out_features=outputs)
    net.add(loss, "loss")
    return net.build()
