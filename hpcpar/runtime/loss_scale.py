"""The dynamic loss scale of float16, as in PyTorch's GradScaler.

Gradients of activations are `LossScale.scale` times too large, so that small ones stay above
float16's range. Before the updates, weight gradients are divided by it again. If one of them is not
finite on any rank, no rank updates, and the scale is halved; batch normalization's running
statistics still move.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hpcpar.kernels.interface import Array, Backend
from hpcpar.kernels.numpy_blocks import flat_blocks

#: Scale at first, and good iterations after which it doubles.
INITIAL, GROWTH_INTERVAL = 65536.0, 2000


class ScaleState(NamedTuple):
    """The state that a checkpoint keeps.

    Attributes
    ----------
    scale : float
        Factor of the loss's gradient.
    good : int
        Iterations with an update since the scale last changed.
    skipped : int
        Iterations without an update.
    """

    scale: float = INITIAL
    good: int = 0
    skipped: int = 0


class LossScale:
    """The scale on one rank; all ranks have the same.

    Attributes
    ----------
    state : ScaleState
    votes : array
        [1] float64 number of ranks' gradients that are not finite; the ranks sum it.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend, self.state = backend, ScaleState()
        self.votes = backend.zeros((1,), np.float64)

    @property
    def skips(self) -> bool:
        """Whether all ranks skip this iteration's updates, once they have summed the votes."""
        return bool(self.votes[0])

    def unscale(self, gradient: Array) -> None:
        """Divide a weight gradient by the scale, and vote against the updates if it is not finite.
        """
        self._backend.scale(gradient, 1 / self.state.scale)
        if not all(np.isfinite(part).all() for (part,) in flat_blocks(gradient)):
            self.votes[0] += 1

    def end(self) -> None:
        """Adjust the scale at the end of an iteration."""
        scale, good, skipped = self.state
        if self.skips:
            self.state = ScaleState(scale / 2, 0, skipped + 1)
        elif good + 1 < GROWTH_INTERVAL:
            self.state = ScaleState(scale, good + 1, skipped)
        else:
            largest = float(np.finfo(np.float32).max)
            self.state = ScaleState(scale * 2 if scale * 2 <= largest else scale, 0, skipped)
        self.votes[0] = 0
