"""``hpcpar data``: makes and describes data files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from hpcpar.cli.options import ExternalOptions, ResultOptions
from hpcpar.data import dataset
from hpcpar.data.arrays import ArrayOptions
from hpcpar.data.hdf5_files import from_hdf5
from hpcpar.data.image_folder import from_images
from hpcpar.data.mask_folder import from_masks
from hpcpar.data.nifti_files import from_nifti
from hpcpar.data.numpy_files import from_numpy
from hpcpar.data.synthetic import synthetic
from hpcpar.data.xarray_files import from_xarray
from hpcpar.io.hdf5 import check
from hpcpar.network.layers.base import Shape, shape_text
from hpcpar.options import checks
from hpcpar.options.checks import extents, image, names, natural, part, path, positive, whole
from hpcpar.options.fields import flag, option, required
from hpcpar.options.output_files import DATA
from hpcpar.report.progress import ProgressBar
from hpcpar.report.tables import say, show_line


@contextmanager
def _progress(path: str) -> Iterator[dataset.Progress]:
    """A progress bar on a terminal."""
    with ProgressBar() as bar:
        yield lambda done, total: bar.show(done, total, f"writing {path}")


def _channels_last() -> Any:
    return option(
        None, bool, "images are [N, H, W, C] (default: no; images that look so are refused)")


@dataclass(frozen=True, kw_only=True)
class DataCommand(ResultOptions):
    """The options that all kinds of data share."""

    file: str = required(
        DATA, "data file to write (replaced if it exists)", "FILE.h5", names=("file",))

    def make(self) -> None:
        """Makes or checks the file."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class DigitsCommand(DataCommand):
    """The 1,797 handwritten digits of scikit-learn, a fifth held out."""

    example = "hpcpar data digits digits.h5 --size 28"
    size: int = option(8, partial(whole, 1, 256), "enlarge the 8x8 pixels to NxN", "N")

    def make(self) -> None:
        dataset.digits(self.file, self.size)


@dataclass(frozen=True, kw_only=True)
class SyntheticCommand(DataCommand):
    """Random images or volumes of any shape, with patterns that encode class or targets."""

    example = "hpcpar data synthetic images.h5 --input 3x64x64 --classes 10 --samples 256"
    input: Shape = option(
        (3, 227, 227), image, "image shape (default 3x227x227); CxDxHxW for volumes, CxW for "
        "signals", "CxHxW")
    classes: int = option(1000, positive, "number of classes", "K", excludes="truth")
    targets: int = option(
        0, natural, "number of targets per image, instead of a class, for networks with a mean "
        "squared error", "K", excludes="truth")
    pixels: bool = flag(
        "label each pixel, for networks with a loss over pixels")
    labels_size: tuple[int, ...] = option(
        (), extents, "extents of the labels or targets per pixel: those of the network's output "
        "(default: the image's)", "HxW", needs="pixels")
    samples: int = option(1024, positive, "training images", "N")
    test_samples: int = option(0, natural, "held-out images", "N")
    seed: int = option(0, checks.seed, "seed of the random numbers", "N")

    def make(self) -> None:
        with _progress(self.file) as progress:
            synthetic(self.file, self.input, self.classes, self.samples, self.seed,
                      targets=self.targets, test_samples=self.test_samples, pixels=self.pixels,
                      extents=self.labels_size, progress=progress)


@dataclass(frozen=True, kw_only=True)
class NumpyCommand(ArrayOptions, DataCommand):
    """Images or volumes with labels or targets, from two .npy files or one .npz file."""

    example = "hpcpar data numpy own.h5 images.npy labels.npy"
    images: str = required(
        path, "images [N, C, H, W] or [N, H, W], or volumes [N, C, D, H, W], in uint8, int16, "
        "uint16 or floating point; or a .npz file with images and labels", "IMAGES.npy",
        names=("images",))
    truth: str = option(
        "", path, "labels [N], whole numbers from 0, or floating-point targets [N, outputs]; for "
        "pixels [N, H, W] or [N, outputs, H, W]", "LABELS.npy", names=("truth",))
    channels_last: bool | None = _channels_last()

    def make(self) -> None:
        with _progress(self.file) as progress:
            from_numpy(self.file, self.images, self.truth, self,
                       channels_last=self.channels_last, progress=progress)


@dataclass(frozen=True, kw_only=True)
class Hdf5Command(ArrayOptions, ExternalOptions, DataCommand):
    """Datasets of an HDF5 file, or of all HDF5 files in a folder."""

    example = "hpcpar data hdf5 own.h5 cosmo --images full --labels unitPar --one-per-file"
    source: str = required(
        path, "HDF5 file; or folder of files, perhaps in train and val (or test)", "FILE",
        names=("source",))
    images: str = option(
        "", str, "dataset with images, as for hpcpar data numpy (default: images, x or data)",
        "NAME")
    labels: str = option(
        "", str, "dataset with labels or targets (default: labels, targets, masks or y)", "NAME")
    one_per_file: bool = flag("each file holds one sample, without an axis for samples")
    channels_last: bool | None = _channels_last()

    def make(self) -> None:
        with _progress(self.file) as progress:
            from_hdf5(self.file, self.source, self.images, self.labels, self,
                      one_per_file=self.one_per_file, channels_last=self.channels_last,
                      allow_external=self.allow_external, progress=progress)


@dataclass(frozen=True, kw_only=True)
class XarrayCommand(ArrayOptions, ExternalOptions, DataCommand):
    """Variables of a NetCDF file or a Zarr store."""

    example = "hpcpar data xarray own.h5 era5.zarr --images t2m,z500 --labels regime"
    source: str = required(path, "NetCDF file or Zarr store", "FILE.nc", names=("source",))
    images: list[str] = required(
        names, "variables [samples, image axes], one per channel", "NAMES")
    labels: list[str] = required(
        names, "a variable of whole numbers, or floating-point variables, one per target: "
        "[samples], or for pixels [samples, image axes]", "NAMES")
    samples: str = option("", str, "dimension of the samples (default: the first)", "DIM")
    channels: str = option(
        "", str, "dimension of the channels or targets (default: one per variable)", "DIM")

    def make(self) -> None:
        with _progress(self.file) as progress:
            from_xarray(self.file, self.source, self.images, self.labels, self,
                        samples=self.samples, channels=self.channels,
                        allow_external=self.allow_external, progress=progress)


@dataclass(frozen=True, kw_only=True)
class ImagesCommand(DataCommand):
    """A folder of images, with one subfolder per class."""

    example = "hpcpar data images own.h5 photos --input 3x64x64"
    folder: str = required(
        path, "holds CLASS/image, or train/CLASS/image and val/CLASS/image (or test); labels "
        "number the sorted classes", "FOLDER", names=("folder",))
    input: Shape = option(
        (3, 256, 256), image, "shape to store (default 3x256x256): images are scaled to cover it "
        "and cropped at the center; 1xHxW for gray", "CxHxW")
    test_fraction: float | None = option(
        None, part, "fraction of every class to hold out if FOLDER has no held-out part (default "
        "0.2)", "F")
    skip_damaged: bool = flag("skip images that cannot be read, and report their number")

    def make(self) -> None:
        with _progress(self.file) as progress:
            skipped = from_images(self.file, self.folder, self.input, self.test_fraction,
                                  skip_damaged=self.skip_damaged, progress=progress)
        if skipped:
            say(f"skipped {len(skipped)} damaged images; the first: {skipped[0]}")


@dataclass(frozen=True, kw_only=True)
class MasksCommand(ArrayOptions, DataCommand):
    """A folder of images, and a folder of masks that label their pixels."""

    example = "hpcpar data masks own.h5 imgs masks --input 3x256x256 --ignore 255"
    folder: str = required(path, "images, perhaps in train and val (or test)", "IMAGES",
                           names=("folder",))
    masks: str = required(
        path, "masks with the names of the images, or NAME_mask; a pixel is a label", "MASKS",
        names=("masks",))
    input: Shape = option(
        (3, 256, 256), image, "shape to store (default 3x256x256): images and masks are scaled to "
        "cover it and cropped at the center; 1xHxW for gray", "CxHxW")

    def make(self) -> None:
        with _progress(self.file) as progress:
            from_masks(self.file, self.folder, self.masks, self.input, self, progress=progress)


@dataclass(frozen=True, kw_only=True)
class NiftiCommand(ArrayOptions, DataCommand):
    """A folder of NIfTI volumes, and a folder of masks that label their pixels."""

    example = "hpcpar data nifti own.h5 imagesTr labelsTr --input 1x64x128x128"
    images: str = required(
        path, "volumes, or NAME_0000, NAME_0001, ... with one channel each", "IMAGES",
        names=("images",))
    masks: str = required(path, "masks with the same names", "MASKS", names=("masks",))
    input: Shape = required(
        image, "shape to store: each volume is cropped at its center or surrounded by its "
        "smallest value", "CxDxHxW")

    def make(self) -> None:
        with _progress(self.file) as progress:
            from_nifti(self.file, self.images, self.masks, self.input, self, progress=progress)


@dataclass(frozen=True, kw_only=True)
class InfoCommand(ExternalOptions, DataCommand):
    """Describe the contents of a data file."""

    example = "hpcpar data info digits.h5"
    file: str = required(path, "data file to describe", "FILE.h5", names=("file",))

    def make(self) -> None:
        check([self.file], "data file", dataset.REMEDY, self.allow_external)


KINDS = {"digits": DigitsCommand, "synthetic": SyntheticCommand, "numpy": NumpyCommand,
         "hdf5": Hdf5Command, "xarray": XarrayCommand, "images": ImagesCommand,
         "masks": MasksCommand, "nifti": NiftiCommand, "info": InfoCommand}


def describe(info: dict[str, Any]) -> str:
    """One line about a data file."""
    images, test = info["images"], info.get("test_images")
    held = f" + {test['shape'][0]} held out" if test else ""
    count, *size = images["shape"]
    parts = [f"{count}{held} images {shape_text(size)} {images['dtype']}", _truth(info),
             str(info.get("source", "")), f"{info['bytes'] / 1e6:.1f} MB"]
    return f"{info['path']}: " + ", ".join(p for p in parts if p)


def _truth(info: dict[str, Any]) -> str:
    """The number of targets or classes of a data file."""
    targets, image = "targets" in info, info["images"]["shape"][2:]
    extents = info["targets"]["shape"][2:] if targets else info["labels"]["shape"][1:]
    pixels = ""
    if extents:
        size = "" if extents == image else f" {shape_text(extents)}"
        pixels = f" {'per pixel' if targets else 'of pixels'}{size}"
    if targets:
        return f"{info['targets']['shape'][1]} targets{pixels}"
    return f"{info['classes']} classes{pixels}" if "classes" in info else ""


def main(args: DataCommand) -> int:
    if not isinstance(args, InfoCommand):
        DATA.check_content(args.file)
    args.make()
    info = dataset.info(args.file)
    args.show(lambda: info, lambda: [info], lambda: show_line(describe(info)))
    return 0
