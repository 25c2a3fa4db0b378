"""The argument parser: errors of one line, sections of the help, completion by a shell."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from hpcpar.errors import InputError

#: Sections of the help, and the options that stand in them in any command.
SECTIONS = {
    "network and data": "network layers input classes data samples test-samples targets",
    "machine": "machine load device transport math launcher mpiexec",
    "plan": "plan ranks batch batch-per-rank strategy strategies gather overlap dtype collectives "
            "synchronisation optimizer microbatches order bucket recompute batch-norm robust",
    "training": "epochs steps forward-only resume rate schedule warmup base-batch "
                "scaling momentum decay seed",
    "prediction": "accounting contention gamma io io-item-bytes explain efficiency deadline "
                  "node-hours jitter slow repeat simulate",
    "Slurm": "slurm account partition time constraint nodes ranks-per-node cpus-per-rank "
             "gpus-per-rank module sbatch mpi no-wait one-allocation",
    "output": "output force new out checkpoint show-schedule plot timeline timeline-plot all",
}
_SECTION = {f"--{name}": title for title, names in SECTIONS.items() for name in names.split()}
#: Arguments that may be files, which a shell completes.
_FILES = ("--network", "--layers", "--data", "--machine", "--plan", "--for", "--refine", "--resume",
          "--slurm", "--output", "--out", "--checkpoint", "--plot", "--timeline",
          "--timeline-plot", "file", "images", "truth", "record", "records", "name")


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, and whose help has sections."""

    def __init__(self, **options: Any) -> None:
        self.sections: dict[str | None, Any] = {}
        self.commands: Any = None
        super().__init__(**options)

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see: {self.prog} --help)")

    def add_argument_group(self, title: str | None = None, *args: Any, **options: Any) -> Any:
        """The section with this title."""
        if title not in self.sections:
            self.sections[title] = super().add_argument_group(title, *args, **options)
        return self.sections[title]

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        """Adds an argument, in its section."""
        title = _SECTION.get(names[-1])
        add = self.add_argument_group(title).add_argument if title else super().add_argument
        action: argparse.Action = add(*names, **options)
        if names[-1] in _FILES:
            action.complete = _completed_files()  # type: ignore[attr-defined]
        return action

    def add_subparsers(self, **options: Any) -> Any:
        """Adds commands, and remembers them."""
        self.commands = super().add_subparsers(**options)
        return self.commands

    def check_options(self, words: Sequence[str]) -> None:
        """Reports a misspelt option before the option that is missing because of it."""
        command = self
        if self.commands is not None:  # a command with commands (data, sweep)
            parsers = self.commands.choices
            command = next((parsers[word] for word in words if word in parsers), self)
        known = command.options()
        for word in words:
            name = word.partition("=")[0]
            if word == "--":
                return
            if word.startswith("--") and name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean '{near[0]}'?" if near else ""
                command.error(f"unknown option {name}{hint}")
            if word == f"{name}=--":  # argparse would leave out the value
                command.error(f"option {name} has no value")

    def options(self) -> list[str]:
        """Names of all options, as the help lists them."""
        text = re.sub(r"\x1b\[[\d;]*m", "", self.format_help())
        heads = re.findall(r"^  (-.*?)(?:  |$)", text, re.MULTILINE)
        return [name for head in heads for name in re.findall(r"--[\w-]+", head)]


def _completed_files() -> dict[str, str]:
    """Completion of file names in each shell, as shtab takes it."""
    return {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"}
