"""U-Nets classify each pixel of images (Ronneberger et al. 2015) or volumes (Cicek et al. 2016)."""

from __future__ import annotations

from hpcpar.network.builder import Graph
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    BatchNorm,
    Concat,
    Conv2d,
    Conv3d,
    ConvTranspose2d,
    ConvTranspose3d,
    Layer,
    MaxPool2d,
    MaxPool3d,
    ReLU,
    Shape,
    SoftmaxCrossEntropy,
)


def unet(shape: Shape, classes: int) -> Network:
    """U-Net for images: 64 to 1024 filters on five levels.

    Convolutions keep the image size (the original crops), and batch normalization follows them.
    Small images have fewer levels; output padding restores odd extents.
    """
    return _unet("unet", shape, classes, 64, 4, (Conv2d, ConvTranspose2d, MaxPool2d))


def unet3d(shape: Shape, classes: int) -> Network:
    """U-Net for volumes: 32 to 256 filters on four levels."""
    return _unet("unet3d", shape, classes, 32, 3, (Conv3d, ConvTranspose3d, MaxPool3d))


def _unet(name: str, shape: Shape, classes: int, filters: int, halvings: int,
          kinds: tuple[type[Layer], type[Layer], type[Layer]]) -> Network:
    conv, transposed, pool = kinds
    net = Graph(name, shape)

    def block(label: str, width: int) -> str:
        for i in 1, 2:
            net.add(conv, f"{label}.conv{i}", out_channels=width, kernel=3, padding=1, bias=False)
            net.add(BatchNorm, f"{label}.bn{i}")
            net.add(ReLU, f"{label}.relu{i}")
        return net.last

    levels = min(halvings, min(shape[1:]).bit_length() - 1)
    skips = []
    for level in range(levels):
        skips.append(block(f"down{level}", filters << level))
        net.add(pool, f"pool{level}", kernel=2, stride=2)
    block("bottom", filters << levels)
    for level in reversed(range(levels)):
        odd = tuple(extent % 2 for extent in net.shapes[skips[level]][1:])
        up = net.add(transposed, f"up{level}.enlarge", out_channels=filters << level, kernel=2,
                     stride=2, output_padding=odd)
        net.add(Concat, f"up{level}.join", after=(skips[level], up))
        block(f"up{level}", filters << level)
    net.add(conv, "classes", out_channels=classes, kernel=1)
    net.add(SoftmaxCrossEntropy, "loss")
    return net.build()
