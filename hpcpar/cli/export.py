"""``hpcpar export``: writes the programs of all ranks for other simulators."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from hpcpar.api.options import ModuleOptions, about_machine
from hpcpar.api.sources import plan_and_machine
from hpcpar.errors import InputError
from hpcpar.options.checks import OneOf, path
from hpcpar.options.fields import OUT, flag, required
from hpcpar.options.output_files import PROGRAMS
from hpcpar.report.progress import ProgressBar
from hpcpar.report.tables import say
from hpcpar.report.traces.exports import FORMATS
from hpcpar.simulation.programs import Programs
from hpcpar.simulation.simulate import Simulator


@dataclass(frozen=True, kw_only=True)
class ExportCommand(ModuleOptions, section="output"):
    example = "hpcpar export --plan plan.json --format goal -o plan.goal"
    plan: str = required(path, "the plan to export", "plan.json", section="plan")
    format: str = required(
        OneOf(FORMATS), "chakra: a folder for ASTRA-sim; goal: a file for LogGOPSim and ATLAHS; "
        "simgrid: a folder of time-independent traces for SMPI")
    machine: str = field(default="", metadata=about_machine("the plan file's"))
    out: str = required(
        PROGRAMS, "the file or folder to write", "PATH", **OUT)
    overwrite: bool = flag("replace the output if it exists", former=("--force",))


def main(args: ExportCommand) -> int:
    if os.path.lexists(args.out) and not args.overwrite:
        raise InputError(f"{args.out} exists; choose another name, or add --overwrite")
    plan, machine = plan_and_machine(args.plan, args.machine)
    with ProgressBar() as lines:
        programs = Programs(Simulator(plan.network.build(), plan, machine),
                            lambda rank: lines.show(rank, int(plan.ranks), "ranks"))
        FORMATS[args.format](programs, args.out)
    say(f"wrote {args.out}: the programs of {programs.ranks:,} ranks")
    return 0
