"""A strategy and an optimizer from outside the package, as a user would write them.

``mpiexec -n 2 python tests/outside.py run ...`` runs ``hpcpar run ...`` with them; tests use
`registered`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from hpcpar.plan.optimizers import OPTIMIZERS, Optimizer, Update
from hpcpar.plan.strategy import STRATEGIES, Configs, Strategy, StrategyRequest, assign, mixed


@contextmanager
def registered() -> Iterator[None]:
    """Registers both until the end of the block."""
    with patch.dict(STRATEGIES), patch.dict(OPTIMIZERS):
        register()
        yield


def register() -> None:
    """Registers both, as the import of a user's module does."""
    @Strategy("halves:AxB", "samples, then channels", "the first half of the layers by samples, "
              "the second by A channel parts times B sample parts", grids=mixed)
    def halves(request: StrategyRequest) -> Configs:
        layers, (channel_parts, sample_parts) = request.layers, request.grid
        by_samples = request.config(n=request.ranks)
        by_channels = request.config(n=sample_parts, c=channel_parts)
        middle = len(layers) // 2
        return assign(layers, by_samples) | assign(layers[middle:-1], by_channels)

    @Optimizer("nesterov", ("_velocity",), 8, torch=lambda rate, momentum, decay: (
        "SGD", {"lr": rate, "momentum": momentum, "weight_decay": decay, "nesterov": True}))
    def nesterov(u: Update) -> None:
        gradient = u.grad + u.decay * u.w
        velocity, = u.state
        velocity *= u.momentum
        velocity += gradient
        u.w -= u.rate * (gradient + u.momentum * velocity)


if __name__ == "__main__":
    from hpcpar.cli.main import main

    register()
    sys.exit(main())
