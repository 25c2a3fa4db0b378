"""``hpcpar doctor``: checks the environment, alone or under mpiexec or srun."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict
from typing import Any

from hpcpar.cli.launch import VARIABLES, limit_threads, started_rank

#: Variables that the user has set, before `limit_threads` sets the rest.
_GIVEN = {name: os.environ[name] for name in VARIABLES if os.environ.get(name)}
_THREADS = limit_threads()

from hpcpar.cli import options  # noqa: E402
from hpcpar.diagnose.doctor import PROBLEM, diagnose, examine  # noqa: E402
from hpcpar.report.tables import say  # noqa: E402


def add(subparsers: Any) -> None:
    """The options of the command."""
    parser = subparsers.add_parser(
        "doctor", help="what is here: MPI, launcher, GPUs, threads, files; and what to fix",
        allow_abbrev=False,
    )
    options.add_json(parser)


def main(args: argparse.Namespace) -> int:
    """Runs the command; exits with status 2 where something would stop a run."""
    job = examine(_THREADS, _GIVEN)
    if job is None:
        return 0
    findings = diagnose(job)
    status = 2 if any(f.status == PROBLEM for f in findings) else 0
    if started_rank() != 0:  # with separate worlds, every process has rank 0 in its own
        return status
    for f in findings:
        say(f"{f.status:8} {f.subject}: {f.what}"
            + (f"\n         -> {f.remedy}" if f.remedy else ""))
    if args.json:
        print(json.dumps({"findings": [asdict(f) for f in findings],
                          "ranks": [asdict(r) for r in job.ranks]}))
    return status
