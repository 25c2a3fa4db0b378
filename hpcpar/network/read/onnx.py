"""Networks from ONNX files: layers, shapes and options, without the trained weights.

The rest of the package sees no types from the package onnx.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from hpcpar.errors import InputError
from hpcpar.io.files import require_regular
from hpcpar.io.read_limit import bounded
from hpcpar.network.graph import Network
from hpcpar.network.layers.base import Shape, shape_text
from hpcpar.network.read.import_views import ELEMENTWISE
from hpcpar.network.read.onnx_ops import build
from hpcpar.network.read.operations import (
    Array,
    Attribute,
    Constant,
    Node,
    Operations,
    first_three,
)

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

#: ONNX's types of bytes and other whole numbers.
_WHOLE_NUMBERS = range(2, 8)
#: Operators whose outputs have their channels where their inputs have them.
_KEEPING_AXES = ELEMENTWISE | {"Cast", "Concat", "Identity", "Pad", "Slice"}
#: Prefix of weights that PyTorch's exporters computed.
FOLDED = "onnx::Conv"


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
    if file.channels_last:
        sample = (*sample[-1:], *sample[:-1])
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


def read(path: str) -> Operations:
    """The operators of an ONNX file.

    Raises
    ------
    InputError
        The package onnx or the file is missing, or the file is damaged or has several inputs.
    """
    model = _model(path)
    graph = model.graph
    tensors = (*graph.initializer, *graph.input, *graph.output)
    if not all(isinstance(tensor.name, str) for tensor in tensors):
        raise InputError(f"'{path}' is damaged: a tensor's name is not text; export it again")
    constants = {tensor.name: _constant(tensor, path, model.producer_name)
                 for tensor in graph.initializer}
    image = _input(path, [value for value in graph.input if value.name not in constants])
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    made, nodes = {"", image.name, *constants}, []
    for i, node in enumerate(_inlined(graph.node)):
        _check(node, i, made, path)
        made.update(node.output)
        nodes.append(_node(node, i, opsets))
    dims = tuple(d.dim_value or None for d in image.type.tensor_type.shape.dim)
    last = _channels_last(nodes, constants, image.name, dims)
    outputs = tuple(output.name for output in graph.output)
    if not outputs:
        raise InputError(f"'{path}' has no output; export it again")
    return Operations(f"'{path}'", tuple(nodes), constants, image.name, dims, outputs[:1],
                      channels_last=last, notes=tuple(_notes(image, last, outputs)))


def _notes(image: ValueInfoProto, last: bool, outputs: Sequence[str]) -> Iterator[str]:
    """Differences between the network and the file."""
    if last:
        yield (f"the input '{image.name}' has its channels last in the file; here they are first, "
               "in --input and in the data")
    if image.type.tensor_type.elem_type in _WHOLE_NUMBERS:
        yield (f"the file takes whole numbers as '{image.name}' and scales them itself: give "
               "images that are not scaled (0 to 255)")
    if len(outputs) > 1:
        yield (f"the network ends in '{outputs[0]}', the file's first output; layers that only "
               f"{first_three(outputs[1:])} needs are left out")


def _channels_last(nodes: Sequence[Node], constants: Mapping[str, Constant], image: str,
                   dims: Sequence[int | None]) -> bool:
    """Whether the input has its channels last: operators that keep its axes lead to a transpose
    that moves the last one to the channels' place, to a product with the channels, or to features,
    where fewer channels than rows are last.
    """
    reached, rank = {image}, len(dims)
    for node in nodes:
        if node.inputs and node.inputs[0] in reached:
            if node.op == "Transpose":
                return node.integers("perm") == (0, rank - 1, *range(1, rank - 1))
            if node.op == "MatMul" and node.inputs[1] in constants:
                return rank > 3 and constants[node.inputs[1]].dims[:1] == dims[-1:]
            if node.op in ("Flatten", "Reshape"):
                return rank > 3 and (dims[-1] or 5) <= 4 < (dims[1] or 0)
            if node.op in _KEEPING_AXES:
                reached.update(node.outputs)
    return False


def _model(path: str) -> ModelProto:
    """The content of an ONNX file, without values in other files."""
    try:
        import onnx
        import onnx.reference
    except ImportError as err:
        raise InputError(
            f"reading '{path}' needs the package onnx: pip install hpcpar[onnx]") from err
    try:
        require_regular(path)
        return onnx.load(path, load_external_data=False)
    except OSError as err:
        raise InputError(f"cannot read '{path}': {err.strerror or err}") from err
    except Exception as err:  # protobuf's exceptions differ by version
        raise InputError(f"'{path}' is not an ONNX file") from err


def _input(path: str, values: Sequence[ValueInfoProto]) -> ValueInfoProto:
    """The only input that is not stored."""
    if len(values) != 1:
        names = ", ".join(value.name for value in values)
        raise InputError(f"'{path}' has {len(values)} inputs ({names}); export a network with one")
    return values[0]


def _constant(tensor: TensorProto, path: str, producer: str) -> Constant:
    def values() -> Array:
        from onnx import helper, numpy_helper

        if tensor.data_location == tensor.EXTERNAL:
            kind = helper.tensor_dtype_to_np_dtype(tensor.data_type)
            return _external(tensor, kind.str, os.path.dirname(os.path.realpath(path)))
        return np.asarray(numpy_helper.to_array(tensor))

    return Constant(tuple(tensor.dims), values, frozenset((tensor.name,)),
                    _remark(tensor.name, producer))


def _check(node: NodeProto, number: int, made: Collection[str], path: str) -> None:
    """Refuses a node without output, or with an input that no node before it computes."""
    words = (node.op_type, node.domain, node.name, *node.input, *node.output)
    if not node.output or not all(isinstance(word, str) for word in words):
        raise InputError(f"'{path}' is damaged at node {number}: a name is not text, or it has no "
                         "output; export it again")
    undefined = [tensor for tensor in node.input if tensor not in made]
    if undefined:
        raise InputError(f"'{path}': node '{node.name}' ({node.op_type}) reads "
                         f"'{undefined[0]}' before any node computes it; export it again")


def _node(node: NodeProto, number: int, opsets: Mapping[str, int]) -> Node:
    from onnx import helper

    attributes = {a.name: _plain(helper.get_attribute_value(a)) for a in node.attribute}
    op = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
    if op in ("Softmax", "LogSoftmax") and opsets.get("", 13) < 13:
        attributes = {"axis": 1} | attributes
    name = node.name or f"{node.op_type.lower()}{number}"
    folded = any("FuseBatchNorm" in prop.value for prop in getattr(node, "metadata_props", ()))
    return Node(op, name, tuple(node.input), tuple(node.output), attributes,
                partial(_computed, node, opsets), folded)


def _computed(node: NodeProto, opsets: Mapping[str, int], values: Sequence[Array | None]) -> Array:
    """The output of a node for constants."""
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    if any(a.HasField("sparse_tensor") or a.t.data_location == a.t.EXTERNAL
           for a in node.attribute):
        raise ValueError("its attribute is sparse or in an external file; store it as it is")
    single = helper.make_graph([node], "node", [], [])
    feeds = dict(zip(node.input, values, strict=True))
    return np.asarray(ReferenceEvaluator(single, opsets=opsets).run([node.output[0]], feeds)[0])


def _external(tensor: TensorProto, kind: str, folder: str) -> Array:
    """Values of a tensor from a file in the model's folder or below."""
    at = {entry.key: entry.value for entry in tensor.external_data}
    file, count = os.path.realpath(os.path.join(folder, at["location"])), math.prod(tensor.dims)
    if os.path.commonpath((folder, file)) != folder or not os.path.isfile(file):
        raise ValueError(f"'{at['location']}' is not a file in the model's folder")
    offset, little = int(at.get("offset", 0)), np.dtype(kind).newbyteorder("<")
    if os.path.getsize(file) < offset + count * little.itemsize:
        raise ValueError(f"'{at['location']}' is shorter than the model says")
    values = np.fromfile(file, little, count, offset=offset)
    return cast(Array, values.reshape(tuple(tensor.dims)))


def _plain(value: Attribute) -> Attribute:
    """An attribute; single-precision numbers as their short decimals (0.1, not 0.10000000149)."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _remark(name: str, producer: str) -> str:
    """Why, by its name, a stored tensor is not one that the exported module trained; or ''."""
    if name.startswith(FOLDED):
        return "was computed at export, from batch normalization or weight_norm"
    if producer == "pytorch" and not name.startswith("onnx::") and "." not in name:
        return "is not a weight or bias of a module: it may be fixed, or computed (weight_norm)"
    return ""


def _inlined(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """All nodes, with PyTorch's conditional squeeze of an axis replaced by the squeeze."""
    for node in nodes:
        then = [a.g.node for a in node.attribute if a.name == "then_branch"]
        if then and then[0] and then[0][-1].op_type == "Squeeze":
            then[0][-1].output[:] = node.output
            yield from then[0]
        else:
            yield node
