"""``hpcpar doctor``: checks the environment, alone or under mpiexec or srun."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcpar.cli.launch import GIVEN, limit_threads, started_rank
from hpcpar.cli.options import ResultOptions
from hpcpar.diagnose.doctor import PROBLEM, Finding, diagnose, examine
from hpcpar.io.schema import plain
from hpcpar.report.tables import show_line
from hpcpar.report.tables.answer import of_diagnosis


@dataclass(frozen=True, kw_only=True)
class DoctorCommand(ResultOptions):
    example = "mpiexec -n 2 hpcpar doctor"


def main(args: DoctorCommand) -> int:
    """Runs the command; returns 2 if a problem would stop a run."""
    job = examine(limit_threads(), GIVEN)
    if job is None:
        return 0
    findings = diagnose(job)
    status = 2 if any(f.status == PROBLEM for f in findings) else 0
    if started_rank() != 0:  # in separate worlds, every process is rank 0
        return status
    rows = plain(findings)
    args.show(lambda: {"findings": rows, "ranks": plain(job.ranks)}, lambda: rows,
              lambda: _show(findings))
    return status


def _show(findings: Sequence[Finding]) -> None:
    show_line(of_diagnosis([(f.status, f.subject) for f in findings]))
    for f in findings:
        show_line(f"{f.status:8} {f.subject}: {f.what}"
                  + (f"\n         -> {f.remedy}" if f.remedy else ""))
