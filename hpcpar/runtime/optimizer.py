"""Weight updates by a plan's optimizer, and the learning-rate schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from hpcpar.kernels.interface import Backend, Tick
from hpcpar.kernels.numbers import Numbers
from hpcpar.options.checks import OneOf, ValueRefused, magnitude, natural, part, positive
from hpcpar.options.fields import OptionGroup, option
from hpcpar.plan.optimizers import OPTIMIZERS, Update
from hpcpar.runtime.parameters import Parameters

#: Upper limit of the default warm-up (iterations).
WARMUP = 100
#: Default number of epochs after which `RateSchedule.STEP` divides the rate by 10.
STEP_EPOCHS = 30


class RateSchedule(str, Enum):
    """How the learning rate falls: not at all, by a factor of 10 every few epochs, as half a cosine
    to 0 at the end of the training, or by 250 ** (1/3) after each quarter of the training (OWT).
    """

    CONSTANT = "constant"
    STEP = "step"
    COSINE = "cosine"
    OWT = "owt"

    __str__ = str.__str__


#: For a batch k times as large, the learning rate grows by this power of k (OWT, section 5).
BATCH_SCALING = {"linear": 1.0, "sqrt": 0.5}


def check_schedule(text: str) -> str:
    """Check a schedule's name, and the epochs in ``step:N``."""
    name, colon, epochs = text.partition(":")
    OneOf(RateSchedule)(name)
    if colon and name != RateSchedule.STEP:
        raise ValueRefused(f"'{text}' has a number, but only step takes one, as in step:30")
    return f"{name}:{positive(epochs)}" if colon else name


@dataclass(frozen=True, kw_only=True)
class SGD(OptionGroup, section="training"):
    """v := momentum * v - rate * (gradient + decay * w); w := w + v (OWT, section 4.2)."""

    rate: float = option(
        0.01, magnitude, "learning rate after the warm-up; hpcpar plan --optimizer chooses the "
        "optimizer", "RATE", first=True)
    schedule: str = option(
        RateSchedule.STEP.value, check_schedule, "decay of the rate: none; by 10 every "
        f"{STEP_EPOCHS} epochs (step:N: every N); half a cosine; by 6.3 after each quarter of the "
        "training", "|".join(RateSchedule))
    warmup: int | None = option(
        None, natural, "iterations over which the rate rises from 0 (default: a quarter of an "
        f"epoch, at most {WARMUP})", "N")
    momentum: float = option(0.9, part, "momentum of SGD, or Adam's beta1", "SHARE")
    decay: float = option(0.0005, magnitude, "weight decay", "RATE")
    base_batch: int | None = option(
        None, positive, "samples per update for which --rate and --decay are meant (default: the "
        "actual number); with k times as many, the rate is k times as large; layers with FC passes "
        "(owt-b, owt-c) count the samples of a pass", "N")
    scaling: str = option(
        "linear", OneOf(BATCH_SCALING), "with --base-batch: multiply the rate by k, or rate and "
        "decay by sqrt(k)", needs="base_batch")

    def factors(self, samples: float) -> tuple[float, float]:
        """Factors of `rate` and `decay` for updates with `samples` samples.

        They are k^e and k^(1 - e), so for small rates, k updates of the base batch and one update
        with k times as many samples decay weights equally (OWT, section 5).
        """
        k, exponent = samples / (self.base_batch or samples), BATCH_SCALING[self.scaling]
        return k ** exponent, k ** (1 - exponent)

    def rate_at(self, step: int, steps: int, epoch_steps: int) -> float:
        """The learning rate of iteration `step` of `steps`."""
        warmup = min(WARMUP, epoch_steps // 4) if self.warmup is None else self.warmup
        if step < warmup:
            return self.rate * (step + 1) / warmup
        name, _, epochs = self.schedule.partition(":")
        if name == RateSchedule.STEP:
            return self.rate * 0.1 ** (step // (int(epochs or STEP_EPOCHS) * epoch_steps))
        if name == RateSchedule.COSINE:
            return self.rate * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2
        if name == RateSchedule.OWT:
            return self.rate * 250 ** (-(4 * step // steps) / 3)
        return self.rate


class Rule:
    """Updates weights by a plan's optimizer."""

    def __init__(self, optimizer: str) -> None:
        self.optimizer = OPTIMIZERS[optimizer]
        self.rate, self.momentum, self.decay = 0.0, 0.0, 0.0
        #: Factors of rate and decay for layers that are updated after every FC pass.
        self.of_a_pass = 1.0, 1.0
        #: Iterations without an update; the optimizer does not count them.
        self.skipped = 0

    def set(self, rate: float, momentum: float, decay: float) -> None:
        """Set the iteration's rate, momentum and weight decay."""
        self.rate, self.momentum, self.decay = rate, momentum, decay

    def update(self, backend: Backend, p: Parameters, numbers: Numbers, updates: int = 1,
               part: int = 0, tick: Tick | None = None, of_a_pass: bool = False) -> None:
        """Apply the gradient of the `part`-th of an iteration's `updates`; `tick` lets other
        gradients travel.
        """
        factors = self.of_a_pass if of_a_pass else (1.0, 1.0)
        if not self.optimizer.replays:
            numbers.require_value("rate and step")
        rate = numbers.number(("rate", of_a_pass), lambda: self.rate * factors[0])
        count = numbers.number(("update", updates, part),
                               lambda: (numbers.iteration - self.skipped) * updates + part + 1)
        whole = (p.updated(p.flat), p.updated(p.grad), *p.state)
        for w, grad, *state in backend.blocks(whole, tick):
            self.optimizer.update(Update(backend, w, grad, state, rate, self.momentum,
                                         self.decay * factors[1], count))
