"""Decides how ranks add moments.

These are the two sums behind each mean and variance of a normalization, or behind each Dice
coefficient of a loss.
"""

from __future__ import annotations

from functools import partial

from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer
from hpcpar.network.receptive_field import SharedGroups
from hpcpar.plan.axis import Axis
from hpcpar.plan.config import ONE, MeshAxis
from hpcpar.plan.layout import Layout
from hpcpar.plan.plan import Plan
from hpcpar.schedule.pattern_family import collective, collective_along, look_up
from hpcpar.schedule.steps import NOTHING, AnyPattern, Kind
from hpcpar.schedule.weights import SUMMED

#: Moments are float64: sums of squares need the precision, and there are few of them.
MOMENT_BYTES = 8


def moments_layout(network: Network, plan: Plan, layer: Layer, batch: int) -> Layout:
    """The layout of the moments.

    For each mean and variance: sums of x and x^2 forward, of dy and dy x backward. For a Dice loss:
    sums of p t and of p + t, with prediction p and label t.

    Returns
    -------
    Layout
        [channels, 2] for batch normalization; [samples, groups, 2] for statistics of each sample.
    """
    config, channels = plan.configs[layer.name], network.shapes[layer.name][0]
    granule = network.granules[layer.name]
    sums = Axis("moments", 2, 2)
    if layer.statistics == "batch":
        return Layout(config, (Axis("c", channels, channels, granule), sums))
    groups = _separate_groups(network, layer)
    relation = SharedGroups(groups, channels // groups, 1)
    axis = Axis("c", layer.statistics_groups(channels), channels, granule, relation)
    return Layout(config, (Axis("n", batch, batch), axis, sums))


def moments_pattern(network: Network, plan: Plan, layer: Layer) -> AnyPattern:
    """An allreduce over the ranks that hold parts of the same mean and variance.

    Nothing moves where each rank holds all of its items.
    """
    config = plan.configs[layer.name]
    if layer.statistics == "sample":
        image = tuple(config.mesh_axes[name] for name in "dhw")
        sharing = look_up(partial(_sharing, _separate_groups(network, layer)),
                          config.mesh_axes["c"])
        return collective(Kind.ALLREDUCE, (sharing, *image))
    if layer.statistics == "batch" and plan.batch_norm == "local":
        return NOTHING
    return collective_along(Kind.ALLREDUCE, config, SUMMED)


def _separate_groups(network: Network, layer: Layer) -> int:
    """Groups that may lie on different ranks; 1 if a group would split a granule."""
    channels = network.shapes[layer.name][0]
    groups = layer.statistics_groups(channels)
    return groups if channels // groups % network.granules[layer.name] == 0 else 1


def _sharing(groups: int, c: MeshAxis) -> MeshAxis:
    """The coordinate of the ranks that share a group of channels; `c` cuts the channels.

    Where groups and parts do not nest, all parts of the channels share.
    """
    if groups % c.size == 0:
        return ONE
    return MeshAxis(c.stride, c.size // groups) if c.size % groups == 0 else c
