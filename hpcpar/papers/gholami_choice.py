"""Gholami et al., SPAA 2018: the grid and the parallelism per layer with the least time by Eq 9.

For a given grid Pr x Pc, Eq 9 is a sum over layers, so each layer takes the cheaper of model and
domain parallelism. The search tries all grids.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcpar.network.graph import Network
from hpcpar.papers.gholami import (
    CostTerm,
    HockneyLink,
    eq6_redistribute,
    eq9_of_layer,
    total_s,
)
from hpcpar.plan.strategy import grid_sizes

#: The cuts between which Eq 9 chooses; the first where they cost the same.
CUTS = ("model", "domain")
#: Phases of terms.
PHASES = ("forward", "backward", "gradient")


@dataclass(frozen=True)
class LayerChoice:
    """A layer's cut on a grid, and its communication under each cut.

    Attributes
    ----------
    cut : str
        A key of `terms`.
    terms : dict
        The terms of Eq 9 under ``model`` and ``domain``, and of Eq 4 under ``batch``, where the
        layer can be cut so.
    change_s : float
        Eq 6: time to redistribute the layer's input, in front of a layer with another cut than the
        one before it; else 0. Eq 9 does not count it.
    """

    layer: str
    cut: str
    terms: dict[str, list[CostTerm]]
    change_s: float = 0.0


@dataclass(frozen=True)
class GridChoice:
    """A grid Pr x Pc with the cut of each layer."""

    pr: int
    pc: int
    layers: tuple[LayerChoice, ...]

    @property
    def name(self) -> str:
        return f"{self.pr}x{self.pc}"

    @property
    def terms(self) -> list[CostTerm]:
        """The terms of all layers under their cuts."""
        return [term for layer in self.layers for term in layer.terms[layer.cut]]

    @property
    def seconds(self) -> float:
        """Communication time per iteration by Eq 9."""
        return total_s(self.terms)

    def cut_by(self, cut: str) -> tuple[str, ...]:
        """The layers with this cut."""
        return tuple(layer.layer for layer in self.layers if layer.cut == cut)


def on_grid(network: Network, pr: int, pc: int, batch: int, link: HockneyLink,
            cuts: dict[str, str] | None = None, most_columns: int | None = None) -> GridChoice:
    """The given cuts on a grid, or those with the least communication time by Eq 9.

    At most `most_columns`, or `batch`, ranks cut the samples.
    """
    layers: list[LayerChoice] = []
    for layer in network.matmul_layers:
        terms = eq9_of_layer(network, layer, pr, pc, batch, link)
        if pr * pc > (most_columns or batch):
            terms.pop("batch")
        open_cuts = [cut for cut in CUTS if cut in terms]
        cut = cuts[layer.name] if cuts else min(open_cuts, key=lambda cut: total_s(terms[cut]))
        changes = layers and layers[-1].cut != cut
        change_s = eq6_redistribute(network, layer, pr, batch / pc, link) if changes else 0.0
        layers.append(LayerChoice(layer.name, cut, terms, change_s))
    return GridChoice(pr, pc, tuple(layers))


def every_grid(network: Network, ranks: int, batch: int, link: HockneyLink,
               most_columns: int | None = None) -> list[GridChoice]:
    """The choice for every grid with at most `most_columns`, or `batch`, parts of the samples."""
    most = most_columns or batch
    return [on_grid(network, pr, pc, batch, link, most_columns=most)
            for pr, pc in grid_sizes(ranks) if pc <= most]


def choose(network: Network, ranks: int, batch: int, link: HockneyLink,
           most_columns: int | None = None) -> GridChoice:
    """The choice with the least communication time by Eq 9, among all grids."""
    return min(every_grid(network, ranks, batch, link, most_columns),
               key=lambda choice: choice.seconds)
