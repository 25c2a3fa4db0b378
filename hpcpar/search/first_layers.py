"""Decides up to which layer ``ds-first`` cuts images: the cheapest switch."""

from __future__ import annotations

from hpcpar.errors import InputError
from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer
from hpcpar.plan.strategy import Grid, Strategy, grid_sizes, sections
from hpcpar.search.candidates import Candidate, best_of, priced
from hpcpar.search.searches import searched
from hpcpar.search.task import PlanningTask

NAME = "ds-first"


@searched(Strategy(
    f"{NAME}[:P1xP2]", "spatially parallel in the first layers",
    "the fastest of ds:P1xP2+L whose images are gathered where they shrink, on the given grid or "
    "the best one (ParaDL, section 4.5.1)", cuts=("samples", "pixels")))
def plan_first_layers(task: PlanningTask, grid: Grid) -> Candidate:
    """The fastest plan over all switches, and over all grids if none is given.

    Raises
    ------
    InputError
        The network has no convolution to cut.
    """
    counts = switches(task.network)
    if not counts:
        raise InputError(f"strategy '{NAME}': network '{task.network.name}' has no convolution; "
                         "use --strategy data")
    every = [each for each in grid_sizes(task.ranks) if each[1] > 1 or task.ranks == 1]
    grids = [grid] if grid else every
    found = priced(task, [f"ds:{groups}x{parts}+{count}" for groups, parts in grids
                          for count in counts])
    return best_of([c for c in found if not c.refusal] or found)


def convolutions(network: Network) -> list[Layer]:
    """The layers that ``ds:P1xP2+L`` counts."""
    return [layer for layer in sections(network)[0] if layer.is_matmul]


def switches(network: Network) -> list[int]:
    """The numbers of first convolutions after which the image shrinks, and of all of them."""
    convs = convolutions(network)
    images = [network.shapes[layer.name][1:] for layer in convs]
    return [i for i, image in enumerate(images, 1) if images[i:i + 1] != [image]]
