"""Strategies, one entry each: everything about a strategy, next to the function that makes its
configurations.

>>> @Strategy("halves:AxB", "halves", "first by channels, then by samples", grids=mixed)
... def halves(request: StrategyRequest) -> Configs: ...
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypedDict

from hpcpar.errors import InputError, require_free
from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer
from hpcpar.plan.config import Config

#: Configuration of every layer by name.
Configs = dict[str, Config]
#: Makes the configuration of every layer.
Fill = Callable[["StrategyRequest"], Configs]
#: The numbers after a strategy's name; may be empty.
Grid = tuple[int, ...]

#: ``name``, ``name:AxB``, ``name[:AxB]``, ``name:AxB[+CxD]`` or ``name:AxB[+C]``; a number begins
#: with a capital.
_NUMBER = "[A-Z][A-Z0-9]*"
_GRID = rf"{_NUMBER}(?:x{_NUMBER})*"
_FORM = re.compile(rf"([a-z][a-z0-9-]*)(\[:{_GRID}\]|:{_GRID}(\[\+{_GRID}\])?)?")


class StrategyOptions(TypedDict, total=False):
    """Options of `Plan` that a strategy may fix."""

    microbatches: int
    fc_passes: int
    switch: str


# -- the input of a strategy -----------------------------------------------------------------------
@dataclass(frozen=True)
class StrategyRequest:
    """Everything that a strategy needs to make configurations.

    Attributes
    ----------
    grid : tuple
        The two numbers of ``name:AxB``, the three of ``name:AxB+C``, or the four of
        ``name:AxB+CxD``, whose last two are for fully connected layers; (ranks, 1) for a strategy
        named without a grid.
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


# -- grids that `auto` tries -----------------------------------------------------------------------
def grid_sizes(ranks: int, numbers: int = 2) -> list[Grid]:
    """All grids with this many `numbers` and product `ranks`, in ascending order."""
    if numbers == 1:
        return [(ranks,)]
    return [(first, *rest) for first in range(1, ranks + 1) if ranks % first == 0
            for rest in grid_sizes(ranks // first, numbers - 1)]


def several(ranks: int) -> list[Grid]:
    """The empty grid, for strategies without numbers, on two ranks or more."""
    return [()] if ranks > 1 else []


def grids(ranks: int) -> list[Grid]:
    """All grids whose first number is above 1."""
    return [grid for grid in grid_sizes(ranks) if grid[0] > 1]


def mixed(ranks: int) -> list[Grid]:
    """All grids whose numbers are both above 1."""
    return [grid for grid in grid_sizes(ranks) if 1 not in grid]


# -- the entry -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Strategy:
    """A strategy's entry; it registers the function that it decorates.

    `hpcpar.search.searches.searched` is for strategies that depend on machine and batch.

    Attributes
    ----------
    form : str
        Name and numbers, as users write them: ``data``, ``grid:PRxPC``, ``pipeline[:SxN]`` (with or
        without numbers), ``domain:PRxPC[+PRxPC]`` (one grid or two), ``ds:P1xP2[+L]`` (a grid, and
        maybe a number). Each grid uses all ranks.
    words : str
        Name of the strategy in answers, as in *1.5D grid*.
    help : str
        One-line description, for ``--help`` and the reference.
    grids : callable
        Maps the number of ranks to the grids that `auto` tries; by default none.
    needs : tuple of str
        ``images``, ``features`` or both: `auto` tries the strategy if a network has layers on them.
    cuts : tuple of str
        Items whose product is the largest number of ranks (ParaDL, Table 3): ``samples``,
        ``pixels``, ``filters``, ``channels``, ``stages``, or ``parts`` (pixels or filters).
    fixes : callable, optional
        Maps ranks, batch and grid to the options of the plan that the strategy fixes.
    outer : bool
        Whether `auto` tries ``/outer`` too if the grid is mixed.
    pipeline : bool
        Whether the numbers are stages and ranks per stage, which cut the samples. The search
        balances the stages and tries several numbers of micro-batches.
    staged : bool
        Whether some layers run on a part of the ranks, so that each plan is priced by itself.
    """

    form: str
    words: str
    help: str
    grids: Callable[[int], Iterable[Grid]] = lambda ranks: ()
    needs: tuple[str, ...] = ()
    cuts: tuple[str, ...] = ("samples",)
    fixes: Callable[[int, int, Grid], StrategyOptions] | None = None
    outer: bool = True
    pipeline: bool = False
    staged: bool = False
    fill: Fill = field(default=lambda request: {}, repr=False)

    def __post_init__(self) -> None:
        if not _FORM.fullmatch(self.form) or self.name == "auto":
            raise InputError(f"strategy '{self.form}': write its form as in mine, mine:AxB, "
                             "mine[:AxB] or mine:AxB[+CxD]")

    def __call__(self, fill: Fill) -> Fill:
        """Registers the strategy with the function that makes its configurations."""
        known = STRATEGIES.get(self.name)
        owner = None if known is None else known.fill.__module__
        require_free("strategy", self.name, owner, fill.__module__)
        STRATEGIES[self.name] = replace(self, fill=fill)
        return fill

    @property
    def name(self) -> str:
        return re.split(r"[\[:]", self.form)[0]

    @property
    def numbers(self) -> int:
        """Length of a grid; 0 if the strategy takes none."""
        return len(re.findall(_NUMBER, self.form.partition("+")[0]))

    @property
    def counts_layers(self) -> bool:
        """Whether a number of layers may follow the grid, instead of a second grid."""
        return "x" not in (self.form.partition("+")[2] or "x")

    @property
    def apart(self) -> bool:
        """Whether its plans are priced one by one, outside the space of the layer-wise search."""
        return self.pipeline or self.staged or self.fixes is not None

    def on(self, grid: Grid) -> str:
        """The strategy as a user writes it with this grid, if any."""
        return f"{self.name}:{'x'.join(map(str, grid))}" if grid else self.name

    def grid_in(self, strategy: str) -> Grid:
        """The numbers in a strategy's text without a placement."""
        pattern = re.escape(self.form).replace(r"\[", "(?:").replace(r"\]", ")?")
        match = re.fullmatch(re.sub(_NUMBER, r"([1-9]\\d*)", pattern), strategy)
        if match is not None:
            return tuple(int(number) for number in match.groups() if number)
        if not self.numbers:
            raise InputError(f"strategy '{strategy}': '{self.name}' takes no grid; write just "
                             f"'{self.name}'")
        one_grid, _, second = self.form.partition("[+")
        two = "two" if "x" in second else "a grid and a number"
        two_grids = f", or {two}, as in '{_example(self.form)}'" if second else ""
        raise InputError(f"strategy '{strategy}': '{self.name}' needs a grid of whole numbers, as "
                         f"in '{_example(one_grid)}'{two_grids}")


def _example(form: str) -> str:
    """A form with example numbers."""
    values = itertools.cycle((2, 4, 8, 1))
    return re.sub(_NUMBER, lambda _: str(next(values)), re.sub(r"[\[\]]", "", form))


#: All strategies by name, in the order of `auto`.
STRATEGIES: dict[str, Strategy] = {}
