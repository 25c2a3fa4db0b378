"""What cannot be trained though it can be written down: refused before the first message."""

from __future__ import annotations

from collections.abc import Callable

from hpcpar.errors import InputError
from hpcpar.network.graph import Network
from hpcpar.network.layers import BatchNorm, Layer
from hpcpar.plan.plan import Plan
from hpcpar.schedule.pipeline_order import switch


def require(network: Network, plan: Plan) -> None:
    """Check that the executor has everything that a plan asks for.

    Raises
    ------
    InputError
        Naming the first thing that it has not.
    """
    if plan.batch < plan.microbatches:
        raise InputError(f"a batch of {plan.batch} samples cannot be cut into {plan.microbatches} micro-batches: some would be empty; "
                         f"use at most {plan.batch}")
    if plan.synchronisation != "allreduce":
        cut = next((name for name, config in plan.configs.items() if config.k > 1), None)
        if cut is not None:
            raise InputError(f"layer '{cut}' is cut by k ({plan.configs[cut]}): with the synchronisation {plan.synchronisation} this "
                             "cannot be run; use the synchronisation allreduce, or another strategy")
    if plan.turns > 1:
        _require_turns(network, plan)


def runs(network: Network) -> Callable[[Plan], bool]:
    """Which plans this version can run."""

    def accept(plan: Plan) -> bool:
        try:
            require(network, plan)
        except InputError:
            return False
        return True

    return accept


def _require_turns(network: Network, plan: Plan) -> None:
    """Turns (one weird trick's variable batch): what crosses the switch must be one tensor, and
    fall into equal parts.
    """
    if plan.microbatches > 1:
        raise InputError(f"the plan has {plan.turns} turns and {plan.microbatches} micro-batches: one excludes the other; "
                         "plan with --microbatches 1, or with the strategy owt")
    at = switch(network)
    after, before = network.layers[at:], network.layers[at - 1]
    if not at or network.consumers[before.name] != (after[0].name,) or _crossings(network, at) != [before.name]:
        raise InputError(f"{plan.turns} turns from layer '{after[0].name}' on: in network '{network.name}' more than the output of the "
                         f"layer before it, '{before.name}', is read there; use the strategy owt")
    for layer in network.layers:
        config = plan.configs[layer.name]
        if config.ranks != plan.ranks:
            raise InputError(f"layer '{layer.name}' lives on {config.ranks} of {plan.ranks} ranks ({config}): with {plan.turns} turns "
                             "every layer needs all of them; plan without turns, or with the strategy owt-b or owt-c")
        if layer in after and (config.n > 1 or config.k > 1):
            raise InputError(f"layer '{layer.name}' ({config}) comes after the switch to {plan.turns} turns: layers there can be cut "
                             "by channels alone; use the strategy owt-b or owt-c")
        if layer in after and isinstance(layer, BatchNorm):
            raise InputError(f"layer '{layer.name}' (batch normalisation) comes after the switch to {plan.turns} turns, whose "
                             "statistics would be those of a turn; use the strategy owt")
    _require_parts(plan, before, after[0])


def _crossings(network: Network, at: int) -> list[str]:
    """The layers before place `at` whose output is read from there on."""
    later = {layer.name for layer in network.layers[at:]}
    return [layer.name for layer in network.layers[:at]
            if later.intersection(network.consumers[layer.name])]


def _require_parts(plan: Plan, before: Layer, first: Layer) -> None:
    """Samples on one side, channels on the other, and every turn takes equally many samples: some
    of each rank's, or one rank's.
    """
    ranks, batch, configs = int(plan.ranks), int(plan.batch), plan.configs
    if configs[before.name].n != ranks or configs[first.name].c != ranks:
        raise InputError(f"the plan has {plan.turns} turns, in which samples are exchanged for channels, but layer '{before.name}' is cut "
                         f"into {configs[before.name]} and layer '{first.name}' after it into {configs[first.name]}, not {{n={ranks}}} "
                         f"and {{c={ranks}}}; use the strategy owt")
    if plan.switch == "one" and plan.turns != ranks:
        raise InputError(f"the plan has {plan.turns} turns, each of one rank's samples, on {ranks} ranks; plan {ranks} turns, or use owt-c")
    unit = ranks if plan.switch == "one" else ranks * plan.turns
    if batch % unit:
        raise InputError(f"a batch of {batch} does not give each of {plan.turns} turns equally many samples; use a multiple of {unit}")
