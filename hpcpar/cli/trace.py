"""``hpcpar trace``: writes measured and simulated timelines for a trace viewer."""

from __future__ import annotations

from dataclasses import dataclass

from hpcpar.api.options import ModuleOptions
from hpcpar.api.sources import plan_and_machine
from hpcpar.cli.options import ExternalOptions
from hpcpar.errors import InputError
from hpcpar.options.checks import path, positive
from hpcpar.options.fields import OUT, option, required
from hpcpar.options.output_files import TIMELINE
from hpcpar.prediction.price import price
from hpcpar.report.tables import say
from hpcpar.report.traces import perfetto
from hpcpar.report.traces.trace_events import Event, write


@dataclass(frozen=True, kw_only=True)
class TraceCommand(ExternalOptions, ModuleOptions, section="output"):
    example = "hpcpar trace run.h5 -o trace.json"
    record: str = option(
        "", path, "record from hpcpar run --out or hpcpar simulate --out", "RUN.h5",
        names=("record",))
    plan: str = option("", path, "simulate the timeline of this plan, without a run", "plan.json",
                       section="plan")
    machine: str = option(
        "", path, "with --plan: preset or machine file (default: the plan's)", "NAME|FILE",
        needs="plan")
    iterations: int = option(
        4, positive, "number of measured iterations; the last that the record keeps", "N")
    ranks: int | None = option(
        None, positive, "number of measured ranks, from rank 0 (default: all)", "N", section="plan")
    out: str = required(
        TIMELINE, "the file to write; open it at https://ui.perfetto.dev", "trace.json",
        **OUT)


def main(args: TraceCommand) -> int:
    if bool(args.record) == bool(args.plan):
        raise InputError("give either a run's record (hpcpar trace run.h5 -o trace.json) or "
                         "--plan plan.json")
    simulated: perfetto.Simulated
    measured: list[Event] = []
    if args.record:
        from hpcpar.report.compare import recorded_prediction
        from hpcpar.report.traces.perfetto_measured import measured as measured_events
        from hpcpar.train.record_file import load_record

        record = load_record(args.record, args.allow_external)
        simulated = recorded_prediction(record)
        measured = measured_events(record, 2, args.iterations, args.ranks)
    else:
        plan, machine = plan_and_machine(args.plan, args.machine)
        simulated = price(plan.network.build(), plan, machine)
    name = f"simulated: {perfetto.title(simulated)}"
    write([*perfetto.events(1, simulated, name), *measured], args.out)
    sides = "simulated and measured" if measured else "simulated"
    say(f"wrote {args.out} ({sides}); open it at https://ui.perfetto.dev")
    return 0
