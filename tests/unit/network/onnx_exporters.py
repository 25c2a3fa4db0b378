"""ONNX files in the styles of tf2onnx, Keras, Paddle and MXNet: nodes, weights and header."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.unit.network.onnx_nodes import Spec

#: From images with the channels last to those with the channels first, and back.
FIRST, LAST = {"perm": [0, 3, 1, 2]}, {"perm": [0, 2, 3, 1]}
Weights = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A file: its nodes from x to y, its stored tensors, the input's axes, and the opset.

    Attributes
    ----------
    kind : int
        ONNX's number of the input's type: 11 for float64, 2 for uint8.
    last : bool
        Whether the output has its channels last.
    """

    nodes: Spec
    weights: Weights = field(default_factory=dict)
    dims: tuple[Any, ...] = ("n", 3, 8, 8)
    opset: int = 13
    kind: int = 11
    last: bool = False


CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    CASES[make.__name__.replace("_", " ")] = make
    return make


def some(*shape: int) -> Any:
    """Random weights in double precision."""
    return np.random.default_rng(shape).normal(size=shape) / max(1.0, np.prod(shape[1:]))**0.5


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def norm(name: str, channels: int) -> Weights:
    """Scale, shift, mean and variance of a batch normalization."""
    rng = np.random.default_rng(channels)
    return {f"{name}{part}": values for part, values in zip(
        ("scale", "shift", "mean", "var"), rng.uniform(0.5, 1.5, (4, channels)), strict=True)}


def normed(x: str, name: str, y: str, **attributes: Any) -> tuple[Any, ...]:
    return ("BatchNormalization", (x, *(f"{name}{p}" for p in ("scale", "shift", "mean", "var"))),
            y, attributes)


# -- tf2onnx and Keras: channels last ----------------------------------------------------------
@case
def tf_cnn() -> Case:
    return Case([
        ("Transpose", "x", "a", FIRST),
        ("Conv", ("a", "k1", "b1"), "b", {"auto_pad": "SAME_UPPER", "strides": [2, 2],
                                          "kernel_shape": [3, 3]}),
        normed("b", "n", "c", epsilon=1e-3), ("Relu", "c", "d"),
        ("MaxPool", "d", "e", {"auto_pad": "SAME_UPPER", "kernel_shape": [3, 3],
                               "strides": [2, 2]}),
        ("Conv", ("e", "k2"), "f", {"auto_pad": "SAME_UPPER", "kernel_shape": [2, 2]}),
        ("GlobalAveragePool", "f", "g"), ("Squeeze", ("g", "axes"), "h"),
        ("MatMul", ("h", "w"), "i"), ("Add", ("i", "bias"), "j"),
        ("Softmax", "j", "y", {"axis": 1}),
    ], {"k1": some(4, 3, 3, 3), "b1": some(4), **norm("n", 4), "k2": some(6, 4, 2, 2),
        "axes": ints(2, 3), "w": some(6, 5), "bias": some(5)}, ("n", 9, 9, 3))


@case
def tf_flatten_of_channels_last() -> Case:
    return Case([
        ("Transpose", "x", "a", FIRST), ("Conv", ("a", "k", "b"), "c", {"pads": [1, 1, 1, 1]}),
        ("Relu", "c", "d"), ("MaxPool", "d", "e", {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("Transpose", "e", "f", LAST), ("Reshape", ("f", "to"), "g"), ("MatMul", ("g", "w1"), "h"),
        ("Add", ("h", "b1"), "i"), ("Relu", "i", "j"), ("MatMul", ("j", "w2"), "k1"),
        ("Add", ("b2", "k1"), "l"), ("Softmax", "l", "y"),
    ], {"k": some(4, 3, 3, 3), "b": some(4), "to": ints(-1, 64), "w1": some(64, 7), "b1": some(7),
        "w2": some(7, 5), "b2": some(5)}, ("n", 8, 8, 3), 11)


@case
def keras_mean_of_channels_last() -> Case:
    return Case([
        ("Transpose", "x", "a", FIRST), ("Conv", ("a", "k"), "b", {"auto_pad": "VALID"}),
        ("Transpose", "b", "c", LAST), ("Add", ("c", "bias"), "d"), ("Relu", "d", "e"),
        ("ReduceMean", "e", "f", {"axes": [1, 2], "keepdims": 0}), ("MatMul", ("f", "w"), "g"),
        ("Add", ("g", "b0"), "h"), ("Softmax", "h", "y", {"axis": 1}),
    ], {"k": some(4, 3, 3, 3), "bias": some(4), "w": some(4, 5), "b0": some(5)}, ("n", 8, 8, 3), 9)


@case
def keras_flatten_by_shape() -> Case:
    """As keras2onnx and tf2onnx flatten: the shape, its first number, a concatenation."""
    return Case([
        ("Transpose", "x", "a", FIRST), ("Conv", ("a", "k"), "b"), ("Transpose", "b", "c", LAST),
        ("Shape", "c", "s"), ("Cast", "s", "sf", {"to": 1}),
        ("Slice", ("sf", "zero", "one", "zero"), "s0"), ("Cast", "s0", "si", {"to": 7}),
        ("Concat", ("si", "rest"), "to", {"axis": 0}), ("Reshape", ("c", "to"), "f"),
        ("Gemm", ("f", "w", "bias"), "y"),
    ], {"k": some(4, 3, 3, 3), "zero": ints(0), "one": ints(1), "rest": ints(-1),
        "w": some(144, 5), "bias": some(5)}, ("n", 8, 8, 3), 11)


@case
def tf_mobilenet_with_padding_last() -> Case:
    """Zero padding between transposes, depthwise, clips at 6, a residual."""
    return Case([
        ("Pad", ("x", "ends"), "p"), ("Transpose", "p", "a", FIRST),
        ("Conv", ("a", "k1"), "b", {"strides": [2, 2]}), normed("b", "n", "c"),
        ("Clip", ("c", "low", "high"), "d"),
        ("Conv", ("d", "k2"), "e", {"group": 4, "auto_pad": "SAME_UPPER"}),
        ("Add", ("d", "e"), "f"), ("Transpose", "f", "g", LAST), ("Pad", ("g", "ends"), "h"),
        ("Transpose", "h", "i", FIRST), ("Conv", ("i", "k3"), "j", {"strides": [2, 2]}),
        ("GlobalAveragePool", "j", "l"), ("Flatten", "l", "m"), ("Gemm", ("m", "w", "bias"), "y"),
    ], {"ends": ints(0, 0, 0, 0, 0, 1, 1, 0), "k1": some(4, 3, 3, 3), **norm("n", 4),
        "low": np.float64(0), "high": np.float64(6), "k2": some(4, 1, 3, 3),
        "k3": some(5, 4, 3, 3), "w": some(5, 6), "bias": some(6)}, ("n", 8, 8, 3))


@case
def tf_unet() -> Case:
    """Skips joined along the last axis, and a class for each pixel, last."""
    return Case([
        ("Transpose", "x", "a", FIRST),
        ("Conv", ("a", "k1", "b1"), "b", {"auto_pad": "SAME_UPPER"}), ("Relu", "b", "c"),
        ("MaxPool", "c", "d", {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("Conv", ("d", "k2", "b2"), "e", {"auto_pad": "SAME_UPPER"}), ("Relu", "e", "f"),
        ("ConvTranspose", ("f", "k3"), "g", {"strides": [2, 2], "output_shape": [8, 8]}),
        ("Transpose", "g", "h", LAST), ("Transpose", "c", "i", LAST),
        ("Add", ("h", "b3"), "h2"), ("Concat", ("h2", "i"), "j", {"axis": 3}),
        ("Transpose", "j", "k", FIRST), ("Conv", ("k", "k4", "b4"), "l"),
        ("Transpose", "l", "m", LAST), ("Softmax", "m", "y", {"axis": -1}),
    ], {"k1": some(4, 3, 3, 3), "b1": some(4), "k2": some(6, 4, 3, 3), "b2": some(6),
        "k3": some(6, 4, 3, 3), "b3": some(4), "k4": some(5, 8, 1, 1), "b4": some(5)},
        ("n", 8, 8, 3), last=True)


@case
def keras_dense_of_each_pixel() -> Case:
    """A product with the channels last is a convolution of one pixel."""
    return Case([
        ("MatMul", ("x", "w1"), "a"), ("Add", ("a", "b1"), "b"), ("Relu", "b", "c"),
        ("MatMul", ("c", "w2"), "d"), ("Add", ("b2", "d"), "e"), ("Transpose", "e", "f", FIRST),
        ("Conv", ("f", "k"), "g"), ("GlobalMaxPool", "g", "h"), ("Flatten", "h", "y"),
    ], {"w1": some(3, 6), "b1": some(6), "w2": some(6, 4), "b2": some(4), "k": some(5, 4, 3, 3)},
        ("n", 8, 8, 3))


@case
def keras_bytes() -> Case:
    """Images of uint8, scaled in the file."""
    return Case([
        ("Cast", "x", "a", {"to": 11}), ("Mul", ("a", "scale"), "b"), ("Sub", ("b", "one"), "c"),
        ("Sub", ("c", "mean"), "d0"), ("Transpose", "d0", "d", FIRST), ("Conv", ("d", "k"), "e"),
        ("ReduceMax", "e", "f", {"axes": [2, 3], "keepdims": 0}), ("Gemm", ("f", "w"), "y"),
    ], {"scale": np.float64(1 / 127.5), "one": np.float64(1), "mean": np.array([0.1, 0.2, 0.3]),
        "k": some(4, 3, 3, 3), "w": some(4, 5)}, ("n", 8, 8, 3), kind=2)


@case
def tf_squeeze_and_excitation() -> Case:
    return Case([
        ("Transpose", "x", "a", FIRST), ("Conv", ("a", "k"), "b"), ("Add", ("b", "bias"), "c"),
        ("ReduceMean", "c", "d", {"axes": [2, 3], "keepdims": 1}), ("Conv", ("d", "k1"), "e"),
        ("Add", ("e", "bias1"), "e1"), ("Relu", "e1", "f"), ("Conv", ("f", "k2", "b2"), "g"),
        ("Sigmoid", "g", "h"), ("Mul", ("c", "h"), "i"), ("GlobalAveragePool", "i", "j"),
        ("Reshape", ("j", "to"), "l"), ("MatMul", ("l", "w"), "y"),
    ], {"k": some(4, 3, 3, 3), "bias": some(1, 4, 1, 1), "k1": some(2, 4, 1, 1),
        "bias1": some(2, 1, 1), "k2": some(4, 2, 1, 1), "b2": some(4), "to": ints(-1, 4),
        "w": some(4, 5)}, ("n", 8, 8, 3))


@case
def tf_resize_to_a_computed_size() -> Case:
    """The extents of another tensor, by Shape, Slice, Mul and Concat."""
    return Case([
        ("Transpose", "x", "a", FIRST), ("Conv", ("a", "k"), "b", {"auto_pad": "SAME_UPPER"}),
        ("Transpose", "b", "t", LAST), ("Shape", "t", "s"),
        ("Slice", ("s", "one", "three"), "hw"), ("Mul", ("hw", "twice"), "hw2"),
        ("Shape", "b", "s4"), ("Slice", ("s4", "zero", "two"), "nc"),
        ("Concat", ("nc", "hw2"), "to", {"axis": 0}),
        ("Resize", ("b", "none", "nothing", "to"), "c", {
            "mode": "nearest", "coordinate_transformation_mode": "asymmetric",
            "nearest_mode": "floor"}),
        ("Conv", ("c", "k2"), "d"), ("ReduceMean", ("d"), "e", {"axes": [2, 3], "keepdims": 0}),
        ("Gemm", ("e", "w"), "y"),
    ], {"k": some(4, 3, 3, 3), "k2": some(4, 4, 3, 3), "w": some(4, 5), "zero": ints(0),
        "one": ints(1), "two": ints(2), "three": ints(3), "twice": ints(2, 2),
        "none": np.zeros(0, np.float32), "nothing": np.zeros(0, np.float32)}, ("n", 6, 6, 3), 11)


@case
def keras_vgg_with_averages_of_what_is_inside() -> Case:
    """Average pooling padded at the end, dense layers of a flattened image with its channels last.
    """
    return Case([
        ("Cast", "x", "x1", {"to": 11}), ("Div", ("x1", "most"), "x2"),
        ("Transpose", "x2", "a", FIRST),
        ("Conv", ("a", "k", "b0"), "b", {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
        ("Max", ("b", "zero"), "c"), ("Min", ("c", "six"), "c6"),
        ("AveragePool", "c6", "d", {"auto_pad": "SAME_UPPER", "kernel_shape": [2, 2],
                                    "strides": [2, 2]}),
        ("Transpose", "d", "e", LAST), ("Flatten", "e", "f"), ("MatMul", ("f", "w"), "g"),
        ("Add", ("g", "bias"), "h"), ("Softmax", "h", "y"),
    ], {"most": np.float64(255), "k": some(4, 3, 3, 3), "b0": some(4), "zero": np.float64(0),
        "six": np.float64(6), "w": some(36, 5), "bias": some(5)}, ("n", 9, 9, 3), kind=2)


@case
def keras_squeeze_and_excitation_last() -> Case:
    """A mean that keeps its axes, transposed back; a normalization by its factors, last."""
    return Case([
        ("Transpose", "x", "a", FIRST), ("Conv", ("a", "k"), "b"), ("Transpose", "b", "c", LAST),
        ("Mul", ("c", "scale"), "d"), ("Add", ("d", "shift"), "e"), ("Sigmoid", "e", "e1"),
        ("Mul", ("e", "e1"), "f"), ("ReduceMean", "f", "g", {"axes": [1, 2], "keepdims": 1}),
        ("Transpose", "g", "h", FIRST), ("Conv", ("h", "k1", "b1"), "i"), ("Relu", "i", "j"),
        ("Conv", ("j", "k2", "b2"), "l"), ("Sigmoid", "l", "m"), ("Transpose", "m", "o", LAST),
        ("Mul", ("f", "o"), "p"), ("Transpose", "p", "q", FIRST),
        ("GlobalAveragePool", "q", "r"), ("Transpose", "r", "s", LAST),
        ("Squeeze", ("s", "axes"), "t"), ("Gemm", ("t", "w"), "y"),
    ], {"k": some(4, 3, 3, 3), "scale": some(4), "shift": some(1, 1, 1, 4),
        "k1": some(2, 4, 1, 1), "b1": some(2), "k2": some(4, 2, 1, 1), "b2": some(4),
        "axes": ints(1, 2), "w": some(4, 5)}, ("n", 8, 8, 3))


@case
def keras_dense_of_a_flattened_image() -> Case:
    return Case([
        ("Reshape", ("x", "to"), "a"), ("MatMul", ("a", "w1"), "b"), ("Add", ("b", "b1"), "c"),
        ("Relu", "c", "d"), ("MatMul", ("d", "w2"), "e"), ("Add", ("e", "b2"), "f"),
        ("Softmax", "f", "y"),
    ], {"to": ints(-1, 192), "w1": some(192, 7), "b1": some(7), "w2": some(7, 5), "b2": some(5)},
        ("n", 8, 8, 3))


@case
def tf_space_to_depth_by_slices() -> Case:
    """YOLO's focus with the channels last, and PReLU as two rectified parts."""
    cut = [("Slice", ("x", f"s{i}", "end", "hw", "steps"), f"p{i}") for i in range(4)]
    return Case([
        *cut, ("Concat", ("p0", "p1", "p2", "p3"), "a", {"axis": -1}),
        ("Transpose", "a", "b", FIRST), ("Conv", ("b", "k"), "c", {"auto_pad": "SAME_UPPER"}),
        ("Relu", "c", "d"), ("Neg", "c", "e"), ("Relu", "e", "f"), ("Mul", ("f", "slope"), "g"),
        ("Sub", ("d", "g"), "h"), ("GlobalAveragePool", "h", "i"), ("Flatten", "i", "j"),
        ("Gemm", ("j", "w"), "y"),
    ], {"s0": ints(0, 0), "s1": ints(1, 0), "s2": ints(0, 1), "s3": ints(1, 1),
        "end": ints(1 << 62, 1 << 62), "hw": ints(1, 2), "steps": ints(2, 2),
        "k": some(4, 12, 3, 3), "slope": some(4, 1, 1), "w": some(4, 5)}, ("n", 8, 8, 3))


# -- Paddle -------------------------------------------------------------------------------------
def constant(name: str, value: Any) -> tuple[Any, ...]:
    from onnx import numpy_helper

    return ("Constant", (), (name,), {"value": numpy_helper.from_array(np.asarray(value), name)})


@case
def paddle_mobilenet() -> Case:
    """Weights as Constant nodes, a hard swish by hand, squeezes and excitations by sums."""
    return Case([
        constant("k", some(4, 3, 3, 3)), constant("six", np.float64(6)),
        constant("three", np.float64(3)), constant("zero", np.float64(0)),
        ("Conv", ("x", "k"), "a", {"pads": [1, 1, 1, 1], "strides": [2, 2]}), normed("a", "n", "b"),
        ("Add", ("b", "three"), "c"), ("Clip", ("c", "zero", "six"), "d"), ("Mul", ("b", "d"), "e"),
        ("Div", ("e", "six"), "f"), ("GlobalAveragePool", "f", "g"), ("Conv", ("g", "k1"), "h"),
        ("Reshape", ("b1", "each"), "b1r"), ("Add", ("h", "b1r"), "i"),
        ("HardSigmoid", "i", "j", {"alpha": 0.2, "beta": 0.5}), ("Mul", ("f", "j"), "l"),
        ("Identity", "l", "m"), ("GlobalAveragePool", "m", "o"),
        ("Flatten", "o", "p"), ("MatMul", ("p", "w"), "q"), ("Add", ("q", "bias"), "r"),
        ("Softmax", "r", "y", {"axis": -1}),
    ], {**norm("n", 4), "k1": some(4, 4, 1, 1), "b1": some(4), "each": ints(1, -1, 1, 1),
        "w": some(4, 5), "bias": some(5)}, opset=11)


@case
def paddle_pooling_with_padding() -> Case:
    return Case([
        ("Conv", ("x", "k"), "a", {"dilations": [1, 1], "group": 1, "kernel_shape": [3, 3]}),
        ("Reshape", ("b", "each"), "br"), ("Add", ("a", "br"), "c"),
        ("Pad", ("c", "ends", "zero"), "d", {"mode": "constant"}),
        ("AveragePool", "d", "e", {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("LeakyRelu", "e", "f", {"alpha": 0.1}), ("Shape", "f", "s"),
        ("Slice", ("s", "zero0", "one"), "s0"), ("Concat", ("s0", "rest"), "to", {"axis": 0}),
        ("Cast", "to", "to64", {"to": 7}), ("Reshape", ("f", "to64"), "g"),
        ("MatMul", ("g", "w"), "h"), ("Add", ("h", "bias"), "y"),
    ], {"k": some(4, 3, 3, 3), "b": some(4), "each": ints(1, -1, 1, 1),
        "ends": ints(0, 0, 1, 1, 0, 0, 1, 1), "zero": np.float64(0), "zero0": ints(0),
        "one": ints(1), "rest": ints(-1), "w": some(64, 5), "bias": some(5)}, opset=11)


@case
def paddle_segmentation() -> Case:
    """Resize to the input's extents, and channels joined."""
    return Case([
        ("Conv", ("x", "k"), "a", {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
        normed("a", "n", "b"), ("Relu", "b", "c"), ("GlobalAveragePool", "c", "g"),
        ("Conv", ("g", "k1"), "g1"), ("Shape", "c", "s"), ("Slice", ("s", "two", "four"), "hw"),
        ("Shape", "g1", "s1"), ("Slice", ("s1", "nought", "two"), "front"),
        ("Concat", ("front", "hw"), "to", {"axis": 0}),
        ("Resize", ("g1", "", "", "to"), "u", {"mode": "linear",
                                              "coordinate_transformation_mode": "half_pixel"}),
        ("Concat", ("c", "u"), "j", {"axis": 1}), ("Conv", ("j", "k2", "b2"), "l"),
        ("Resize", ("l", "", "scales"), "y", {"mode": "linear",
                                              "coordinate_transformation_mode": "half_pixel"}),
    ], {"k": some(4, 3, 3, 3), **norm("n", 4), "k1": some(2, 4, 1, 1), "two": ints(2),
        "four": ints(4), "nought": ints(0), "k2": some(5, 6, 1, 1), "b2": some(5),
        "scales": np.float32([1, 1, 2, 2])})


# -- MXNet --------------------------------------------------------------------------------------
@case
def mxnet_cnn() -> Case:
    return Case([
        ("Conv", ("x", "k"), "a", {"pads": [1, 1, 1, 1], "kernel_shape": [3, 3]}),
        normed("a", "n", "b", momentum=0.9, epsilon=1e-5), ("LeakyRelu", "b", "c", {"alpha": 0.25}),
        ("Pad", "c", "p", {"pads": [0, 0, 1, 1, 0, 0, 1, 1], "mode": "constant", "value": 0.0}),
        ("AveragePool", "p", "d", {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("Dropout", "d", ("e", "mask"), {"ratio": 0.5}), ("Flatten", "e", "f"),
        ("Gemm", ("f", "w", "bias"), "g", {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 1}),
        ("Softmax", "g", "y", {"axis": 1}),
    ], {"k": some(4, 3, 3, 3), **norm("n", 4), "w": some(5, 100), "bias": some(5)}, opset=9)


@case
def mxnet_resnet() -> Case:
    """A normalization of the input with a fixed scale; a pooled convolution with its bias apart."""
    fixed = {**norm("i", 3), "iscale": np.ones(3)}
    return Case([
        normed("x", "i", "a"), ("Conv", ("a", "k1"), "b", {"pads": [1, 1, 1, 1]}),
        normed("b", "n", "c"), ("Relu", "c", "d"), ("Conv", ("d", "k2"), "e", {"pads": [1] * 4}),
        ("Add", ("e", "b"), "f"), ("GlobalAveragePool", "f", "g"), ("Conv", ("g", "k3"), "h"),
        ("Add", ("h", "b3"), "i"), ("Reshape", ("i", "to"), "j"),
        ("Gemm", ("j", "w"), "y", {"transB": 1}),
    ], {**fixed, "k1": some(4, 3, 3, 3), **norm("n", 4), "k2": some(4, 4, 3, 3),
        "k3": some(6, 4, 1, 1), "b3": some(1, 6, 1, 1), "to": ints(0, -1), "w": some(5, 6)},
        opset=9)
