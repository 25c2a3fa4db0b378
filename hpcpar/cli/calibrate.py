"""``mpiexec -n P hpcpar calibrate``: measure this machine into a machine file."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from hpcpar.cli.launch import limit_threads

limit_threads()

from hpcpar.cli import options  # noqa: E402
from hpcpar.comm.world import World, world  # noqa: E402
from hpcpar.errors import InputError  # noqa: E402
from hpcpar.kernels import backend  # noqa: E402
from hpcpar.kernels.interface import Backend  # noqa: E402
from hpcpar.machine import files  # noqa: E402
from hpcpar.plan import plan as plans  # noqa: E402
from hpcpar.plan.strategies import named  # noqa: E402
from hpcpar.train.calibrate import calibrate  # noqa: E402
from hpcpar.train.supported import require  # noqa: E402


def add(subparsers: argparse._SubParsersAction) -> None:
    """The options of the command."""
    p = subparsers.add_parser("calibrate", help="measure this machine: latency, bandwidth, compute rates")
    p.add_argument("-o", "--out", required=True, metavar="machine.toml", help="the machine file to write")
    p.add_argument("--for", dest="plans", nargs="+", default=[], metavar="plan.json", help="measure the compute steps of these plans")
    options.add_network(p, required=False)
    p.add_argument("--batch", type=options.positive, help="mini-batch, with --network")
    p.add_argument("--strategy", default="", metavar="A,B", help="strategies to measure, with --network (default: every named one)")
    p.add_argument("--dtype", default="float32", help="float32 or float64")
    p.add_argument("--device", default="cpu", help="cpu or gpu")
    p.add_argument("--json", action="store_true", help="print the machine as JSON")


def _read(args: argparse.Namespace, ranks: int) -> tuple[list[plans.Plan], Backend]:
    chosen = [plans.load(path) for path in args.plans]
    for path, plan in zip(args.plans, chosen, strict=True):
        if plan.ranks != ranks:
            raise InputError(f"{path} is for {plan.ranks} ranks, this job has {ranks}; calibrate it with: mpiexec -n {plan.ranks}")
    if args.network:
        if not args.batch:
            raise InputError("--network needs --batch: compute steps are measured at the sizes that they will have")
        spec = options.network_spec(args.network, args.input, args.classes)
        machine = files.to_dict(files.load("local"))
        for strategy in args.strategy.split(",") if args.strategy else named(ranks):
            chosen.append(plans.make_plan(spec, strategy, ranks, args.batch, dtype=args.dtype, machine=machine))
    for plan in chosen:
        require(plan.network.build(), plan)
    return chosen, backend(args.device)


def main(args: argparse.Namespace) -> int:
    """Run the command."""
    w = world()
    with w.guard():
        return _run(args, w)


def _run(args: argparse.Namespace, w: World) -> int:
    chosen, kernels = w.agree(lambda: _read(args, w.size))
    begin = time.perf_counter()

    def tell(what: str) -> None:
        if w.rank == 0:
            print(f"calibrating: {what}", file=sys.stderr, flush=True)

    machine = calibrate(w, kernels, chosen, Path(args.out).stem, tell)
    if w.rank == 0:
        files.save(machine, args.out)
        for level in machine.levels:
            print(f"  {level.name}: latency {level.alpha_s * 1e6:.1f} us, {1e-9 / level.beta_s_per_byte:.2f} GB/s a rank", file=sys.stderr)
        print(
            f"  {machine.device.flops_per_s / 1e9:.1f} GFLOP/s and {machine.device.bandwidth_bytes_per_s / 1e9:.1f} GB/s a rank, "
            f"{len(machine.compute)} compute steps\nwrote {args.out} in {time.perf_counter() - begin:.1f} s", file=sys.stderr,
        )
        if args.json:
            print(json.dumps(files.to_dict(machine)))
    return 0
