"""A strategy is one entry: all that the package knows about it stands with the function that makes
its configurations.

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
from hpcpar.plan.strategy_request import Configs, StrategyRequest

#: Makes the configuration of every layer.
Fill = Callable[[StrategyRequest], Configs]
#: The numbers behind a strategy's name; empty where it stands without.
Grid = tuple[int, ...]

#: ``name``, ``name:AxB``, ``name[:AxB]`` or ``name:AxB[+CxD]``: numbers begin with a capital.
_NUMBER = "[A-Z][A-Z0-9]*"
_GRID = rf"{_NUMBER}(?:x{_NUMBER})*"
_FORM = re.compile(rf"([a-z][a-z0-9-]*)(\[:{_GRID}\]|:{_GRID}(\[\+{_GRID}\])?)?")


class StrategyOptions(TypedDict, total=False):
    """Options of `Plan` that a strategy may fix."""

    microbatches: int
    fc_passes: int
    switch: str


# -- grids that `auto` tries -----------------------------------------------------------------------
def grid_sizes(ranks: int, numbers: int = 2) -> list[Grid]:
    """All grids of so many numbers whose product is `ranks`, ordered by the first number."""
    if numbers == 1:
        return [(ranks,)]
    return [(first, *rest) for first in range(1, ranks + 1) if ranks % first == 0
            for rest in grid_sizes(ranks // first, numbers - 1)]


def several(ranks: int) -> list[Grid]:
    """The strategy without numbers, on several ranks."""
    return [()] if ranks > 1 else []


def grids(ranks: int) -> list[Grid]:
    """Every grid whose first number cuts."""
    return [grid for grid in grid_sizes(ranks) if grid[0] > 1]


def mixed(ranks: int) -> list[Grid]:
    """Every grid of which both numbers cut."""
    return [grid for grid in grid_sizes(ranks) if 1 not in grid]


# -- the entry -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Strategy:
    """An entry; it registers the function that it decorates.

    One whose configurations depend on machine and batch: `hpcpar.search.candidates.searched`.

    Attributes
    ----------
    form : str
        Name and numbers, as users write them: ``data``, ``grid:PRxPC``, ``pipeline[:SxN]`` (with or
        without), ``domain:PRxPC[+PRxPC]`` (one grid or two). Each grid has all ranks.
    words : str
        The strategy in the answer of a command, as in *1.5D grid*.
    help : str
        The strategy in a phrase, for ``--help`` and the reference.
    grids : callable
        From the number of ranks: the grids that `auto` tries; by default none.
    needs : tuple of str
        ``images``, ``features`` or both: `auto` tries it where a network has layers on these.
    cuts : tuple of str
        The product of these is the most ranks that it can use (ParaDL, Table 3): ``samples``,
        ``pixels``, ``filters``, ``channels``, ``stages``, or ``parts`` (pixels or filters).
    fixes : callable, optional
        From ranks, batch and grid: the options of the plan that it fixes.
    outer : bool
        Whether `auto` tries ``/outer`` too, where the grid is mixed.
    pipeline : bool
        The numbers are stages, and ranks of a stage, which it cuts by samples. The search balances
        the stages and tries several numbers of micro-batches.
    staged : bool
        Some layers lie on some of the ranks only: the price needs steps of its own.
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
        """Registers the entry with the function that makes its configurations."""
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
        """Numbers of a grid; 0 where the strategy takes none."""
        return len(re.findall(_NUMBER, self.form.partition("+")[0]))

    @property
    def apart(self) -> bool:
        """Whether it is priced by itself, and is not in the space of the layer-wise search."""
        return self.pipeline or self.staged or self.fixes is not None

    def on(self, grid: Grid) -> str:
        """The strategy as a user writes it with these numbers, at most one grid."""
        return self.name + ":" * bool(grid) + "x".join(map(str, grid))

    def grid_in(self, strategy: str) -> Grid:
        """The numbers of a strategy that is written without a placement.

        Raises
        ------
        InputError
            It does not have this form.
        """
        pattern = re.escape(self.form).replace(r"\[", "(?:").replace(r"\]", ")?")
        match = re.fullmatch(re.sub(_NUMBER, r"([1-9]\\d*)", pattern), strategy)
        if match is not None:
            return tuple(int(number) for number in match.groups() if number)
        if not self.numbers:
            raise InputError(f"strategy '{strategy}': '{self.name}' takes no grid; write just "
                             f"'{self.name}'")
        one, _, second = self.form.partition("[+")
        another = f", or two, as in '{_example(self.form)}'" if second else ""
        raise InputError(f"strategy '{strategy}': '{self.name}' needs a grid of whole numbers, as "
                         f"in '{_example(one)}'{another}")


def _example(form: str) -> str:
    """A form with numbers in it."""
    values = itertools.cycle((2, 4, 8, 1))
    return re.sub(_NUMBER, lambda _: str(next(values)), re.sub(r"[\[\]]", "", form))


#: Every strategy by its name, in the order of `auto`.
STRATEGIES: dict[str, Strategy] = {}
