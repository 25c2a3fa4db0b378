"""Options as fields of frozen dataclasses.

A field states all that is known of an option: name, type, default, check, and help. From it come
the option of the command line (`hpcpar.cli.parser.Parser.fill`), the keyword of the Python function
(`hpcpar.api.keywords.by_keyword`), and the reference of both. A command's options are a dataclass
that inherits the groups which it shares with others. Dataclasses take the fields of the last base
first: bases stand in the reverse order of the help.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any

from hpcpar.checks import OneOf, argument
from hpcpar.errors import InputError

#: Sections of the help, in their order; options without one come first.
SECTIONS = ("", "network and data", "machine", "plan", "training", "prediction", "job",
            "batch jobs", "output")


@dataclass(frozen=True)
class Option:
    """All that is known of an option beside its name, its type and its default."""

    #: Makes a value of text, or of a value; raises `hpcpar.checks.ValueRefused`.
    check: Callable[[Any], Any]
    #: Meaning and unit; the default is added.
    help: str
    #: An example of the value, or its form.
    metavar: str = ""
    #: Title in the help; empty for that of the group.
    section: str = ""
    #: Words of the command line, unless it is the field's name after two hyphens; one without
    #: hyphens for an argument that is known by its place.
    names: tuple[str, ...] = ()
    #: ``+`` for one value or more, ``*`` for an option that may be repeated.
    nargs: str = ""
    #: At most one of the options with the same word here can be given.
    excludes: str = ""
    #: The field of an option without which this one has no effect.
    needs: str = ""


def about(check: Callable[[Any], Any], help: str, metavar: str = "", **more: Any) -> dict[str, Any]:
    """The metadata of a field that is an option; `more` are attributes of `Option`."""
    return {"option": Option(check, help, metavar, **more)}


def option(default: object, check: Callable[[Any], Any], help: str, metavar: str = "",
           **more: Any) -> Any:
    """A field that is an option with a default."""
    return field(default=default, metadata=about(check, help, metavar, **more))


def required(check: Callable[[Any], Any], help: str, metavar: str = "", **more: Any) -> Any:
    """A field that is an option without a default. Where type checkers need to know that,
    ``field(metadata=about(...))`` says the same.
    """
    return field(metadata=about(check, help, metavar, **more))


def flag(help: str, **more: Any) -> Any:
    """A field that is an option without a value."""
    return option(False, bool, help, **more)


class OptionGroup:
    """The base of dataclasses whose fields are options; ``section`` is their title in the help.

    Raises
    ------
    InputError
        A value is not possible, two are given that exclude each other, or one that needs another.
    """

    section = ""
    #: A command line that works, for the end of the help.
    example = ""

    def __init_subclass__(cls, section: str = "") -> None:
        cls.section = section

    def __post_init__(self) -> None:
        given = {}
        for f in options_of(type(self)):
            value, check = getattr(self, f.name), f.metadata["option"].check
            if value is f.default:
                continue
            if f.metadata["option"].nargs:
                value = tuple(argument(f.name, check, each) for each in value)
            else:
                value = argument(f.name, check, value)
            object.__setattr__(self, f.name, value)
            if value != f.default:
                given[f.name] = f
        _check_together(given, type(self))

    def check_given(self, names: Collection[str]) -> None:
        """Checks what a command line names, even where the value is the default.

        Raises
        ------
        InputError
            Two options exclude each other, or one needs another.
        """
        _check_together({f.name: f for f in options_of(type(self)) if f.name in names}, type(self))


def _check_together(given: dict[str, Field[Any]], group: type[OptionGroup]) -> None:
    """Checks options that are given against each other."""
    first: dict[str, str] = {}
    for name, f in given.items():
        excludes, needs = f.metadata["option"].excludes, f.metadata["option"].needs
        other = first.setdefault(excludes, name) if excludes else name
        if other != name:
            raise InputError(f"argument {name}: not allowed with argument {other}")
        if needs and needs not in given:
            missing = next(each for each in options_of(group) if each.name == needs)
            raise InputError(f"{words(f)[-1]} needs {words(missing)[-1]}: add {words(missing)[-1]} "
                             f"{metavar_of(missing)}")


def options_of(group: Any) -> list[Field[Any]]:
    """The options of a group, in the order of the help; of a section, those that Python takes by
    their places come first.
    """
    found = [f for f in fields(group) if "option" in f.metadata]
    return sorted(found, key=lambda f: (SECTIONS.index(section_of(group, f)), bool(f.kw_only)))


def section_of(group: type[OptionGroup], f: Field[Any]) -> str:
    """The section of an option: its own, or that of the group that brings it; none for what is
    known by its place.
    """
    if not words(f)[0].startswith("-"):
        return ""
    bringing = [c for c in group.__mro__ if issubclass(c, OptionGroup)
                and getattr(c, "__dataclass_fields__", {}).get(f.name) is f]
    section: str = f.metadata["option"].section or bringing[-1].section
    return section


def words(f: Field[Any]) -> tuple[str, ...]:
    """The names of an option on the command line, the usual one last."""
    return f.metadata["option"].names or (f"--{f.name.replace('_', '-')}",)


def help_of(f: Field[Any]) -> str:
    """The help of an option, with its default."""
    text: str = f.metadata["option"].help
    silent = f.default is MISSING or f.default is False or f.default in (None, "", ())
    if silent or "(default" in text:
        return text
    return f"{text} (default {f.default:g})" if isinstance(f.default, float) else (
        f"{text} (default {f.default})")


def metavar_of(f: Field[Any]) -> str:
    """The form of an option's value."""
    about = f.metadata["option"]
    return about.check.metavar if isinstance(about.check, OneOf) else about.metavar
