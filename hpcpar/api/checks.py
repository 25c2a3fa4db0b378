"""Checks of values, for options of the command line and arguments of functions alike."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any, TypeVar

from hpcpar.errors import InputError, unknown
from hpcpar.network.layers import Shape

T = TypeVar("T")
#: Where ranks compute.
DEVICES = ("cpu", "gpu")


class ValueRefused(InputError, argparse.ArgumentTypeError):
    """A value is not possible; argparse adds the name of the option."""


def argument(name: str, check: Callable[[Any], T], value: object) -> T:
    """The checked value of an argument, which errors name."""
    try:
        return check(value)
    except ValueRefused as err:
        raise InputError(f"argument {name}: {err}") from err


def optional(name: str, check: Callable[[Any], T], value: object) -> T | None:
    """The same for an argument that may be None."""
    return None if value is None else argument(name, check, value)


@dataclass(eq=False)
class OneOf:
    """Checks that a value is one of a few names; synonyms map to names."""

    known: Iterable[str]
    synonyms: Mapping[str, str] = field(default_factory=dict)

    @property
    def metavar(self) -> str:
        return "|".join(self.known)

    def __call__(self, value: object) -> str:
        name = self.synonyms.get(str(value), str(value))
        if name not in tuple(self.known):
            raise ValueRefused(unknown("value", name, self.known))
        return name


def whole(least: int, value: object) -> int:
    """A whole number of at least `least`."""
    try:
        number = int(str(value))
    except ValueError:
        number = least - 1
    if number < least:
        raise ValueRefused(f"'{value}' is not a whole number of at least {least}")
    return number


natural, positive = partial(whole, 0), partial(whole, 1)


def positives(value: object) -> list[int]:
    """Whole numbers of at least 1: one, several, or text with commas."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        value = str(value).split(",")
    return [positive(str(part).strip()) for part in value]


def names(value: str | Iterable[str]) -> list[str]:
    """Different names: several, or text with commas."""
    parts = value.split(",") if isinstance(value, str) else value
    return list(dict.fromkeys(part.strip() for part in parts if part.strip()))


def number(most: float, told: str, value: object) -> float:
    """A number greater than 0 and at most `most`, or less than that where it is infinite."""
    try:
        found = float(str(value))
    except ValueError:
        found = math.nan
    if not (0 < found <= most and found < math.inf):
        raise ValueRefused(f"'{value}' is not {told}")
    return found


def share(value: object) -> int | Fraction:
    """Samples of a rank in weak scaling: a whole number, or a part of a sample (1/4, 0.25)."""
    try:
        found = Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        found = Fraction(0)
    if found <= 0:
        raise ValueRefused(f"'{value}' is not a number of samples, as in 8 or 1/4")
    return found if found.denominator > 1 else int(found)


amount = partial(number, math.inf, "a number greater than 0")
fraction = partial(number, 1.0, "a parallel efficiency between 0 and 1, as in 0.8")


def image(value: str | Iterable[int]) -> Shape:
    """An image shape: CxHxW, CxDxHxW, CxW, or its numbers."""
    text = value if isinstance(value, str) else "x".join(map(str, value))
    if re.fullmatch(r"[1-9]\d*(x[1-9]\d*){1,3}", text) is None:
        raise ValueRefused(f"'{text}' is not an image shape CxHxW, as in 3x224x224 "
                           "(or CxDxHxW, as in 4x128x128x128, or CxW, as in 6x400)")
    return tuple(map(int, text.split("x")))


def check_direct(device: str, direct: bool) -> None:
    """Checks that GPU buffers which MPI is handed exist.

    Raises
    ------
    InputError
        `direct` without the device ``gpu``.
    """
    if direct and device != "gpu":
        raise InputError(f"--direct is about GPU buffers, --device is {device}; give --device gpu, "
                         "or leave --direct out")
