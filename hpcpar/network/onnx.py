"""Networks from ONNX files: layers, shapes and options are read, trained weights are not.

The operators are in `hpcpar.network.onnx_ops`; a softmax cross-entropy loss is appended.
"""

from __future__ import annotations

from pathlib import Path

from hpcpar.errors import InputError
from hpcpar.network.base import Shape, text_of
from hpcpar.network.builder import Graph
from hpcpar.network.graph import Network
from hpcpar.network.layers import SoftmaxCrossEntropy
from hpcpar.network.onnx_file import File, read
from hpcpar.network.onnx_ops import Importer


def load(path: str, shape: Shape | None = None) -> Network:
    """The network of an ONNX file.

    Parameters
    ----------
    path : str
        The file; weights kept in a separate file are not needed.
    shape : tuple of int, optional
        Sample shape in place of the file's: the image of a fully convolutional network may have any
        size.

    Raises
    ------
    InputError
        No package onnx, no such file, an operator or option that hpcpar has no layer for (named
        with its node), or shapes that do not fit.
    """
    file = read(path)
    importer = Importer(file, Graph(Path(path).stem, _sample_shape(file, shape)))
    for node in file.nodes:
        importer.take(node)
    last = importer.names.get(file.output)
    if last is None:
        raise InputError(
            f"'{path}': the output '{file.output}' does not depend on the input '{file.input}'")
    importer.graph.add(SoftmaxCrossEntropy, "loss", after=last)
    return importer.graph.build()


def _sample_shape(file: File, given: Shape | None) -> Shape:
    """The image shape: the file's, unless another is given; the file may leave out the number of
    samples.
    """
    sample = file.input_dims[1:]
    if len(sample) not in (3, 4):
        raise InputError(f"'{file.path}': the input '{file.input}' has {len(file.input_dims)} axes; images N x C x H x W or "
                         "N x C x D x H x W are read")
    if given is not None:
        if len(given) != len(sample):
            raise InputError(f"'{file.path}': images have {len(sample)} axes, not {text_of(given)}; leave --input out")
        return tuple(given)
    if None in sample:
        raise InputError(
            f"'{file.path}': the input '{file.input}' has no fixed image shape; give --input")
    return tuple(size for size in sample if size is not None)
