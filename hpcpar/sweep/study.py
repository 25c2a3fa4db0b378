"""A scaling study: every strategy on every number of ranks, under one set of options."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypedDict

from msgspec import Meta

from hpcpar.comm.device_options import GRAPHS
from hpcpar.comm.transport import Transport
from hpcpar.errors import InputError
from hpcpar.io.files import write_text
from hpcpar.io.schema import Bytes, Count, Extent, one_of, plain, read_json
from hpcpar.kernels.conv_choice import AUTO, CONVOLUTIONS
from hpcpar.kernels.interface import MathMode
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.plan.plan import NetworkSpec, Overlap
from hpcpar.plan.precision import PRECISIONS
from hpcpar.search import auto
from hpcpar.search.scaling import weak_batch
from hpcpar.sweep import folder

KINDS = ("strong", "weak")
if TYPE_CHECKING:
    Batch: TypeAlias = int | Fraction
else:  # in the file
    Batch = Annotated[str, Meta(pattern=r"^[1-9]\d{0,8}(/[1-9]\d{0,8})?$(?!\n)",
                                description='a number as text, as in "64" or "1/4"')]


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


class StudyOptions(TypedDict):
    """Planning options of a study."""

    gather: Annotated[str, one_of("lazy", "eager")]
    overlap: Overlap
    precision: Annotated[str, one_of(*PRECISIONS)]
    bucket_bytes: Bytes | None


@dataclass(frozen=True)
class Study:
    """A scaling study."""

    #: ``strong``: `batch` is the mini-batch over all ranks; ``weak``: the mini-batch per rank,
    #: below 1 where ranks share a sample.
    kind: Annotated[str, one_of(*KINDS)]
    spec: NetworkSpec
    machine: Machine
    ranks: tuple[Extent, ...]
    strategies: tuple[str, ...]
    batch: Batch
    #: Options of `hpcpar.search.auto.task`.
    planning: StudyOptions
    #: The data file, and its number of training samples.
    data: str
    samples: Count
    #: Length of every run; `steps` overrides `epochs` unless it is 0.
    steps: Count
    epochs: Extent
    device: Annotated[str, one_of("cpu", "gpu")]
    #: The folder of the sweep, as an absolute path.
    out: str
    #: The way of messages between GPUs, and the precision of their float32 products.
    transport: Annotated[str, one_of(*Transport)] = "staged"
    math: Annotated[str, one_of(*MathMode)] = "fp32"
    #: Whose convolutions run.
    kernels: Annotated[str, one_of(*CONVOLUTIONS)] = AUTO
    #: Whether GPUs replay iterations.
    graphs: Annotated[str, one_of(*GRAPHS)] = GRAPHS[0]
    #: Nodes by number of ranks (as text: keys of JSON).
    nodes: dict[str, Extent] = field(default_factory=dict)
    #: Further numbers of ranks, which are simulated.
    simulated: tuple[Extent, ...] = ()
    #: Samples of an epoch, from the data; synthetic data counts as the data set that fits the
    #: network. None if unknown.
    epoch_samples: Count | None = None
    #: Modules that every run imports: of the user's own layers, strategies and the like.
    layers: tuple[str, ...] = ()

    def cases(self) -> list[Case]:
        """All cases, ordered by size.

        Raises
        ------
        InputError
            A strategy is unknown, or a batch is not a whole number.
        """
        out = []
        for ranks in (*self.ranks, *self.simulated):
            batch = weak_batch(self.batch, ranks if self.kind == "weak" else 1)
            for pattern in self.strategies:
                names = [pattern] if pattern == "auto" else auto.expand(
                    pattern, ranks, self.spec.build)
                out += [Case(name, ranks, batch) for name in names]
        return list(dict.fromkeys(out))

    def simulates(self, case: Case) -> bool:
        """True for a case that is simulated instead of run."""
        return case.ranks in self.simulated

    def folder(self, case: Case) -> str:
        """The folder of a case's files."""
        return os.path.join(self.out, folder.CASES, case.name)

    def job_log(self, name: str) -> str:
        """The log of a batch job; cases have their own logs."""
        return os.path.join(self.out, folder.JOBS, f"{name}.log")

    def request(self, case: Case) -> dict[str, Any]:
        """Everything that decides what a case runs; a finished case serves only equal requests."""
        machine = hashlib.sha256(json.dumps(files.to_dict(self.machine),
                                            sort_keys=True).encode()).hexdigest()[:16]
        return plain(case) | {
            "network": self.spec.title,
            "input": list(self.spec.shape),
            "classes": self.spec.classes,
            **self.planning,
            "machine": f"{self.machine.name} ({machine})",
            "data": self.data,
            "steps": self.steps,
            "epochs": self.epochs,
            "device": self.device,
            **({"transport": self.transport, "math": self.math, "graphs": self.graphs}
               if self.device == "gpu" else {}),
            **({"kernels": self.kernels} if self.device == "cpu" or self.kernels != AUTO else {}),
            **({"simulated": True} if self.simulates(case) else {}),
        }


def save(study: Study) -> None:
    """Writes the study into its folder, for `load`."""
    whole = {f.name: getattr(study, f.name) for f in fields(study)}
    data = plain(whole | {"machine": files.to_dict(study.machine), "batch": str(study.batch)})
    write_text(os.path.join(study.out, folder.STUDY), json.dumps(data, indent=1) + "\n", "study")


def load(out: str) -> Study:
    """The study of a folder.

    Raises
    ------
    InputError
        The folder holds none.
    """
    path = os.path.join(out, folder.STUDY)
    again = "the sweep's command writes it again"
    study = read_json(path, Study, again)
    if study is None:
        raise InputError(f"no {path}: {out} is not the folder of a sweep; start one with: hpcpar "
                         "sweep strong|weak ... --out FOLDER")
    if study.nodes.keys() != {str(ranks) for ranks in (*study.ranks, *study.simulated)}:
        raise InputError(f"{path}: 'nodes' and 'ranks' differ; {again}")
    batch = Fraction(study.batch)
    return replace(study, out=out, batch=batch if batch.denominator > 1 else int(batch))


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
