"""The update of weights by a plan's optimizer, and the schedule of the learning rate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from hpcpar.errors import InputError
from hpcpar.kernels.interface import Backend, Tick
from hpcpar.plan.optimizers import OPTIMIZERS, Update
from hpcpar.runtime.parameters import Parameters

#: Iterations in which the learning rate grows at first, at most.
WARMUP = 100


class RateSchedule(str, Enum):
    """How the learning rate falls: not at all, by 10 after some epochs, as half a cosine to 0 at
    the end of the training, or by 250 ** (1/3) after each quarter of it (OWT).
    """

    CONSTANT = "constant"
    STEP = "step"
    COSINE = "cosine"
    OWT = "owt"

    __str__ = str.__str__


class BatchScaling(str, Enum):
    """How the learning rate grows with the batch: k times, or sqrt(k) times, where the batch is k
    times as large (OWT, section 5).
    """

    LINEAR = "linear"
    SQRT = "sqrt"

    __str__ = str.__str__

    @property
    def exponent(self) -> float:
        """e of k^e."""
        return 1.0 if self is BatchScaling.LINEAR else 0.5


@dataclass(frozen=True)
class SGD:
    """v := momentum * v - rate * (gradient + decay * w); w := w + v (OWT, section 4.2).

    Attributes
    ----------
    rate : float
        Learning rate after the warm-up.
    schedule : RateSchedule
        How it falls.
    step_epochs : int
        Epochs after each of which `RateSchedule.STEP` divides it by 10.
    warmup : int or None
        Iterations in which the rate grows to `rate`; None: a quarter of an epoch, but at most
        `WARMUP`.
    base_batch : int or None
        Samples of an update that `rate` and `decay` were chosen for; None: as many as there are.
    scaling : BatchScaling
        What other numbers of samples do to them.
    """

    rate: float = 0.01
    momentum: float = 0.9
    decay: float = 0.0005
    schedule: RateSchedule = RateSchedule.STEP
    step_epochs: int = 30
    warmup: int | None = None
    base_batch: int | None = None
    scaling: BatchScaling = BatchScaling.LINEAR

    def __post_init__(self) -> None:
        fine = 0 <= self.rate < math.inf and 0 <= self.momentum < 1 and 0 <= self.decay < math.inf
        if not fine or min(self.step_epochs, self.base_batch or 1) < 1 or (self.warmup or 0) < 0:
            raise InputError(
                f"SGD with rate {self.rate}, momentum {self.momentum}, decay {self.decay}, steps "
                f"of {self.step_epochs} epochs, warm-up {self.warmup}: rate, decay and warm-up "
                "must be finite and not negative, momentum must be at least 0 and below 1, steps "
                "of at least 1 epoch"
            )

    def factors(self, samples: float) -> tuple[float, float]:
        """Factors of `rate` and `decay` for updates by so many samples.

        They are k^e and k^(1 - e), so that k updates of the base batch and one of k times as many
        samples shrink weights alike (OWT, section 5, for small rates).
        """
        k, exponent = samples / (self.base_batch or samples), self.scaling.exponent
        return k ** exponent, k ** (1 - exponent)

    def rate_at(self, step: int, steps: int, epoch_steps: int) -> float:
        """The learning rate of iteration `step` of `steps`; an epoch has `epoch_steps` of them."""
        warmup = min(WARMUP, epoch_steps // 4) if self.warmup is None else self.warmup
        if step < warmup:
            return self.rate * (step + 1) / warmup
        if self.schedule is RateSchedule.STEP:
            return self.rate * 0.1 ** (step // (self.step_epochs * epoch_steps))
        if self.schedule is RateSchedule.COSINE:
            return self.rate * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2
        if self.schedule is RateSchedule.OWT:
            return self.rate * 250 ** (-(4 * step // steps) / 3)
        return self.rate


class Rule:
    """Updates weights by a plan's optimizer."""

    def __init__(self, optimizer: str) -> None:
        self.optimizer = OPTIMIZERS[optimizer]
        self.rate, self.momentum, self.decay = 0.0, 0.0, 0.0
        #: Factors of rate and decay for layers that are updated after every FC pass.
        self.of_a_pass = 1.0, 1.0

    def set(self, rate: float, momentum: float, decay: float) -> None:
        """The numbers of the iteration."""
        self.rate, self.momentum, self.decay = rate, momentum, decay

    def update(self, backend: Backend, p: Parameters, count: int, tick: Tick | None = None,
               of_a_pass: bool = False) -> None:
        """Apply the gradient to what this rank updates, after `count` updates before; other
        gradients progress meanwhile (`tick`).
        """
        factors = self.of_a_pass if of_a_pass else (1.0, 1.0)
        rate, decay = self.rate * factors[0], self.decay * factors[1]
        whole = (p.updated(p.flat), p.updated(p.grad), *p.state)
        for w, grad, *state in backend.blocks(whole, tick):
            self.optimizer.update(Update(backend, w, grad, state, rate, self.momentum, decay,
                                         count + 1))
