"""``hpcpar simulate``: simulates a plan on all of its ranks, message by message."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hpcpar.api.options import ModuleOptions
from hpcpar.api.simulate import SimulateArguments, simulate_plan
from hpcpar.cli.options import ResultOptions
from hpcpar.cli.run_options import recorded_by
from hpcpar.errors import InputError
from hpcpar.options.fields import OUT, option
from hpcpar.options.output_files import PICTURE, RECORD
from hpcpar.report.progress import ProgressBar
from hpcpar.report.tables import say
from hpcpar.report.tables.simulated import show_simulated


@dataclass(frozen=True, kw_only=True)
class SimulateCommand(ResultOptions, ModuleOptions, SimulateArguments, section="output"):
    example = "hpcpar simulate --plan plan.json --jitter 0.05"
    plot: str = option("", PICTURE, "draw the iterations, and the time of every rank", "FILE.png")
    out: str = option("", RECORD, "write a record for hpcpar compare and hpcpar trace", "sim.h5",
                      **OUT)


def main(args: SimulateCommand) -> int:
    if args.out:
        RECORD.check_content(args.out)
        if recorded_by(args.out):
            raise InputError(f"{args.out} is the record of a run: a simulation does not replace "
                             "it; choose another name")
    lines = ProgressBar()
    with lines:
        result = simulate_plan(replace(
            args, progress=lambda done, total: lines.show(done, total, "iterations")))
    args.show(result.to_json, result.rows, lambda: show_simulated(result.simulated, args.wide))
    if result.simulated.trust.warning:
        say(result.simulated.trust.warning)
    if args.plot:
        result.plot(args.plot)
        say(f"wrote {args.plot}")
    if args.out:
        result.save(args.out)
        say(f"wrote {args.out}: a record for hpcpar compare and hpcpar trace")
    return 0
