"""The argument parser: one-line errors, help in sections, shell completion."""

from __future__ import annotations

import argparse
import difflib
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field
from functools import partial
from itertools import groupby
from typing import Any, NoReturn

from hpcpar.errors import InputError, unknown
from hpcpar.options.checks import path
from hpcpar.options.fields import OptionGroup, help_of, metavar_of, options_of, section_of, words
from hpcpar.options.output_files import OutputKind

#: Similarity above which a name counts as a typo, even if another command has that option.
TYPO = 0.8
#: Most options that the short help shows all.
SHORT = 15
#: Width of texts that the help does not wrap.
WIDTH = 78
#: Shell -> shtab's function that completes file names.
COMPLETED_FILES = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"}


class Parser(argparse.ArgumentParser):
    """An argument parser with one-line errors, and sections in its help."""

    def __init__(self, **options: Any) -> None:
        #: The parsers of a command's kinds, by name; a command without kinds is its own parser.
        self.kinds: dict[str, Parser] = {"": self}
        #: Help texts in the short help, where they differ from the long one.
        self.short: dict[argparse.Action, str] = {}
        options["description"] = textwrap.fill(str(options["description"]), WIDTH)
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
                         **options)

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see: {self.prog} --help{'-all' * bool(self.short)})")

    def print_help(self, file: Any = None) -> None:
        """Prints the short help."""
        for action, text in self.short.items():
            action.help = text
        if hidden := [*self.short.values()].count(argparse.SUPPRESS):
            self.epilog = f"{hidden} more options: {self.prog} --help-all\n\n{self.epilog}"
        super().print_help(file)

    def fill(self, group: type[OptionGroup]) -> None:
        """Adds the options of a dataclass, in sections.

        The parsed result has only the options that were given, and the dataclass as ``group``.
        """
        exclusive: dict[str, Any] = {}
        self.set_defaults(group=group)
        lines = textwrap.wrap(group.example, WIDTH - 6, break_on_hyphens=False)
        self.epilog = "example:\n  " + " \\\n    ".join(lines)
        many = len(options_of(group)) > SHORT
        if many:
            self.add_argument("--help-all", action=_HelpAll, nargs=0,
                              default=argparse.SUPPRESS,
                              help=f"show all {len(options_of(group))} options and exit")
        for title, several in groupby(options_of(group), partial(section_of, group)):
            section = self.add_argument_group(title) if title else self
            for f in several:
                about, place = f.metadata["option"], section
                if about.excludes:
                    if about.excludes not in exclusive:
                        exclusive[about.excludes] = section.add_mutually_exclusive_group()
                    place = exclusive[about.excludes]
                action: Any = place.add_argument(*words(f), **_arguments(f))
                self._option_string_actions.update(dict.fromkeys(about.former, action))
                if about.check is path or isinstance(about.check, OutputKind):
                    action.complete = COMPLETED_FILES
                if many and action.option_strings and not (about.first or action.required):
                    self.short[action] = argparse.SUPPRESS
                elif many and about.details:
                    self.short[action] = f"{help_of(f, details=False)}; --help-all explains them"

    def check_options(self, words: Sequence[str], owner: Callable[[str], str]) -> None:
        """Reports a misspelled kind or option before argparse reports that something is missing.

        `owner` gives the command that has an option, followed by the option.
        """
        kinds = self.kinds
        if "" not in kinds and words and not words[0].startswith("-") and words[0] not in kinds:
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

    def options(self) -> dict[str, str]:
        """Long names of all options, also former ones, with the names to show for them."""
        return {name: name if name in action.option_strings else action.option_strings[-1]
                for name, action in self._option_string_actions.items() if name.startswith("--")}


class _HelpAll(argparse.Action):
    """Prints the help of all options."""

    def __call__(self, parser: Any, *_: Any) -> None:
        parser.short.clear()
        parser.print_help()
        parser.exit()


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


def _hint(name: str, known: Mapping[str, str], owner: Callable[[str], str]) -> str:
    """The end of the error for an unknown option: a similar name, or the command that has it."""
    near = difflib.get_close_matches(name, known, n=1)
    if near and difflib.SequenceMatcher(None, name, near[0]).ratio() >= TYPO:
        return f"; did you mean '{known[near[0]]}'?"
    if elsewhere := owner(name):
        return f": it belongs to another command: hpcpar {elsewhere}"
    return f"; did you mean '{known[near[0]]}'?" if near else ""
