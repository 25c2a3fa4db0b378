"""How pictures look: a page of pixels to draw on, charts with axes, and colors that can be read on
white and on black.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.colors import to_rgba
from matplotlib.patches import FancyBboxPatch

from hpcpar.report.pictures import pyplot

FOLDER = Path(__file__).parents[1] / "pictures"
#: Width of every picture in pixels, that of the text beside it.
WIDTH = 700
#: Middle tones: their contrast is at least 4 with white and with furo's dark background.
INK, BLUE, ORANGE, GREEN = "#7b7c80", "#2f7fc4", "#c2681d", "#2c8c57"
RED, PURPLE, TEAL, OLIVE = "#d1495b", "#9565c4", "#238a94", "#8f7d1f"
#: Colors of ranks.
RANKS = (BLUE, ORANGE, GREEN, PURPLE, RED, TEAL, OLIVE, INK)
#: Colors of phases.
PHASES = {"forward": BLUE, "loss": OLIVE, "recompute": TEAL, "backward": GREEN,
          "gradient": ORANGE, "update": PURPLE}
#: matplotlib's settings while it draws; words stay words in the files.
STYLE: Any = {
    "svg.fonttype": "none", "svg.hashsalt": "hpcpar", "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"], "font.size": 9.0, "text.color": INK,
    "axes.edgecolor": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
    "hatch.linewidth": 0.8, "axes.spines.top": False, "axes.spines.right": False,
    "path.simplify": False,
}


@dataclass(frozen=True)
class Canvas:
    """A page of `WIDTH` times `height` pixels; y grows downwards.

    Attributes
    ----------
    axes : matplotlib.axes.Axes
    """

    figure: Any
    axes: Any

    def box(self, x: float, y: float, width: float, height: float, text: str = "",
            color: str = BLUE, *, filled: bool = True, faint: bool = False, size: float = 9.0,
            dashed: bool = False, round_px: float = 0.0, bold: bool = False) -> None:
        """A rectangle with a text in its middle: filled, tinted, or its outline alone."""
        fill = color if filled else "none"
        shape = f"round,pad=0,rounding_size={round_px}" if round_px else "square,pad=0"
        self.axes.add_patch(FancyBboxPatch(
            (x, y), width, height, boxstyle=shape, linewidth=1.2 if faint or not filled else 0.0,
            facecolor=to_rgba(color, 0.09) if faint else fill,
            edgecolor=color, linestyle="--" if dashed else "-"))
        inside = "white" if filled and not faint else INK
        self.text(x + width / 2, y + height / 2, text, inside, size=size, bold=bold)

    def text(self, x: float, y: float, text: str, color: str = INK, *, size: float = 9.0,
             bold: bool = False, left: bool = False, right: bool = False) -> None:
        """A text whose middle, or left or right end, is at x."""
        self.axes.text(x, y, text, color=color, fontsize=size, va="center",
                       ha="left" if left else "right" if right else "center",
                       weight="bold" if bold else "normal", linespacing=1.25)

    def line(self, *points: tuple[float, float], color: str = INK, width: float = 1.2,
             dashed: bool = False) -> None:
        """A line through points."""
        self.axes.plot(*zip(*points, strict=True), color=color, linewidth=width,
                       linestyle="--" if dashed else "-", solid_capstyle="butt")

    def arrow(self, start: tuple[float, float], end: tuple[float, float], color: str = INK, *,
              bend: float = 0.0, width: float = 1.4, both: bool = False) -> None:
        """An arrow, straight or bent."""
        self.axes.annotate("", end, start, arrowprops={
            "arrowstyle": "<|-|>" if both else "-|>", "color": color, "linewidth": width,
            "shrinkA": 0, "shrinkB": 0, "mutation_scale": 9,
            "connectionstyle": f"arc3,rad={bend}"})


def canvas(height: float) -> Canvas:
    """An empty page."""
    figure = pyplot().figure(figsize=(WIDTH / 96, height / 96))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set(xlim=(0, WIDTH), ylim=(height, 0))
    axes.axis("off")
    return Canvas(figure, axes)


def chart(figure: Any, left: float, top: float, width: float, height: float) -> Any:
    """Axes at a place of a figure, in pixels from its top left corner."""
    across, down = 96 * figure.get_figwidth(), 96 * figure.get_figheight()
    return figure.add_axes((left / across, 1 - (top + height) / down, width / across,
                            height / down))


def legend(page: Canvas, x: float, y: float, entries: dict[str, str], step: float = 90.0) -> None:
    """Names beside squares of their colors, in a row."""
    for i, (name, color) in enumerate(entries.items()):
        page.box(x + i * step, y - 5, 10, 10, color=color)
        page.text(x + i * step + 15, y, name, left=True)


def save(page: Canvas, name: str, folder: Path = FOLDER) -> None:
    """Writes a picture: the same bytes whenever the same matplotlib draws it."""
    page.figure.savefig(folder / f"{name}.svg", transparent=True,
                        metadata={"Date": None, "Creator": None})
    pyplot().close(page.figure)

