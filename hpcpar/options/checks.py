"""Checks of values, shared by command line options and function arguments."""

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

T = TypeVar("T")
#: Largest number of samples, classes or iterations.
LARGEST_COUNT = 10**10
#: Most ranks of a job, and most micro-batches: each micro-batch has steps of its own.
MOST_RANKS, MOST_MICROBATCHES = 1 << 20, 1024
#: Largest seed: it is stored in 64 bits.
MOST_SEED = 2**63 - 1
#: Images with more channels and a width of 1 or 3 are taken for images with their channels last.
MOST_CHANNELS = 4
#: Bounds of times, rates and factors; products of a few such values stay finite.
LEAST_AMOUNT, MOST_AMOUNT = 1e-12, 1e18
#: Seconds per unit of time.
_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}
#: Stands for the jitter in the machine's calibration.
MEASURED = "measured"


class ValueRefused(InputError, argparse.ArgumentTypeError):
    """The value is invalid; argparse adds the name of the option."""


def argument(name: str, check: Callable[[Any], T], value: object) -> T:
    """The checked value of an argument; errors name the argument."""
    try:
        return check(value)
    except ValueRefused as err:
        raise InputError(f"argument {name}: {err}") from err


def path(value: T) -> T:
    """A file's path, which shells complete; in Python, also the content in place of a path."""
    return value


@dataclass(eq=False)
class OneOf:
    """Checks that a value is one of the known names."""

    known: Iterable[str]
    #: Answers to names of other tools.
    answers: Mapping[str, str] = field(default_factory=dict)

    @property
    def metavar(self) -> str:
        return "|".join(self.known)

    def __call__(self, value: object) -> str:
        name = str(value)
        if name not in tuple(self.known):
            raise ValueRefused(unknown("value", name, self.known, self.answers))
        return name


def whole(least: int, most: int, value: object) -> int:
    """A whole number from `least` to `most`."""
    try:
        number = int(str(value))
    except ValueError:
        number = least - 1
    if number < least:
        raise ValueRefused(f"{_shown(value)} is not a whole number of at least {least}")
    if number > most:
        raise ValueRefused(f"{_shown(value)} is more than the maximum of {most:,}")
    return number


def _shown(value: object) -> str:
    """A value in quotes, shortened to 60 characters."""
    text = str(value)
    return f"'{text}'" if len(text) <= 60 else f"'{text[:57]}...'"


natural, positive = partial(whole, 0, LARGEST_COUNT), partial(whole, 1, LARGEST_COUNT)
ranks, microbatches = partial(whole, 1, MOST_RANKS), partial(whole, 1, MOST_MICROBATCHES)
seed = partial(whole, 0, MOST_SEED)


def several_ranks(value: object) -> list[int]:
    """Numbers of ranks, from a number, an iterable, or comma-separated text."""
    return _several(ranks, value)


def _several(check: Callable[[object], int], value: object) -> list[int]:
    """Checked numbers, from a number, an iterable, or comma-separated text."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        value = str(value).split(",")
    found = [check(str(part).strip()) for part in value]
    if not found:
        raise ValueRefused("no number is given; give at least one")
    return found


def widths(value: object) -> list[int]:
    """Widths of images in ascending order, from a number, an iterable or comma-separated text."""
    return sorted({*_several(positive, value)})


def names(value: str | Iterable[str]) -> list[str]:
    """Names without duplicates, from an iterable or comma-separated text."""
    parts = value.split(",") if isinstance(value, str) else value
    return list(dict.fromkeys(part.strip() for part in parts if part.strip()))


def several_of(known: Iterable[str], value: str | Iterable[str]) -> list[str]:
    """Names from an iterable or comma-separated text; each is one of the known names."""
    return [OneOf(known)(name) for name in names(value)]


def number(least: float, most: float, range_text: str, value: object) -> float:
    """A number from `least` to `most`; `range_text` describes the range in errors."""
    try:
        found = float(str(value))
    except ValueError:
        found = math.nan
    if not least <= found <= most:
        raise ValueRefused(f"{_shown(value)} is not {range_text}")
    return found


def duration_s(value: object) -> float:
    """Seconds, from a float or from text with a unit (90s, 10min, 2h)."""
    if isinstance(value, float):
        return value
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|h)", str(value).strip())
    if found is None or not float(found[1]):
        raise ValueRefused(f"{_shown(value)} is not a duration; write 90s, 10min or 2h")
    return float(found[1]) * _UNITS[found[2]]


def jitters(value: object) -> float | str:
    """The standard deviation of a step's time as a share of its mean, or `MEASURED`."""
    return MEASURED if value == MEASURED else number(
        0.0, 1.0, "a number from 0 to 1, as in 0.05, or measured", value)


def share(value: object) -> int | Fraction:
    """Samples per rank in weak scaling: a whole number or a fraction (1/4, 0.25)."""
    text = str(value).strip()
    # Fraction("1e999999999") would take minutes
    plain = re.fullmatch(r"\d{1,10}(\.\d{1,20}|/\d{1,10})?", text)
    try:
        found = Fraction(text if plain else 0)
    except ZeroDivisionError:
        found = Fraction(0)
    if found <= 0:
        raise ValueRefused(f"{_shown(value)} is not a number of samples, as in 8 or 1/4")
    return found if found.denominator > 1 else int(found)


amount = partial(number, LEAST_AMOUNT, MOST_AMOUNT,
                 f"a number greater than 0, from {LEAST_AMOUNT:g} to {MOST_AMOUNT:g}")
fraction = partial(number, LEAST_AMOUNT, 1.0, "a parallel efficiency between 0 and 1, as in 0.8")
#: A learning rate or a tolerance.
magnitude = partial(number, 0.0, MOST_AMOUNT, "a number of at least 0")
#: A share below the whole.
part = partial(number, 0.0, math.nextafter(1.0, 0.0), "a number of at least 0 and below 1")


def _sizes(least: int, most: int, what: str, value: str | Iterable[int]) -> tuple[int, ...]:
    """From `least` to `most` numbers above 0, from text (AxB) or from numbers."""
    several = isinstance(value, Iterable) and not isinstance(value, str)
    text = "x".join(map(str, value)) if several else str(value)
    if (re.fullmatch(r"[1-9]\d{0,9}(x[1-9]\d{0,9})*", text, re.ASCII) is None
            or not least <= text.count("x") + 1 <= most):
        raise ValueRefused(f"{_shown(text)} is not {what}")
    return tuple(map(int, text.split("x")))


def image(value: str | Iterable[int]) -> tuple[int, ...]:
    """An image shape, from text (CxHxW, CxDxHxW or CxW) or from its extents."""
    shape = _sizes(2, 4, "an image shape CxHxW, as in 3x224x224 (or CxDxHxW, as in "
                   "4x128x128x128, or CxW, as in 6x400)", value)
    if len(shape) > 2 and shape[-1] in (1, 3) and shape[0] > MOST_CHANNELS:
        text, first = ("x".join(map(str, s)) for s in (shape, (shape[-1], *shape[:-1])))
        raise ValueRefused(f"'{text}' has its channels last; write them first, {first}")
    return shape


#: One number per image axis, or one for all: N, HxW or DxHxW.
extents = partial(_sizes, 1, 3, "a number, or one per image axis, as in 2 or 12x12")


def by_name(check: Callable[[Any], T], value: str | Mapping[str, float]) -> dict[str, T]:
    """Checked values by name, from a mapping or comma-separated NAME=VALUE pairs."""
    given = value if isinstance(value, Mapping) else {
        item.strip().partition("=")[0]: item.partition("=")[2] for item in value.split(",")}
    return {name: check(text) for name, text in given.items()}


#: Share of each level's bandwidth that other jobs use; slowdown factor of each slow unit.
loads, factors = partial(by_name, part), partial(by_name, amount)
