"""``torch.autocast`` around a parallel module, whose plan has fixed the number formats."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hpcpar.errors import InputError
from hpcpar.plan.plan import Plan


def require_as_planned(device: torch.device, plan: Plan) -> None:
    """Check that autocast, if it is on, asks for the number formats of the plan.

    Raises
    ------
    InputError
        It asks for another type than bfloat16, or the plan is not in mixed precision.
    """
    if not torch.is_autocast_enabled(device.type):
        return
    if (asked := torch.get_autocast_dtype(device.type)) is not torch.bfloat16:
        raise InputError(f"torch.autocast to {asked}: mixed precision is in bfloat16 here, which "
                         "needs no loss scale; write torch.autocast(..., dtype=torch.bfloat16)")
    if not plan.formats.mixed:
        raise InputError("torch.autocast does not reach the plan's layers, which compute in "
                         f"{plan.precision}: make the model with hpcpar.torch.parallelize("
                         "module.float(), ..., precision='amp'), or call it with autocast("
                         "enabled=False)")


def outputs_as_asked(device: torch.device, outputs: Sequence[Tensor]) -> list[Tensor]:
    """Outputs in bfloat16 under autocast, without rounding: a plan in mixed precision has no other
    numbers.
    """
    if torch.is_autocast_enabled(device.type):
        return [out.to(torch.bfloat16) for out in outputs]
    return list(outputs)
