"""SGD with momentum and weight decay, OWT's update rule, and its learning-rate steps."""

from __future__ import annotations

from dataclasses import dataclass

from hpcpar.errors import InputError
from hpcpar.kernels.interface import Backend, Tick
from hpcpar.plan.plan import OPTIMIZERS
from hpcpar.runtime.parameters import Parameters


@dataclass(frozen=True)
class SGD:
    """v := momentum * v - rate * (gradient + decay * w); w := w + v (OWT, section 4.2).

    Attributes
    ----------
    rate : float
        Learning rate of the first epoch.
    steps : tuple of float
        Fractions of the training after each of which the rate is multiplied by `factor` (OWT: 0.25,
        0.5, 0.75 and 250 ** (-1/3)).
    """

    rate: float = 0.01
    momentum: float = 0.9
    decay: float = 0.0005
    steps: tuple[float, ...] = (0.25, 0.5, 0.75)
    factor: float = 250.0 ** (-1 / 3)

    def __post_init__(self) -> None:
        if self.rate < 0 or not 0 <= self.momentum < 1 or self.decay < 0:
            raise InputError(
                f"SGD with rate {self.rate}, momentum {self.momentum}, decay {self.decay}: "
                "rate and decay may not be negative, "
                "momentum must be at least 0 and below 1"
            )

    def rate_at(self, done: float) -> float:
        """The learning rate when the fraction `done` of the training is over."""
        return self.rate * self.factor ** sum(done >= at for at in self.steps)


class Rule:
    """Updates weights by a plan's optimiser: SGD, SGD with momentum, or Adam, whose first beta is
    the momentum.
    """

    BETA, EPS = 0.999, 1e-8

    def __init__(self, optimizer: str) -> None:
        self.optimizer = optimizer
        #: Values of state for each weight.
        self.states = OPTIMIZERS[optimizer]
        self.rate, self.momentum, self.decay = 0.0, 0.0, 0.0

    def set(self, rate: float, momentum: float, decay: float) -> None:
        """The numbers of the iteration."""
        self.rate, self.momentum, self.decay = rate, momentum, decay

    def update(self, backend: Backend, p: Parameters, count: int, tick: Tick | None = None) -> None:
        """Apply the gradient to what this rank updates, after `count` updates before; other
        gradients progress meanwhile (`tick`).
        """
        w, grad = p.updated(p.flat), p.updated(p.grad)
        if self.optimizer == "adam":
            first, second = p.state
            backend.adam_update(w, grad, first, second, self.rate, self.momentum, self.BETA,
                                self.EPS, count + 1, self.decay, tick)
        else:
            backend.sgd_update(w, grad, p.state[0] if p.state else None, self.rate, self.momentum,
                               self.decay, tick)
