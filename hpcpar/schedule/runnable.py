"""Decides which plans can be priced but not run, and refuses them before the first message."""

from __future__ import annotations

import math

from hpcpar.errors import InputError
from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer
from hpcpar.network.layers.base import axes_of, shape_text
from hpcpar.plan.frameworks import OWN
from hpcpar.plan.plan import Plan, Synchronization
from hpcpar.schedule.one_weird_trick import switch


def not_executed(framework: str) -> str:
    """Why the executor does not run plans with a framework's rules, with the remedy; empty if it
    does.
    """
    if framework == OWN:
        return ""
    return (f"the rules of framework {framework} can be planned and predicted, but not run; "
            "plan without --framework to run it")


def require_executed(framework: str) -> None:
    """Check that the executor supports a framework's rules.

    Raises
    ------
    InputError
        They are only for planning.
    """
    reason = not_executed(framework)
    if reason:
        raise InputError(reason)


def not_on_hosts(plan: Plan, device: str = "cpu") -> str:
    """Why the executor does not run a plan's parameter servers on this device, with the remedy;
    empty if it does. CPUs are hosts themselves.
    """
    apart = device == "gpu" or (plan.machine is not None and plan.machine.host is not None)
    if plan.synchronization is not Synchronization.SERVER_HOST or not apart:
        return ""
    return ("synchronization server-host can be planned and predicted for GPUs, but not run; plan "
            "with --synchronization server to run it")


def require_device(plan: Plan, device: str) -> None:
    """Check that the executor supports the plan's parameter servers and formats on this device.

    Raises
    ------
    InputError
        The servers are on hosts, apart from the devices; or GPUs do not run the format.
    """
    reason = not_on_hosts(plan, device)
    if reason:
        raise InputError(reason)
    if plan.formats.scaled and device == "gpu":
        raise InputError(f"precision {plan.precision} runs on CPUs only; use --precision amp on "
                         "GPUs")


def require_own_training(network: Network) -> None:
    """Check that every layer's weights are themselves trained, or frozen as a whole.

    Raises
    ------
    InputError
        A PyTorch module trains some in another way.
    """
    other = next((layer.name for layer in network.layers if layer.weights == "otherwise"), None)
    if other is not None:
        raise InputError(
            f"layer '{other}' can be planned, but not run: the module computes its weights from "
            "other parameters (as weight_norm does) or freezes a part of them, and hpcpar run "
            "would train them directly; use a plain layer (hpcpar.torch supports partly frozen "
            "weights)")


def require(network: Network, plan: Plan, training: bool = True) -> None:
    """Check that the executor can run a plan, with `training` or only its forward pass.

    Raises
    ------
    InputError
        Names the first obstacle.
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
                how = "have other ranks" if f"{one}" == f"{other}" else (
                    f"are cut into {one} and {other}")
                raise InputError(f"{both}, but {how}; use a strategy that cuts both alike, as data "
                                 "does")
            if plan.fc_passes > 1:
                raise InputError(f"{both}, which FC passes do not support; use the strategy owt")
    if training:
        _require_values(network, plan)
    if network.loss.outside and (plan.fc_passes > 1
                                 or plan.synchronization is not Synchronization.ALLREDUCE):
        raise InputError(
            f"the plan updates weights itself ({plan.strategy}, synchronization "
            f"{plan.synchronization}), but here PyTorch's optimizer does; use the "
            "synchronization allreduce, and owt in place of owt-b and owt-c")
    if plan.synchronization is not Synchronization.ALLREDUCE:
        cut = next((name for name, config in plan.configs.items() if config.k > 1), None)
        if cut is not None:
            raise InputError(
                f"layer '{cut}' is cut by k ({plan.configs[cut]}), which cannot be run with the "
                f"synchronization {plan.synchronization}; use the synchronization allreduce, or "
                "another strategy")
    if plan.fc_passes > 1:
        _require_fc_passes(network, plan)
        if plan.formats.scaled and training:
            raise InputError(f"{plan.precision} decides once per iteration whether to update, but "
                             f"the plan updates after each of {plan.fc_passes} FC passes; use "
                             "--precision amp, or the strategy owt")


def _require_values(network: Network, plan: Plan) -> None:
    """Check that batch normalization has at least two values per channel, on every rank."""
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
                    f"layer '{layer.name}' (batch normalization): Expected more than 1 value per "
                    f"channel when training, got {shape_text((size, *network.input_shape(layer)))} "
                    f"in {math.prod(parts)} parts; use a larger batch, or fewer micro-batches")


def _require_fc_passes(network: Network, plan: Plan) -> None:
    """Check that one weird trick's FC passes get one tensor across the switch, in equal parts."""
    if plan.microbatches > 1:
        raise InputError(
            f"the plan has {plan.fc_passes} FC passes and {plan.microbatches} micro-batches, which "
            "exclude each other; plan with --microbatches 1, or with the strategy owt")
    at = switch(network)
    after, before = network.layers[at:], network.layers[at - 1]
    only_reader = network.consumers[before.name] == (after[0].name,)
    if not at or not only_reader or _crossings(network, at) != [before.name]:
        raise InputError(
            f"the plan's {plan.fc_passes} FC passes begin at layer '{after[0].name}' and may read "
            f"only the output of '{before.name}', but network '{network.name}' passes other "
            "tensors to them as well; use the strategy owt")
    for layer in network.layers:
        _require_layer(plan, layer, layer in after)
    if after[0].statistics:
        raise InputError(
            f"layer '{after[0].name}' ({after[0].kind}) computes statistics, so it cannot be the "
            f"first layer after the switch to {plan.fc_passes} FC passes; use the strategy owt")
    _require_parts(plan, before, after[0])


def _require_layer(plan: Plan, layer: Layer, after_switch: bool) -> None:
    """Check that a layer is on all ranks, and after the switch cut by channels alone."""
    config = plan.configs[layer.name]
    if config.ranks != plan.ranks:
        raise InputError(
            f"layer '{layer.name}' is on {config.ranks} of {plan.ranks} ranks ({config}), but with "
            f"{plan.fc_passes} FC passes every layer must be on all of them; plan without FC "
            "passes, or with the strategy owt-b or owt-c")
    if after_switch and (config.n > 1 or config.k > 1):
        raise InputError(
            f"layer '{layer.name}' ({config}) comes after the switch to {plan.fc_passes} FC "
            "passes, where only channels can be cut; use the strategy owt-b or owt-c")
    if after_switch and layer.statistics == "batch":
        raise InputError(
            f"layer '{layer.name}' (batch normalization) comes after the switch to "
            f"{plan.fc_passes} FC passes, so its statistics would cover one pass instead of the "
            "batch; use the strategy owt")


def _crossings(network: Network, at: int) -> list[str]:
    """The layers before index `at` whose output a layer from `at` on reads."""
    later = {layer.name for layer in network.layers[at:]}
    return [layer.name for layer in network.layers[:at]
            if later.intersection(network.consumers[layer.name])]


def _require_parts(plan: Plan, before: Layer, first: Layer) -> None:
    """Check that samples are cut before the switch, channels after it, and passes are equal."""
    ranks, batch, configs = plan.ranks, plan.batch, plan.configs
    if configs[before.name].n != ranks or configs[first.name].c != ranks:
        raise InputError(
            f"{plan.fc_passes} FC passes need layer '{before.name}' cut into {{n={ranks}}} and "
            f"layer '{first.name}' after it into {{c={ranks}}}, but the plan cuts them into "
            f"{configs[before.name]} and {configs[first.name]}; use the strategy owt")
    if plan.switch == "one" and plan.fc_passes != ranks:
        raise InputError(
            f"the plan has {plan.fc_passes} FC passes for {ranks} ranks, but each pass takes one "
            f"rank's samples; plan {ranks} FC passes, or use owt-c")
    unit = ranks if plan.switch == "one" else ranks * plan.fc_passes
    if batch % unit:
        raise InputError(f"a batch of {batch} cannot be divided equally among {plan.fc_passes} FC "
                         f"passes; use a multiple of {unit}")
