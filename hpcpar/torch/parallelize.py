"""From a module of PyTorch and a plan, or a strategy, to the part of it that this rank trains."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from hpcpar.api.plan import plan as find_plan
from hpcpar.api.sources import MachineLike
from hpcpar.comm.world import World, world
from hpcpar.errors import InputError
from hpcpar.network.layers import Outputs, Shape
from hpcpar.network.read.torch_module import TracedModule, traced
from hpcpar.plan import plan as plans
from hpcpar.plan.plan import NetworkSpec, Plan
from hpcpar.report.tables import say
from hpcpar.torch.model import ParallelModule

PRECISIONS = {torch.float32: "fp32", torch.float64: "fp64"}


def parallelize(module: nn.Module, input: Shape, batch: int, plan: str | Plan = "auto",
                machine: MachineLike = "local", seed: int = 0, kernels: str = "numpy",
                **options: Any) -> ParallelModule:
    """A module whose training is split over the ranks of this job; every rank must call it.

    Parameters
    ----------
    module : torch.nn.Module
        Its weights are those of rank 0 at first.
    input : tuple of int
        Shape of a sample, (C, H, W), (C, D, H, W) or (C, W).
    batch : int
        Samples of a mini-batch, over all ranks.
    plan : str or Plan
        A strategy's name (see ``hpcpar plan --strategy``; auto: the fastest), a plan file's path,
        or a plan.
    machine : str or Machine
        What a strategy is planned for: see ``hpcpar plan --machine``.
    seed : int
        Fixes dropout.
    kernels : {'numpy', 'torch'}
        Whose convolutions run: see ``hpcpar run --kernels``.
    **options
        Further ones of `hpcpar.plan`, where `plan` names a strategy.

    Raises
    ------
    InputError
        On every rank alike: the module cannot be traced, or the plan does not fit.
    """
    ranks = world()
    found = ranks.agree(lambda: traced(module, tuple(input), Outputs))
    kinds = {p.dtype for p in module.parameters()}
    kind = next(iter(kinds), torch.float32)
    if len(kinds) > 1 or kind not in PRECISIONS:
        raise InputError(f"the module has parameters of {', '.join(map(str, kinds))}; make all of "
                         "them float32 or float64")
    chosen = ranks.first(lambda: plans.to_json(
        _plan(found, batch, plan, ranks, machine, PRECISIONS[kind], options)))
    if ranks.rank == 0:
        for note in found.network.notes:
            say(f"note: {note}")
    fitted = plans.from_json(chosen, "the plan")
    return ParallelModule(module, found, fitted, ranks, seed, kernels)


def _plan(found: TracedModule, batch: int, given: str | Plan, ranks: World, machine: MachineLike,
          precision: str, options: dict[str, Any]) -> Plan:
    """The plan, for the traced network."""
    network = found.network
    if isinstance(given, str) and not os.path.exists(given):
        return find_plan(network, ranks.size, batch, machine, given, precision=precision,
                         **options).plan
    if options:
        raise InputError(f"{', '.join(options)}: options of a strategy, but the plan is given; "
                         "leave them out")
    plan = plans.load(given) if isinstance(given, str) else given
    if plan.batch != batch:
        raise InputError(f"the plan is for batches of {plan.batch}, not {batch}")
    differing = {layer.name for layer in network.layers} ^ set(plan.configs)
    if differing:
        raise InputError(f"layers of the plan and of module '{network.name}' differ: "
                         f"{', '.join(sorted(differing)[:5])}")
    return replace(plan, network=NetworkSpec.of(network), precision=precision)
