"""Networks from ONNX files: layers, shapes and options, without the trained weights.

`hpcpar.network.onnx_ops` maps the operators. A softmax cross-entropy loss is appended.
"""

from __future__ import annotations

from pathlib import Path

from hpcpar.errors import InputError
from hpcpar.network.base import Shape, shape_text
from hpcpar.network.builder import Graph
from hpcpar.network.graph import Network
from hpcpar.network.layers import SoftmaxCrossEntropy
from hpcpar.network.onnx_file import OnnxFile, read
from hpcpar.network.onnx_ops import OnnxImporter


def load(path: str, shape: Shape | None = None) -> Network:
    """The network of an ONNX file.

    Parameters
    ----------
    path : str
        Path of the file. Weights in external files are not read.
    shape : tuple of int, optional
        Sample shape that replaces the file's, for fully convolutional networks.

    Raises
    ------
    InputError
        The package onnx or the file is missing, a node has an operator or option without a layer
        in hpcpar, or shapes do not fit.
    """
    file = read(path)
    importer = OnnxImporter(file, Graph(Path(path).stem, _sample_shape(file, shape)))
    for node in file.nodes:
        importer.convert(node)
    last = importer.layer_names.get(file.output)
    if last is None:
        raise InputError(
            f"'{path}': the output '{file.output}' does not depend on the input '{file.input}'")
    importer.graph.add(SoftmaxCrossEntropy, "loss", after=last)
    return importer.graph.build()


def _sample_shape(file: OnnxFile, given: Shape | None) -> Shape:
    """The given sample shape, or the one in the file."""
    sample = file.input_dims[1:]
    if len(sample) not in (3, 4):
        raise InputError(f"'{file.path}': the input '{file.input}' has {len(file.input_dims)} "
                         "axes; images N x C x H x W or N x C x D x H x W are read")
    if given is not None:
        if len(given) != len(sample):
            raise InputError(f"'{file.path}': images have {len(sample)} axes, not "
                             f"{shape_text(given)}; leave --input out")
        return tuple(given)
    if None in sample:
        raise InputError(
            f"'{file.path}': the input '{file.input}' has no fixed image shape; give --input")
    return tuple(size for size in sample if size is not None)
