"""``hpcpar machines``: lists the machines, or shows one."""

from __future__ import annotations

import argparse

from hpcpar.cli import options
from hpcpar.machine import files
from hpcpar.machine.model import Level, Machine
from hpcpar.report.tables import amount, say, seconds, show


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("name", nargs="?", help="preset or machine file to show")
    parser.add_argument("--new", metavar="FILE.toml",
                        help="write a commented machine file, to be filled in")
    options.add_json(parser)


def _bandwidth(level: Level) -> str:
    return amount(1 / level.beta_s_per_byte, "B/s")


def _links(machine: Machine, index: int) -> str:
    """Links that attach one unit of the level inside."""
    level, inner = machine.levels[index], machine.inner_ranks(index)
    if not level.links:
        return "one a rank"
    return f"{level.links:g} a rank" if inner == 1 else f"{level.links:g} for {inner} ranks"


def _show(machine: Machine, sources: list[str]) -> None:
    d = machine.device
    peak = f" (data sheet {amount(d.peak_flops_per_s, 'flop/s')})" if d.peak_flops_per_s else ""
    say(f"{machine.name}: {machine.notes}")
    say(f"one rank: {amount(d.flops_per_s, 'flop/s')} reached by float32 convolutions and "
        f"products{peak}, {amount(d.bandwidth_bytes_per_s, 'B/s')} memory bandwidth, "
        f"{amount(d.memory_bytes)} memory, {seconds(d.launch_s)} per kernel; "
        f"{len(machine.compute)} calibrated operations")
    show(
        "levels, from the inside out",
        ("level", "ranks", "latency", "bandwidth", "links", "oversubscription", "effective links"),
        [
            (x.name, x.ranks or "any", seconds(x.alpha_s), _bandwidth(x), _links(machine, i),
             f"{x.oversubscription:g}", f"{x.shared_links:.3g}" if x.links else "-")
            for i, x in enumerate(machine.levels)
        ],
    )
    if sources:
        say("sources:")
        for line in sources:
            say(f"  {line}")


def _list(machines: list[Machine]) -> None:
    show(
        "machines (or a path to a TOML file, as 'hpcpar calibrate' writes it)",
        ("name", "flop/s", "memory/rank",
         "levels, from the inside out (ranks, bandwidth of a link)"),
        [
            (m.name, amount(m.device.flops_per_s, "flop/s"), amount(m.device.memory_bytes),
             ", ".join(f"{x.name} ({x.ranks or 'any'}, {_bandwidth(x)})" for x in m.levels))
            for m in machines
        ],
        left=4,
    )
    for m in machines:
        say(f"{m.name}: {m.notes}")


def main(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit status."""
    if args.new:
        files.new(args.new)
        say(f"wrote {args.new}; fill in your figures, then: hpcpar machines {args.new}")
        return 0
    if args.name:
        machine = files.load(args.name)
        if args.json:
            options.print_json(files.to_dict(machine))
        else:
            _show(machine, files.sources(args.name))
        return 0
    machines = [files.load(name) for name in files.presets()]
    if args.json:
        options.print_json({"machines": [{"name": m.name, "notes": m.notes,
                                          "levels": [x.name for x in m.levels]} for m in machines]})
    else:
        _list(machines)
    return 0
