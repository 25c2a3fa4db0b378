"""Maps layers to operators: ``@operator(Conv2d)`` registers one, and `operator_of` looks it up."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hpcpar.errors import InputError
from hpcpar.network.layers import Layer
from hpcpar.runtime.ops.base import Context, Operator

Factory = TypeVar("Factory", bound=Callable[[Context], Operator])

_OPERATORS: dict[type[Layer], Callable[[Context], Operator]] = {}


def operator(*layers: type[Layer]) -> Callable[[Factory], Factory]:
    """Register an operator, or a function that picks one, for layers and their subclasses."""

    def register(factory: Factory) -> Factory:
        _OPERATORS.update(dict.fromkeys(layers, factory))
        return factory

    return register


def operator_of(layer: Layer) -> Callable[[Context], Operator]:
    """The operator of a layer's class, or of its nearest base class with an operator.

    Raises
    ------
    InputError
        No operator is registered.
    """
    for kind in type(layer).__mro__:
        if kind in _OPERATORS:
            return _OPERATORS[kind]
    name = type(layer).__name__
    raise InputError(f"layer '{layer.name}' is a {name}, but no operator computes it; register one "
                     f"with @operator({name}) in the module that defines the layer")
