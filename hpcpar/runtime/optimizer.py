"""The update of weights by a plan's optimizer, and the schedule of the learning rate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from hpcpar.checks import OneOf, ValueRefused, magnitude, natural, part, positive
from hpcpar.kernels.interface import Backend, Tick
from hpcpar.option_fields import OptionGroup, option
from hpcpar.plan.optimizers import OPTIMIZERS, Update
from hpcpar.runtime.parameters import Parameters

#: Iterations in which the learning rate grows at first, at most.
WARMUP = 100
#: Epochs after each of which `RateSchedule.STEP` divides the rate by 10, unless it says otherwise.
STEP_EPOCHS = 30


class RateSchedule(str, Enum):
    """How the learning rate falls: not at all, by 10 after some epochs, as half a cosine to 0 at
    the end of the training, or by 250 ** (1/3) after each quarter of it (OWT).
    """

    CONSTANT = "constant"
    STEP = "step"
    COSINE = "cosine"
    OWT = "owt"

    __str__ = str.__str__


#: How the learning rate grows where the batch is k times as large: by this power of k (OWT,
#: section 5).
BATCH_SCALING = {"linear": 1.0, "sqrt": 0.5}


def check_schedule(text: str) -> str:
    """The name of a schedule; after ``step:``, the epochs of a step."""
    name, colon, epochs = text.partition(":")
    OneOf(RateSchedule)(name)
    if colon and name != RateSchedule.STEP:
        raise ValueRefused(f"'{text}': only step takes a number, as in step:30")
    return f"{name}:{positive(epochs)}" if colon else name


@dataclass(frozen=True, kw_only=True)
class SGD(OptionGroup, section="training"):
    """v := momentum * v - rate * (gradient + decay * w); w := w + v (OWT, section 4.2)."""

    rate: float = option(
        0.01, magnitude, "learning rate after the warm-up; hpcpar plan --optimizer chooses the "
        "optimizer", "RATE")
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
        """Factors of `rate` and `decay` for updates by so many samples.

        They are k^e and k^(1 - e), so that k updates of the base batch and one of k times as many
        samples shrink weights alike (OWT, section 5, for small rates).
        """
        k, exponent = samples / (self.base_batch or samples), BATCH_SCALING[self.scaling]
        return k ** exponent, k ** (1 - exponent)

    def rate_at(self, step: int, steps: int, epoch_steps: int) -> float:
        """The learning rate of iteration `step` of `steps`; an epoch has `epoch_steps` of them."""
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
