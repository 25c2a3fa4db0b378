"""From measured seconds of messages and collectives to the numbers of a level."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

#: Up to here a message is short: its latency is fitted apart.
SMALL_BYTES = 4096
#: Where flows of one unit together are slower than one alone by less than this, nobody shares.
_SHARES = 1.15


def hockney(sizes: Sequence[int], seconds: NDArray[np.float64]) -> tuple[float, float, float]:
    """(alpha, beta, alpha of short messages) of messages: least squares of relative errors over the
    long, the short ones' latency apart.
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


def links(inside: int, alone: float, together: float) -> float:
    """Links by which a unit of `inside` ranks is attached, 0 where nobody shares.

    Parameters
    ----------
    alone, together : float
        Inverse bandwidth of the one flow that leaves a unit, and of each where all its ranks send
        at once.
    """
    return 0.0 if inside == 1 or together < _SHARES * alone else inside * alone / together
