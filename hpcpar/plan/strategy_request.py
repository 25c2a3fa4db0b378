"""The input of a strategy, and the sections of a network: layers on images and on features."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer
from hpcpar.plan.config import Config

#: Configuration of every layer by name.
Configs = dict[str, Config]


@dataclass(frozen=True)
class StrategyRequest:
    """Everything that a strategy needs to make configurations.

    Attributes
    ----------
    grid : tuple
        The two numbers of ``name:AxB``, or the four of ``name:AxB+CxD``, whose last two are for
        fully connected layers; (ranks, 1) for a strategy named without a grid.
    gather : str
        ``lazy`` or ``eager``; see `hpcpar.plan.strategies.GATHERS`.
    placement : str
        ``inner`` or ``outer``; see `hpcpar.plan.config.PLACEMENTS`.
    """

    network: Network
    ranks: int
    grid: tuple[int, ...]
    gather: str
    placement: str

    @property
    def lazy(self) -> bool:
        return self.gather == "lazy"

    @property
    def layers(self) -> list[Layer]:
        return list(self.network.layers)

    def on_grid(self, first: int, second: int) -> StrategyRequest:
        """The request with another grid."""
        return replace(self, grid=(first, second))

    def config(self, **degrees: int) -> Config:
        """A configuration in the requested placement."""
        return Config(placement=self.placement, **degrees)  # type: ignore[arg-type]


def assign(layers: Iterable[Layer], config: Config) -> Configs:
    """Gives every layer the same configuration."""
    return {layer.name: config for layer in layers}


def sections(network: Network) -> tuple[list[Layer], list[Layer]]:
    """Splits a network into layers on images (with the input) and layers on features.

    Features start at the flatten layer or the global pooling.
    """
    images = [layer for layer in network.layers if len(network.shapes[layer.name]) > 1]
    features = [layer for layer in network.layers if len(network.shapes[layer.name]) == 1]
    return images, features
