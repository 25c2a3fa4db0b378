"""The strategy ``ds-first``: images are cut in the first layers only, up to the cheapest switch."""

from __future__ import annotations

from hpcpar.errors import InputError
from hpcpar.network.graph import Network
from hpcpar.plan.strategy import Strategy, grid_sizes, sections
from hpcpar.search.candidates import Candidate, PlanningTask, best_of, priced
from hpcpar.search.searches import searched

NAME = "ds-first"


@searched(Strategy(NAME, "spatially parallel in the first layers",
                   "the fastest of ds:P1xP2+L whose images are gathered where they shrink "
                   "(ParaDL, section 4.5.1)", cuts=("samples", "pixels")))
def plan_first_layers(task: PlanningTask) -> Candidate:
    """The fastest plan over all grids and switches.

    Raises
    ------
    InputError
        The network has no convolution to cut.
    """
    counts = switches(task.network)
    if not counts:
        raise InputError(f"strategy '{NAME}': network '{task.network.name}' has no convolution; "
                         "use --strategy data")
    grids = [grid for grid in grid_sizes(task.ranks) if grid[1] > 1 or task.ranks == 1]
    found = priced(task, [f"ds:{groups}x{parts}+{count}" for groups, parts in grids
                          for count in counts])
    return best_of([c for c in found if not c.refusal] or found)


def switches(network: Network) -> list[int]:
    """The numbers of first convolutions after which the image shrinks, and of all of them."""
    convs = [layer for layer in sections(network)[0] if layer.is_matmul]
    images = [network.shapes[layer.name][1:] for layer in convs]
    return [i for i, image in enumerate(images, 1) if images[i:i + 1] != [image]]
