"""The plans of several sizes of images: from which on cutting pays, and which fit whole."""

from __future__ import annotations

from collections.abc import Sequence

from hpcpar.network.layers.base import shape_text
from hpcpar.report.tables import amount, seconds, show, show_line, with_ends
from hpcpar.report.tables.answer import plural, words
from hpcpar.search.sizes import SizeCase, largest_whole, pays_from


def sizes_answer(cases: Sequence[SizeCase]) -> str:
    """From which size on cutting pays, and which sizes fit whole."""
    first, whole = pays_from(cases), largest_whole(cases)
    if first is None:
        pays = f"Cutting images of up to {shape_text(cases[-1].shape)} does not pay"
    else:
        p = first.best.prediction
        how = f"{words(p.strategy)} on {plural(p.ranks, p.processor)}"
        gain = f"{with_ends(first.gain)} times as fast as whole images" if first.whole.fits else (
            "whole images do not fit")
        pays = f"Cutting images pays from {shape_text(first.shape)} on ({how}: {gain})"
    holds = "one rank holds none of them whole" if whole is None else (
        f"whole images fit up to {shape_text(whole.shape)}")
    return f"{pays}; {holds}"


def show_sizes(cases: Sequence[SizeCase], wide: bool = False) -> None:
    """Prints the answer for several sizes of images, and a row for each."""
    show_line(sizes_answer(cases))
    show("sizes of images",
         ("sample", "strategy", "ranks", "time", "memory", "fits", "x whole", "whole on", "takes",
          "needs", "holds"),
         [(shape_text(c.shape), c.best.strategy, c.best.task.ranks, seconds(c.best.iteration_s),
           amount(c.best.memory_bytes), _yes(c.best.fits), f"{c.gain.value:.3g}",
           c.whole.task.ranks, seconds(c.whole.iteration_s), amount(c.whole.memory_bytes),
           _yes(c.whole.fits)) for c in cases],
         left=2, drop=("memory", "needs", "whole on"), wide=wide)


def _yes(fits: bool) -> str:
    return "yes" if fits else "no"
