"""Checks of values, for options of the command line and arguments of functions alike."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from hpcpar.errors import InputError, unknown
from hpcpar.network.layers import Shape

T = TypeVar("T")
#: Where ranks compute.
DEVICES = ("cpu", "gpu")


def argument(name: str, check: Callable[[Any], T], value: object) -> T:
    """The checked value of an argument, which errors name."""
    try:
        return check(value)
    except InputError as err:
        raise InputError(f"argument {name}: {err}") from err


def optional(name: str, check: Callable[[Any], T], value: object) -> T | None:
    """The same for an argument that may be None."""
    return None if value is None else argument(name, check, value)


@dataclass(frozen=True)
class OneOf:
    """Checks that a value is one of a few names; a synonym stands for the name that it maps to."""

    known: Iterable[str]
    synonyms: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.known)

    def __call__(self, value: object) -> str:
        text = str(value)
        name = self.synonyms.get(text, text)
        if name not in self.names:
            raise unknown("value", text, self.names)
        return name


def whole(least: int, value: object) -> int:
    """A whole number of at least `least`."""
    try:
        number = int(str(value))
    except ValueError:
        number = least - 1
    if number < least:
        raise InputError(f"'{value}' is not a whole number of at least {least}")
    return number


natural = partial(whole, 0)
positive = partial(whole, 1)


def positives(value: object) -> list[int]:
    """Whole numbers of at least 1: a list, one number, or text with commas."""
    parts = value if isinstance(value, Iterable) and not isinstance(value, str) else (
        str(value).split(","))
    return [positive(str(part).strip()) for part in parts]


def names(value: str | Iterable[str]) -> list[str]:
    """Names: a list, or text with commas."""
    parts = value.split(",") if isinstance(value, str) else value
    return list(dict.fromkeys(part.strip() for part in parts if part.strip()))


def _number(value: object) -> float:
    """A number, NaN where there is none."""
    try:
        return float(str(value))
    except ValueError:
        return math.nan


def amount(value: object) -> float:
    """A finite number greater than 0."""
    number = _number(value)
    if not 0 < number < math.inf:
        raise InputError(f"'{value}' is not a number greater than 0")
    return number


def fraction(value: object) -> float:
    """A parallel efficiency."""
    number = _number(value)
    if not 0 < number <= 1:
        raise InputError(f"'{value}' is not a parallel efficiency between 0 and 1, as in 0.8")
    return number


def image(value: object) -> Shape:
    """An image shape: CxHxW, CxDxHxW, or its numbers."""
    text = value if isinstance(value, str) or not isinstance(value, Iterable) else (
        "x".join(map(str, value)))
    if re.fullmatch(r"[1-9]\d*(x[1-9]\d*){2,3}", str(text)) is None:
        raise InputError(f"'{text}' is not an image shape CxHxW, as in 3x224x224 "
                         "(or CxDxHxW, as in 4x128x128x128)")
    return tuple(int(part) for part in str(text).split("x"))


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
