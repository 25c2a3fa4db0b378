"""Optimizers, one entry each: state, cost of an update, and the update itself.

`Update.w` and the other arrays are NumPy arrays on a CPU and CuPy arrays on a GPU. An update with
array operations works on both; built-in ones use the backend's fused kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpar.errors import require_free

#: Adam's second beta, and the epsilon added to the root of its second moment.
BETA, EPS = 0.999, 1e-8


@dataclass
class Update:
    """One update of some weights, in place.

    Attributes
    ----------
    kernels : hpcpar.kernels.interface.Backend
        The backend with the device's fused updates.
    w, grad : ndarray
        Weights (or a block of them) and the gradient of the mean loss.
    state : sequence of ndarray
        Optimizer state in the order of `Optimizer.state`, in arrays of the shape of `w`.
    rate, momentum, decay : float
        Learning rate, momentum and weight decay of this iteration.
    step : float
        Number of the update, from 1.
    """

    kernels: Any
    w: NDArray[np.floating]
    grad: NDArray[np.floating]
    state: Sequence[NDArray[np.floating]]
    rate: float
    momentum: float
    decay: float
    step: float


@dataclass(frozen=True)
class Optimizer:
    """An optimizer's entry; it registers the update that it decorates.

    Attributes
    ----------
    state : tuple of str
        One name suffix per value of state that a weight has, zero at first; tensors in a checkpoint
        end in it, as in ``optimizer/<layer>/weight_second``.
    flops : int
        Flops per weight of an update.
    noise_rates : float
        Smallest tolerance of ``hpcpar verify``, in learning rates per update; above 0 if a gradient
        of mere rounding errors moves a weight.
    replays : bool
        On GPUs, `update` hands rate and step to the device's fused updates and computes nothing
        from them, so that a captured update can be repeated with others.
    torch : callable, optional
        Maps rate, momentum and decay to the equivalent class in `torch.optim` and its options.
    """

    name: str
    state: tuple[str, ...]
    flops: int
    noise_rates: float = 0.0
    torch: Callable[[float, float, float], tuple[str, Mapping[str, object]]] | None = None
    replays: bool = False
    update: Callable[[Update], None] = field(default=lambda u: None, repr=False)

    def __call__(self, update: Callable[[Update], None]) -> Callable[[Update], None]:
        """Registers the optimizer with its update."""
        known = OPTIMIZERS.get(self.name)
        owner = None if known is None else known.update.__module__
        require_free("optimizer", self.name, owner, update.__module__)
        OPTIMIZERS[self.name] = replace(self, update=update)
        return update

    @property
    def values(self) -> int:
        """Values moved per weight: reads weight, gradient and state; writes weight and state."""
        return 3 + 2 * len(self.state)


#: All optimizers by name.
OPTIMIZERS: dict[str, Optimizer] = {}


@Optimizer("sgd", (), 3, torch=lambda rate, momentum, decay: (
    "SGD", {"lr": rate, "weight_decay": decay}), replays=True)
def sgd(u: Update) -> None:
    u.kernels.sgd_update(u.w, u.grad, None, u.rate, 0.0, u.decay)


@Optimizer("momentum", ("",), 5, torch=lambda rate, momentum, decay: (
    "SGD", {"lr": rate, "momentum": momentum, "weight_decay": decay}), replays=True)
def sgd_with_momentum(u: Update) -> None:
    u.kernels.sgd_update(u.w, u.grad, u.state[0], u.rate, u.momentum, u.decay)


@Optimizer("adam", ("", "_second"), 12, 10.0, lambda rate, momentum, decay: (
    "Adam", {"lr": rate, "betas": (momentum, BETA), "eps": EPS, "weight_decay": decay}),
           replays=True)
def adam(u: Update) -> None:
    first, second = u.state
    u.kernels.adam_update(u.w, u.grad, first, second, u.rate, u.momentum, BETA, EPS, u.step,
                          u.decay)


@Optimizer("adamw", ("", "_second"), 11, 10.0, lambda rate, momentum, decay: (
    "AdamW", {"lr": rate, "betas": (momentum, BETA), "eps": EPS, "weight_decay": decay}),
           replays=True)
def adam_with_decoupled_decay(u: Update) -> None:
    first, second = u.state
    u.kernels.adam_update(u.w, u.grad, first, second, u.rate, u.momentum, BETA, EPS, u.step, 0.0,
                          u.decay)
