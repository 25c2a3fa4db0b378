"""Splits a PyTorch module over ranks, by a plan or a strategy."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, cast

import torch
from torch import nn

from hpcpar.api.plan import plan as find_plan
from hpcpar.api.sources import MachineLike
from hpcpar.comm.device_options import GpuOptions
from hpcpar.comm.world import World, world
from hpcpar.errors import InputError
from hpcpar.kernels.conv_choice import AUTO, NUMPY
from hpcpar.network.layers import Input, Outputs, Shape
from hpcpar.network.read.operations import first_three
from hpcpar.network.read.torch_module import TracedModule, traced
from hpcpar.plan import plan as plans
from hpcpar.plan.plan import NetworkSpec, Plan
from hpcpar.plan.precision import PRECISIONS
from hpcpar.report.tables import say
from hpcpar.torch.model import ParallelModule
from hpcpar.torch.samples import require_one_world
from hpcpar.torch.tree import hooked

OF_PARAMETERS = {torch.float32: "fp32", torch.float64: "fp64"}


def parallelize(module: nn.Module, input: Shape | int, batch: int, plan: str | Plan = "auto",
                machine: MachineLike = "local", seed: int = 0, kernels: str = AUTO,
                device: str = "cpu", forward_only: bool = False, *,
                input_gradients: bool = False, **options: Any) -> ParallelModule:
    """A module whose training is split over the ranks of this job; all ranks call it together.

    Parameters
    ----------
    module : torch.nn.Module
        The initial weights are those on rank 0.
    input : tuple of int, or int
        Shape of a sample, (C, H, W), (C, D, H, W) or (C, W); or its number of features.
    batch : int
        Samples of a mini-batch, over all ranks.
    plan : str or Plan
        A strategy (as for ``hpcpar plan --strategy``; auto: the fastest), the path of a plan file,
        or a plan.
    machine : str or Machine
        The machine to plan for (as for ``hpcpar plan --machine``).
    seed : int
        Seed of dropout.
    kernels : {'auto', 'numpy', 'torch'}
        The library of convolutions (as for ``hpcpar run --kernels``); ``auto`` is PyTorch's unless
        the plan's machine was calibrated.
    device : {'cpu', 'gpu'}
        Where ranks compute. On GPUs, tensors are on this rank's card.
    input_gradients : bool
        The backward pass also computes the gradient of the images, for a module before this one.
    forward_only : bool
        The model only evaluates, which needs no memory for activations of earlier layers, gradients
        and optimizers; a strategy is planned for it.
    **options
        Options of `hpcpar.plan`, if `plan` is a strategy. ``precision="amp"`` trains a float32
        module in mixed precision.

    Raises
    ------
    InputError
        The module cannot be traced, or the plan does not fit; on every rank.
    """
    if device == "gpu" and kernels == NUMPY:
        raise InputError(f"kernels='{kernels}' runs on CPUs, but device is gpu: drop one of them")
    ranks = world()
    require_one_world(ranks)
    trace = ranks.agree(lambda: traced(module, _shape_of(input), Outputs).with_evaluation(
        module, needed=forward_only))
    if trace.unlike and not forward_only:
        raise InputError(trace.unlike)
    if input_gradients:
        images, *layers = trace.network.layers
        trace = replace(trace, network=replace(
            trace.network, layers=(replace(cast(Input, images), learns=True), *layers)))
    kinds = {p.real.dtype for p in module.parameters()}
    kind = next(iter(kinds), torch.float32)
    if len(kinds) > 1 or kind not in OF_PARAMETERS:
        raise InputError(f"the module has parameters of {', '.join(map(str, kinds))}; make all of "
                         "them float32 or float64")
    chosen = ranks.first(lambda: plans.to_json(
        _plan(trace, batch, plan, ranks, machine, OF_PARAMETERS[kind], options, forward_only)))
    split = plans.from_json(chosen, "the plan")
    if ranks.rank == 0:
        for note in *trace.network.notes, *GpuOptions(device=device).math_notes(split.precision):
            say(f"note: {note}")
        if names := [*hooked(module)]:
            say(f"note: hooks of {first_three(names)} ran while the module was traced, and are not "
                "called again")
    return ParallelModule(module, trace, split, ranks, seed, kernels, device, forward_only)


def _shape_of(given: Shape | int) -> Shape:
    """The shape of a sample, where a number counts features."""
    return (given,) if isinstance(given, int) else tuple(given)


def _plan(trace: TracedModule, batch: int, given: str | Plan, ranks: World, machine: MachineLike,
          precision: str, options: dict[str, Any], forward_only: bool) -> Plan:
    """The plan for the traced network."""
    network = trace.network
    asked = options.get("precision", precision)
    if asked not in _possible(precision):
        raise InputError(f"precision '{asked}': the module's parameters are in {precision}; pass "
                         f"{' or '.join(_possible(precision))}, or convert the module with "
                         "module.float() or .double()")
    if isinstance(given, str) and not os.path.exists(given):
        return find_plan(network, ranks.size, batch, machine, given,
                         **options | {"precision": asked, "forward_only": forward_only}).plan
    if options:
        raise InputError(f"{', '.join(options)}: a finished plan takes no options; leave them out, "
                         "or name a strategy")
    plan = plans.load(given) if isinstance(given, str) else given
    if plan.formats.scaled:
        raise InputError(f"the plan is in {plan.precision}, whose loss scale only hpcpar run "
                         "adjusts; plan with --precision amp")
    if plan.formats.mixed and plan.precision not in _possible(precision):
        raise InputError(f"the plan is in {plan.precision}, but the module's parameters are in "
                         f"{precision}; convert the module with module.float()")
    if plan.batch != batch:
        raise InputError(f"the plan is for batches of {plan.batch}, not {batch}; pass batch="
                         f"{plan.batch}, or plan again")
    differing = {layer.name for layer in network.layers} ^ set(plan.configs)
    if differing:
        raise InputError(f"layers of the plan and of module '{network.name}' differ: "
                         f"{', '.join(sorted(differing)[:5])}")
    return replace(plan, network=NetworkSpec.of(network),
                   precision=plan.precision if plan.formats.mixed else precision)


def _possible(precision: str) -> list[str]:
    """The precisions of plans for a module with parameters of this one."""
    weights = PRECISIONS[precision].dtype
    return [precision, *(name for name, formats in PRECISIONS.items()
                         if formats.mixed and not formats.scaled and formats.dtype == weights)]
