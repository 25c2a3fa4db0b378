"""``hpcpar machines``: lists the built-in machines, or shows one machine."""

from __future__ import annotations

from dataclasses import dataclass

from hpcpar.calibrate.benchmark_files import LevelFit, fit, level_text
from hpcpar.cli.options import ResultOptions
from hpcpar.errors import InputError
from hpcpar.io.schema import plain
from hpcpar.machine import catalog, files
from hpcpar.machine.catalog import peak_warning
from hpcpar.machine.model import Level, Machine
from hpcpar.options.checks import path
from hpcpar.options.fields import option
from hpcpar.options.output_files import MACHINE
from hpcpar.report.tables import amount, say, seconds, show, show_line


@dataclass(frozen=True, kw_only=True)
class MachinesCommand(ResultOptions, section="output"):
    example = "hpcpar machines cori-knl"
    name: str = option("", path, "preset or machine file to show", names=("name",))
    from_osu: tuple[str, ...] = option(
        (), path, "fit latency and bandwidth of a level to the output of osu_latency, osu_bw or "
        "nccl-tests (may be repeated)", "FILE.txt", nargs="*")
    new: str = option("", MACHINE, "write a commented template of a machine file", "FILE.toml")


def _bandwidth(level: Level) -> str:
    return amount(1 / level.beta_s_per_byte, "B/s")


def _links(machine: Machine, index: int) -> str:
    """The links that attach one unit of the next inner level."""
    level, inner = machine.levels[index], machine.inner_ranks(index)
    if not level.links:
        return "one per rank"
    return f"{level.links:g} per rank" if inner == 1 else f"{level.links:g} per {inner} ranks"


def _show(machine: Machine, sources: list[str], wide: bool) -> None:
    d = machine.device
    word = "" if machine.processor == "rank" else f", a {machine.processor}"
    peak = f" (data sheet {amount(d.peak_flops_per_s, 'flop/s')})" if d.peak_flops_per_s else ""
    show_line(f"{machine.name}: {machine.notes}")
    rate = (f"{d.name or 'device'}, {amount(d.flops_per_s, 'flop/s')} by its data sheet, "
            f"{d.multiprocessors} multiprocessors, compute times from the kernel model"
            if d.multiprocessors else
            f"{amount(d.flops_per_s, 'flop/s')} in float32 convolutions and matrix products{peak}")
    show_line(f"one rank{word}: {rate}, {amount(d.bandwidth_bytes_per_s, 'B/s')} memory bandwidth, "
              f"{amount(d.memory_bytes)} memory, {seconds(d.launch_s)} per kernel; "
              f"{len(machine.compute)} calibrated operations")
    show(
        "levels, innermost first",
        ("level", "ranks", "latency", "bandwidth", "links", "oversubscription", "effective links"),
        [
            (x.name, x.ranks or "any", seconds(x.alpha_s), _bandwidth(x), _links(machine, i),
             f"{x.oversubscription:g}", f"{x.shared_links:.3g}" if x.links else "-")
            for i, x in enumerate(machine.levels)
        ],
        drop=("effective links", "oversubscription", "links"), wide=wide,
    )
    if host := machine.host:
        links = f"{host.links:g} shared links" if host.links else "a link each"
        show_line(f"host of {host.ranks or 'all'} ranks: {links} of "
                  f"{amount(1 / host.beta_s_per_byte, 'B/s')}, {seconds(host.alpha_s)} latency; "
                  f"{amount(host.memory_bytes_per_s, 'B/s')} memory bandwidth")
    if sources:
        show_line("sources:")
        for line in sources:
            show_line(f"  {line}")


def _show_fits(fits: list[LevelFit], wide: bool) -> None:
    show("latency and bandwidth, fitted: alpha + bytes / bandwidth",
         ("file", "test", "ranks", "sizes", "latency", "of short ones", "bandwidth",
          "mean error", "worst error"),
         [(f.file, f.test, f.ranks, f.sizes, seconds(f.alpha_s), seconds(f.small_alpha_s),
           amount(1 / f.beta_s_per_byte, "B/s"),
           *(("-", "-") if f.residual is None or f.worst is None else
             (f"{f.residual:.1%}", f"{f.worst:.0%} at {amount(f.worst_bytes)}"))) for f in fits],
         left=2, drop=("sizes", "of short ones", "ranks"), wide=wide)
    show_line("for a machine file (hpcpar machines --new):")
    show_line(level_text(fits))


def _list(machines: list[Machine], wide: bool) -> None:
    show_line(f"{len(machines)} built-in machines; for your own, give a TOML file, as hpcpar "
              "calibrate writes it")
    show(
        "machines",
        ("name", "flop/s", "memory/rank",
         "levels, innermost first (ranks, bandwidth of a link)"),
        [
            (m.name, amount(m.device.flops_per_s, "flop/s"), amount(m.device.memory_bytes),
             ", ".join(f"{x.name} ({x.ranks or 'any'}, {_bandwidth(x)})" for x in m.levels))
            for m in machines
        ],
        left=4, drop=("flop/s",), wide=wide,
    )
    for m in machines:
        show_line(f"{m.name}: {m.notes}")
    show_line(f"devices for machine files (device = \"{catalog.names()[0]}\"): "
              f"{', '.join(catalog.names())}")


def main(args: MachinesCommand) -> int:
    if args.from_osu and (args.name or args.new):
        raise InputError("--from-osu fits files of its own; leave out the machine and --new")
    if args.new:
        files.new(args.new)
        say(f"wrote {args.new}; fill in your figures, then: hpcpar machines {args.new}")
    elif args.from_osu:
        fits = [fit(file) for file in args.from_osu]
        rows = [plain(each) for each in fits]
        args.show(lambda: {"fits": rows, "level": level_text(fits)}, lambda: rows,
                  lambda: _show_fits(fits, args.wide))
    elif args.name:
        machine = files.load(args.name)
        args.show(lambda: files.to_dict(machine), lambda: plain(machine.levels),
                  lambda: _show(machine, files.sources(args.name), args.wide))
        if warning := peak_warning(machine):
            say(warning)
    else:
        machines = [files.load(name) for name in files.presets()]
        listed = [{"name": m.name, "notes": m.notes, "processor": m.processor, **plain(m.device),
                   "levels": [x.name for x in m.levels]} for m in machines]
        args.show(lambda: {"machines": listed}, lambda: listed, lambda: _list(machines, args.wide))
    return 0
