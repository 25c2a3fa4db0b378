"""A call of a PyTorch operator (ATen), as it is translated to ONNX's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from hpcpar.network.layers.base import Shape
from hpcpar.network.read.operations import Array, Constant


class UnknownCall(Exception):
    """A call without a translation: a variant of an operator with unsupported arguments."""


class Tensor(str):
    """Name of a tensor among the arguments of a call."""


@dataclass
class Call:
    """A call of an operator.

    Attributes
    ----------
    result : str
        Name of the result.
    values : dict
        Arguments by name: tensors, numbers, lists.
    shape, input_shape : tuple of int
        Sample shapes of the result and of the first argument.
    literals : dict
        Constants that the translation adds as inputs of the ONNX operator.
    """

    name: str
    result: str
    values: Mapping[str, object]
    shape: Shape
    input_shape: Shape
    literals: dict[str, Constant] = field(default_factory=dict)

    def tensors(self, *names: str) -> tuple[str, ...]:
        """Names of tensor arguments; numbers become constants, and omitted arguments ''."""
        return tuple(self._tensor(self.values.get(name)) for name in names)

    def _tensor(self, value: object) -> str:
        if value is None:
            return ""
        if isinstance(value, Tensor):
            return value
        return self.literal(np.asarray(value))

    def literal(self, value: Array) -> str:
        """Name of a new constant with this value."""
        name = f"{self.result}.{len(self.literals)}"
        self.literals[name] = Constant.of(value)
        return name

    def number(self, name: str) -> float:
        """A number argument."""
        value = self.values.get(name)
        if not isinstance(value, int | float):
            raise UnknownCall
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        """An argument of one or several integers."""
        value = self.values.get(name)
        numbers = value if isinstance(value, list) else [value]
        if not all(isinstance(number, int) for number in numbers):
            raise UnknownCall
        return tuple(numbers)

    def axes(self, name: str) -> tuple[int, ...]:
        """An argument of one or several axes of the first argument, counted from 0."""
        rank = len(self.input_shape) + 1
        return tuple(axis % rank for axis in self.integers(name))

    def per_axis(self, name: str) -> Shape:
        """An argument of one integer per image axis, or one for all axes."""
        numbers = self.integers(name)
        return numbers * self.dimensions if len(numbers) == 1 else numbers

    @property
    def dimensions(self) -> int:
        """Number of image axes, from the operator's name."""
        return int(self.name.rstrip("d")[-1])
