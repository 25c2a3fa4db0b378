"""``hpcpar machines``: list the machines, or show one."""

from __future__ import annotations

import argparse
from typing import Any

from hpcpar.cli import options
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.report.tables import amount, say, seconds, show


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser("machines", help="list the machines, or show one", allow_abbrev=False)
    parser.add_argument("name", nargs="?", help="preset or machine file to show")
    options.add_json(parser)


def _show(machine: Machine) -> None:
    d = machine.device
    say(f"{machine.name}: {machine.notes}")
    say(f"one rank: {amount(d.flops_per_s, 'flop/s')} (float32 matrix products), {amount(d.bandwidth_bytes_per_s, 'B/s')} memory "
        f"bandwidth, {amount(d.memory_bytes)} memory, {seconds(d.launch_s)} per kernel; {len(machine.compute)} calibrated operations")
    show(
        "levels, from the inside out",
        ("level", "ranks", "latency", "bandwidth"),
        [(x.name, x.ranks or "any", seconds(x.alpha_s), amount(1 / x.beta_s_per_byte, "B/s")) for x in machine.levels],
    )


def main(args: argparse.Namespace) -> int:
    if args.name:
        machine = files.load(args.name)
        if args.json:
            options.print_json(files.to_dict(machine))
        else:
            _show(machine)
        return 0
    machines = [files.load(name) for name in files.presets()]
    if args.json:
        options.print_json({"machines": [{"name": m.name, "notes": m.notes} for m in machines]})
        return 0
    show(
        "machines (or a path to a TOML file, as 'hpcpar calibrate' writes it)",
        ("name", "flop/s", "memory/rank", "levels", "notes"),
        [(m.name, amount(m.device.flops_per_s, "flop/s"), amount(m.device.memory_bytes), ", ".join(x.name for x in m.levels), m.notes)
         for m in machines],
        left=5,
    )
    return 0
