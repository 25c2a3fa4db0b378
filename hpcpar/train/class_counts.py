"""Counts of labels and predictions per class, and the Dice and IoU scores that follow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ClassCounts:
    """Counts over all ranks, so that scores do not depend on the plan.

    Attributes
    ----------
    pixels : numpy.ndarray
        [3, classes] pixels with the class as their label, as their prediction, and as both.
    """

    pixels: NDArray[np.int64]

    @classmethod
    def of(cls, pixels: NDArray[np.int64] | None) -> ClassCounts | None:
        """None if nothing was counted."""
        return None if pixels is None or not pixels.any() else cls(pixels)

    @property
    def most_frequent(self) -> int:
        """The most frequent class among the labels."""
        return int(self.pixels[0].argmax())

    @property
    def share(self) -> float:
        """Share of the most frequent class among the labels."""
        return float(self.pixels[0].max() / self.pixels[0].sum())

    @property
    def dice(self) -> list[float | None]:
        """2 * both / (labels + predictions) per class; None for a class without pixels."""
        labels, predictions, both = self.pixels.tolist()
        return [2 * b / (t + p) if t + p else None
                for t, p, b in zip(labels, predictions, both, strict=True)]

    @property
    def iou(self) -> list[float | None]:
        """Intersection over union per class; None for a class without pixels."""
        return [None if d is None else d / (2 - d) for d in self.dice]

    @property
    def mean_dice(self) -> float | None:
        """Mean without the most frequent class; None if no other has pixels."""
        return self._mean(self.dice)

    @property
    def mean_iou(self) -> float | None:
        """Mean without the most frequent class; None if no other has pixels."""
        return self._mean(self.iou)

    def _mean(self, scores: list[float | None]) -> float | None:
        known = [x for i, x in enumerate(scores) if x is not None and i != self.most_frequent]
        return sum(known) / len(known) if known else None

    def to_json(self) -> dict[str, object]:
        return {"most_frequent_class": self.most_frequent, "most_frequent_share": self.share,
                "dice": self.dice, "mean_dice": self.mean_dice, "iou": self.iou,
                "mean_iou": self.mean_iou}
