"""Networks of the gallery: published measurements use them, and they are not built in.

`NETWORKS` maps the names in ``runs.csv`` to functions of the input shape.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.gallery.detection import efficientdet_d0, ssd300
from bench.gallery.efficientnet import B0, B4, V2_S, efficientnet
from bench.gallery.parts import CLASSES, classifier, conv_relu
from bench.gallery.segmentation import deepcam, unet, unet2d, unet_industrial_tiny, vnet
from hpcpar.network.builder import Graph
from hpcpar.network.builtin import built_in
from hpcpar.network.builtin.resnet import conv_norm
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    LRN,
    Add,
    AvgPool2d,
    Concat,
    Conv2d,
    Conv3d,
    Dropout,
    Flatten,
    GlobalAvgPool,
    LeakyReLU,
    Linear,
    MaxPool2d,
    MaxPool3d,
    MeanSquaredError,
    ReLU,
    Shape,
    SoftmaxCrossEntropy,
)


def _dense(net: Graph, *features: int) -> Network:
    """Linear layers with ReLU and dropout, then the classes."""
    net.add(Flatten, "flatten")
    for i, width in enumerate(features, 1):
        net.add(Linear, f"fc{i}", out_features=width)
        net.add(ReLU, f"fc{i}.relu")
        net.add(Dropout, f"fc{i}.drop")
    net.add(Linear, "fc", out_features=CLASSES)
    net.add(SoftmaxCrossEntropy, "loss")
    return net.build()


def _conv(net: Graph, name: str, filters: int, kernel: int, stride: int = 1, padding: int = -1,
          after: str | None = None) -> str:
    """Convolution with bias, and ReLU."""
    net.add(Conv2d, name, after=after, out_channels=filters, kernel=kernel, stride=stride,
            padding=kernel // 2 if padding < 0 else padding)
    return net.add(ReLU, f"{name}.relu")


# -- AlexNet and its kin ---------------------------------------------------------------------------
def alexnet_mxnet(shape: Shape) -> Network:
    """MXNet's AlexNet: one tower of the published widths."""
    net = Graph("alexnet", shape)
    for i, (filters, kernel, stride) in enumerate(
            ((96, 11, 4), (256, 5, 1), (384, 3, 1), (384, 3, 1), (256, 3, 1))):
        _conv(net, f"conv{i}", filters, kernel, stride, 0 if i == 0 else -1)
        if i < 2:
            net.add(LRN, f"norm{i}")
        if i in (0, 1, 4):
            net.add(MaxPool2d, f"pool{i}", kernel=3, stride=2)
    return _dense(net, 4096, 4096)


def _one_tower(name: str, shape: Shape, filters: tuple[int, ...], first_padding: int) -> Network:
    net = Graph(name, shape)
    for i, width in enumerate(filters):
        kernel, stride = ((11, 4), (5, 1))[i] if i < 2 else (3, 1)
        _conv(net, f"conv{i}", width, kernel, stride, first_padding if i == 0 else -1)
        if i in (0, 1, 4):
            net.add(MaxPool2d, f"pool{i}", kernel=3, stride=2)
    return _dense(net, 4096, 4096)


def alexnet_owt(shape: Shape) -> Network:
    """The one-tower AlexNet: of tf_cnn_benchmarks for 227 x 227, else of convnet-benchmarks."""
    if shape[-1] == 227:
        return _one_tower("alexnet_owt", shape, (64, 192, 384, 384, 256), 0)
    return _one_tower("alexnet_owt", shape, (64, 192, 384, 256, 256), 2)


def overfeat_fast(shape: Shape) -> Network:
    """OverFeat's fast model, as convnet-benchmarks has it."""
    net = Graph("overfeat_fast", shape)
    for i, (filters, kernel, stride, padding) in enumerate(
            ((96, 11, 4, 0), (256, 5, 1, 0), (512, 3, 1, 1), (1024, 3, 1, 1), (1024, 3, 1, 1))):
        _conv(net, f"conv{i}", filters, kernel, stride, padding)
        if i in (0, 1, 4):
            net.add(MaxPool2d, f"pool{i}", kernel=2, stride=2)
    return _dense(net, 3072, 4096)


def vgg_a(shape: Shape) -> Network:
    """VGG of 11 layers."""
    net = Graph("vgg_a", shape)
    for stage, (depth, filters) in enumerate(((1, 64), (1, 128), (2, 256), (2, 512), (2, 512))):
        for i in range(depth):
            _conv(net, f"conv{stage}.{i}", filters, 3)
        net.add(MaxPool2d, f"pool{stage}")
    return _dense(net, 4096, 4096)


def squeezenet(shape: Shape) -> Network:
    """SqueezeNet 1.1."""
    net = Graph("squeezenet", shape)
    _conv(net, "conv1", 64, 3, 2, 0)
    for i, width in enumerate((16, 16, 32, 32, 48, 48, 64, 64)):
        if i in (0, 2, 4):
            net.add(MaxPool2d, f"pool{i}", kernel=3, stride=2)
        x = _conv(net, f"fire{i}.squeeze", width, 1)
        one = _conv(net, f"fire{i}.one", 4 * width, 1, after=x)
        three = _conv(net, f"fire{i}.three", 4 * width, 3, after=x)
        net.add(Concat, f"fire{i}", after=(one, three))
    net.add(Dropout, "drop")
    _conv(net, "classes", CLASSES, 1)
    net.add(GlobalAvgPool, "pool")
    net.add(SoftmaxCrossEntropy, "loss")
    return net.build()


def googlenet(shape: Shape) -> Network:
    """Inception v1 without auxiliary classifiers, as BVLC's: no batch normalization."""
    net = Graph("googlenet", shape)
    _conv(net, "conv1", 64, 7, 2)
    net.add(MaxPool2d, "pool1", kernel=3, stride=2, padding=1)
    net.add(LRN, "norm1")
    _conv(net, "conv2.reduce", 64, 1)
    _conv(net, "conv2", 192, 3)
    net.add(LRN, "norm2")
    net.add(MaxPool2d, "pool2", kernel=3, stride=2, padding=1)
    blocks = ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64), (192, 96, 208, 16, 48, 64),
              (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64), (112, 144, 288, 32, 64, 64),
              (256, 160, 320, 32, 128, 128), (256, 160, 320, 32, 128, 128),
              (384, 192, 384, 48, 128, 128))
    for i, (one, reduce3, three, reduce5, five, pooled) in enumerate(blocks):
        if i in (2, 7):
            net.add(MaxPool2d, f"pool{i}.down", kernel=3, stride=2, padding=1)
        x, name = net.last, f"block{i}"
        parts = (
            _conv(net, f"{name}.1", one, 1, after=x),
            _conv(net, f"{name}.3", three, 3, after=_conv(net, f"{name}.3r", reduce3, 1, after=x)),
            _conv(net, f"{name}.5", five, 5, after=_conv(net, f"{name}.5r", reduce5, 1, after=x)),
            _conv(net, f"{name}.p", pooled, 1, after=net.add(
                MaxPool2d, f"{name}.pool", after=x, kernel=3, stride=1, padding=1)),
        )
        net.add(Concat, name, after=parts)
    return classifier(net)


def inception_bn(shape: Shape) -> Network:
    """Inception with batch normalization, as MXNet's: 11.3 million parameters."""
    net = Graph("inception_bn", shape)
    conv_relu(net, "conv1", 64, 7, 2)
    net.add(MaxPool2d, "pool1", kernel=3, stride=2, padding=1)
    conv_relu(net, "conv2.reduce", 64, 1)
    conv_relu(net, "conv2", 192, 3)
    net.add(MaxPool2d, "pool2", kernel=3, stride=2, padding=1)
    # 1x1, reduced and 3x3, reduced and twice 3x3, pooled; two parts halve the image where 1x1 is 0
    blocks = ((64, 64, 64, 64, 96, 32), (64, 64, 96, 64, 96, 64), (0, 128, 160, 64, 96, 0),
              (224, 64, 96, 96, 128, 128), (192, 96, 128, 96, 128, 128),
              (160, 128, 160, 128, 160, 128), (96, 128, 192, 160, 192, 128),
              (0, 128, 192, 192, 256, 0), (352, 192, 320, 160, 224, 128),
              (352, 192, 320, 192, 224, 128))
    for i, (one, reduce3, three, reduce33, twice, pooled) in enumerate(blocks):
        x, name, stride = net.last, f"block{i}", 1 if one else 2
        parts = [conv_relu(net, f"{name}.1", one, 1, after=x)] if one else []
        conv_relu(net, f"{name}.3r", reduce3, 1, after=x)
        parts.append(conv_relu(net, f"{name}.3", three, 3, stride))
        conv_relu(net, f"{name}.33r", reduce33, 1, after=x)
        conv_relu(net, f"{name}.33a", twice, 3)
        parts.append(conv_relu(net, f"{name}.33b", twice, 3, stride))
        pool = AvgPool2d if one and i < len(blocks) - 1 else MaxPool2d
        parts.append(net.add(pool, f"{name}.pool", after=x, kernel=3, stride=stride, padding=1))
        if one:
            parts[-1] = conv_relu(net, f"{name}.p", pooled, 1)
        net.add(Concat, name, after=parts)
    return classifier(net)


# -- residual networks -----------------------------------------------------------------------------
def _residual(name: str, shape: Shape, blocks: tuple[int, ...], *, plain: bool = False,
              groups: int = 1, width: int = 64) -> Network:
    """Residual network of plain or bottleneck blocks; `width` of the first 3x3 convolutions."""
    net = Graph(name, shape)
    conv_norm(net, "conv1", 64, 7, 2)
    net.add(ReLU, "relu1")
    net.add(MaxPool2d, "pool1", kernel=3, stride=2, padding=1)
    for stage, depth in enumerate(blocks):
        inner, out = width << stage, (64 if plain else 256) << stage
        for i in range(depth):
            label, stride = f"stage{stage}.{i}", 2 if stage and i == 0 else 1
            x = shortcut = net.last
            if stride > 1 or net.shapes[x][0] != out:
                shortcut = conv_norm(net, f"{label}.down", out, 1, stride)
            steps = ([(inner, 3, stride, 1), (out, 3, 1, 1)] if plain else
                     [(inner, 1, 1, 1), (inner, 3, stride, groups), (out, 1, 1, 1)])
            for k, (filters, kernel, step, parts) in enumerate(steps):
                if k:
                    net.add(ReLU, f"{label}.relu{k}")
                conv_norm(net, f"{label}.conv{k}", filters, kernel, step,
                          after=net.last if k else x, groups=parts)
            net.add(Add, f"{label}.add", after=(net.last, shortcut))
            net.add(ReLU, f"{label}.relu")
    return classifier(net)


# -- MLPerf HPC -----------------------------------------------------------------------------------
def cosmoflow(shape: Shape, kernel: int) -> Network:
    """MLPerf HPC's CosmoFlow: five convolutions of 32 to 512 channels."""
    net = Graph("cosmoflow", shape)
    for i in range(5):
        net.add(Conv3d, f"conv{i}", out_channels=32 << i, kernel=kernel, padding=kernel // 2)
        net.add(LeakyReLU, f"act{i}")
        net.add(MaxPool3d, f"pool{i}", kernel=2, stride=2)
    net.add(Flatten, "flatten")
    for i, width in enumerate((128, 64)):
        net.add(Linear, f"fc{i}", out_features=width)
        net.add(LeakyReLU, f"fc{i}.act")
        net.add(Dropout, f"fc{i}.drop")
    net.add(Linear, "fc", out_features=4)
    net.add(MeanSquaredError, "loss")
    return net.build()


NETWORKS: dict[str, Callable[[Shape], Network]] = {
    "alexnet": lambda shape: built_in("alexnet", shape),
    "alexnet_mxnet": alexnet_mxnet,
    "alexnet_owt": alexnet_owt,
    "overfeat_fast": overfeat_fast,
    "vgg_a": vgg_a,
    "vgg16": lambda shape: built_in("vgg16", shape),
    "squeezenet": squeezenet,
    "googlenet": googlenet,
    "inception_v3": lambda shape: built_in("inception_v3", shape),
    "inception_bn": inception_bn,
    "mobilenet_v2": lambda shape: built_in("mobilenet_v2", shape),
    "resnet18": lambda shape: _residual("resnet18", shape, (2, 2, 2, 2), plain=True),
    "resnet34": lambda shape: _residual("resnet34", shape, (3, 4, 6, 3), plain=True),
    "resnet50": lambda shape: built_in("resnet50", shape),
    "resnet101": lambda shape: _residual("resnet101", shape, (3, 4, 23, 3)),
    "resnet152": lambda shape: built_in("resnet152", shape),
    "resnet200": lambda shape: _residual("resnet200", shape, (3, 24, 36, 3)),
    "resnext50_32x4d": lambda shape: _residual("resnext50_32x4d", shape, (3, 4, 6, 3), groups=32,
                                               width=128),
    "resnext101_32x4d": lambda shape: _residual("resnext101_32x4d", shape, (3, 4, 23, 3),
                                                groups=32, width=128),
    "resnext101_32x8d": lambda shape: _residual("resnext101_32x8d", shape, (3, 4, 23, 3),
                                                groups=32, width=256),
    "efficientnet_b0": lambda shape: efficientnet("efficientnet_b0", shape, B0, 32, 1280),
    "efficientnet_b4": lambda shape: efficientnet("efficientnet_b4", shape, B4, 48, 1792),
    "efficientnet_widese_b0": lambda shape: efficientnet(
        "efficientnet_widese_b0", shape, B0, 32, 1280, wide=True),
    "efficientnet_widese_b4": lambda shape: efficientnet(
        "efficientnet_widese_b4", shape, B4, 48, 1792, wide=True),
    "efficientnet_v2_s": lambda shape: efficientnet("efficientnet_v2_s", shape, V2_S, 24, 1280),
    "ssd300_resnet50": ssd300,
    "efficientdet_d0": efficientdet_d0,
    "unet2d": unet2d,
    "unet_industrial_tiny": unet_industrial_tiny,
    "vnet": vnet,
    "deepcam": deepcam,
    "unet3d": lambda shape: unet("unet3d", shape, (32, 64, 128, 256, 320), classes=4),
    "nnunet2d": lambda shape: unet("nnunet2d", shape, (32, 64, 128, 256, 512, 512), classes=4,
                                    strided=True, leaky=True),
    "nnunet3d": lambda shape: unet("nnunet3d", shape, (32, 64, 128, 256, 320, 320), classes=4,
                                    strided=True, leaky=True),
    "cosmoflow": lambda shape: cosmoflow(shape, 3),
    "cosmoflow_2": lambda shape: cosmoflow(shape, 2),
    "cosmoflow_paradl": lambda shape: built_in("cosmoflow", shape),
}
