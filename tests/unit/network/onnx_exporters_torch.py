"""ONNX files in PyTorch's style of all opsets, of signals and volumes with the channels last, and
with transposed convolutions of any padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.unit.network.onnx_exporters import (
    CASES,
    FIRST,
    LAST,
    Case,
    case,
    constant,
    ints,
    some,
)


@case
def pytorch_opset_9() -> Case:
    """`view(x.size(0), -1)`, Upsample, clips and slices by attributes."""
    return Case([
        ("Conv", ("x", "k", "b"), "a", {"pads": [1, 1, 1, 1]}),
        ("Clip", "a", "c", {"min": 0.0, "max": 6.0}),
        ("Slice", "c", "s", {"axes": [1, 2], "starts": [1, 0], "ends": [4, 6]}),
        ("Upsample", ("s", "scales"), "u", {"mode": "nearest"}),
        ("Pad", "u", "p", {"mode": "reflect", "pads": [0, 0, 1, 1, 0, 0, 1, 1]}),
        constant("i0", np.int64(0)),
        ("Shape", "p", "sh"), ("Gather", ("sh", "i0"), "n", {"axis": 0}),
        ("Unsqueeze", "n", "n1", {"axes": [0]}), constant("m", np.int64(-1)),
        ("Unsqueeze", "m", "m1", {"axes": [0]}), ("Concat", ("n1", "m1"), "to", {"axis": 0}),
        ("MaxPool", "p", "q", {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("Dropout", "q", "d", {"ratio": 0.1}), ("Reshape", ("d", "to"), "f"),
        ("Gemm", ("f", "w", "bias"), "y", {"alpha": 1.0, "beta": 1.0, "transB": 1}),
    ], {"k": some(4, 3, 3, 3), "b": some(4), "scales": np.float32([1, 1, 2, 2]),
        "w": some(5, 3 * 7 * 9), "bias": some(5)}, opset=9)


@case
def pytorch_opset_10() -> Case:
    """Resize of two inputs, slices by inputs, dropout without a mask."""
    return Case([
        ("Conv", ("x", "k"), "a"), ("Resize", ("a", "scales"), "u", {"mode": "nearest"}),
        ("Slice", ("u", "start", "end", "axis", "step"), "s"),
        ("Dropout", "s", "d", {"ratio": 0.3}),
        ("Squeeze", "d", "d1", {"axes": [2]}),
        ("Unsqueeze", "d1", "d2", {"axes": [2]}), ("Conv", ("d2", "k2"), "e"),
        ("Flatten", "e", "f", {"axis": 1}), ("Gemm", ("f", "w"), "y"),
    ], {"k": some(4, 3, 3, 3), "scales": np.float32([1, 1, 2, 2]), "start": ints(3),
        "end": ints(4), "axis": ints(2), "step": ints(1), "k2": some(4, 4, 1, 3),
        "w": some(40, 5)}, opset=10)


@case
def pytorch_opset_11() -> Case:
    """Interpolation to a size of folded scalars, reflection, clips by inputs."""
    return Case([
        ("Conv", ("x", "k", "b"), "a", {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
        ("Shape", "x", "s"), constant("two", np.int64(2)), ("Gather", ("s", "two"), "h"),
        constant("three", np.int64(3)), ("Gather", ("s", "three"), "w1"),
        ("Cast", "h", "hf", {"to": 1}), constant("half", np.float32(1.0)),
        ("Mul", ("hf", "half"), "hh"), ("Floor", "hh", "hfl"), ("Cast", "hfl", "h0", {"to": 7}),
        ("Unsqueeze", "h0", "hu", {"axes": [0]}), ("Unsqueeze", "w1", "wu", {"axes": [0]}),
        ("Concat", ("hu", "wu"), "hw", {"axis": 0}), ("Shape", "a", "sa"),
        ("Slice", ("sa", "zero", "two1", "zero"), "nc"),
        ("Concat", ("nc", "hw"), "to", {"axis": 0}), constant("roi", np.zeros(0, np.float32)),
        ("Resize", ("a", "roi", "roi", "to"), "u", {
            "mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel",
            "cubic_coeff_a": -0.75, "nearest_mode": "floor"}),
        ("Pad", ("u", "ends"), "p", {"mode": "reflect"}), ("Clip", ("p", "low", "high"), "c"),
        ("ReduceMean", "c", "m", {"axes": [-1, -2], "keepdims": 0}), ("Gemm", ("m", "w"), "y"),
    ], {"k": some(4, 3, 3, 3), "b": some(4), "zero": ints(0), "two1": ints(2),
        "ends": ints(0, 0, 1, 1, 0, 0, 1, 1), "low": np.float64(-0.5), "high": np.float64(0.7),
        "w": some(4, 5)}, opset=11)


@case
def pytorch_opset_13() -> Case:
    """Axes as inputs, splits, sums, softmax along the last axis."""
    return Case([
        ("Conv", ("x", "k", "b"), "a", {"pads": [1, 1, 1, 1]}),
        ("Split", ("a", "sizes"), ("s1", "s2"), {"axis": 1}),
        ("Sigmoid", "s2", "g"), ("Mul", ("s1", "g"), "h"),
        ("ReduceSum", ("h", "axes"), "r", {"keepdims": 1}), ("Squeeze", ("r", "axis3"), "q"),
        ("Unsqueeze", ("q", "axis3"), "u"), ("Conv", ("u", "k2"), "v"), ("HardSwish", "v", "v1"),
        ("Dropout", ("v1", "ratio", "train"), "d"), ("Flatten", "d", "f"),
        ("Gemm", ("f", "w"), "z"),
        ("LogSoftmax", "z", "y", {"axis": -1}),
    ], {"k": some(8, 3, 3, 3), "b": some(8), "sizes": ints(4, 4), "axes": ints(3),
        "axis3": ints(3), "k2": some(3, 4, 3, 1), "ratio": np.float32(0.2), "w": some(18, 5),
        "train": np.bool_(False)}, opset=14)


@case
def pytorch_opset_17() -> Case:
    """A ConvNeXt block: permuted, normalized, two products, a scale for each channel."""
    return Case([
        ("Conv", ("x", "k", "b"), "a", {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("Conv", ("a", "k2", "b2"), "c", {"group": 4, "pads": [1, 1, 1, 1]}),
        ("Transpose", "c", "d", LAST),
        ("LayerNormalization", ("d", "scale", "shift"), "e", {"axis": -1, "epsilon": 1e-6}),
        ("MatMul", ("e", "w1"), "f"), ("Add", ("b3", "f"), "g"), constant("root", np.sqrt(2.0)),
        ("Div", ("g", "root"), "h"), ("Erf", "h", "i"), constant("one", np.float64(1)),
        ("Add", ("i", "one"), "j"), ("Mul", ("g", "j"), "l"), constant("half", np.float64(0.5)),
        ("Mul", ("l", "half"), "m"), ("MatMul", ("m", "w2"), "o"), ("Add", ("b4", "o"), "p"),
        ("Mul", ("gamma", "p"), "q"), ("Transpose", "q", "r", FIRST), ("Add", ("r", "a"), "s"),
        ("GlobalAveragePool", "s", "t"), ("Flatten", "t", "u"),
        ("LayerNormalization", ("u", "scale2", "shift2"), "v", {"axis": -1}),
        ("Gemm", ("v", "w", "bias"), "y", {"transB": 1}),
    ], {"k": some(4, 3, 2, 2), "b": some(4), "k2": some(4, 1, 3, 3), "b2": some(4),
        "scale": some(4), "shift": some(4), "w1": some(4, 8), "b3": some(8), "w2": some(8, 4),
        "b4": some(4), "gamma": some(4), "scale2": some(4, 1)[:, 0], "shift2": some(4) + 1,
        "w": some(5, 4), "bias": some(5)}, opset=17)


@case
def pytorch_opset_20() -> Case:
    """Gelu, axes of reductions as inputs, a pixel shuffle, shapes from start to end."""
    return Case([
        ("Conv", ("x", "k"), "a", {"pads": [1, 1, 1, 1]}),
        ("Gelu", "a", "c", {"approximate": "tanh"}),
        ("DepthToSpace", "c", "d", {"blocksize": 2, "mode": "CRD"}),
        ("SpaceToDepth", "d", "e", {"blocksize": 4}),
        ("Shape", "e", "n", {"start": 0, "end": 1}), ("Concat", ("n", "rest"), "to", {"axis": 0}),
        ("Resize", ("e", "", "scales"), "u", {
            "mode": "linear", "coordinate_transformation_mode": "align_corners"}),
        ("Mish", "u", "m"), ("ReduceMean", ("m", "axes"), "r", {"keepdims": 1}),
        ("Reshape", ("r", "to"), "f"), ("Gemm", ("f", "w"), "y"),
    ], {"k": some(8, 3, 3, 3), "rest": ints(-1), "scales": np.float32([1, 1, 2, 2]),
        "axes": ints(-1, -2), "w": some(32, 5)}, opset=20)


@case
def pytorch_depth_to_space_by_columns() -> Case:
    return Case([
        ("Conv", ("x", "k"), "a", {"pads": [1, 1, 1, 1]}),
        ("DepthToSpace", "a", "d", {"blocksize": 2}), ("Conv", ("d", "k2"), "y"),
    ], {"k": some(8, 3, 3, 3), "k2": some(5, 2, 1, 1)})


@case
def scaled_products() -> Case:
    return Case([
        ("Flatten", "x", "f"),
        ("Gemm", ("f", "w1", "b1"), "a", {"alpha": 0.5, "beta": 2.0, "transB": 1}),
        ("Relu", "a", "c"), ("Gemm", ("c", "w2", "b2"), "y", {"beta": 0.5}),
    ], {"w1": some(7, 192), "b1": some(7), "w2": some(7, 5), "b2": some(5)})


@case
def pytorch_opset_18() -> Case:
    """Splits by number, pads of some axes, an instance normalization by hand."""
    return Case([
        ("Conv", ("x", "k", "b"), "a", {"pads": [1, 1, 1, 1]}),
        ("Split", "a", ("s1", "s2"), {"axis": 1, "num_outputs": 2}), ("Mul", ("s1", "s2"), "c"),
        ("Pad", ("c", "ends", "", "axis"), "d"), ("ReduceMean", ("d", "axes"), "e"),
        ("Sub", ("d", "e"), "f"), ("Mul", ("f", "f"), "g"), ("ReduceMean", ("g", "axes"), "h"),
        ("Add", ("h", "eps"), "i"), ("Sqrt", "i", "j"), ("Div", ("f", "j"), "l"),
        ("Flatten", "l", "m"), ("Gemm", ("m", "w"), "y"),
    ], {"k": some(8, 3, 3, 3), "b": some(8), "ends": ints(1, 2), "axis": ints(3),
        "axes": ints(2, 3), "eps": np.float64(1e-5), "w": some(4 * 8 * 11, 5)}, opset=18)


@case
def pixels_squeezed_and_back() -> Case:
    return Case([
        ("Conv", ("x", "k"), "a"), ("GlobalAveragePool", "a", "b"), ("Squeeze", "b", "c"),
        ("Unsqueeze", "c", "d", {"axes": [2, 3]}), ("Conv", ("d", "k2"), "e"),
        ("Squeeze", "e", "f", {"axes": [-1, -2]}), ("Softmax", "f", "y"),
    ], {"k": some(4, 3, 3, 3), "k2": some(5, 4, 1, 1)}, opset=11)


# -- channels last -------------------------------------------------------------------------------
@case
def tf_operators_between_transposes() -> Case:
    """Softmax, clips and resizing with the channels last."""
    return Case([
        ("Transpose", "x", "a", FIRST), ("Conv", ("a", "k"), "b"), ("Transpose", "b", "c", LAST),
        ("Softmax", "c", "d", {"axis": 3}), ("Clip", ("d", "low"), "e"),
        ("Resize", ("e", "", "scales"), "f", {
            "mode": "nearest", "coordinate_transformation_mode": "asymmetric",
            "nearest_mode": "floor"}),
        ("Transpose", "f", "g", FIRST), ("InstanceNormalization", ("g", "scale", "shift"), "h"),
        ("Conv", ("h", "k1"), "i"), ("Resize", ("i", "", "twice"), "j", {
            "mode": "nearest", "coordinate_transformation_mode": "tf_half_pixel_for_nn",
            "nearest_mode": "floor"}),
        ("MaxPool", "j", "l", {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
        ("Flatten", "l", "m"), ("Gemm", ("m", "w"), "y"),
    ], {"k": some(4, 3, 3, 3), "low": np.float64(0.2), "scales": np.float32([1, 2, 1, 1]),
        "scale": some(4), "shift": some(4) + 1, "k1": some(4, 4, 3, 3),
        "twice": np.float32([1, 1, 1, 2]), "w": some(4 * 5 * 4, 5)}, ("n", 8, 8, 3), 11)


@case
def tf_squeeze_and_excitation_of_features() -> Case:
    """Features as images of one pixel with the channels last."""
    return Case([
        ("Transpose", "x", "a", FIRST), ("Conv", ("a", "k"), "b"), ("Transpose", "b", "c", LAST),
        ("ReduceMean", "c", "d", {"axes": [1, 2], "keepdims": 0}), ("Reshape", ("d", "to"), "e"),
        ("Transpose", "e", "f", FIRST), ("Conv", ("f", "k1"), "g"), ("Sigmoid", "g", "h"),
        ("Mul", ("b", "h"), "i"), ("Transpose", "i", "j", LAST),
        ("ReduceMax", "j", "m", {"axes": [1, 2], "keepdims": 0}), ("Gemm", ("m", "w"), "y"),
    ], {"k": some(4, 3, 3, 3), "to": ints(-1, 1, 1, 4), "k1": some(4, 4, 1, 1), "w": some(4, 5)},
        ("n", 8, 8, 3))


@case
def keras_signals_by_images_of_one_row() -> Case:
    order = {"perm": [0, 2, 1]}
    return Case([
        ("Transpose", "x", "a", order), ("Unsqueeze", ("a", "row"), "b"),
        ("Conv", ("b", "k"), "c", {"auto_pad": "SAME_UPPER", "strides": [1, 2]}),
        ("Squeeze", ("c", "row"), "d"), ("Relu", "d", "e"), ("Transpose", "e", "f", order),
        ("Add", ("f", "bias"), "g"), ("ReduceMean", "g", "h", {"axes": [1], "keepdims": 0}),
        ("Gemm", ("h", "w"), "y"),
    ], {"k": some(4, 3, 1, 3), "row": ints(2), "bias": some(4), "w": some(4, 5)}, ("n", 9, 3))


@case
def keras_signals() -> Case:
    order = {"perm": [0, 2, 1]}
    return Case([
        ("Transpose", "x", "a", order),
        ("Conv", ("a", "k"), "b", {"auto_pad": "SAME_LOWER", "strides": [2]}),
        ("Transpose", "b", "c", order), ("Add", ("c", "bias"), "d"), ("Relu", "d", "e"),
        ("Pad", ("e", "ends"), "f"), ("Reshape", ("f", "to"), "g"), ("Gemm", ("g", "w"), "y"),
    ], {"k": some(4, 3, 3), "bias": some(4), "ends": ints(0, 1, 0, 0, 0, 0), "to": ints(-1, 24),
        "w": some(24, 5)}, ("n", 9, 3))


@case
def keras_signals_enlarged() -> Case:
    """Transposed convolutions of signals, and of images of one row."""
    return Case([
        ("Transpose", "x", "a", {"perm": [0, 2, 1]}), ("Unsqueeze", ("a", "row"), "b"),
        ("ConvTranspose", ("b", "k1", "b1"), "c", {"auto_pad": "SAME_UPPER", "strides": [1, 2]}),
        ("Squeeze", ("c", "row"), "d"), ("Relu", "d", "e"),
        ("ConvTranspose", ("e", "k2", "b2"), "f", {"strides": [3], "pads": [2, 0]}),
        ("Flatten", "f", "g"), ("Gemm", ("g", "w"), "y"),
    ], {"k1": some(3, 4, 1, 3), "b1": some(4), "row": ints(2), "k2": some(4, 2, 3), "b2": some(2),
        "w": some(2 * 52, 5)}, ("n", 9, 3))


@case
def keras_volumes() -> Case:
    return Case([
        ("Transpose", "x", "a", {"perm": [0, 4, 1, 2, 3]}),
        ("Conv", ("a", "k"), "b", {"auto_pad": "SAME_UPPER", "strides": [2, 2, 2]}),
        ("MaxPool", "b", "c", {"kernel_shape": [2, 2, 2], "strides": [2, 2, 2]}),
        ("Transpose", "c", "d", {"perm": [0, 2, 3, 4, 1]}), ("Add", ("d", "bias"), "e"),
        ("Reshape", ("e", "to"), "f"), ("Gemm", ("f", "w"), "y"),
    ], {"k": some(4, 3, 3, 3, 3), "bias": some(4), "to": ints(-1, 32), "w": some(32, 5)},
        ("n", 8, 8, 8, 3))


# -- a softmax before the last moves -------------------------------------------------------------
@case
def pytorch_segmentation_of_opset_11() -> Case:
    """Softmax of channels, which PyTorch moves to the end and back."""
    swap = {"perm": [0, 3, 2, 1]}
    return Case([
        ("Conv", ("x", "k"), "a"), ("Transpose", "a", "b", swap),
        ("Softmax", "b", "c", {"axis": 3}),
        ("Transpose", "c", "y", swap),
    ], {"k": some(5, 3, 3, 3)}, ("n", 3, 8, 9), 11)


@case
def keras_identity_after_softmax() -> Case:
    return Case([
        ("Transpose", "x", "a", FIRST), ("Conv", ("a", "k"), "b"), ("Transpose", "b", "c", LAST),
        ("Softmax", "c", "d", {"axis": -1}), ("Identity", "d", "y"),
    ], {"k": some(5, 3, 3, 3)}, ("n", 8, 9, 3), last=True)


# -- transposed convolutions ----------------------------------------------------------------------
TRANSPOSED: list[dict[str, Any]] = [
    {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, {"auto_pad": "SAME_LOWER", "strides": [2, 2]},
    {"auto_pad": "SAME_UPPER", "strides": [1, 1]}, {"auto_pad": "SAME_LOWER", "strides": [3, 3]},
    {"auto_pad": "VALID", "strides": [2, 2]}, {"strides": [2, 2], "output_shape": [8, 9]},
    {"strides": [2, 2], "output_shape": [8, 8], "auto_pad": "SAME_UPPER"},
    {"strides": [3, 3], "output_padding": [1, 2], "pads": [1, 0, 1, 0]},
    {"strides": [2, 2], "pads": [0, 1, 1, 0]}, {"strides": [2, 1], "pads": [1, 1, 0, 0]},
    {"strides": [2, 1], "pads": [2, 2, 0, 0]}, {"strides": [2, 2], "pads": [0, 0, 2, 1]},
    {"strides": [2, 2], "pads": [0, 0, 1, 1], "output_padding": [1, 1]},
    {"strides": [2, 2], "dilations": [2, 2], "auto_pad": "SAME_UPPER"},
    {"strides": [2, 2], "group": 4, "pads": [1, 1, 0, 0]},
]


def transposed(options: dict[str, Any]) -> Case:
    """A transposed convolution; with groups as the reference computes them, one channel each."""
    if "group" in options:
        return Case([("ConvTranspose", ("x", "k"), "y", options)], {"k": some(4, 1, 3, 3)},
                    ("n", 4, 4, 5), 14)
    return Case([("ConvTranspose", ("x", "k", "b"), "y", options)],
                {"k": some(4, 3, 3, 3), "b": some(3)}, ("n", 4, 4, 5), 14)


def cases() -> Iterator[tuple[str, Callable[[], Case]]]:
    """All cases by name."""
    yield from CASES.items()
    for options in TRANSPOSED:
        name = ", ".join(f"{key} {value}" for key, value in options.items())
        yield f"transposed: {name}", lambda options=options: transposed(options)
