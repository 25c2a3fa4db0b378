"""A strategy for Lightning's ``Trainer`` with modules from `hpcpar.torch.parallelize`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor, nn
from torch.optim import Optimizer

from hpcpar.comm.world import World, world
from hpcpar.errors import InputError
from hpcpar.torch.model import ParallelModule
from hpcpar.torch.optimizer_state import load_optimizer_state_dict, optimizer_state_dict
from hpcpar.torch.reductions import clip_grad_norm_

T = TypeVar("T")


class PlanStrategy(SingleDeviceStrategy):
    """Runs Lightning on every rank of an MPI job: ``Trainer(strategy=PlanStrategy())``.

    The ``LightningModule`` contains one `ParallelModule`. Rank 0 writes logs and checkpoints.
    Checkpoints have whole tensors, so any plan and number of ranks can resume them. The strategy
    refuses losses that differ between ranks, and clips gradients by their norm over all ranks.

    Parameters
    ----------
    device : str or torch.device
        Where the parallel module's tensors are: this rank's card under ``device="gpu"``.
    """

    strategy_name = "hpcpar"
    precision_plugin: Any

    def __init__(self, device: str | torch.device = "cpu") -> None:
        super().__init__(device)
        self._world: World = world()
        self.global_rank, self.world_size = self._world.rank, self._world.size
        self.local_rank = self._world.local_rank
        rank_zero_only.rank = self._world.rank

    # -- ranks -------------------------------------------------------------------------------------
    @property
    def is_global_zero(self) -> bool:
        return self._world.rank == 0

    def _share(self, call: str, value: T) -> Iterable[T]:
        """Every rank's value."""
        return self._world.share(f"PlanStrategy.{call}", value).values()

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        self._share("barrier", None)

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        own = obj if src == self._world.rank else None
        return self._world.share("PlanStrategy.broadcast", own)[src]

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        """The tensors of all ranks: [ranks, ...]."""
        return torch.stack([*self._share("all_gather", tensor.detach())])

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """The mean or sum over all ranks, as in ``self.log(..., sync_dist=True)``."""
        op = str(getattr(reduce_op, "name", reduce_op)).lower()  # a word, or PyTorch's constant
        if op not in ("mean", "avg", "sum"):
            raise InputError(f"a reduction by {reduce_op} over ranks is not supported; use mean or "
                             "sum")
        total = sum(self._share("reduce", torch.as_tensor(tensor).detach()))
        return total if op == "sum" else total / self._world.size

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        decisions = [*self._share("reduce_boolean_decision", decision)]
        return bool(np.all(decisions) if all else np.any(decisions))

    # -- the module --------------------------------------------------------------------------------
    def setup_precision_plugin(self) -> None:
        if self.precision_plugin.precision != Precision.precision:
            raise InputError(f"Trainer(precision='{self.precision_plugin.precision}'): a parallel "
                             "module computes in the format of its plan; leave precision out, and "
                             "pass precision='amp' to hpcpar.torch.parallelize if you like")
        self.precision_plugin = _WholeNorm()
        super().setup_precision_plugin()

    def pre_backward(self, closure_loss: Tensor) -> None:
        parallel_part(self.lightning_module).check_loss(closure_loss)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        return optimizer_state_dict(parallel_part(self.lightning_module),
                                    getattr(optimizer, "optimizer", optimizer))

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            load_optimizer_state_dict(parallel_part(self.lightning_module), optimizer, state)


class _WholeNorm(Precision):
    """Clips gradients by their norm over all ranks, and keeps the number format."""

    def connect(self, model: nn.Module, optimizers: list[Optimizer],
                lr_schedulers: list[Any]) -> tuple[nn.Module, list[Optimizer], list[Any]]:
        self._model = model
        return model, optimizers, lr_schedulers

    def clip_grad_by_norm(self, optimizer: Optimizer, clip_val: int | float) -> None:
        clip_grad_norm_(parallel_part(self._model), clip_val)


def parallel_part(module: nn.Module | None) -> ParallelModule:
    """The parallel module in a ``LightningModule``.

    Raises
    ------
    InputError
        It has none, or several.
    """
    parts = [m for m in module.modules() if isinstance(m, ParallelModule)] if module else []
    if len(parts) != 1:
        raise InputError(f"the LightningModule has {len(parts)} parallel modules; give it one, "
                         "with hpcpar.torch.parallelize")
    return parts[0]
