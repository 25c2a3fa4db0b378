"""A batch system is one entry, a class of facts: its commands, directives and launch lines.

Forms
-----
Directives and launch lines are forms: words with values in braces, as in ``--time={time}``. A part
in angle brackets is left out where a value in it is missing; elsewhere, a missing value leaves out
the whole form. The values:

* ``name``, ``log``: of the job, and of the file for what it says.
* ``account``, ``queue``, ``constraint``, ``pe``, ``mpi``: as in `hpcpar.sweep.job_options`.
* ``time`` (H:MM:SS), ``minutes``, ``seconds``: the limit.
* ``ranks``; ``nodes``, ``node_ranks``: nodes, and ranks of each, missing where the site decides.
* ``cpus``, ``gpus``: of a rank, missing where the site decides.
* ``chunks``, ``chunk_ranks``, ``chunk_cpus``, ``chunk_gpus``: as nodes, ranks, cores and GPUs of
  each, but never missing (GPUs: where there are none): one node, one core a rank.
* ``cores``: all cores, one a rank where ``cpus`` is missing.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

from hpcpar.errors import InputError, unknown

Values = Mapping[str, "str | int"]

#: Launch lines by the kind of MPI.
MPIEXEC = (
    ("mpich", "mpiexec -n {ranks} <-ppn {node_ranks}>"),
    ("openmpi", "mpiexec -n {ranks} <--map-by ppr:{node_ranks}:node>"),
    ("pals", "mpiexec -n {ranks} <--ppn {node_ranks}> <--depth {cpus} --cpu-bind depth>"),
    ("jsrun", "jsrun -n {ranks} -a 1 <-r {node_ranks}> <-c {cpus}> <-g {gpus}>"),
)


class Question(NamedTuple):
    """A command that asks for the state of a job."""

    command: str
    #: Finds the state in its output, as the first group; the last one found counts.
    state: str
    #: In the output of a command that fails because it does not know the job.
    unknown: str


class Scheduler:
    """A batch system. Subclasses state the facts."""

    #: For --launcher, and for messages.
    name: ClassVar[str]
    title: ClassVar[str]
    #: Script in ``jobs/``, or its absolute path; `hpcpar.sweep.scripts` says what is filled in.
    template: ClassVar[str]
    #: Begins a directive; the forms of directives follow.
    directive: ClassVar[str]
    options: ClassVar[tuple[str, ...]]
    #: Submits the script, which is on its stdin, too; finds the job's number in the output.
    submit: ClassVar[str]
    number: ClassVar[str] = r"^(\d+)"
    #: Asked in turn until one knows the job.
    questions: ClassVar[tuple[Question, ...]]
    #: States of jobs that have ended, as a pattern.
    ended: ClassVar[str]
    cancel: ClassVar[str]
    #: Launch lines by --mpi, ``*`` for any other; the defaults with MPICH and with Open MPI.
    launch: ClassVar[tuple[tuple[str, str], ...]] = MPIEXEC
    mpi: ClassVar[tuple[str, str]] = ("mpich", "openmpi")
    #: More words of the launch line for ranks with GPUs.
    gpu_launch: ClassVar[str] = ""

    def directives(self, values: Values) -> list[str]:
        """The directives that have all their values, a line each."""
        return [f"{self.directive} {line}" for line in (filled(o, values) for o in self.options)
                if line]

    def launched(self, values: Values) -> str:
        """The words that start a case's ranks.

        Raises
        ------
        InputError
            The kind of MPI is unknown.
        """
        mpi, known = str(values["mpi"]), dict(self.launch)
        form = known.get(mpi, known.get("*"))
        if form is None:
            raise unknown(f"mpi of {self.title}", mpi, known)
        return filled(form + f" {self.gpu_launch}" * bool(values["gpus"]), values)


def filled(form: str, values: Values) -> str:
    """A form with its values, as words of a shell; empty where a value is missing."""

    def known(text: str) -> bool:
        return all(values[name] for name in re.findall(r"\{(\w+)\}", text))

    form = re.sub("<(.*?)>", lambda part: part[1] if known(part[1]) else "", form)
    return quoted([w.format_map(values) for w in form.split()]) if known(form) else ""


def quoted(words: Sequence[str]) -> str:
    """Words of a batch script, which no shell takes for anything else.

    Raises
    ------
    InputError
        One of them has a line break, which would begin another line of the script.
    """
    for word in words:
        if re.search(r"[\n\r\0]", word):
            raise InputError(f"{word!r} cannot stand in a batch script: it has a line break; "
                             "choose another name")
    return shlex.join(words)
