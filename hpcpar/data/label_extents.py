"""Labels and targets per pixel, with the extents of a network's output."""

from __future__ import annotations

from dataclasses import dataclass

from hpcpar.errors import InputError
from hpcpar.network.layers.base import shape_text
from hpcpar.options.checks import extents
from hpcpar.options.fields import OptionGroup, option


@dataclass(frozen=True, kw_only=True)
class LabelExtentOptions(OptionGroup):
    """The labels or targets per pixel to keep, for networks whose output is a smaller image."""

    labels_stride: tuple[int, ...] = option(
        (), extents, "keep every Nth label or target per pixel, from the first (for strides; SxS: "
        "along each axis)", "N")
    labels_crop: tuple[int, ...] = option(
        (), extents, "then keep the central HxW (for convolutions without padding)", "HxW")

    def kept(self, given: tuple[int, ...], name: str) -> tuple[slice[int, int, int], ...]:
        """The part to keep of labels with these extents.

        Raises
        ------
        InputError
            The options do not fit; `name` is the source of the labels.
        """
        stride = self.labels_stride or (1,)
        stride = stride * len(given) if len(stride) == 1 else stride
        kept = [-(-e // s) for e, s in zip(given, stride, strict=False)]
        crop = self.labels_crop or tuple(kept)
        if not given and (self.labels_stride or self.labels_crop):
            option = "--labels-stride" if self.labels_stride else "--labels-crop"
            raise InputError(f"{name} holds no labels or targets per pixel; drop {option}")
        if len(stride) != len(given) or len(crop) != len(given) or any(
                c > k for c, k in zip(crop, kept, strict=True)):
            raise InputError(f"{name} holds {shape_text(given)} labels or targets per image: "
                             f"--labels-stride {shape_text(stride)} and --labels-crop "
                             f"{shape_text(crop)} do not fit; give one number for each of "
                             f"{len(given)} axes, and a crop of at most {shape_text(kept)}")
        starts = [(k - c) // 2 for k, c in zip(kept, crop, strict=True)]
        return tuple(slice(s * at, s * (at + c - 1) + 1, s)
                     for s, at, c in zip(stride, starts, crop, strict=True))


def remedy(given: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    """How to make labels with the extents of a network's output from those in a file."""
    made = f"make the file with: hpcpar data synthetic --labels-size {shape_text(wanted)}, or "
    if len(given) == len(wanted) and all(w <= g for g, w in zip(given, wanted, strict=True)):
        stride = [-(-g // w) for g, w in zip(given, wanted, strict=True)]
        if all(-(-g // s) == w for g, s, w in zip(given, stride, wanted, strict=True)):
            each = stride[:1] if len({*stride}) == 1 else stride
            return f"{made}hpcpar data numpy --labels-stride {shape_text(each)}"
        return f"{made}hpcpar data numpy --labels-crop {shape_text(wanted)}"
    return f"{made}hpcpar data numpy with labels of that size"
