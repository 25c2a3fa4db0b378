"""An optimizer is one entry: what it keeps, what an update costs, and the update itself.

`Update.w` and the other arrays are NumPy's on a CPU and CuPy's on a GPU. An update by array
operations works on both; built-in ones use the fused kernels of the backend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpar.errors import require_free

#: Adam's second beta, and what is added to the root of its second moment.
BETA, EPS = 0.999, 1e-8


@dataclass
class Update:
    """One update of some weights, in place.

    Attributes
    ----------
    kernels : hpcpar.kernels.interface.Backend
        The fused updates of the device.
    w, grad : ndarray
        Weights (or a block of them), and the gradient of the mean loss.
    state : sequence of ndarray
        What the optimizer keeps, in the order of `Optimizer.state`; all arrays have one shape.
    rate, momentum, decay : float
        Learning rate, momentum and weight decay of this iteration.
    step : int
        Counts the updates, from 1.
    """

    kernels: Any
    w: NDArray[np.floating]
    grad: NDArray[np.floating]
    state: Sequence[NDArray[np.floating]]
    rate: float
    momentum: float
    decay: float
    step: int


@dataclass(frozen=True)
class Optimizer:
    """An entry; it registers the update that it decorates.

    Attributes
    ----------
    state : tuple of str
        An entry for each value that is kept beside a weight, zero at first: what its tensors' names
        in a checkpoint end with, as in ``optimizer/<layer>/weight_second``.
    flops : int
        Of an update of one weight.
    noise_rates : float
        Least tolerance of ``hpcpar verify``, in learning rates per update: above 0 where a weight
        whose gradient is mere rounding moves all the same.
    torch : callable, optional
        From rate, momentum and decay: the class in `torch.optim` that trains alike, and its
        options.
    """

    name: str
    state: tuple[str, ...]
    flops: int
    noise_rates: float = 0.0
    torch: Callable[[float, float, float], tuple[str, Mapping[str, object]]] | None = None
    update: Callable[[Update], None] = field(default=lambda u: None, repr=False)

    def __call__(self, update: Callable[[Update], None]) -> Callable[[Update], None]:
        """Registers the entry with its update."""
        known = OPTIMIZERS.get(self.name)
        owner = None if known is None else known.update.__module__
        require_free("optimizer", self.name, owner, update.__module__)
        OPTIMIZERS[self.name] = replace(self, update=update)
        return update

    @property
    def values(self) -> int:
        """Values moved per weight: weight, gradient and state read, weight and state written."""
        return 3 + 2 * len(self.state)


#: Every optimizer by its name.
OPTIMIZERS: dict[str, Optimizer] = {}


@Optimizer("sgd", (), 3, torch=lambda rate, momentum, decay: (
    "SGD", {"lr": rate, "weight_decay": decay}))
def sgd(u: Update) -> None:
    u.kernels.sgd_update(u.w, u.grad, None, u.rate, 0.0, u.decay)


@Optimizer("momentum", ("",), 5, torch=lambda rate, momentum, decay: (
    "SGD", {"lr": rate, "momentum": momentum, "weight_decay": decay}))
def sgd_with_momentum(u: Update) -> None:
    u.kernels.sgd_update(u.w, u.grad, u.state[0], u.rate, u.momentum, u.decay)


@Optimizer("adam", ("", "_second"), 12, 10.0, lambda rate, momentum, decay: (
    "Adam", {"lr": rate, "betas": (momentum, BETA), "eps": EPS, "weight_decay": decay}))
def adam(u: Update) -> None:
    first, second = u.state
    u.kernels.adam_update(u.w, u.grad, first, second, u.rate, u.momentum, BETA, EPS, u.step,
                          u.decay)


@Optimizer("adamw", ("", "_second"), 11, 10.0, lambda rate, momentum, decay: (
    "AdamW", {"lr": rate, "betas": (momentum, BETA), "eps": EPS, "weight_decay": decay}))
def adam_with_decoupled_decay(u: Update) -> None:
    u.w *= 1 - u.rate * u.decay
    adam(replace(u, decay=0.0))
