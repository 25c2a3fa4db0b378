"""Options that several commands share, and their checks."""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from functools import partial
from typing import Any

from hpcpar.cost.price_family import ACCOUNTINGS
from hpcpar.errors import InputError, unknown
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.network.builtin import NETWORKS, defaults
from hpcpar.network.layers import Shape
from hpcpar.plan.plan import (
    BATCH_NORMS,
    DTYPES,
    OPTIMIZERS,
    Collectives,
    NetworkSpec,
    Overlap,
    PipelineOrder,
    Plan,
    Synchronisation,
)
from hpcpar.plan.strategies import GATHER_SYNONYMS, GATHERS

#: Default samples of an epoch: ImageNet as the papers count it, MNIST for small images.
IMAGENET_SAMPLES = 1_200_000
MNIST_SAMPLES = 60_000
DEVICES = ("cpu", "gpu")


def one_of(known: Iterable[str], synonyms: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Arguments of `add_argument` for an option that has one of these values."""
    names = tuple(known)

    def check(text: str) -> str:
        value = (synonyms or {}).get(text, text)
        if value not in names:
            raise argparse.ArgumentTypeError(str(unknown("value", text, names)))
        return value

    return {"type": check, "metavar": "|".join(names)}


def whole(least: int, text: str) -> int:
    """A whole number of at least `least`."""
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of at least {least}")
    return value


natural = partial(whole, 0)
positive = partial(whole, 1)


def positives(text: str) -> list[int]:
    """Whole numbers of at least 1, separated by commas."""
    return [positive(part.strip()) for part in text.split(",")]


def amount(text: str) -> float:
    """A finite number greater than 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number greater than 0")
    return value


def share(text: str) -> Fraction:
    """Samples of a rank in weak scaling: a whole number, or a fraction of a sample (1/4, 0.25)."""
    try:
        value = Fraction(text)
    except (ValueError, ZeroDivisionError):
        value = Fraction(0)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of samples, as in 8 or 1/4")
    return value


def image(text: str) -> Shape:
    """An image shape, CxHxW or CxDxHxW."""
    if re.fullmatch(r"[1-9]\d*(x[1-9]\d*){2,3}", text) is None:
        raise argparse.ArgumentTypeError(f"'{text}' is not an image shape CxHxW, as in 3x224x224 "
                                         "(or CxDxHxW, as in 4x128x128x128)")
    return tuple(int(part) for part in text.split("x"))


def add_network(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """Adds --network, --input and --classes."""
    parser.add_argument("--network", required=required, metavar="NAME",
                        help=f"one of {', '.join(NETWORKS)}; module:function; or a .onnx file")
    add_shape(parser)


def add_shape(parser: argparse.ArgumentParser) -> None:
    """Adds --input and --classes."""
    parser.add_argument("--input", type=image, metavar="CxHxW",
                        help="image shape, CxDxHxW for volumes (default: the network's usual one)")
    parser.add_argument("--classes", type=positive, metavar="N",
                        help="number of classes (default: the network's usual one)")


def add_machine(parser: argparse.ArgumentParser) -> None:
    """Adds --machine."""
    parser.add_argument("--machine", metavar="NAME|FILE",
                        help="preset or machine file (default: the site's, else local)")


def add_start(parser: argparse.ArgumentParser) -> None:
    """Adds -n."""
    parser.add_argument("-n", dest="start", type=positive, metavar="P",
                        help="start P ranks here with mpiexec (default: this is one of a job's)")


def add_device(parser: argparse.ArgumentParser) -> None:
    """Adds --device."""
    parser.add_argument("--device", default="cpu", **one_of(DEVICES),
                        help="where ranks compute (default cpu)")


def add_direct(parser: argparse.ArgumentParser) -> None:
    """Adds --device and --direct."""
    add_device(parser)
    parser.add_argument("--direct", action="store_true",
                        help="hand GPU buffers to MPI (needs a GPU-aware library)")


def add_types(parser: argparse.ArgumentParser) -> None:
    """Adds --overlap and --dtype."""
    parser.add_argument("--overlap", **one_of(Overlap),
                        help="what communication may hide behind computing (default full)")
    parser.add_argument("--dtype", default="float32", **one_of(DTYPES),
                        help="type of activations and weights (default float32)")


def add_planning(parser: argparse.ArgumentParser) -> None:
    """Adds the options that decide a plan besides its strategy."""
    parser.add_argument("--gather", **one_of(GATHERS, GATHER_SYNONYMS),
                        help="when activations split by channel are gathered (default lazy: "
                        "just before a layer needs them whole)")
    add_types(parser)
    parser.add_argument(
        "--collectives", default="auto", **one_of(Collectives),
        help="who chooses the algorithms of collectives (default auto: the cost model)",
    )
    parser.add_argument("--synchronisation", default="allreduce", **one_of(Synchronisation),
                        help="how weights are kept alike (default allreduce)")
    parser.add_argument("--optimizer", default="momentum", **one_of(OPTIMIZERS),
                        help="what updates the weights (default momentum)")
    parser.add_argument("--microbatches", type=positive, metavar="M",
                        help="parts of the mini-batch in time (default: of a pipeline, four "
                        "times its stages; else 1)")
    parser.add_argument("--order", default="gpipe", **one_of(PipelineOrder),
                        help="of a pipeline's micro-batches: all forward first, or "
                        "one forward, one backward, which keeps fewer activations (default gpipe)")
    parser.add_argument("--bucket", type=natural, metavar="BYTES",
                        help="sum the gradients of small layers together, up to so many bytes "
                        "(default: 1 MiB or 25 MiB, whichever is faster; 0: each layer on its own)")
    parser.add_argument(
        "--recompute", type=natural, default=0, metavar="N",
        help="keep activations at the ends of N segments of the network "
        "(of every stage) only, and compute the others again in the backward pass (default 0: keep "
        "all)",
    )
    parser.add_argument("--batch-norm", default="sync", **one_of(BATCH_NORMS),
                        help="statistics of the whole batch, or of each rank's part (default sync)")
    parser.add_argument("--epochs", type=amount, default=1.0, metavar="N",
                        help="epochs of the whole training (default 1)")
    parser.add_argument("--samples", type=positive, metavar="N",
                        help="samples of an epoch (default: 1200000, the papers' ImageNet, for "
                        "images of 64 pixels and more, else 60000, MNIST)")
    parser.add_argument(
        "--accounting", default="schedule", **one_of(ACCOUNTINGS),
        help="price what is executed, or the same "
        "steps by the formulas of Gholami et al. (Eq 3 to 9; with --gather eager and --overlap "
        "none unless given)",
    )
    parser.add_argument("--contention", type=float, metavar="PHI",
                        help="flows that share a link above the innermost level (default: "
                        "derived from the placement)")
    parser.add_argument("--gamma", type=amount, default=1.0, metavar="G",
                        help="part of the activations' memory that is needed (default 1)")
    parser.add_argument("--io", type=amount, metavar="BYTES/S",
                        help="rate at which a rank reads its images (default: not counted)")
    parser.add_argument("--io-item-bytes", type=amount, default=1.0, metavar="N",
                        help="bytes of a stored value (default 1: uint8)")
    add_output(parser)


def add_output(parser: argparse.ArgumentParser) -> None:
    """Adds --json, --csv and --wide."""
    group = parser.add_argument_group("output")
    form = group.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="everything, as one JSON document")
    form.add_argument("--csv", action="store_true",
                      help="everything in a row, as CSV with units in the names of columns")
    form.add_argument("--wide", action="store_true",
                      help="all columns of the tables, however narrow the terminal is")


def samples(args: argparse.Namespace, spec: NetworkSpec) -> int:
    """The number of samples of an epoch."""
    return int(args.samples or (IMAGENET_SAMPLES if spec.shape[-1] >= 64 else MNIST_SAMPLES))


def planning(args: argparse.Namespace) -> dict[str, Any]:
    """The options of `search.auto.task`."""
    paper = args.accounting == "paper"
    names = ("collectives", "dtype", "accounting", "synchronisation", "batch_norm", "optimizer",
             "order", "microbatches", "recompute")
    return {name: getattr(args, name) for name in names} | pricing(args) | {
        "gather": args.gather or ("eager" if paper else "lazy"),
        "overlap": args.overlap or (Overlap.NONE if paper else Overlap.FULL),
        "bucket_bytes": 0 if args.bucket is None and paper else args.bucket,
    }


def pricing(args: argparse.Namespace) -> dict[str, Any]:
    """The options that only `cost.price_plan.price` takes."""
    return {"contention": args.contention, "gamma": args.gamma, "io_bytes_per_s": args.io,
            "io_item_bytes": args.io_item_bytes}


def network_spec(name: str, shape: Shape | None, classes: int | None) -> NetworkSpec:
    """The network named by the options; shape and classes default to its usual ones."""
    usual_shape, usual_classes = defaults(name)
    spec = NetworkSpec(name, shape or usual_shape, classes or usual_classes)
    spec.build()
    return spec


def machine_of(name: str | None, plan: Plan, path: str) -> Machine:
    """The machine `name`; without a name, that of the plan from the plan file `path`."""
    if name:
        return files.load(name)
    return files.from_dict(plan.machine, f"the machine in plan file {path}")


def print_csv(rows: Iterable[Mapping[str, Any]]) -> None:
    """Prints rows of plain data as CSV on stdout.

    The columns are all keys, those of nested tables behind a point. The values of a list stand
    behind each other; lists of tables are left out.
    """
    flat = [dict(_flat(row)) for row in rows]
    names = dict.fromkeys(name for row in flat for name in row)
    out = csv.DictWriter(sys.stdout, tuple(names), lineterminator="\n")
    out.writeheader()
    out.writerows(flat)


def _flat(row: Mapping[str, Any], stem: str = "") -> Iterator[tuple[str, Any]]:
    """Keys and values of a row of nested tables."""
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{stem}{name}.")
        elif not isinstance(value, list | tuple):
            yield stem + name, value
        elif not any(isinstance(item, Mapping) for item in value):
            yield stem + name, " ".join(map(str, value))


def print_json(data: Any) -> None:
    """Prints the one JSON document on stdout."""
    try:
        json.dump(data, sys.stdout, indent=1, allow_nan=False)
    except ValueError as err:
        raise InputError(
            f"a number of the result is not finite ({err}); check the machine's rates") from err
    sys.stdout.write("\n")


def check_direct(args: argparse.Namespace) -> None:
    """Checks that ``--direct`` comes with GPU buffers.

    Raises
    ------
    InputError
        ``--direct`` without ``--device gpu``.
    """
    if args.direct and args.device != "gpu":
        raise InputError(f"--direct is about GPU buffers, --device is {args.device}; give --device "
                         "gpu, or leave --direct out")
