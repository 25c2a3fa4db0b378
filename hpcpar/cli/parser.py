"""The argument parser: errors of one line, sections of the help, completion by a shell."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field
from functools import partial
from itertools import groupby
from typing import Any, NoReturn

from hpcpar.checks import path
from hpcpar.errors import InputError, unknown
from hpcpar.option_fields import OptionGroup, help_of, metavar_of, options_of, section_of, words
from hpcpar.output_files import OutputKind

#: A near name is a slip of the pen from this similarity on, whoever else has the option.
SLIP = 0.8
#: Completion of file names in each shell, as shtab takes it.
COMPLETED_FILES = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"}


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, and whose help has sections."""

    def __init__(self, **options: Any) -> None:
        self.commands: Any = None
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
                         **options)

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see: {self.prog} --help)")

    def fill(self, group: type[OptionGroup]) -> None:
        """Adds the options of a dataclass, in sections; only those that are given come back, with
        the dataclass as ``group``.
        """
        exclusive: dict[str, Any] = {}
        self.set_defaults(group=group)
        self.epilog = f"example:\n  {group.example}"
        for title, several in groupby(options_of(group), partial(section_of, group)):
            section = self.add_argument_group(title) if title else self
            for f in several:
                about, place = f.metadata["option"], section
                if about.excludes:
                    if about.excludes not in exclusive:
                        exclusive[about.excludes] = section.add_mutually_exclusive_group()
                    place = exclusive[about.excludes]
                action: Any = place.add_argument(*words(f), **_arguments(f))
                if about.check is path or isinstance(about.check, OutputKind):
                    action.complete = COMPLETED_FILES

    def add_subparsers(self, **options: Any) -> Any:
        """Adds commands, and remembers them."""
        self.commands = super().add_subparsers(**options)
        return self.commands

    def kinds(self) -> dict[str, Parser]:
        """The parsers of the command's kinds by name; without kinds, itself."""
        return self.commands.choices if self.commands else {"": self}

    def check_options(self, words: Sequence[str], owner: Callable[[str], str]) -> None:
        """Reports a misspelt kind or option before what is missing because of it; `owner` names the
        command that has an option.
        """
        kinds = self.kinds()
        if self.commands and words and not words[0].startswith("-") and words[0] not in kinds:
            raise unknown("kind", words[0], kinds)
        command = next((kinds[word] for word in words if word in kinds), self)
        known = command.options()
        for word in words:
            name = word.partition("=")[0]
            if word == "--":
                return
            if word.startswith("--") and name not in known:
                command.error(f"unknown option {name}{_hint(name, known, owner)}")
            if word == f"{name}=--":  # argparse would leave out the value
                command.error(f"option {name} has no value")

    def options(self) -> list[str]:
        """Names of all options."""
        return [name for action in self._actions for name in action.option_strings
                if name.startswith("--")]


def _arguments(f: Field[Any]) -> dict[str, Any]:
    """The arguments of ``add_argument`` for an option."""
    about = f.metadata["option"]
    out: dict[str, Any] = {"help": help_of(f).replace("%", "%%"), "default": argparse.SUPPRESS}
    named = words(f)[0].startswith("-")
    if named:
        out |= {"dest": f.name, "required": f.default is MISSING}
    if f.type == "bool":
        return out | {"action": "store_true"}
    if f.type == "bool | None":
        return out | {"action": argparse.BooleanOptionalAction}
    out |= {"type": about.check, "metavar": metavar_of(f) or None}
    if about.nargs == "*":
        return out | {"action": "append"}
    optional = "" if named or f.default is MISSING else "?"
    return out | ({"nargs": about.nargs or optional} if about.nargs or optional else {})


def _hint(name: str, known: Sequence[str], owner: Callable[[str], str]) -> str:
    """Where to look for an option that the command does not have."""
    near = difflib.get_close_matches(name, known, n=1)
    if near and difflib.SequenceMatcher(None, name, near[0]).ratio() >= SLIP:
        return f"; did you mean '{near[0]}'?"
    if elsewhere := owner(name):
        return f": it belongs to another command; use: hpcpar {elsewhere} {name}"
    return f"; did you mean '{near[0]}'?" if near else ""
