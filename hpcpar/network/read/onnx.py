"""Networks from ONNX files: layers, shapes and options, without the trained weights."""

from __future__ import annotations

import os
from pathlib import Path

from hpcpar.errors import InputError
from hpcpar.io.read_limit import bounded
from hpcpar.network.graph import Network
from hpcpar.network.layers.base import Shape, shape_text
from hpcpar.network.read.onnx_file import read
from hpcpar.network.read.onnx_ops import build
from hpcpar.network.read.operations import Operations


def load(path: str, shape: Shape | None = None) -> Network:
    """The network of an ONNX file, with a softmax cross-entropy loss.

    Parameters
    ----------
    path : str
        Path of the file. Weights stay unread; constants may be in files in the same folder.
    shape : tuple of int, optional
        Sample shape that replaces the file's, for fully convolutional networks.

    Raises
    ------
    InputError
        The package onnx or the file is missing, an operator or option has no layer in hpcpar, or
        shapes do not fit.
    """
    size_bytes = os.path.getsize(path) if os.path.isfile(path) else 0
    # the file's bytes, its parsed content, and one copy of its constants
    with bounded(f"'{path}'", "export it with constants folded", 3 * size_bytes):
        file = read(path)
        return build(file, Path(path).stem, _sample_shape(file, shape))


def _sample_shape(file: Operations, given: Shape | None) -> Shape:
    """The given sample shape, or the one in the file."""
    sample = file.input_dims[1:]
    if len(sample) not in (2, 3, 4):
        raise InputError(f"{file.source}: the input '{file.input}' has {len(file.input_dims)} "
                         "axes; export images N x C x W, N x C x H x W or N x C x D x H x W")
    if given is not None:
        if len(given) != len(sample):
            raise InputError(f"{file.source}: images have {len(sample)} axes, not "
                             f"{shape_text(given)}; leave --input out")
        return tuple(given)
    if None in sample:
        raise InputError(
            f"{file.source}: the input '{file.input}' has no fixed image shape; give --input")
    return tuple(size for size in sample if size is not None)
