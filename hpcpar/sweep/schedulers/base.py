"""A batch system is one entry, a class of facts: its commands, directives and launch lines.

Directives and launch lines are forms (`hpcpar.sweep.forms`).
`hpcpar.sweep.batch_options.BatchOptions.values` has their values; the job adds ``name``, ``log``,
``time`` (H:MM:SS), ``minutes`` and ``seconds``. docs/how-to/extend.md explains them.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from hpcpar.errors import unknown
from hpcpar.sweep.forms import Values, filled

#: Launch lines by the kind of MPI.
MPIEXEC = (
    ("mpich", "mpiexec -n {ranks} <-ppn {node_ranks}>"),
    ("openmpi", "mpiexec -n {ranks} <--map-by ppr:{node_ranks}:node>"),
    ("pals", "mpiexec -n {ranks} <--ppn {node_ranks}> <--depth {cpus} --cpu-bind depth>"),
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
    #: Begins a directive; the forms of directives.
    directive: ClassVar[str]
    options: ClassVar[tuple[str, ...]]
    #: Shell lines before the runs.
    setup: ClassVar[tuple[str, ...]] = ()
    #: Submits the script, which is also on its stdin; finds the job's number in the output.
    submit: ClassVar[str]
    number: ClassVar[str] = r"^(\d+)"
    #: Asked in turn until one knows the job; states of jobs that have ended, as a pattern.
    questions: ClassVar[tuple[Question, ...]]
    ended: ClassVar[str]
    cancel: ClassVar[str]
    #: Forms of launch lines by --mpi, ``*`` for any other; its defaults with MPICH and Open MPI.
    launch: ClassVar[tuple[tuple[str, str], ...]] = MPIEXEC
    mpi: ClassVar[tuple[str, str]] = ("mpich", "openmpi")
    #: More words of the launch line for ranks with GPUs.
    gpu_launch: ClassVar[str] = ""

    def directives(self, values: Values) -> list[str]:
        """The directives that have all their values, a line each."""
        lines = (filled(form, values) for form in self.options)
        return [f"{self.directive} {line}" for line in lines if line]

    def launched(self, values: Values) -> str:
        """The words that start ranks.

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
