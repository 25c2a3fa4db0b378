"""What can be trained today: less than what can be predicted, refused before the first message."""

from __future__ import annotations

from hpcpar.errors import InputError
from hpcpar.network.graph import Network
from hpcpar.network.layers import Loss, MeanSquaredError
from hpcpar.plan.plan import Plan
from hpcpar.train.ops.build import OPS


def require_network(network: Network) -> None:
    """Check that the executor has everything that a network asks for.

    Raises
    ------
    InputError
        Naming the first thing that it has not.
    """
    for layer in network.layers[1:]:
        known = type(layer) in OPS or (isinstance(layer, Loss) and not isinstance(layer, MeanSquaredError))
        if not known:
            raise InputError(f"layer '{layer.name}' ({layer.kind}) of network '{network.name}' can be predicted, but this version cannot "
                             "train it; 'hpcpar predict' prices it, 'hpcpar run' trains lenet5, mlp, alexnet, alexnet-owt and vgg16")
    if not network.is_chain:
        raise InputError(f"network '{network.name}' has branches: they can be predicted, but this version trains chains of layers only")


def require(network: Network, plan: Plan) -> None:
    """Check that the executor has everything that a plan asks for; raises as `require_network`."""
    require_network(network)
    for name, config in plan.configs.items():
        if config.k > 1 or config.d > 1:
            raise InputError(f"layer '{name}' is cut by {'k' if config.k > 1 else 'd'} ({config}): this can be predicted, but not be run "
                             "yet; plan with another strategy")
        if config.first or config.ranks != plan.ranks:
            raise InputError(f"layer '{name}' lives on {config.ranks} of {plan.ranks} ranks ({config}): this can be predicted, but not be "
                             "run yet; plan with another strategy than a pipeline")
    for what, value, usual in (
        ("microbatches", plan.microbatches, 1), ("turns", plan.turns, 1), ("synchronisation", plan.synchronisation, "allreduce"),
        ("optimizer", plan.optimizer, "momentum"),
    ):
        if value != usual:
            raise InputError(f"the plan has {what} = {value}: this can be predicted, but not be run yet; use {what} = {usual}")
