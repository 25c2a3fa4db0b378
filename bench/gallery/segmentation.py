"""Networks that label pixels or voxels."""

from __future__ import annotations

from bench.gallery.parts import conv_relu
from hpcpar.network.builder import Graph
from hpcpar.network.builtin.resnet import conv_norm
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    Add,
    BatchNorm,
    Concat,
    Conv2d,
    Conv3d,
    ConvTranspose2d,
    ConvTranspose3d,
    Flatten,
    GroupNorm,
    Layer,
    LeakyReLU,
    LogisticCrossEntropy,
    MaxPool2d,
    MaxPool3d,
    ReLU,
    Shape,
    SoftmaxCrossEntropy,
)


def unet2d(shape: Shape) -> Network:
    """The published U-Net: convolutions lose the border; the crops of skips are taken as free.

    Skips keep the decoder's extents here, as a crop is not a layer.
    """
    return unet("unet2d", (shape[0], 480, 480), (64, 128, 256, 512, 1024), norm=False, classes=2)


def unet(name: str, shape: Shape, widths: tuple[int, ...], *, classes: int, norm: bool = True,
         strided: bool = False, leaky: bool = False) -> Network:
    """U-Net of two convolutions a level, normalized by instances; pooled or strided."""
    volumes = len(shape) == 4
    conv: type[Layer] = Conv3d if volumes else Conv2d
    up: type[Layer] = ConvTranspose3d if volumes else ConvTranspose2d
    pool: type[Layer] = MaxPool3d if volumes else MaxPool2d
    net, skips = Graph(name, shape), []

    def block(label: str, width: int, stride: int = 1) -> str:
        for i in range(2):
            net.add(conv, f"{label}.conv{i}", out_channels=width, kernel=3, padding=1,
                    stride=stride if i == 0 else 1, bias=not norm)
            if norm:
                net.add(GroupNorm, f"{label}.norm{i}", groups=width)
            net.add(LeakyReLU if leaky else ReLU, f"{label}.act{i}")
        return net.last

    for level, width in enumerate(widths):
        if level and not strided:
            net.add(pool, f"pool{level}", kernel=2, stride=2)
        skips.append(block(f"down{level}", width, 2 if level and strided else 1))
    for level in reversed(range(len(widths) - 1)):
        odd = tuple(extent % 2 for extent in net.shapes[skips[level]][1:])
        net.add(up, f"up{level}.enlarge", out_channels=widths[level], kernel=2, stride=2,
                output_padding=odd)
        net.add(Concat, f"up{level}.join", after=(skips[level], net.last))
        block(f"up{level}", widths[level])
    net.add(conv, "classes", out_channels=classes, kernel=1)
    net.add(SoftmaxCrossEntropy, "loss")
    return net.build()


def unet_industrial_tiny(shape: Shape) -> Network:
    """NVIDIA's tiny U-Net for DAGM: 1.98 million parameters (published: 1.82), no normalization."""
    net, skips = Graph("unet_industrial_tiny", shape), []

    def block(label: str, width: int) -> str:
        for i in range(2):
            net.add(Conv2d, f"{label}.conv{i}", out_channels=width, kernel=3, padding=1)
            net.add(ReLU, f"{label}.act{i}")
        return net.last

    widths = (32, 32, 64, 128)
    for level, width in enumerate(widths):
        skips.append(block(f"down{level}", width))
        net.add(MaxPool2d, f"pool{level}", kernel=2, stride=2)
    block("bottom", 256)
    for level in reversed(range(len(widths))):
        net.add(ConvTranspose2d, f"up{level}.enlarge", out_channels=widths[level], kernel=2,
                stride=2)
        net.add(Concat, f"up{level}.join", after=(skips[level], net.last))
        block(f"up{level}", widths[level])
    net.add(Conv2d, "classes", out_channels=1, kernel=1)
    net.add(Flatten, "pixels")
    net.add(LogisticCrossEntropy, "loss")
    return net.build()


def vnet(shape: Shape) -> Network:
    """NVIDIA's V-Net for 32 voxels a side: residual levels of 16 to 128 channels."""
    net, skips = Graph("vnet", shape), []

    def level(label: str, width: int, depth: int, shortcut: str) -> str:
        for i in range(depth):
            net.add(Conv3d, f"{label}.conv{i}", out_channels=width, kernel=3, padding=1, bias=False)
            net.add(BatchNorm, f"{label}.conv{i}.bn")
            net.add(ReLU, f"{label}.conv{i}.relu")
        return net.add(Add, f"{label}.add", after=(net.last, shortcut))

    net.add(Conv3d, "widen", out_channels=16, kernel=1)
    skips.append(level("down0", 16, 1, net.last))
    for i in range(1, 4):
        skips.append(level(f"down{i}", 16 << i, 3, net.add(
            Conv3d, f"down{i}.shrink", out_channels=16 << i, kernel=2, stride=2)))
    for i, depth in ((2, 3), (1, 3), (0, 1)):
        net.add(ConvTranspose3d, f"up{i}.enlarge", out_channels=16 << i, kernel=2, stride=2)
        net.add(Concat, f"up{i}.join", after=(skips[i], net.last))
        shortcut = net.add(Conv3d, f"up{i}.narrow", out_channels=16 << i, kernel=1)
        level(f"up{i}", 16 << i, depth, shortcut)
    net.add(Conv3d, "classes", out_channels=3, kernel=1)
    net.add(SoftmaxCrossEntropy, "loss")
    return net.build()


def deepcam(shape: Shape) -> Network:
    """MLPerf HPC's DeepCAM: DeepLabv3+ on Xception, with a decoder up to full size.

    Holes of dilated convolutions change neither work nor bytes and are left out.
    """
    net = Graph("deepcam", shape)

    def separable(label: str, width: int, stride: int = 1, after: str | None = None) -> str:
        channels = net.shapes[after or net.last][0]
        conv_norm(net, f"{label}.depthwise", channels, 3, stride, after, groups=channels)
        return conv_norm(net, f"{label}.point", width, 1)

    def xception(label: str, widths: tuple[int, ...], stride: int = 1) -> None:
        x = shortcut = net.last
        if stride > 1 or net.shapes[x][0] != widths[-1]:
            shortcut = conv_norm(net, f"{label}.skip", widths[-1], 1, stride)
        y = x
        for i, width in enumerate(widths):
            net.add(ReLU, f"{label}.relu{i}", after=y)
            y = separable(f"{label}.{i}", width, stride if i == len(widths) - 1 else 1)
        net.add(Add, f"{label}.add", after=(y, shortcut))

    conv_relu(net, "conv1", 32, 3, 2)
    conv_relu(net, "conv2", 64, 3)
    xception("entry1", (128, 128, 128), 2)
    low = net.last
    xception("entry2", (256, 256, 256), 2)
    xception("entry3", (728, 728, 728), 2)
    for i in range(16):
        xception(f"middle{i}", (728, 728, 728))
    xception("exit", (728, 1024, 1024))
    for i, width in enumerate((1536, 1536, 2048)):
        separable(f"last{i}", width)
        net.add(ReLU, f"last{i}.relu")
    x = net.last
    parts = [conv_relu(net, f"aspp{i}", 256, kernel, after=x)
             for i, kernel in enumerate((1, 3, 3, 3))]
    net.add(Concat, "aspp.join", after=parts)
    conv_relu(net, "aspp", 256, 1)

    def enlarge(label: str, width: int) -> str:
        net.add(ConvTranspose2d, label, out_channels=width, kernel=3, stride=2, padding=1,
                output_padding=1)
        net.add(BatchNorm, f"{label}.bn")
        return net.add(ReLU, f"{label}.relu")

    enlarge("up1", 256)
    y = enlarge("up2", 256)
    net.add(Concat, "join", after=(y, conv_relu(net, "low", 48, 1, after=low)))
    conv_relu(net, "fuse1", 256, 3)
    conv_relu(net, "fuse2", 256, 3)
    enlarge("up3", 256)
    conv_relu(net, "fuse3", 256, 3)
    net.add(ConvTranspose2d, "classes", out_channels=3, kernel=3, stride=2, padding=1,
            output_padding=1)
    net.add(SoftmaxCrossEntropy, "loss")
    return net.build()
