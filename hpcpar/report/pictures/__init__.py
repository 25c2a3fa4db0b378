"""Shared parts of all pictures: optional matplotlib, colors, and atomic writing."""

from __future__ import annotations

import io
import os
import sys
from typing import Any

from hpcpar.errors import InputError
from hpcpar.io.files import atomic_path
from hpcpar.schedule.steps import Phase

_OKABE_ITO = ("#0072B2", "#CC79A7", "#F0E442", "#009E73", "#E69F00", "#56B4E9")
#: Color-blind safe colors of the phases.
COLORS = dict(zip((phase.value for phase in Phase), _OKABE_ITO, strict=True))


def pyplot() -> Any:
    """matplotlib.pyplot, set to draw into files unless a notebook or program already uses it.

    Raises
    ------
    InputError
        matplotlib is not installed.
    """
    try:
        import matplotlib

        if not {"IPython", "matplotlib.pyplot"} & set(sys.modules):
            matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError as err:
        raise InputError(
            f"plots need matplotlib ({err}); install it with: pip install 'hpcpar[plot]'") from err
    return plt


def panels(plt: Any, count: int, width: float, height: float, more: float,
           **options: Any) -> tuple[Any, Any]:
    """A figure with an array of axes, at most four per row.

    Parameters
    ----------
    width, height : float
        Size of one panel (inch).
    more : float
        Height of the legend (inch).
    """
    across = min(4, count)
    down = -(-count // across)
    figure, grid = plt.subplots(down, across, figsize=(width * across, height * down + more),
                                squeeze=False, layout="constrained", **options)
    for axes in grid.flat[count:]:
        axes.set_visible(False)
    return figure, grid


def svg(figure: Any) -> bytes:
    """A figure as SVG; closes it."""
    text = io.BytesIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    pyplot().close(figure)
    return text.getvalue()


def finish(plt: Any, figure: Any, path: str | None, dpi: int) -> Any:
    """Saves a figure if a path is given, and returns it.

    A notebook shows all figures that are open at the end of a cell. The returned figure is closed,
    so that it appears only once.
    """
    if path is not None:
        save(plt, figure, path, dpi)
    elif "inline" in plt.get_backend():
        plt.close(figure)
    return figure


def save(plt: Any, figure: Any, path: str, dpi: int) -> None:
    """Writes a figure atomically and closes it.

    Raises
    ------
    InputError
        An unknown suffix, or the file cannot be written.
    """
    form = os.path.splitext(path)[1][1:] or "png"
    try:
        with atomic_path(path, "plot") as temporary:
            figure.savefig(temporary, dpi=dpi, format=form)
    except InputError:
        raise
    except ValueError as err:
        raise InputError(f"cannot draw {path}: {str(err).splitlines()[0]}; use a name that ends in "
                         ".png, .pdf or .svg") from err
    finally:
        plt.close(figure)
