"""Refusal of plans that can be written and priced, but not run, before the first message."""

from __future__ import annotations

import math

from hpcpar.errors import InputError
from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer
from hpcpar.network.layers.base import axes_of, shape_text
from hpcpar.plan.plan import Plan, Synchronisation
from hpcpar.plan.precision import EXECUTED
from hpcpar.schedule.pipeline_order import switch


def require_executed(precision: str) -> None:
    """Check that the executor computes in a number format.

    Raises
    ------
    InputError
        It does not.
    """
    if precision not in EXECUTED:
        raise InputError(f"precision {precision} can be planned and predicted, but not run; plan "
                         "with --precision fp32 or tf32 to run it")


def require_own_training(network: Network) -> None:
    """Check that the weights of all layers are trained, or frozen, as they are.

    Raises
    ------
    InputError
        The source trains some in another way.
    """
    other = next((each.name for each in network.layers if each.weights == "otherwise"), None)
    if other is not None:
        raise InputError(
            f"layer '{other}': the module computes its weights from other parameters (weight_norm "
            "does), or has frozen a part of them, so training them as they are would differ from "
            "the module's training: it can be planned, but not run; use a plain layer "
            "(hpcpar.torch takes frozen parts)")


def require(network: Network, plan: Plan, training: bool = True) -> None:
    """Check that the executor can run a plan.

    Parameters
    ----------
    training : bool
        False for the forward pass alone.

    Raises
    ------
    InputError
        Names the first thing that the executor cannot do.
    """
    if plan.batch < plan.microbatches:
        raise InputError(
            f"a batch of {plan.batch} samples cannot be cut into {plan.microbatches} "
            f"micro-batches: some would be empty; use at most {plan.batch}")
    for owner, tied in network.tied.items():
        for name in tied:
            one, other = plan.configs[owner], plan.configs[name]
            both = f"layers '{owner}' and '{name}' have the same weights"
            if one.key != other.key:
                raise InputError(f"{both}, but are cut into {one} and {other}; use a strategy that "
                                 "cuts both alike, as data does")
            if plan.fc_passes > 1:
                raise InputError(f"{both}, which FC passes do not support; use the strategy owt")
    if training:
        _require_values(network, plan)
    if network.loss.outside and (plan.fc_passes > 1
                                 or plan.synchronisation is not Synchronisation.ALLREDUCE):
        raise InputError(
            f"the plan updates weights by itself ({plan.strategy}, synchronisation "
            f"{plan.synchronisation}), but here PyTorch's optimizer does; use the synchronisation "
            "allreduce, and owt in place of owt-b and owt-c")
    if plan.synchronisation is not Synchronisation.ALLREDUCE:
        cut = next((name for name, config in plan.configs.items() if config.k > 1), None)
        if cut is not None:
            raise InputError(
                f"layer '{cut}' is cut by k ({plan.configs[cut]}): with the synchronisation "
                f"{plan.synchronisation} this cannot be run; use the synchronisation allreduce, or "
                "another strategy")
    if plan.fc_passes > 1:
        _require_turns(network, plan)


def _require_values(network: Network, plan: Plan) -> None:
    """Batch normalisation trains on two values of each channel or more, on every rank."""
    sizes = {plan.batch // plan.microbatches, -(-plan.batch // plan.microbatches)}
    for layer in network.layers:
        if layer.statistics != "batch":
            continue
        image, config = network.input_shape(layer)[1:], plan.configs[layer.name]
        axes = axes_of(network.input_shape(layer))[2:]
        parts = (config.n, *(getattr(config, axis) for axis in axes))
        if plan.batch_norm != "local":
            parts = (1,) * len(parts)
        for size in sizes:
            if all(1 in (extent // cut, -(-extent // cut))
                   for extent, cut in zip((size, *image), parts, strict=True)):
                raise InputError(
                    f"layer '{layer.name}' (batch normalisation): Expected more than 1 value per "
                    f"channel when training, got {shape_text((size, *network.input_shape(layer)))} "
                    f"in {math.prod(parts)} parts; use a larger batch, or fewer micro-batches")


def _require_turns(network: Network, plan: Plan) -> None:
    """One weird trick's variable batch: one tensor crosses the switch, in equal parts."""
    if plan.microbatches > 1:
        raise InputError(
            f"the plan has {plan.fc_passes} FC passes and {plan.microbatches} micro-batches: one "
            f"excludes "
            "the other; plan with --microbatches 1, or with the strategy owt")
    at = switch(network)
    after, before = network.layers[at:], network.layers[at - 1]
    only_reader = network.consumers[before.name] == (after[0].name,)
    if not at or not only_reader or _crossings(network, at) != [before.name]:
        raise InputError(
            f"{plan.fc_passes} FC passes from layer '{after[0].name}' on: in network "
            f"'{network.name}' more "
            f"than the output of the layer before it, '{before.name}', is read there; use the "
            "strategy owt")
    for layer in network.layers:
        _require_layer(plan, layer, layer in after)
    if after[0].statistics:
        raise InputError(
            f"layer '{after[0].name}' ({after[0].kind}) is the first after the switch to "
            f"{plan.fc_passes} FC passes, where only layers without statistics can stand; use the "
            "strategy owt")
    _require_parts(plan, before, after[0])


def _require_layer(plan: Plan, layer: Layer, after_switch: bool) -> None:
    """Every layer lives on all ranks; after the switch only channels are cut."""
    config = plan.configs[layer.name]
    if config.ranks != plan.ranks:
        raise InputError(
            f"layer '{layer.name}' lives on {config.ranks} of {plan.ranks} ranks ({config}): with "
            f"{plan.fc_passes} FC passes every layer needs all of them; plan without FC passes, "
            f"or with the "
            "strategy owt-b or owt-c")
    if after_switch and (config.n > 1 or config.k > 1):
        raise InputError(
            f"layer '{layer.name}' ({config}) comes after the switch to {plan.fc_passes} FC "
            "passes: layers there can be cut by channels alone; use the strategy owt-b or owt-c")
    if after_switch and layer.statistics == "batch":
        raise InputError(
            f"layer '{layer.name}' (batch normalisation) comes after the switch to "
            f"{plan.fc_passes} "
            "FC passes and would take the statistics of one pass; use the strategy owt")


def _crossings(network: Network, at: int) -> list[str]:
    """The layers before index `at` whose output is read from there on."""
    later = {layer.name for layer in network.layers[at:]}
    return [layer.name for layer in network.layers[:at]
            if later.intersection(network.consumers[layer.name])]


def _require_parts(plan: Plan, before: Layer, first: Layer) -> None:
    """Samples are cut before the switch, channels after it, and all passes have equal batches."""
    ranks, batch, configs = plan.ranks, plan.batch, plan.configs
    if configs[before.name].n != ranks or configs[first.name].c != ranks:
        raise InputError(
            f"the plan has {plan.fc_passes} FC passes, in which samples are exchanged for "
            f"channels, but "
            f"layer '{before.name}' is cut into {configs[before.name]} and layer '{first.name}' "
            f"after it into {configs[first.name]}, not {{n={ranks}}} and {{c={ranks}}}; use the "
            "strategy owt")
    if plan.switch == "one" and plan.fc_passes != ranks:
        raise InputError(
            f"the plan has {plan.fc_passes} FC passes, each of one rank's samples, on {ranks} "
            f"ranks; "
            f"plan {ranks} FC passes, or use owt-c")
    unit = ranks if plan.switch == "one" else ranks * plan.fc_passes
    if batch % unit:
        raise InputError(
            f"a batch of {batch} does not give each of {plan.fc_passes} FC passes equally many "
            f"samples; "
            f"use a multiple of {unit}")
