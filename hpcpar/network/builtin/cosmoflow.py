"""CosmoFlow: regression of cosmological parameters from a cube of dark matter densities."""

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

#: Filters of the first block, doubled in each further block up to the maximum.
FIRST_FILTERS, MAX_FILTERS = 16, 256


def cosmoflow(shape: Shape, classes: int) -> Network:
    """CosmoFlow (Mathuriya et al. 2018), the MLPerf HPC variant.

    Blocks of convolution, ReLU and pooling are followed by linear layers of 128, 64 and `classes`
    features. Three details differ from MLPerf: convolutions are 3x3x3 and keep the size (2x2x2
    would need one-sided padding), ReLU replaces the leaky ReLU, and the last layer is linear.

    Blocks of 16, 32, 64, 128, 256, 256, ... filters continue until 4 x 4 x 4 voxels remain, so the
    linear layers have the same size for every input. With a fixed number of blocks their weights
    would grow with the volume, to 138 million at 512^3.

    =========  ======  ==========
    input      blocks  parameters
    =========  ======  ==========
    4 x 128^3  5       3,283,060
    4 x 256^3  6       5,052,788
    4 x 512^3  7       6,822,516
    =========  ======  ==========

    ParaDL counts 20 layers and about 2 million parameters. At 128^3 this network also has 20
    convolutions, activations, poolings and linear layers; with 2x2x2 convolutions it would have 2.5
    million parameters.

    Parameters
    ----------
    shape : tuple of int
        (C, D, H, W); the channels are redshifts.
    classes : int
        Number of cosmological parameters to regress.
    """
    net = Chain("cosmoflow", shape)
    for i in range(max(1, min(shape[1:]).bit_length() - 3)):
        filters = min(FIRST_FILTERS << i, MAX_FILTERS)
        net.add(Conv3d, f"conv{i + 1}", out_channels=filters, kernel=3, padding=1)
        net.add(ReLU, f"relu{i + 1}").add(MaxPool3d, f"pool{i + 1}")
    net.add(Flatten, "flatten")
    for name, features in ("fc1", 128), ("fc2", 64):
        net.add(Linear, name, out_features=features)
        net.add(ReLU, f"{name}.relu").add(Dropout, f"{name}.drop")
    return net.add(Linear, "fc3", out_features=classes).add(MeanSquaredError, "loss").build()
