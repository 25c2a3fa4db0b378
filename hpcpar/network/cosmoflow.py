"""CosmoFlow: cosmological parameters from the density of dark matter in a cube of the universe."""

from __future__ import annotations

from hpcpar.network.builder import Chain
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    Conv3d,
    Dropout,
    Flatten,
    Linear,
    MaxPool3d,
    MeanSquaredError,
    ReLU,
    Shape,
)

#: Filters of the first block; each further block has twice as many, up to the most.
FIRST, MOST = 16, 256


def cosmoflow(shape: Shape, classes: int) -> Network:
    """CosmoFlow (Mathuriya et al. 2018) as MLPerf HPC has it: blocks of a convolution, ReLU and
    pooling, then 128, 64 and 4 features.

    Convolutions are 3x3x3 and keep the size (MLPerf's 2x2x2 would need one-sided padding), ReLU
    stands for the leaky ReLU, and the last layer is left linear. Blocks of 16, 32, 64, 128, 256,
    256, ... filters follow each other until 4 x 4 x 4 voxels remain, so that the fully connected
    layers are the same for every size: with a fixed number of blocks their weights would grow as
    the volume does, to 138 million at 512^3.

    =========  ======  ==========
    input      blocks  parameters
    =========  ======  ==========
    4 x 128^3  5       3,283,060
    4 x 256^3  6       5,052,788
    4 x 512^3  7       6,822,516
    =========  ======  ==========

    ParaDL counts 20 layers and about 2 million parameters: 20 are also the convolutions,
    activations, poolings and linear layers here at 128^3, where 2x2x2 convolutions would have 2.5
    million.

    Parameters
    ----------
    shape : tuple of int
        Channels (redshifts) x D x H x W.
    classes : int
        Parameters to regress.
    """
    net = Chain("cosmoflow", shape)
    for i in range(max(1, min(shape[1:]).bit_length() - 3)):
        net.add(Conv3d, f"conv{i + 1}", out_channels=min(FIRST << i, MOST), kernel=3, padding=1)
        net.add(ReLU, f"relu{i + 1}").add(MaxPool3d, f"pool{i + 1}")
    net.add(Flatten, "flatten")
    for name, features in ("fc1", 128), ("fc2", 64):
        net.add(Linear, name, out_features=features).add(ReLU, f"{name}.relu").add(Dropout, f"{name}.drop")
    return net.add(Linear, "fc3", out_features=classes).add(MeanSquaredError, "loss").build()
