"""Functions that take the options of a dataclass as keyword arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any, ParamSpec, TypeVar

from hpcpar.errors import unknown
from hpcpar.options.fields import OptionGroup, help_of, options_of

P = ParamSpec("P")
Group = TypeVar("Group", bound=OptionGroup)
Result = TypeVar("Result")


def by_keyword(group: Callable[P, Group],
               function: Callable[[Group], Result]) -> Callable[P, Result]:
    """Turns a function of options into a function of keyword arguments.

    The dataclass defines the parameters: type checkers and editors read them through `P`,
    ``inspect.signature`` and notebooks through ``__signature__``.
    """
    signature = inspect.signature(group)
    former = {keyword(name): f.name for f in options_of(group)
              for name in f.metadata["option"].former}

    def call(*args: P.args, **kwargs: P.kwargs) -> Result:
        given: Any = {former.get(name, name): value for name, value in kwargs.items()}
        for name in given:
            if name not in signature.parameters:
                raise unknown("option", name, signature.parameters)
        return function(group(*args, **given))

    name = str(getattr(group, "__name__", "")).removesuffix("Arguments").lower()
    call.__name__ = call.__qualname__ = name
    call.__module__ = function.__module__
    answer = inspect.signature(function).return_annotation
    call.__signature__ = signature.replace(return_annotation=answer)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
    call.__annotations__["return"] = answer
    call.__doc__ = _docstring(inspect.getdoc(function) or "", group, name)
    return call


def keyword(name: str) -> str:
    """The keyword argument of an option."""
    return name.lstrip("-").replace("-", "_")


def _docstring(text: str, group: Any, name: str) -> str:
    """The docstring of the function, with an entry for each option."""
    options = [f for f in fields(group) if "option" in f.metadata]
    lines = [f"{f.name} : {f.type}\n    {help_of(f)}"
             for f in sorted(options, key=lambda f: bool(f.kw_only))]
    return "\n".join([
        text, "", "Parameters", "----------", *lines, "", "Raises", "------", "InputError",
        f"    An argument is invalid; ``hpcpar {name}`` has the same options."])
