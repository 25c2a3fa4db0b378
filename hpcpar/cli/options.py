"""Options that several commands share, and their checks."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from typing import Any

from hpcpar.cost.price_family import ACCOUNTINGS
from hpcpar.errors import InputError, unknown
from hpcpar.network.builtin import NETWORKS, defaults
from hpcpar.network.layers import Shape
from hpcpar.plan.plan import (
    BATCH_NORMS,
    CHOICES,
    DTYPES,
    OPTIMIZERS,
    Collectives,
    NetworkSpec,
    Overlap,
    PipelineOrder,
    Synchronisation,
)
from hpcpar.plan.strategies import GATHER_SYNONYMS, GATHERS

#: Default samples of an epoch: ImageNet as the papers count it, MNIST for small images.
IMAGENET_SAMPLES = 1_200_000
MNIST_SAMPLES = 60_000


def positive(text: str) -> int:
    """A whole number of at least 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of at least 1")
    return value


def positives(text: str) -> list[int]:
    """Whole numbers separated by commas."""
    return [positive(part.strip()) for part in text.split(",")]


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


def add_planning(parser: argparse.ArgumentParser) -> None:
    """Adds the options that decide a plan besides its strategy."""
    parser.add_argument("--gather", metavar="|".join(GATHERS),
                        help="when activations split by channel are gathered (default lazy: "
                        "just before a layer needs them whole)")
    parser.add_argument("--overlap", metavar="|".join(Overlap),
                        help="what communication may hide behind computing (default full)")
    parser.add_argument(
        "--collectives", default="auto", metavar="|".join(Collectives),
        help="who chooses the algorithms of collectives (default auto: the cost model)",
    )
    parser.add_argument("--dtype", default="float32", metavar="|".join(DTYPES),
                        help="type of activations and weights (default float32)")
    parser.add_argument("--synchronisation", default="allreduce",
                        metavar="|".join(Synchronisation),
                        help="how weights are kept alike (default allreduce)")
    parser.add_argument("--optimizer", default="momentum", metavar="|".join(OPTIMIZERS),
                        help="what updates the weights (default momentum)")
    parser.add_argument("--microbatches", type=positive, metavar="M",
                        help="parts of the mini-batch in time (default: of a pipeline, four "
                        "times its stages; else 1)")
    parser.add_argument("--order", default="gpipe", metavar="|".join(PipelineOrder),
                        help="of a pipeline's micro-batches: all forward first, or "
                        "one forward, one backward, which keeps fewer activations (default gpipe)")
    parser.add_argument("--bucket", type=int, metavar="BYTES",
                        help="sum the gradients of small layers together, up to so many bytes "
                        "(default: 1 MiB or 25 MiB, whichever is faster; 0: each layer on its own)")
    parser.add_argument(
        "--recompute", type=int, default=0, metavar="N",
        help="keep activations at the ends of N segments of the network "
        "(of every stage) only, and compute the others again in the backward pass (default 0: keep "
        "all)",
    )
    parser.add_argument("--batch-norm", default="sync", metavar="|".join(BATCH_NORMS),
                        help="statistics of the whole batch, or of each rank's part (default sync)")
    parser.add_argument("--samples", type=positive, metavar="N",
                        help="samples of an epoch (default: 1200000, the papers' ImageNet, for "
                        "images of 64 pixels and more, else 60000, MNIST)")
    parser.add_argument(
        "--accounting", default="schedule", metavar="|".join(ACCOUNTINGS),
        help="price what is executed, or the same "
        "steps by the formulas of Gholami et al. (Eq 3 to 9; with --gather eager and --overlap "
        "none unless given)",
    )
    parser.add_argument("--contention", type=float, metavar="PHI",
                        help="flows that share a link above the innermost level (default: "
                        "derived from the placement)")
    parser.add_argument("--gamma", type=float, default=1.0, metavar="G",
                        help="part of the activations' memory that is needed (default 1)")
    parser.add_argument("--io", type=float, metavar="BYTES/S",
                        help="rate at which a rank reads its images (default: not counted)")
    parser.add_argument("--io-item-bytes", type=float, default=1.0, metavar="N",
                        help="bytes of a stored value (default 1: uint8)")
    add_json(parser)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Adds --json."""
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def samples(args: argparse.Namespace, spec: NetworkSpec) -> int:
    """The number of samples of an epoch."""
    return int(args.samples or (IMAGENET_SAMPLES if spec.shape[-1] >= 64 else MNIST_SAMPLES))


def planning(args: argparse.Namespace) -> dict[str, Any]:
    """Checks and returns the options of `search.auto.task`."""
    paper = args.accounting == "paper"
    out = {
        "gather": GATHER_SYNONYMS.get(args.gather, args.gather) or ("eager" if paper else "lazy"),
        "overlap": args.overlap or (Overlap.NONE if paper else Overlap.FULL),
        "collectives": args.collectives,
        "dtype": args.dtype,
        "accounting": args.accounting,
        "synchronisation": args.synchronisation,
        "batch_norm": args.batch_norm,
        "optimizer": args.optimizer,
        "order": args.order,
    }
    for name, value in out.items():
        if value not in tuple(KNOWN[name]):
            raise unknown(f"--{name.replace('_', '-')}", value, KNOWN[name])
    bucket_bytes = 0 if args.bucket is None and paper else args.bucket
    if bucket_bytes is not None and bucket_bytes < 0:
        raise InputError(f"--bucket {bucket_bytes}: give a size in bytes, or 0")
    if args.recompute < 0:
        raise InputError(f"--recompute {args.recompute}: give a number of segments, or 0")
    return out | pricing(args) | {"microbatches": args.microbatches, "bucket_bytes": bucket_bytes,
                                  "recompute": args.recompute}


#: Values that an option may have.
KNOWN = {**CHOICES, "gather": GATHERS, "accounting": ACCOUNTINGS}


def pricing(args: argparse.Namespace) -> dict[str, Any]:
    """Checks and returns the options that only `cost.price_plan.price` takes."""
    for name in ("gamma", "io", "io_item_bytes"):
        value = getattr(args, name)
        if value is not None and not 0 < value < math.inf:
            raise InputError(f"--{name.replace('_', '-')} {value}: give a number greater than 0")
    return {"contention": args.contention, "gamma": args.gamma, "io_bytes_per_s": args.io,
            "io_item_bytes": args.io_item_bytes}


def network_spec(name: str, shape: Shape | None, classes: int | None) -> NetworkSpec:
    """The network named by the options; shape and classes default to its usual ones."""
    usual_shape, usual_classes = defaults(name)
    spec = NetworkSpec(name, shape or usual_shape, classes or usual_classes)
    spec.build()
    return spec


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
