"""Progress of a run on rank 0: permanent lines, and on a terminal one that is overwritten."""

from __future__ import annotations

import sys
import time

from hpcpar.train.inference import Seen
from hpcpar.train.loop import Progress


class ProgressLines:
    """Lines on stderr, from one rank only."""

    def __init__(self, rank: int) -> None:
        self.quiet = rank != 0
        self._live = sys.stderr.isatty()
        self._last = 0.0

    def say(self, *parts: str) -> None:
        """Prints a permanent line."""
        if not self.quiet:
            print(("\r\x1b[K" if self._live else "") + "  ".join(parts), file=sys.stderr,
                  flush=True)

    def show(self, *parts: str) -> None:
        """Overwrites the live line, a few times a second and only on a terminal."""
        if not self.quiet and self._live and time.monotonic() - self._last > 0.2:
            self._last = time.monotonic()
            print("\r\x1b[K" + "  ".join(parts), end="", file=sys.stderr, flush=True)


class RunProgress:
    """Reports progress and iteration times: a line per epoch, or one per inference."""

    def __init__(self, lines: ProgressLines, predicted_s: float) -> None:
        self._lines, self._predicted_s = lines, predicted_s
        self._times: list[float] = []

    def _took(self, seconds: list[float], what: str) -> str:
        middle = sorted(seconds)[len(seconds) // 2]
        return f"{middle * 1e3:.2f} ms {what} (predicted {self._predicted_s * 1e3:.2f})"

    def training(self, now: Progress) -> None:
        """Call after every iteration of a training."""
        self._times.append(now.iteration_s)
        parts = [f"epoch {now.epoch}/{now.epochs}", f"step {now.step}/{now.steps}",
                 f"loss {now.loss:.4f}"]
        if not now.epoch_done:
            self._lines.show(*parts)
            return
        if now.train_accuracy is not None:
            parts.append(f"train {now.train_accuracy:.2%}")
        if now.test_accuracy is not None:
            parts.append(f"test {now.test_accuracy:.2%}")
        elif now.test_loss is not None:
            parts.append(f"test loss {now.test_loss:.4f}")
        self._lines.say(*parts, self._took(self._times, "an iteration"))
        self._times = []

    def inference(self, now: Seen) -> None:
        """Call after every pass of an inference."""
        self._times.append(now.pass_s)
        parts = [f"pass {now.done}/{now.passes}", f"loss {now.loss:.4f}"]
        if now.accuracy is not None:
            parts.append(f"accuracy {now.accuracy:.2%}")
        if now.done < now.passes:
            self._lines.show(*parts)
        else:
            self._lines.say(*parts, self._took(self._times, "a pass"))
