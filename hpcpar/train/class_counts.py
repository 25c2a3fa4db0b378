"""Pixels by class: which there are, which are predicted, and how well the two agree."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ClassCounts:
    """Counts over all ranks, so that no plan and no cut changes what follows from them.

    Attributes
    ----------
    pixels : numpy.ndarray
        [3, classes] pixels whose label is the class, whose prediction is, and both.
    """

    pixels: NDArray[np.int64]

    @classmethod
    def of(cls, pixels: NDArray[np.int64] | None) -> ClassCounts | None:
        """None where nothing was counted."""
        return None if pixels is None or not pixels.any() else cls(pixels)

    @property
    def most_frequent(self) -> int:
        """The class of most labels."""
        return int(self.pixels[0].argmax())

    @property
    def share(self) -> float:
        """Share of the most frequent class among the labels."""
        return float(self.pixels[0].max() / self.pixels[0].sum())

    @property
    def dice(self) -> list[float | None]:
        """Dice of each class, 2 both / (labels + predictions); None of a class that is in neither.
        """
        labels, predictions, both = self.pixels.tolist()
        return [2 * b / (t + p) if t + p else None
                for t, p, b in zip(labels, predictions, both, strict=True)]

    @property
    def iou(self) -> list[float | None]:
        """Intersection over union of each class; None of a class that is in neither."""
        return [None if d is None else d / (2 - d) for d in self.dice]

    @property
    def mean_dice(self) -> float | None:
        """Mean over the classes but the most frequent; None if no pixel has them."""
        return self._mean(self.dice)

    @property
    def mean_iou(self) -> float | None:
        """The same mean of `iou`."""
        return self._mean(self.iou)

    def _mean(self, each: list[float | None]) -> float | None:
        known = [x for i, x in enumerate(each) if x is not None and i != self.most_frequent]
        return sum(known) / len(known) if known else None

    def to_json(self) -> dict[str, object]:
        return {"most_frequent_class": self.most_frequent, "most_frequent_share": self.share,
                "dice": self.dice, "mean_dice": self.mean_dice, "iou": self.iou,
                "mean_iou": self.mean_iou}
