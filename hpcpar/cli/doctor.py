"""``hpcpar doctor``: checks the environment, alone or under mpiexec or srun."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from hpcpar.cli import options
from hpcpar.cli.launch import GIVEN, limit_threads, started_rank
from hpcpar.diagnose.doctor import PROBLEM, diagnose, examine
from hpcpar.report.answer import of_diagnosis
from hpcpar.report.tables import show_line


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    options.add_output(parser)


def main(args: argparse.Namespace) -> int:
    """Runs the command; exits with status 2 where something would stop a run."""
    job = examine(limit_threads(), GIVEN)
    if job is None:
        return 0
    findings = diagnose(job)
    status = 2 if any(f.status == PROBLEM for f in findings) else 0
    if started_rank() != 0:  # with separate worlds, every process has rank 0 in its own
        return status
    if args.json:
        options.print_json({"findings": [asdict(f) for f in findings],
                            "ranks": [asdict(r) for r in job.ranks]})
    elif args.csv:
        options.print_csv(asdict(f) for f in findings)
    else:
        show_line(of_diagnosis([(f.status, f.subject) for f in findings]))
        for f in findings:
            show_line(f"{f.status:8} {f.subject}: {f.what}"
                      + (f"\n         -> {f.remedy}" if f.remedy else ""))
    return status
