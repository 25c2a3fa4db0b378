"""Options as fields of frozen dataclasses.

A field states an option's name, type, default, check and help once, for the command line
(`hpcpar.cli.parser.Parser.fill`), the Python function (`hpcpar.api.keywords.by_keyword`), and the
reference of both. A command's options are a dataclass that inherits the groups it shares with other
commands. Dataclasses put the fields of the last base first, so bases are listed in the reverse
order of the help.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any

from hpcpar.errors import InputError
from hpcpar.options.checks import OneOf, argument

#: Sections of the help, in their order; options without one come first.
SECTIONS = ("", "network and data", "machine", "plan", "training", "prediction", "job",
            "batch jobs", "output")


@dataclass(frozen=True)
class Option:
    """Everything about an option except its name, type and default."""

    #: Converts text or a value; raises `hpcpar.options.checks.ValueRefused`.
    check: Callable[[Any], Any]
    #: Meaning and unit; `help_of` appends the default.
    help: str
    #: An example of the value, or its form.
    metavar: str = ""
    #: Explanations that only the long help and the reference show.
    details: str = ""
    #: Whether the short help of a command with many options shows it.
    first: bool = False
    #: Section of the help; by default the group's section.
    section: str = ""
    #: Names on the command line, by default the field's name after two hyphens; a name without
    #: hyphens makes a positional argument.
    names: tuple[str, ...] = ()
    #: Former names, which still work but are not shown.
    former: tuple[str, ...] = ()
    #: ``+`` for one value or more, ``*`` for an option that may be repeated.
    nargs: str = ""
    #: Options with the same word here exclude each other.
    excludes: str = ""
    #: Field of the option without which this one has no effect.
    needs: str = ""


#: Names of the option for a command's result.
OUT: dict[str, Any] = {"names": ("-o", "--out"), "former": ("--output",), "first": True}


def about(check: Callable[[Any], Any], help: str, metavar: str = "", **more: Any) -> dict[str, Any]:
    """The metadata of an option's field; `more` are attributes of `Option`."""
    return {"option": Option(check, help, metavar, **more)}


def option(default: object, check: Callable[[Any], Any], help: str, metavar: str = "",
           **more: Any) -> Any:
    """The field of an option with a default."""
    return field(default=default, metadata=about(check, help, metavar, **more))


def required(check: Callable[[Any], Any], help: str, metavar: str = "", **more: Any) -> Any:
    """The field of a required option; for type checkers, use ``field(metadata=about(...))``."""
    return field(metadata=about(check, help, metavar, **more))


def flag(help: str, **more: Any) -> Any:
    """The field of an option that takes no value."""
    return option(False, bool, help, **more)


class OptionGroup:
    """Base of dataclasses whose fields are options; ``section`` is their section of the help.

    Raises
    ------
    InputError
        A value is invalid, two options exclude each other, or an option lacks one that it needs.
    """

    section = ""
    #: A working command line for the end of the help.
    example = ""

    def __init_subclass__(cls, section: str = "") -> None:
        cls.section = section

    def __post_init__(self) -> None:
        given: set[str] = set()
        for f in options_of(type(self)):
            value, check = getattr(self, f.name), f.metadata["option"].check
            if value is f.default:
                continue
            if f.metadata["option"].nargs:
                items = [value] if isinstance(value, str) else value
                value = tuple(argument(f.name, check, item) for item in items)
            else:
                value = argument(f.name, check, value)
            object.__setattr__(self, f.name, value)
            if value != f.default:
                given.add(f.name)
        self.check_given(given)

    def check_given(self, names: Collection[str]) -> None:
        """Checks that given options, even with default values, do not exclude each other and come
        with those they need.
        """
        options, first = {f.name: f for f in options_of(type(self))}, dict[str, str]()
        for name in (name for name in options if name in names):
            about = options[name].metadata["option"]
            rival = first.setdefault(about.excludes, name) if about.excludes else name
            if rival != name:
                raise InputError(f"argument {name}: not allowed with argument {rival}")
            if about.needs and about.needs not in names:
                needs, missing = words(options[name])[-1], options[about.needs]
                raise InputError(f"{needs} needs {words(missing)[-1]}: add {words(missing)[-1]} "
                                 f"{metavar_of(missing)}")


def options_of(group: Any) -> list[Field[Any]]:
    """A group's options in the order of the help; keyword-only ones come last in a section."""
    found = [f for f in fields(group) if "option" in f.metadata]
    return sorted(found, key=lambda f: (SECTIONS.index(section_of(group, f)), bool(f.kw_only)))


def section_of(group: type[OptionGroup], f: Field[Any]) -> str:
    """An option's section: its own or its group's; positional arguments have none."""
    if not words(f)[0].startswith("-"):
        return ""
    holders = [c for c in group.__mro__ if issubclass(c, OptionGroup)
               and getattr(c, "__dataclass_fields__", {}).get(f.name) is f]
    section: str = f.metadata["option"].section or holders[-1].section
    return section


def words(f: Field[Any]) -> tuple[str, ...]:
    """An option's names on the command line, the preferred one last."""
    return f.metadata["option"].names or (f"--{f.name.replace('_', '-')}",)


def help_of(f: Field[Any], details: bool = True) -> str:
    """An option's help with its default, and its details."""
    about = f.metadata["option"]
    text: str = f"{about.help}: {about.details}" if details and about.details else about.help
    silent = f.default is MISSING or f.default is False or f.default in (None, "", ())
    if silent or "(default" in text:
        return text
    return f"{text} (default {f.default:g})" if isinstance(f.default, float) else (
        f"{text} (default {f.default})")


def metavar_of(f: Field[Any]) -> str:
    """The form of an option's value."""
    about = f.metadata["option"]
    known: str = about.check.metavar if isinstance(about.check, OneOf) else ""
    return about.metavar or known
