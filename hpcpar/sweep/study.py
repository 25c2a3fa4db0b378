"""A scaling study: every strategy on every number of ranks, under one set of options."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import Any

from hpcpar.errors import InputError
from hpcpar.files import write_text
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.plan.plan import NetworkSpec
from hpcpar.search import auto
from hpcpar.search.scaling import weak_batch
from hpcpar.sweep import folder

KINDS = ("strong", "weak")
#: The file in a study's folder that holds it.
FILE = "study.json"


@dataclass(frozen=True)
class Case:
    """One plan to run."""

    #: The requested name, or ``auto``.
    strategy: str
    ranks: int
    #: Mini-batch over all ranks.
    batch: int

    @property
    def name(self) -> str:
        """The name of the case's folder."""
        return f"{re.sub('[^A-Za-z0-9_.-]', '_', self.strategy)}-p{self.ranks}-b{self.batch}"


@dataclass(frozen=True)
class Study:
    """A scaling study."""

    #: ``strong``: `batch` is the mini-batch over all ranks; ``weak``: the mini-batch per rank,
    #: below 1 where ranks share a sample.
    kind: str
    spec: NetworkSpec
    machine: Machine
    ranks: tuple[int, ...]
    strategies: tuple[str, ...]
    batch: int | Fraction
    #: Options of `hpcpar.search.auto.task`.
    planning: dict[str, Any]
    #: The data file, and its number of training samples.
    data: str
    samples: int
    #: Length of every run; `steps` overrides `epochs` unless it is 0.
    steps: int
    epochs: int
    device: str
    #: The folder of the sweep, as an absolute path.
    out: str
    #: Whether GPU buffers are handed to MPI.
    direct: bool = False
    #: Nodes by number of ranks (as text: keys of JSON).
    nodes: dict[str, int] = field(default_factory=dict)

    def cases(self) -> list[Case]:
        """All cases, ordered by size.

        Raises
        ------
        InputError
            A strategy is unknown, or a batch is no whole number.
        """
        out = []
        for ranks in self.ranks:
            batch = weak_batch(self.batch, ranks if self.kind == "weak" else 1)
            for pattern in self.strategies:
                names = [pattern] if pattern == "auto" else auto.expand(pattern, ranks)
                out += [Case(name, ranks, batch) for name in names]
        return list(dict.fromkeys(out))

    def folder(self, case: Case) -> str:
        """The folder of a case's files."""
        return os.path.join(self.out, "cases", case.name)

    def job_log(self, number: str) -> str:
        """The log of a Slurm job; cases have their own logs."""
        return os.path.join(self.out, "slurm", f"{number}.log")

    def request(self, case: Case) -> dict[str, Any]:
        """Everything that decides what a case runs; a finished case serves only equal requests."""
        machine = hashlib.sha256(json.dumps(files.to_dict(self.machine),
                                            sort_keys=True).encode()).hexdigest()[:16]
        return asdict(case) | {
            "network": self.spec.name,
            "input": list(self.spec.shape),
            "classes": self.spec.classes,
            **self.planning,
            "machine": f"{self.machine.name} ({machine})",
            "data": self.data,
            "steps": self.steps,
            "epochs": self.epochs,
            "device": f"{self.device}, buffers handed to MPI" if self.direct else self.device,
        }


def save(study: Study) -> None:
    """Writes the study into its folder, for `load`."""
    data = asdict(study) | {"machine": files.to_dict(study.machine), "batch": str(study.batch)}
    write_text(os.path.join(study.out, FILE), json.dumps(data, indent=1) + "\n", "study")


def load(out: str) -> Study:
    """The study of a folder.

    Raises
    ------
    InputError
        The folder holds none.
    """
    path = os.path.join(out, FILE)
    data = folder.read_json(path)
    if data is None:
        raise InputError(f"no {path}: {out} is not the folder of a sweep; start one with: hpcpar "
                         "sweep strong|weak ... --out FOLDER")
    spec = NetworkSpec(**data["spec"] | {"shape": tuple(data["spec"]["shape"])})
    lists = {name: tuple(data[name]) for name in ("ranks", "strategies")}
    batch = Fraction(data["batch"])
    return Study(**data | lists | {
        "spec": spec, "machine": files.from_dict(data["machine"], f"the machine in {path}"),
        "out": out, "batch": batch if batch.denominator > 1 else int(batch)})


def require_same(case: Case, had: dict[str, Any], wanted: dict[str, Any], folder: str) -> None:
    """Checks that a case was run under the options of now.

    Raises
    ------
    InputError
        The message names the first option that differs.
    """
    for name in wanted:
        if had.get(name) != wanted[name]:
            raise InputError(f"case {case.name} in {folder} was run with {name} {had.get(name)}, "
                             f"now it is {wanted[name]}; give another --out, or the options of "
                             "before")
