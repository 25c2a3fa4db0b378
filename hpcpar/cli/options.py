"""Options that several commands share, and their checks."""

from __future__ import annotations

import argparse
import csv
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from hpcpar.api import checks
from hpcpar.api.options import PlanningOptions
from hpcpar.api.results import flat
from hpcpar.api.sources import machine_of_plan
from hpcpar.comm.transport import Transport
from hpcpar.data.augment import Augmentation
from hpcpar.errors import InputError, visible
from hpcpar.kernels.interface import MathMode
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.network.builtin import NETWORKS
from hpcpar.plan.plan import Plan
from hpcpar.sweep.slurm import Slurm

natural, positive, seed = checks.natural, checks.positive, checks.seed
ranks, several_ranks = checks.ranks, checks.several_ranks
amount, fraction, magnitude, part = checks.amount, checks.fraction, checks.magnitude, checks.part
image, share = checks.image, checks.share


#: Seconds of a unit of time.
_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}


def duration_s(text: str) -> float:
    """A time with its unit."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|h)", text.strip())
    if found is None or not float(found[1]):
        raise argparse.ArgumentTypeError(f"'{text}' is no time; give one as in 90s, 30min or 2h")
    return float(found[1]) * _UNITS[found[2]]


def one_of(known: Iterable[str]) -> dict[str, Any]:
    """Arguments of `add_argument` for an option that has one of these values."""
    check = checks.OneOf(known)
    return {"type": check, "metavar": check.metavar}


def add_augment(parser: argparse.ArgumentParser) -> None:
    """Adds --augment."""
    check = checks.OneOf(Augmentation)
    parser.add_argument(
        "--augment", default=(), metavar=",".join(Augmentation),
        type=lambda text: tuple(Augmentation(check(word)) for word in text.split(",")),
        help="train with random crops of images that are larger than the network's input, with "
        "horizontal flips, or both; evaluation takes the centre")


def add_defaults(parser: argparse.ArgumentParser, function: Callable[..., object]) -> None:
    """Gives options the defaults of the function that the command calls.

    The machine's is left to `hpcpar.cli.site`.
    """
    parameters = inspect.signature(function).parameters.values()
    parser.set_defaults(**{p.name: p.default for p in parameters
                           if p.default is not p.empty and p.name != "machine"})


def arguments(args: argparse.Namespace, function: Callable[..., object]) -> dict[str, Any]:
    """The arguments of a function, from the options of the same names."""
    more = [f.name for kind in (PlanningOptions, Slurm) for f in fields(kind)]
    known = {*inspect.signature(function).parameters, *more}
    return {name: value for name, value in vars(args).items() if name in known}


def add_network(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """Adds --network, --input and --classes."""
    parser.add_argument("--network", required=required, metavar="NAME",
                        help=f"one of {', '.join(NETWORKS)}; file.py:function or module:function, "
                        "which returns a network or a PyTorch module; or a .onnx file")
    add_shape(parser)


def add_layers(parser: argparse.ArgumentParser) -> None:
    """Adds --layers."""
    parser.add_argument("--layers", action="append", metavar="MODULE",
                        help="import this module or file.py first: it defines layers, strategies "
                        "and the like of your own (may be repeated)")


def add_shape(parser: argparse.ArgumentParser) -> None:
    """Adds --input, --classes and --layers."""
    add_layers(parser)
    parser.add_argument("--input", type=image, metavar="CxHxW",
                        help="image shape, CxDxHxW for volumes, CxW for signals (default: the "
                        "network's usual one)")
    parser.add_argument("--classes", type=positive, metavar="N",
                        help="number of classes (default: the network's usual one)")


def add_machine(parser: argparse.ArgumentParser) -> None:
    """Adds --machine."""
    parser.add_argument("--machine", metavar="NAME|FILE",
                        help="preset or machine file (default: the site's, else local)")


def add_start(parser: argparse.ArgumentParser) -> None:
    """Adds -n."""
    parser.add_argument("-n", dest="start", type=ranks, metavar="P",
                        help="start P ranks here with mpiexec (default: this is one of a job's)")


def add_external(parser: argparse.ArgumentParser) -> None:
    """Adds --allow-external."""
    parser.add_argument("--allow-external", action="store_true",
                        help="read HDF5 files that have data in other files")


def add_device(parser: argparse.ArgumentParser, emulates: bool = False) -> None:
    """Adds --device."""
    told = "where ranks compute (default cpu)"
    if emulates:
        told += "; emulate: they sleep as long as the machine file says, messages are real"
    parser.add_argument("--device", default="cpu", help=told,
                        **one_of((*checks.DEVICES, checks.EMULATE) if emulates else checks.DEVICES))


def add_gpu(parser: argparse.ArgumentParser, emulates: bool = False) -> None:
    """Adds --device, --transport and --math."""
    add_device(parser, emulates)
    parser.add_argument("--transport", default=Transport.STAGED.value, help="messages between GPUs "
                        "go by MPI, staged through the host (default); by MPI, direct (needs a "
                        "GPU-aware library); or by nccl", **one_of(Transport))
    parser.add_argument("--math", default=MathMode.FP32.value, help="float32 products on GPUs: "
                        "fp32 (default), or tf32 on tensor cores", **one_of(MathMode))


def add_types(parser: argparse.ArgumentParser) -> None:
    """Adds --overlap, --dtype and --load."""
    add_planning(parser, ("overlap", "dtype", "load"))


def add_planning(parser: argparse.ArgumentParser, names: Sequence[str] = ()) -> None:
    """Adds the options of `PlanningOptions`, all or some."""
    for option in fields(PlanningOptions):
        if not names or option.name in names:
            parser.add_argument(
                f"--{option.name.replace('_', '-')}", default=option.default,
                type=option.metadata["check"], metavar=option.metadata["metavar"],
                help=option.metadata["help"])


def add_output(parser: argparse.ArgumentParser) -> None:
    """Adds --json, --csv and --wide."""
    group = parser.add_argument_group("output")
    form = group.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="everything, as one JSON document")
    form.add_argument("--csv", action="store_true",
                      help="everything in a row, as CSV with units in the names of columns")
    form.add_argument("--wide", action="store_true",
                      help="all columns of the tables, however narrow the terminal is")


def machine_of(name: str | None, plan: Plan, path: str) -> Machine:
    """The machine `name`; without a name, that of the plan from the plan file `path`."""
    return files.load(name) if name else machine_of_plan(plan, f"plan file {path}")


def print_csv(rows: Iterable[Mapping[str, object]]) -> None:
    """Prints rows of nested tables as CSV on stdout; the columns are all their names."""
    plain = flat(rows)
    names = dict.fromkeys(name for row in plain for name in row)
    out = csv.DictWriter(sys.stdout, tuple(names), lineterminator="\n")
    out.writeheader()
    out.writerows({name: visible(value) if isinstance(value, str) else value
                   for name, value in row.items()} for row in plain)


def print_json(data: Any) -> None:
    """Prints the one JSON document on stdout."""
    try:
        json.dump(data, sys.stdout, indent=1, allow_nan=False)
    except ValueError as err:
        raise InputError(
            f"a number of the result is not finite ({err}); check the machine's rates") from err
    sys.stdout.write("\n")
