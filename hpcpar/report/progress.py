"""Progress on stderr: a bar on a terminal, and lines that stay."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from hpcpar.errors import visible
from hpcpar.report.tables.answer import of_pixels

if TYPE_CHECKING:
    from hpcpar.train.class_counts import ClassCounts
    from hpcpar.train.inference import InferenceProgress
    from hpcpar.train.loop import Progress as Trained

#: Seconds between two updates of a bar, which take time from the run.
_DRAWN_S = 0.2
#: Seconds between two lines without a terminal.
_LINE_S = 30.0


class ProgressBar(Progress):
    """Lines, and a bar that only a terminal shows; both on rank 0 only.

    With `auto_refresh`, a thread redraws the bar during the run.
    """

    def __init__(self, rank: int = 0, auto_refresh: bool = False) -> None:
        self.quiet = rank != 0
        super().__init__(
            TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=Console(stderr=True, highlight=False), auto_refresh=auto_refresh,
            transient=True, redirect_stdout=False, disable=self.quiet or not sys.stderr.isatty())
        self._task = self.add_task("", total=None)
        self._drawn_s = time.monotonic()

    def say(self, *parts: str) -> None:
        """Prints a line that stays, wrapped only on a terminal."""
        if not self.quiet:
            self.console.print(visible("  ".join(parts)), markup=False,
                               soft_wrap=not self.console.is_terminal)

    def show(self, done: int, total: int, *parts: str) -> None:
        """Updates the bar and its text; without a terminal, prints an occasional line."""
        now_s = time.monotonic()
        if self.quiet or now_s - self._drawn_s < (_LINE_S if self.disable else _DRAWN_S):
            return
        self._drawn_s = now_s
        if self.disable:
            self.say(*parts, f"{done}/{total}")
        else:
            self.update(self._task, completed=done, total=total, description="  ".join(parts))
            self.refresh()


class SearchProgress(Progress):
    """The current step and elapsed time of a search for plans; only a terminal shows it."""

    def __init__(self) -> None:
        super().__init__(TextColumn("{task.description}", markup=False), TimeElapsedColumn(),
                         console=Console(stderr=True, highlight=False), transient=True,
                         redirect_stdout=False, disable=not sys.stderr.isatty())
        self._task = self.add_task("planning")

    def tell(self, what: str) -> None:
        """Changes the text."""
        self.update(self._task, description=visible(what))


def _by_class(pixels: ClassCounts | None) -> str:
    return "" if pixels is None else f" ({of_pixels(pixels.to_json())})"


class RunProgress:
    """Reports progress and iteration times: one line per epoch or inference."""

    def __init__(self, lines: ProgressBar, predicted_s: float) -> None:
        self._lines, self._predicted_s = lines, predicted_s
        self._times: list[float] = []

    def _took(self, seconds: list[float], what: str) -> str:
        median = sorted(seconds)[len(seconds) // 2]
        return f"{median * 1e3:.2f} ms {what} (predicted {self._predicted_s * 1e3:.2f})"

    def training(self, now: Trained) -> None:
        """Reports an iteration of a training run."""
        self._times.append(now.iteration_s)
        parts = [f"epoch {now.epoch}/{now.epochs}", f"loss {now.loss:.4f}"]
        if not now.epoch_done:
            self._lines.show(now.step, now.steps, *parts)
            return
        parts.insert(1, f"step {now.step}/{now.steps}")
        of = " of pixels" if now.pixel_classes else ""
        if now.train_accuracy is not None:
            parts.append(f"train {now.train_accuracy:.2%}{of}{_by_class(now.train_pixels)}")
        if now.test_accuracy is not None:
            parts.append(f"test {now.test_accuracy:.2%}{of}{_by_class(now.test_pixels)}")
        elif now.test_loss is not None:
            parts.append(f"test loss {now.test_loss:.4f}")
        self._lines.say(*parts, self._took(self._times, "per iteration"))
        self._times = []

    def inference(self, now: InferenceProgress) -> None:
        """Reports a pass of an inference."""
        self._times.append(now.pass_s)
        parts = [f"pass {now.done}/{now.passes}", f"loss {now.loss:.4f}"]
        if now.accuracy is not None:
            parts.append(f"accuracy {now.accuracy:.2%}{_by_class(now.pixels)}")
        if now.done < now.passes:
            self._lines.show(now.done, now.passes, *parts[1:])
        else:
            self._lines.say(*parts, self._took(self._times, "per pass"))
