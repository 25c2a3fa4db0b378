"""Operators of ONNX files that become layers, by hand and as PyTorch exports them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcpar.errors import InputError
from hpcpar.network.builtin import network
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    LRN,
    Affine,
    AvgPool2d,
    BatchNorm,
    Clip,
    Conv2d,
    GlobalMaxPool,
    GroupNorm,
    Layer,
    Pad,
    Pointwise,
    Select,
)

onnx = pytest.importorskip("onnx", reason="ONNX files are read with the package onnx")

from tests.unit.network.onnx_nodes import HEAD, Spec, export, write  # noqa: E402


def between(net: Network) -> tuple[Layer, ...]:
    """Layers between the input and the flattening."""
    ends = [i for i, layer in enumerate(net.layers) if layer.kind in ("flatten", "linear")]
    return net.layers[1:ends[0]]


def load(path: Path, nodes: Spec, features: int, dims: Any = ("n", 3, 8, 8),
         **weights: Any) -> Network:
    """The network of nodes from x to h."""
    return network(write(path / "n.onnx", [*nodes, *HEAD], dims,
                         {"w": (features, 4), "k": (4, 3, 3, 3), "three": np.float32(3),
                          **weights}))


@pytest.mark.parametrize(("auto", "size", "layers"), [
    ("SAME_UPPER", 8, [("Conv2d", (1, 1))]),
    ("SAME_LOWER", 8, [("Conv2d", (1, 1))]),
    ("VALID", 6, [("Conv2d", (0, 0))]),
    ("NOTSET", 6, [("Conv2d", (0, 0))]),
])
def test_symmetric_automatic_padding_is_read(tmp_path: Path, auto: str, size: int,
                                             layers: list[Any]) -> None:
    net = load(tmp_path, [("Conv", ("x", "k"), "h", {"auto_pad": auto})], 4 * size * size)
    found = between(net)
    assert [(type(layer).__name__, layer.padding) for layer in found] == layers
    assert net.shapes[found[-1].name] == (4, size, size)


@pytest.mark.parametrize(("auto", "begin", "end"), [("SAME_UPPER", 0, 1), ("SAME_LOWER", 1, 0)])
def test_padding_that_differs_becomes_a_layer(tmp_path: Path, auto: str, begin: int,
                                              end: int) -> None:
    """A stride of 2 over 8 pixels leaves one pixel more at one end."""
    options = {"auto_pad": auto, "strides": [2, 2]}
    net = load(tmp_path, [("Conv", ("x", "k"), "h", options)], 64)
    pad, conv = between(net)
    assert pad == Pad(pad.name, ("input",), (begin, begin), (end, end))
    assert isinstance(conv, Conv2d) and conv.padding == (0, 0)
    assert net.shapes[conv.name] == (4, 4, 4)
    average = load(tmp_path, [("AveragePool", "x", "h", {
        "kernel_shape": [2, 2], "pads": [0, 0, 1, 1], "count_include_pad": 1})], 192)
    assert [type(layer) for layer in between(average)] == [Pad, AvgPool2d]


def test_every_mode_of_padding_is_read(tmp_path: Path) -> None:
    ends = np.array([0, 0, 1, 0, 0, 0, 2, 3])
    modes = {"constant": "constant", "wrap": "periodic", "reflect": "reflect", "edge": "edge"}
    for mode, ours in modes.items():
        net = load(tmp_path, [("Pad", ("x", "ends"), "h", {"mode": mode})], 363, ends=ends)
        (pad,) = between(net)
        assert pad == Pad(pad.name, ("input",), (1, 0), (2, 3), ours)
    (pad,) = between(load(tmp_path, [("Pad", ("x", "ends", "three"), "h")], 363, ends=ends))
    assert pad == Pad(pad.name, ("input",), (1, 0), (2, 3), value=3.0)
    with pytest.raises(InputError, match="mode 'other'; use constant, periodic, reflect or edge"):
        load(tmp_path, [("Pad", ("x", "ends"), "h", {"mode": "other"})], 363, ends=ends)
    (pad, pool) = between(load(tmp_path, [("MaxPool", "x", "h", {
        "kernel_shape": [2, 2], "pads": [0, 0, 1, 1]})], 192))
    assert pad.value < -1e38 and pad.end == (1, 1) and pool.padding == (0, 0)


def test_moves_of_values_become_layers(tmp_path: Path) -> None:
    """Splits, slices and shuffles of channels, and constants of each channel."""
    shuffle: Spec = [("Reshape", ("x", "to"), "a"),
                     ("Transpose", "a", "b", {"perm": [0, 2, 1, 3, 4]}),
                     ("Reshape", ("b", "back"), "h")]
    constants = {"to": np.array([0, 2, 2, 8, 8]), "back": np.array([0, 4, 8, 8])}
    (layer,) = between(load(tmp_path, shuffle, 256, ("n", 4, 8, 8), **constants))
    assert layer == Select(layer.name, ("input",), channels=(0, 2, 1, 3))
    split: Spec = [("Split", ("x", "sizes"), ("a", "b"), {"axis": 1}), ("Relu", "b", "h")]
    first, _ = between(load(tmp_path, split, 64, ("n", 4, 8, 8), sizes=np.array([3, 1])))
    assert first == Select(first.name, ("input",), channels=(3,))
    cut: Spec = [("Slice", ("x", "one", "nine", "two"), "a"), ("Mul", ("a", "vector"), "b"),
                 ("Add", ("vector2", "b"), "c"), ("PRelu", ("c", "vector3"), "h")]
    crop, *others = between(load(tmp_path, cut, 224, ("n", 4, 8, 8), one=np.array([1]),
                                 nine=np.array([9]), two=np.array([2]), vector=(4, 1, 1),
                                 vector2=(1, 4, 1, 1), vector3=(4, 1, 1)))
    assert crop == Select(crop.name, ("input",), (), (1, 0), (1, 1), (7, 8))
    steps = [("mul",), ("add",), ("greater", "mul", "where")]
    assert [(type(layer), tuple(op for op, *_ in layer.formula)) for layer in others] == [
        (Pointwise, ops) for ops in steps]
    assert [layer.weight_shape((4, 7, 8)) for layer in others] == [(4,)] * 3


@pytest.mark.parametrize(("op", "options", "layers"), [
    ("DepthToSpace", {}, ["select", "pixelshuffle"]),
    ("DepthToSpace", {"mode": "DCR"}, ["select", "pixelshuffle"]),
    ("DepthToSpace", {"mode": "CRD"}, ["pixelshuffle"]),
    ("SpaceToDepth", {}, ["pixelunshuffle", "select"]),
])
def test_blocks_of_pixels_equal_onnx(tmp_path: Path, op: str, options: dict[str, str],
                                     layers: list[str]) -> None:
    torch = pytest.importorskip("torch", exc_type=ImportError)
    from onnx.reference import ReferenceEvaluator

    from tests.reference_layers import forward

    attributes: dict[str, Any] = {"blocksize": 2, **options}
    found = between(load(tmp_path, [(op, "x", "h", attributes)], 512, ("n", 8, 4, 16)))
    assert [layer.kind for layer in found] == layers
    x = np.arange(512.0).reshape(1, 8, 4, 16)
    node = onnx.helper.make_node(op, ["x"], ["y"], **attributes)
    (expected,) = ReferenceEvaluator(node).run(None, {"x": x})
    y = torch.from_numpy(x)
    for layer in found:
        y = forward(layer, [y], [])
    assert np.array_equal(y.numpy(), expected)


@pytest.mark.parametrize(("op", "inputs", "scale", "shift"), [
    ("Mul", ("x", "three"), 3, 0), ("Mul", ("three", "x"), 3, 0), ("Div", ("x", "three"), 1 / 3, 0),
    ("Add", ("three", "x"), 1, 3), ("Sub", ("x", "three"), 1, -3), ("Sub", ("three", "x"), -1, 3),
])
def test_arithmetic_with_a_number_is_read(tmp_path: Path, op: str, inputs: tuple[str, str],
                                          scale: float, shift: float) -> None:
    (layer,) = between(load(tmp_path, [(op, inputs, "h")], 192))
    assert layer == Affine(layer.name, ("input",), scale, shift)


def test_identities_vanish_and_maxima_are_read(tmp_path: Path) -> None:
    """`cat` of one tensor, a clip without an end, the maximum over images."""
    nodes: Spec = [("Concat", "x", "c", {"axis": 1}), ("Clip", ("c", "zero"), "r"),
                   ("Clip", ("r", "", "three"), "l"), ("ReduceMax", "l", "h", {"axes": [2, -1]})]
    net = load(tmp_path, nodes, 3, zero=np.float32(0))
    relu, clip, most = net.layers[1:4]
    assert relu.kind == "relu" and relu.inputs == ("input",)
    assert clip == Clip(clip.name, (relu.name,), -np.inf, 3.0)
    assert isinstance(most, GlobalMaxPool) and net.shapes[most.name] == (3,)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("size", [3, 4])
def test_lrn_as_pytorch_exports_it(tmp_path: Path, dynamic: bool, size: int) -> None:
    nn = pytest.importorskip("torch.nn", exc_type=ImportError)
    module = nn.Sequential(nn.LocalResponseNorm(size, 0.25, 0.5, 2.0), nn.Flatten(),
                           nn.Linear(192, 2))
    net = network(export(tmp_path / "l.onnx", module, (3, 8, 8), dynamic=dynamic))
    (layer,) = between(net)
    assert layer == LRN(layer.name, ("input",), size, 0.25, 0.5, 2.0)


def test_normalizations_without_weights(tmp_path: Path) -> None:
    """PyTorch writes ones and zeros where there is nothing to train."""
    nn = pytest.importorskip("torch.nn", exc_type=ImportError)
    module = nn.Sequential(nn.BatchNorm2d(4, affine=False), nn.BatchNorm2d(4),
                           nn.GroupNorm(2, 4, affine=False), nn.GroupNorm(2, 4),
                           nn.InstanceNorm2d(4), nn.InstanceNorm2d(4, affine=True),
                           nn.Flatten(), nn.Linear(144, 2))
    net = network(export(tmp_path / "n.onnx", module, (4, 6, 6)))
    found = between(net)
    assert [type(layer) for layer in found] == 2 * [BatchNorm] + 4 * [GroupNorm]
    assert [layer.affine for layer in found] == [False, True] * 3
    assert [layer.groups for layer in found[2:]] == [2, 2, 4, 4] and net.notes == ()


def test_a_normalization_of_reshaped_images_keeps_its_weights(tmp_path: Path) -> None:
    """Only ones and zeros between two reshapes make a group normalization."""
    nodes: Spec = [("Reshape", ("x", "to"), "a"),
                   ("InstanceNormalization", ("a", "scale", "shift"), "b"),
                   ("Reshape", ("b", "back"), "h")]
    shapes = {"to": np.array([0, 2, -1]), "back": np.array([0, 4, 8, 8]), "shift": (2,)}
    net = load(tmp_path, nodes, 256, ("n", 4, 8, 8), scale=np.ones(2, np.float32), **shapes)
    (norm,) = between(net)
    assert norm == GroupNorm(norm.name, ("input",), affine=False, groups=2)
    with pytest.raises(InputError, match="are in an order that no layer has"):
        load(tmp_path, nodes, 256, ("n", 4, 8, 8), scale=np.float32([1, 2]), **shapes)


def modules() -> dict[str, Callable[[], Any]]:
    """Modules whose ONNX file gives the layers that the module itself gives."""
    from torch import nn

    return {
        "activations": lambda: nn.Sequential(
            nn.LeakyReLU(0.25), nn.ReLU6(), nn.SiLU(), nn.GELU(), nn.GELU("tanh"), nn.Sigmoid(),
            nn.Tanh(), nn.Hardswish(), nn.Hardsigmoid(), nn.Hardtanh(-0.5, 2.0)),
        "images": lambda: nn.Sequential(
            nn.Upsample(scale_factor=2), nn.ConvTranspose2d(3, 4, 3, 2, 1, 1),
            nn.Upsample(scale_factor=2, mode="bilinear"), nn.ZeroPad2d((1, 0, 2, 3)),
            nn.Conv2d(4, 3, 3, padding="same"), nn.LayerNorm((3, 69, 65))),
        "pooling": lambda: nn.Sequential(
            nn.AdaptiveAvgPool2d(4), nn.AdaptiveMaxPool2d((4, 2)), nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(3, 5, 1), nn.ReLU(), nn.Conv2d(5, 3, 1)),
    }


def described(net: Network) -> list[Any]:
    """Layers without their names, options to the digits of a file."""
    numbers = {layer.name: i for i, layer in enumerate(net.layers)}

    def option(value: Any) -> Any:
        if isinstance(value, tuple):
            return [option(part) for part in value]
        return round(value, 6) if isinstance(value, float) else value

    return [(type(layer), [numbers[name] for name in layer.inputs],
             [option(getattr(layer, f)) for f in layer.__dataclass_fields__
              if f not in ("name", "inputs")]) for layer in net.layers]


@pytest.mark.parametrize("name", ["activations", "images", "pooling"])
def test_a_file_equals_its_module(tmp_path: Path, name: str) -> None:
    pytest.importorskip("torch", exc_type=ImportError)
    from torch import nn

    from hpcpar.network import from_torch

    module = nn.Sequential(modules()[name](), nn.Flatten(), nn.LazyLinear(4))
    import torch

    module(torch.zeros(2, 3, 8, 8))
    net = network(export(tmp_path / "m.onnx", module, (3, 8, 8)))
    assert described(net) == described(from_torch(module, (3, 8, 8)))


def test_signals_and_predictions_for_every_pixel(tmp_path: Path) -> None:
    """Signals are images of one row; a network may end in an image."""
    nodes: Spec = [("Conv", ("x", "c"), "a", {"pads": [1, 1]}),
                   ("MaxPool", "a", "b", {"kernel_shape": [2]}),
                   ("ReduceMean", "b", "h", {"axes": [-1], "keepdims": 0}),
                   ("Gemm", ("h", "w"), "y")]
    net = network(write(tmp_path / "s.onnx", nodes, (1, 2, 9), {"c": (5, 2, 3), "w": (5, 3)}))
    assert [net.shapes[layer.name] for layer in net.layers[:4]] == [
        (2, 1, 9), (5, 1, 9), (5, 1, 8), (5,)]
    pixels = network(write(tmp_path / "p.onnx", [("Conv", ("x", "k"), "y")],
                           weights={"k": (4, 3, 1, 1)}))
    assert pixels.shapes["loss"] == (4, 8, 8) and pixels.classes == 4


@pytest.mark.parametrize(("node", "message"), [
    (("GroupNormalization", ("x", "two", "two"), "h", {"num_groups": 2}),
     "has 2 scales for 4 channels; export it with one per channel"),
    (("LayerNormalization", ("x", "eight", "eight"), "h"),
     "supports only whole samples 4x8x8; normalize those, or use a group"),
    (("LayerNormalization", ("x", "whole"), "h", {"axis": 1}), "has a scale without a shift"),
    (("Mul", ("x", "seven"), "h"), "input 'seven' is a constant of shape 7 for samples 4x8"),
    (("Where", ("x", "eight", "whole"), "h"), "reads two parameters; give it one, or apply them"),
    (("Resize", ("x", "", "scales"), "h", {"mode": "cubic"}), "with mode 'cubic'"),
    (("Resize", ("x", "", "half"), "h"), "factors [1.5, 2.0] with mode 'nearest'"),
    (("Resize", ("x", "", "channels"), "h"), "resizes samples or channels"),
    (("Gemm", ("x", "w", "two"), "h"), "adds 2 to 4 features; give each its own bias"),
    (("Unsqueeze", ("x", "axis"), "h"),
     "axes [0] are not supported, only axes after the sample axis"),
    (("ConvTranspose", ("x", "t"), "h", {"auto_pad": "SAME_UPPER", "strides": [5, 5]}),
     "pads [-1, -1, -1, -1] with output_padding [0, 0] add pixels that no input reaches; use a"),
    (("ConvTranspose", ("x", "k"), "h"), "has weights for 3 channels, but its input has 4"),
    (("ReduceMax", "x", "h"), "reduces over samples; keep them apart"),
])
def test_unsupported_options_are_refused(tmp_path: Path, node: Any, message: str) -> None:
    weights = {"two": (2,), "eight": np.arange(8.0), "seven": (7,), "vector": (4, 1, 1),
               "whole": np.arange(256.0).reshape(4, 8, 8),
               "three": np.float32(3), "scales": np.float32([1, 1, 2, 2]), "axis": np.array([0]),
               "channels": np.float32([1, 2, 1, 1]), "half": np.float32([1, 1, 1.5, 2]),
               "t": (4, 2, 3, 3), "k": (3, 3, 1, 1), "w": (4, 4)}
    with pytest.raises(InputError) as err:
        network(write(tmp_path / "n.onnx", [node, *HEAD], ("n", 4, 8, 8), weights))
    assert message in str(err.value) and "\n" not in str(err.value)
