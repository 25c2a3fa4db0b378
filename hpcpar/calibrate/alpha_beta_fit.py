"""Fits latency (alpha) and inverse bandwidth (beta) of a level to measured message times."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

#: Largest short message; short messages have a separate latency.
SMALL_BYTES = 4096
#: The ranks of a unit share links if simultaneous flows are slower than a single one by this
#: factor.
_SHARES = 1.15


def hockney(sizes: Sequence[int], seconds: NDArray[np.float64]) -> tuple[float, float, float]:
    """(alpha, beta, alpha of short messages), by least squares of relative errors.

    Long messages determine alpha and beta; then short messages determine their own alpha.
    """
    b, t = np.asarray(sizes, float), np.asarray(seconds)
    long = b >= SMALL_BYTES
    bl, tl = b[long], t[long]
    (alpha, beta), *_ = np.linalg.lstsq(np.stack([1.0 / tl, bl / tl], axis=1), np.ones(len(tl)),
                                        rcond=None)
    beta = max(float(beta), float((tl[-1] - tl[0]) / (bl[-1] - bl[0])) * 0.5, 1e-13)
    alpha = max(float(alpha), float(t.min()))
    small = float(np.median((t - b * beta)[b <= SMALL_BYTES]))
    return alpha, beta, max(small, 1e-7)


def residual(sizes: Sequence[int], seconds: NDArray[np.float64],
             fitted: tuple[float, float, float]) -> float:
    """Root mean square of the relative errors of a fit."""
    b, (alpha, beta, small) = np.asarray(sizes, float), fitted
    model = np.where(b <= SMALL_BYTES, small, alpha) + beta * b
    return float(np.sqrt(np.mean((model / seconds - 1.0) ** 2)))


def links(inside: int, single_beta: float, shared_beta: float) -> float:
    """Number of links that connect a unit of `inside` ranks; 0 if its ranks do not share links.

    Parameters
    ----------
    single_beta, shared_beta : float
        Inverse bandwidth (s per byte) of a flow out of the unit, alone and while all ranks of the
        unit send.
    """
    shares = inside > 1 and shared_beta >= _SHARES * single_beta
    return inside * single_beta / shared_beta if shares else 0.0
