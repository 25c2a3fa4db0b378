"""A network of the weather on a globe: longitudes go on at their other end, latitudes do not.

``--input 8x721x1440`` has latitudes as rows, which `spatial` cuts first, ``--input 8x1440x721``
longitudes.
"""

from __future__ import annotations

from hpcpar.network.builder import Graph
from hpcpar.network.graph import Network
from hpcpar.network.layers import Conv2d, MeanSquaredError, Pad, ReLU, Shape


def weather(shape: Shape = (8, 721, 1440), classes: int = 8) -> Network:
    """Six convolutions of 64 channels, padded with zeros at the poles.

    Parameters
    ----------
    shape : tuple of int
        Fields, and twice as many longitudes as latitudes, in any order.
    classes : int
        Fields that are predicted for every pixel.
    """
    around = tuple(int(extent == max(shape[1:])) for extent in shape[1:])
    net = Graph("weather", shape)
    for i in range(6):
        net.add(Pad, f"pad{i}", begin=around, end=around, mode="periodic")
        net.add(Conv2d, f"conv{i}", out_channels=64, kernel=3, padding=(1 - around[0],
                                                                        1 - around[1]))
        net.add(ReLU, f"relu{i}")
    net.add(Conv2d, "fields", out_channels=classes, kernel=1)
    net.add(MeanSquaredError, "loss")
    return net.build()
