"""Runs cases by number: the seed, the kind and the number give the same case again."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from hpcpar.errors import InputError
from hpcpar.io import hdf5
from hpcpar.report.pictures import pyplot
from hpcpar.sweep import report
from tests.fuzz import judge
from tests.fuzz.base import Base, inside
from tests.fuzz.kinds import KINDS, ROTATION


@dataclass(frozen=True)
class Failure:
    """A case that failed."""

    seed: int
    kind: str
    number: int
    argv: list[str]
    fault: str

    @property
    def cause(self) -> str:
        """The fault without what differs from case to case."""
        return re.sub(r"'[^']*'|\"[^\"]*\"|(?<!:)\b\d{2,}", "_", self.fault)[:160]

    def __str__(self) -> str:
        words = shlex.join(w if len(w) < 200 else f"{w[:20]}...({len(w)})" for w in self.argv)
        return (f"{self.kind} {self.number}: {self.fault}\n  hpcpar {words}\n  python -m "
                f"tests.fuzz --seed {self.seed} --kind {self.kind} --only {self.number}")


class Pyplot:
    """matplotlib for the reports of sweeps, which it makes slow: in some cases it is missing."""

    missing = False

    def __call__(self) -> Any:
        """The module, or the error that users get where it is not installed."""
        if self.missing:
            raise InputError("plots need matplotlib")
        return pyplot()


def run_case(base: Base, seed: int, kind: str, number: int, keep: bool = False) -> Failure | None:
    """Makes a case and judges its command; the files stay where `keep` is set."""
    shutil.rmtree(base.case, ignore_errors=True)
    base.case.mkdir(parents=True)
    Pyplot.missing = number % 10 > 0
    case = KINDS[kind](Random(f"{seed}/{kind}/{number}"), base)
    before = os.environ.get("HPCPAR_CONFIG", "")
    os.environ["HPCPAR_CONFIG"] = case.config
    try:
        with inside(base.case):
            fault = (judge.in_child(lambda: judge.command(case.argv)) if case.child
                     else judge.command(case.argv))
    finally:
        os.environ["HPCPAR_CONFIG"] = before
    if keep:
        print(f"{base.case}$ hpcpar {shlex.join(case.argv)}\n{fault or 'fine'}")
    return Failure(seed, kind, number, case.argv, fault) if fault else None


def run_cases(base: Base, seed: int, numbers: range, kind: str = "",
              tell: bool = False) -> list[Failure]:
    """Failures among cases; with `tell`, the first of each cause is printed as it comes."""
    failures: list[Failure] = []
    seen: Counter[str] = Counter()
    with judge.bounded():
        for number in numbers:
            failure = run_case(base, seed, kind or ROTATION[number % len(ROTATION)], number)
            if failure is not None:
                failures.append(failure)
                seen[failure.cause] += 1
                if tell and seen[failure.cause] == 1:
                    print(failure, flush=True)
            if tell and sys.stderr.isatty():
                print(f"\r{number + 1} cases, {len(failures)} failures", end="", file=sys.stderr)
    return failures


def base_in(folder: Path) -> Base:
    """Base files in a folder, and a process that may run commands on them."""
    os.environ["HPCPAR_CONFIG"] = ""
    base = Base(folder)
    vars(hdf5)["subprocess"] = judge.ForkedCheck
    vars(report)["pyplot"] = Pyplot()
    return base
