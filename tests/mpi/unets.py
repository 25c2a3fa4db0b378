"""Random U-Nets: images that become smaller and larger again, joined with what they were, padded in
all ways, and a loss over pixels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    Concat,
    ConvTranspose2d,
    ConvTranspose3d,
    DiceCrossEntropy,
    Layer,
    MeanSquaredError,
    Pad,
    SoftmaxCrossEntropy,
    Upsample,
)
from tests.mpi.graphs import Maker


class UNetMaker(Maker):
    """Draws one U-Net."""

    def __init__(self, rng: np.random.Generator, name: str) -> None:
        super().__init__(rng, name)
        volume = self.dimensions == 3
        self.transposed: type[Layer] = ConvTranspose3d if volume else ConvTranspose2d

    def extents(self, x: str) -> tuple[int, ...]:
        return self.net.shapes[x][1:]

    def block(self, x: str) -> str:
        """A convolution that keeps the image, padded by itself or by a layer before it."""
        if self.chance(0.5):
            return self.unit(x, self.same())
        kernel = self.each(1, 3)
        before = tuple(self.one(0, min(k - 1, n))
                       for k, n in zip(kernel, self.extents(x), strict=True))
        after = tuple(min(k - 1 - b, n) for k, b, n in zip(kernel, before, self.extents(x),
                                                           strict=True))
        kernel = tuple(a + b + 1 for a, b in zip(before, after, strict=True))
        mode = "periodic" if self.chance(0.6) else "constant"
        padded = self.add(Pad, x, begin=before, end=after, mode=mode)
        return self.unit(padded, {"kernel": kernel})

    def fitted(self, x: str, like: str) -> str:
        """`x` with zeros around it, as large as another image."""
        missing = [b - a for a, b in zip(self.extents(x), self.extents(like), strict=True)]
        if not any(missing):
            return x
        before = tuple(self.one(0, m) for m in missing)
        after = tuple(m - b for m, b in zip(missing, before, strict=True))
        return self.add(Pad, x, begin=before, end=after)

    def enlarged(self, x: str, like: str) -> str:
        """`x` at most as large as another image, by a transposed convolution or interpolation."""
        if self.chance(0.5):
            scale = tuple(max(1, b // a) for a, b in
                          zip(self.extents(x), self.extents(like), strict=True))
            linear = self.chance(0.6)
            return self.add(Upsample, x, scale=scale, mode="linear" if linear else "nearest",
                            align_corners=linear and self.chance(0.5))
        groups = int(self.rng.choice([g for g in (1, 1, 2) if self.channels(x) % g == 0]))
        while True:
            options: dict[str, Any] = {"kernel": self.each(1, 4), "stride": self.each(1, 3),
                                       "padding": self.each(0, 1), "dilation": self.each(1, 2)}
            options["output_padding"] = tuple(
                self.one(0, max(s, d) - 1)
                for s, d in zip(options["stride"], options["dilation"], strict=True))
            extents = [(n - 1) * s - 2 * p + d * (k - 1) + 1 + extra
                       for n, (k, s, p, d, extra) in zip(
                           self.extents(x), zip(*options.values(), strict=True), strict=True)]
            if all(1 <= n <= most for n, most in zip(extents, self.extents(like), strict=True)):
                return self.add(self.transposed, x, out_channels=groups * self.one(1, 3),
                                groups=groups, bias=not self.normalizes, **options)

    def draw(self) -> Network:
        x = self.block(self.net.last)
        skips = []
        for _ in range(self.one(1, 2)):
            skips.append(x)
            kernel = tuple(min(2, n) for n in self.extents(x))
            x = self.block(self.add(self.most, x, kernel=kernel, stride=kernel))
        for skip in reversed(skips):
            x = self.fitted(self.enlarged(x, skip), skip)
            x = self.block(self.add(Concat, *((x, skip) if self.chance(0.5) else (skip, x))))
        self.add(self.conv, x, out_channels=self.one(2, 5), kernel=1)
        if self.chance(0.4):
            self.add(MeanSquaredError)
        else:
            self.add(DiceCrossEntropy if self.chance(0.5) else SoftmaxCrossEntropy,
                     label_smoothing=0.1 * self.one(0, 2))
        return self.net.build()


def random_unet(seed: int) -> tuple[Network, int]:
    """A random U-Net and its batch, the same on every rank."""
    maker = UNetMaker(np.random.default_rng([seed, 25]), f"unet-{seed}")
    return maker.draw(), maker.batch
