"""``hpcpar data``: makes and describes data files."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from hpcpar.api import checks
from hpcpar.cli import options
from hpcpar.cli.output_files import DATA
from hpcpar.data import dataset
from hpcpar.data.image_folder import from_images
from hpcpar.data.numpy_files import from_numpy
from hpcpar.data.synthetic import synthetic
from hpcpar.hdf5 import check
from hpcpar.network.base import shape_text
from hpcpar.report.progress import ProgressBar
from hpcpar.report.tables import say, show_line


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")

    def kind(name: str, text: str, out: str) -> argparse.ArgumentParser:
        sub = kinds.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        sub.add_argument("file", type=str if name == "info" else DATA, metavar="FILE.h5",
                         help=out)
        options.add_output(sub)
        return sub

    made = "the file to make (replaced if it is there)"
    sub = kind("digits", "scikit-learn's bundled 1,797 handwritten digits, a fifth held out", made)
    sub.add_argument("--size", type=partial(checks.whole, 1, 256), default=8, metavar="N",
                     help="enlarge the 8x8 pixels to NxN (default 8)")
    sub = kind(
        "synthetic",
        "random images or volumes of any shape, with a pattern of their class or of their targets",
        made,
    )
    sub.add_argument("--input", type=options.image, default=(3, 227, 227), metavar="CxHxW",
                     help="image shape (default 3x227x227), or a volume's, CxDxHxW, or a signal's, "
                     "CxW")
    truth = sub.add_mutually_exclusive_group()
    truth.add_argument("--classes", type=options.positive, default=1000, metavar="K",
                       help="number of classes (default 1000)")
    truth.add_argument(
        "--targets", type=options.natural, default=0, metavar="K",
        help="numbers to find out of every image, for networks with a mean squared error, instead "
        "of its class",
    )
    sub.add_argument("--pixels", action="store_true",
                     help="a class or targets of each pixel, for networks with a loss over pixels")
    sub.add_argument("--samples", type=options.positive, default=1024, metavar="N",
                     help="images to train with (default 1024)")
    sub.add_argument("--test-samples", type=options.natural, default=0, metavar="N",
                     help="images to hold out (default 0)")
    sub.add_argument("--seed", type=options.seed, default=0,
                     help="of the random numbers (default 0)")
    sub = kind("numpy", "images or volumes, and their labels or targets, from two .npy files", made)
    sub.add_argument(
        "images", metavar="IMAGES.npy",
        help="[N, C, H, W], [N, H, W] or volumes [N, C, D, H, W], uint8 or floating point",
    )
    sub.add_argument("truth", metavar="LABELS.npy",
                     help="[N] whole numbers from 0; or targets: [N, outputs] floating point; of "
                     "pixels [N, H, W] or [N, outputs, H, W]")
    sub.add_argument("--classes", type=options.positive, metavar="K",
                     help="number of classes (default: the largest label plus one)")
    sub.add_argument("--test-fraction", type=options.part, default=0.2, metavar="F",
                     help="part of every class (with targets, of all) to hold out (default 0.2)")
    sub.add_argument("--channels-last", action=argparse.BooleanOptionalAction,
                     help="the images are [N, H, W, C] (default: they are not; what looks so is "
                     "refused)")
    sub = kind("images", "a folder of images with one folder for each class", made)
    sub.add_argument("folder", metavar="FOLDER",
                     help="FOLDER/CLASS/image, or FOLDER/train and FOLDER/val (or test) of that "
                     "kind; sorted, the classes are the labels")
    sub.add_argument("--input", type=options.image, default=(3, 256, 256), metavar="CxHxW",
                     help="shape to store (default 3x256x256): images are scaled to cover it, and "
                     "cut at the centre; 1xHxW for grey")
    sub.add_argument("--test-fraction", type=options.part, metavar="F",
                     help="part of every class to hold out where FOLDER has no held-out part "
                     "(default 0.2)")
    sub.add_argument("--skip-damaged", action="store_true",
                     help="leave out images that cannot be read, and say how many")
    options.add_external(kind("info", "what a data file holds", "the file to look into"))


@contextmanager
def _progress(path: str) -> Iterator[dataset.Progress]:
    """A progress bar on a terminal."""
    with ProgressBar() as bar:
        yield lambda done, total: bar.show(done, total, f"writing {path}")


def describe(info: dict[str, Any]) -> str:
    """One line that describes a data file."""
    images, test = info["images"], info.get("test_images")
    held = f" + {test['shape'][0]} held out" if test else ""
    count, *size = images["shape"]
    parts = [f"{count}{held} images {shape_text(size)} {images['dtype']}", _truth(info),
             str(info.get("source", "")), f"{info['bytes'] / 1e6:.1f} MB"]
    return f"{info['path']}: " + ", ".join(p for p in parts if p)


def _truth(info: dict[str, Any]) -> str:
    """The number of targets or classes of a data file."""
    if "targets" in info:
        each = " of each pixel" if len(info["targets"]["shape"]) > 2 else ""
        return f"{info['targets']['shape'][1]} targets{each}"
    each = " of pixels" if len(info["labels"]["shape"]) > 1 else ""
    return f"{info['classes']} classes{each}" if "classes" in info else ""


def main(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit status."""
    if args.kind != "info":
        DATA.check_content(args.file)
    if args.kind == "digits":
        dataset.digits(args.file, args.size)
    elif args.kind == "synthetic":
        with _progress(args.file) as progress:
            synthetic(args.file, args.input, args.classes, args.samples, args.seed,
                      targets=args.targets, test_samples=args.test_samples, pixels=args.pixels,
                      progress=progress)
    elif args.kind == "numpy":
        with _progress(args.file) as progress:
            from_numpy(args.file, args.images, args.truth, args.test_fraction, classes=args.classes,
                       channels_last=args.channels_last, progress=progress)
    elif args.kind == "images":
        with _progress(args.file) as progress:
            skipped = from_images(args.file, args.folder, args.input, args.test_fraction,
                                  skip_damaged=args.skip_damaged, progress=progress)
        if skipped:
            say(f"left out {len(skipped)} damaged images; the first: {skipped[0]}")
    if args.kind == "info":
        check([args.file], "data file", dataset.REMEDY, args.allow_external)
    info = dataset.info(args.file)
    if args.json:
        options.print_json(info)
    elif args.csv:
        options.print_csv([info])
    else:
        show_line(describe(info))
    return 0
