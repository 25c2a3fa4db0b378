"""The elementwise operators of formulas: each with its function and its derivatives.

A function's first argument is a namespace for arrays: `xp` is NumPy or CuPy, `erf` the error
function. A derivative is a term of the arguments "a", "b", "c", the value "y" and numbers; a nested
tuple applies an operator of this table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol, TypeAlias, cast

import numpy as np
import numpy.typing as npt

Term: TypeAlias = str | float | tuple["Term", ...]
Array: TypeAlias = npt.NDArray[np.float64]

#: Names of an operator's arguments in its derivatives.
ARGUMENTS = ("a", "b", "c")


class Arrays(Protocol):
    """The namespace of a function."""

    xp: ModuleType

    def erf(self, x: Array) -> Array:
        """The error function."""


@dataclass(frozen=True)
class Elementwise:
    """An operator of each element of equally shaped arrays and numbers.

    Attributes
    ----------
    compute : callable
        Its value, from the namespace and the arguments; a boolean array stands for 0 and 1.
    slopes : tuple of Term
        Its derivative by each argument; 0.0 where it has none.
    flops : float
        Floating-point operations, about: 1 for arithmetic, 8 for transcendental functions.
    """

    compute: Callable[..., Array]
    slopes: tuple[Term, ...]
    flops: float = 1.0


def _array(name: str, *slopes: Term, flops: float = 1.0) -> Elementwise:
    """A function that NumPy and CuPy have under this name."""
    def compute(k: Arrays, *args: Array | float) -> Array:
        return cast(Array, getattr(k.xp, name)(*args))

    return Elementwise(compute, slopes, flops)


def _slow(name: str, *slopes: Term) -> Elementwise:
    return _array(name, *slopes, flops=8.0)


TABLE: dict[str, Elementwise] = {
    # arithmetic
    "add": _array("add", 1.0, 1.0),
    "sub": _array("subtract", 1.0, -1.0),
    "mul": _array("multiply", "b", "a"),
    "div": _array("divide", ("reciprocal", "b"), ("neg", ("div", "y", "b"))),
    "neg": _array("negative", -1.0),
    "reciprocal": Elementwise(lambda k, a: 1.0 / a, (("neg", ("mul", "y", "y")),)),
    "square": _array("square", ("mul", 2.0, "a")),
    "sqrt": _array("sqrt", ("div", 0.5, "y")),
    "rsqrt": Elementwise(lambda k, a: 1.0 / k.xp.sqrt(a), (("mul", -0.5, ("div", "y", "a")),), 2.0),
    "abs": _array("absolute", ("sign", "a")),
    # powers and exponentials
    "pow": _slow("power", ("mul", "b", ("pow", "a", ("sub", "b", 1.0))),
                 ("mul", "y", ("log", "a"))),
    "exp": _slow("exp", "y"),
    "expm1": _slow("expm1", ("add", "y", 1.0)),
    "log": _slow("log", ("reciprocal", "a")),
    "log2": _slow("log2", ("div", 1 / math.log(2), "a")),
    "log10": _slow("log10", ("div", 1 / math.log(10), "a")),
    "log1p": _slow("log1p", ("reciprocal", ("add", "a", 1.0))),
    "logaddexp": _slow("logaddexp", ("sigmoid", ("sub", "a", "b")), ("sigmoid", ("sub", "b", "a"))),
    # NumPy's logaddexp is several times slower
    "softplus": Elementwise(
        lambda k, a: k.xp.maximum(a, 0.0) + k.xp.log1p(k.xp.exp(-k.xp.absolute(a))),
        (("sigmoid", "a"),), 16.0),
    "sigmoid": Elementwise(lambda k, a: 1.0 / (1.0 + k.xp.exp(-a)),
                           (("mul", "y", ("sub", 1.0, "y")),), 11.0),
    "erf": Elementwise(lambda k, a: k.erf(a), (
        ("mul", 2 / math.sqrt(math.pi), ("exp", ("neg", ("square", "a")))),), 16.0),
    # circular and hyperbolic functions
    "sin": _slow("sin", ("cos", "a")),
    "cos": _slow("cos", ("neg", ("sin", "a"))),
    "tan": _slow("tan", ("add", 1.0, ("square", "y"))),
    "asin": _slow("arcsin", ("rsqrt", ("sub", 1.0, ("square", "a")))),
    "acos": _slow("arccos", ("neg", ("rsqrt", ("sub", 1.0, ("square", "a"))))),
    "atan": _slow("arctan", ("reciprocal", ("add", 1.0, ("square", "a")))),
    "atan2": _slow("arctan2", ("div", "b", ("add", ("square", "a"), ("square", "b"))),
                   ("neg", ("div", "a", ("add", ("square", "a"), ("square", "b"))))),
    "sinh": _slow("sinh", ("cosh", "a")),
    "cosh": _slow("cosh", ("sinh", "a")),
    "tanh": _slow("tanh", ("sub", 1.0, ("square", "y"))),
    "asinh": _slow("arcsinh", ("rsqrt", ("add", ("square", "a"), 1.0))),
    "acosh": _slow("arccosh", ("rsqrt", ("sub", ("square", "a"), 1.0))),
    "atanh": _slow("arctanh", ("reciprocal", ("sub", 1.0, ("square", "a")))),
    # steps: the larger and the smaller share their gradient where they are equal, as in PyTorch
    "maximum": _array("maximum", ("heaviside", ("sub", "a", "b")),
                      ("heaviside", ("sub", "b", "a"))),
    "minimum": _array("minimum", ("heaviside", ("sub", "b", "a")),
                      ("heaviside", ("sub", "a", "b"))),
    "heaviside": Elementwise(lambda k, a: (1.0 + k.xp.sign(a)) / 2.0, (0.0,), 3.0),
    # the value's gradient at its bound is 1, as in PyTorch's clamp
    "clamp_min": _array("maximum", ("greater_equal", "a", "b"), ("less", "a", "b")),
    "clamp_max": _array("minimum", ("less_equal", "a", "b"), ("greater", "a", "b")),
    "relu": Elementwise(lambda k, a: k.xp.maximum(a, 0.0), (("greater", "a", 0.0),)),
    "sign": _array("sign", 0.0),
    "floor": _array("floor", 0.0),
    "ceil": _array("ceil", 0.0),
    "round": _array("rint", 0.0),
    "trunc": _array("trunc", 0.0),
    "detach": Elementwise(lambda k, a: a, (0.0,), 0.0),
    # comparisons, and a choice where the first argument is not 0
    "less": _array("less", 0.0, 0.0),
    "less_equal": _array("less_equal", 0.0, 0.0),
    "greater": _array("greater", 0.0, 0.0),
    "greater_equal": _array("greater_equal", 0.0, 0.0),
    "equal": _array("equal", 0.0, 0.0),
    "not_equal": _array("not_equal", 0.0, 0.0),
    "where": Elementwise(lambda k, a, b, c: k.xp.where(a != 0, b, c), (
        0.0, ("not_equal", "a", 0.0), ("equal", "a", 0.0)), 2.0),
}
