"""Translation of PyTorch's operators (ATen) to ONNX's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np

from hpcpar.network.read.operations import Attribute
from hpcpar.network.read.torch_call import Call, Tensor, UnknownCall
from hpcpar.network.read.torch_names import ONE, TWO

#: Operators that keep all values in order; the shape of the result defines them.
RESHAPES = ("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "_unsafe_view",
            "view_as", "reshape_as")
#: Operators that return uninitialized tensors.
EMPTY = ("empty", "new_empty", "empty_like")
#: Operators that return several parts of the first argument along an axis.
PARTS = ("split", "split_with_sizes", "chunk", "tensor_split", "unbind")
_MODES = {"circular": b"wrap", "replicate": b"edge"}


#: Name, inputs and attributes of an ONNX operator.
Words = tuple[str, tuple[str, ...], Mapping[str, Attribute]]
Translation = Callable[[Call], Words]


def _plain(op: str, *names: str, **attributes: Attribute) -> Translation:
    """An operator with the same tensors and fixed attributes."""
    return lambda call: (op, call.tensors(*names or ("self",)), attributes)


def _numbers(op: str, tensor: str = "self", **names: str) -> Translation:
    """An operator on one tensor whose attributes are number arguments of the call."""
    return lambda call: (op, call.tensors(tensor), {
        key: call.number(name) for key, name in names.items()
        if call.values.get(name) is not None})


def _windows(call: Call) -> dict[str, Attribute]:
    return {"strides": call.per_axis("stride"), "pads": call.per_axis("padding") * 2,
            "dilations": call.per_axis("dilation"), "group": int(call.number("groups"))}


def _convolution(call: Call) -> Words:
    inputs = call.tensors("input", "weight", "bias")
    if isinstance(call.values["padding"], str):
        same = call.values["padding"] == "same"
        windows = _windows(Call(call.name, "", {**call.values, "padding": 0}, (), ()))
        return "Conv", inputs, windows | {"auto_pad": b"SAME_UPPER" if same else b"VALID"}
    return "Conv", inputs, _windows(call)


def _transposed(call: Call) -> Words:
    return ("ConvTranspose", call.tensors("input", "weight", "bias"),
            _windows(call) | {"output_padding": call.per_axis("output_padding")})


def _pool(op: str) -> Translation:
    def translate(call: Call) -> Words:
        kernel = call.per_axis("kernel_size")
        attributes: dict[str, Attribute] = {
            "kernel_shape": kernel, "strides": call.per_axis("stride") or kernel,
            "pads": call.per_axis("padding") * 2, "ceil_mode": int(call.number("ceil_mode"))}
        if op == "AveragePool":
            attributes["count_include_pad"] = int(call.number("count_include_pad"))
            if call.values.get("divisor_override") is not None:
                raise UnknownCall
        else:
            attributes["dilations"] = call.per_axis("dilation")
        return op, call.tensors("self"), attributes
    return translate


def _adaptive(op: str) -> Translation:
    return lambda call: (op, call.tensors("self"), {"output_size": call.shape[1:]})


def _over(op: str) -> Translation:
    """A reduction over axes."""
    return lambda call: (op, call.tensors("self"), {
        "axes": call.axes("dim"), "keepdims": int(bool(call.values.get("keepdim")))})


def _norm(op: str, **attributes: str) -> Translation:
    def translate(call: Call) -> Words:
        if not call.values.get("training", True) or not call.values.get("use_input_stats", True):
            raise UnknownCall  # normalizes by running statistics in training
        keeps = call.values.get("running_mean") is not None
        if op in ("BatchNormalization", "InstanceNormalization") and keeps != (op[0] == "B"):
            raise UnknownCall  # layers evaluate with other statistics
        numbers: dict[str, Attribute] = {k: call.number(name) for k, name in attributes.items()}
        if "momentum" in numbers:
            numbers["momentum"] = 1 - call.number("momentum")
        if op == "LayerNormalization":
            numbers["axis"] = len(call.shape) + 1 - len(call.integers("normalized_shape"))
        return op, call.tensors("input", "weight", "bias"), numbers
    return translate


def _binary(op: str) -> Translation:
    def translate(call: Call) -> Words:
        if call.values.get("rounding_mode"):
            raise UnknownCall
        if call.values.get("alpha", 1) != 1:
            alpha = call.number("alpha") * (1 if op == "Add" else -1)
            return "AddScaled", call.tensors("self", "other"), {"alpha": alpha}
        return op, call.tensors("self", "other"), {}
    return translate


def _reversed_difference(call: Call) -> Words:
    op, (first, second), attributes = _binary("Sub")(call)
    return op, (second, first), attributes


def _concat(call: Call) -> Words:
    names = cast(Sequence[str], call.values["tensors"])
    return "Concat", tuple(names), {"axis": call.axes("dim")[0]}


def _pad(call: Call) -> Words:
    """Pad; PyTorch lists pads from the last axis to the first, before and after each."""
    given = list(call.integers("pad"))
    rank = len(call.input_shape) + 1
    given += [0] * (2 * rank - len(given))
    pads = [*given[-2::-2], *given[::-2]]
    mode = str(call.values.get("mode", "constant"))
    value = cast(float, call.values.get("value") or 0.0)
    return ("Pad", (*call.tensors("self"), call.literal(np.array(pads)),
                    call.literal(np.array(value))), {"mode": _MODES.get(mode, mode.encode())})


def _resize(mode: bytes) -> Translation:
    def translate(call: Call) -> Words:
        corners = bool(call.values.get("align_corners", False))
        where = (b"asymmetric" if mode == b"nearest" else
                 b"align_corners" if corners else b"half_pixel")
        given = cast(Sequence[float], call.values.get("scale_factors") or [])
        extents = zip(given, call.input_shape[1:], call.shape[1:], strict=False)
        for factor, before, after in extents:
            if before * factor != after and not corners:
                raise UnknownCall  # PyTorch places pixels by the factor, not by the extents
        sizes = call.literal(np.array([1, *call.shape]))
        return ("Resize", (*call.tensors("input" if "input" in call.values else "self"), "", "",
                           sizes), {
            "mode": mode, "coordinate_transformation_mode": where, "nearest_mode": b"floor"})
    return translate


def _dropout(unit: bytes) -> Translation:
    def translate(call: Call) -> Words:
        tensor = call.tensors("input" if "input" in call.values else "self")
        rate = call.number("p") if call.values["train"] else 0.0
        return "Dropout", tensor, {"ratio": rate, "unit": unit}
    return translate


def _permute(call: Call) -> Words:
    return "Transpose", call.tensors("self"), {"perm": call.axes("dims")}


def _transpose(call: Call) -> Words:
    (a,), (b,) = call.axes("dim0"), call.axes("dim1")
    order = [*range(len(call.input_shape) + 1)]
    order[a], order[b] = b, a
    return "Transpose", call.tensors("self"), {"perm": tuple(order)}


def _slice(call: Call) -> Words:
    values = (call.values.get(name) for name in ("start", "end", "dim", "step"))
    defaults = (0, (1 << 62), 0, 1)
    return "Slice", (*call.tensors("self"), *(
        call.literal(np.array([default if v is None else v]))
        for default, v in zip(defaults, values, strict=True))), {}


def _select(call: Call) -> Words:
    index = call.literal(np.array(int(call.number("index"))))
    return "Gather", (*call.tensors("self"), index), {"axis": int(call.number("dim"))}


def _flip(call: Call) -> Words:
    axes = call.integers("dims")
    ends = ((-1,) * len(axes), (-(1 << 62),) * len(axes), axes, (-1,) * len(axes))
    return "Slice", (*call.tensors("self"), *(call.literal(np.array(v)) for v in ends)), {}


def _expand(call: Call) -> Words:
    return "Expand", (*call.tensors("self"), call.literal(np.array([1, *call.shape]))), {}


def _repeat(call: Call) -> Words:
    return "Tile", (*call.tensors("self"), call.literal(np.array(call.integers("repeats")))), {}


def _repeat_interleave(call: Call) -> Words:
    numbers = {"repeats": int(call.number("repeats")), "axis": int(call.number("dim"))}
    return "Repeat", call.tensors("self"), numbers


def _stack(call: Call) -> Words:
    names = cast(Sequence[str], call.values["tensors"])
    return "Stack", tuple(names), {"axis": int(call.number("dim")) % (len(call.shape) + 1)}


def _blocks(op: str, size: str) -> Translation:
    """Channels to pixels or back; a block's places come after its channels."""
    def translate(call: Call) -> Words:
        return op, call.tensors("self"), {"blocksize": int(call.number(size)), "mode": b"CRD"}
    return translate


def _norm_along(call: Call) -> Words:
    if call.number("ord") != 2 or call.values.get("dtype") is not None:
        raise UnknownCall
    return _over("ReduceL2")(call)


def _spread(op: str) -> Translation:
    """A variance or standard deviation."""
    def translate(call: Call) -> Words:
        given = call.values.get("correction", call.values.get("unbiased", True))
        correction = 1.0 if given is None else float(cast(float, given))
        _, inputs, attributes = _over(op)(call)
        return op, inputs, {**attributes, "correction": correction}
    return translate


def _reshape(call: Call) -> Words:
    target = call.literal(np.array([0, *call.shape]))
    return "Reshape", (*call.tensors("self"), target), {}


def _clamp(call: Call) -> Words:
    bounds = [call.values.get(name) for name in ("min", "max")]
    if any(isinstance(bound, Tensor) for bound in bounds):
        return "Clip", call.tensors("self", "min", "max"), {}
    return _numbers("Clip", min="min", max="max")(call)


def _pair(op: str) -> Translation:
    """An operator of two tensors, or of a tensor and a number on either side."""
    def translate(call: Call) -> Words:
        if "other" not in call.values:
            if op != "Max" or "dim" not in call.values:
                raise UnknownCall  # a reduction of the same name
            return _over("ReduceFirst")(call)
        return op, call.tensors("self", "other"), {}
    return translate


def _softplus(call: Call) -> Words:
    if call.number("threshold") < 20:
        raise UnknownCall  # it is the identity beyond, which is visible
    return _numbers("Softplus", beta="beta")(call)


def _round(call: Call) -> Words:
    if call.values.get("decimals"):
        raise UnknownCall
    return "Round", call.tensors("self"), {}


def _axis(op: str) -> Translation:
    return lambda call: (op, call.tensors("self"), {"axis": call.axes("dim")[0]})


#: Translations by ATen name, without the underscore of in-place operators.
TRANSLATIONS: dict[str, Translation] = {
    "adaptive_avg_pool": _adaptive("AdaptiveAveragePool"),
    "adaptive_max_pool": _adaptive("AdaptiveMaxPool"),
    "add": _binary("Add"),
    "addcdiv": lambda call: ("Addcdiv", call.tensors("self", "tensor1", "tensor2"),
                             {"value": call.number("value")}),
    "addcmul": lambda call: ("Addcmul", call.tensors("self", "tensor1", "tensor2"),
                             {"value": call.number("value")}),
    "alias": _plain("Identity"),
    "amax": _over("ReduceMax"),
    "amin": _over("ReduceMin"),
    "avg_pool": _pool("AveragePool"),
    "batch_norm": _norm("BatchNormalization", epsilon="eps", momentum="momentum"),
    "cat": _concat,
    "celu": _numbers("Celu", alpha="alpha"),
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max", "clip"), _clamp),
    "clone": _plain("Identity"),
    "constant_pad_nd": _pad,
    "contiguous": _plain("Identity"),
    "conv": _convolution,
    "conv_transpose": _transposed,
    "div": _binary("Div"),
    "dropout": _dropout(b"value"),
    "elu": lambda call: ("Elu", call.tensors("self"), {
        "alpha": call.number("alpha"), "gamma": call.number("scale")}),
    "expand": _expand,
    "expand_as": _expand,
    "feature_dropout": _dropout(b"channel"),
    "flip": _flip,
    "gelu": lambda call: ("Gelu", call.tensors("self"),
                          {"approximate": str(call.values["approximate"]).encode()}),
    "glu": _axis("Glu"),
    "group_norm": _norm("GroupNormalization", epsilon="eps", num_groups="num_groups"),
    "hardshrink": _numbers("Shrink", lambd="lambd"),
    "hardsigmoid": _plain("HardSigmoid", alpha=1 / 6, beta=0.5),
    "hardswish": _plain("HardSwish"),
    "hardtanh": _numbers("Clip", min="min_val", max="max_val"),
    "instance_norm": _norm("InstanceNormalization", epsilon="eps"),
    "layer_norm": _norm("LayerNormalization", epsilon="eps"),
    "leaky_relu": _numbers("LeakyRelu", alpha="negative_slope"),
    "lerp": _plain("Lerp", "self", "end", "weight"),
    "linalg_vector_norm": _norm_along,
    "linear": _plain("Gemm", "input", "weight", "bias", transB=1),
    "log_sigmoid": _plain("LogSigmoid"),
    "log_softmax": _axis("LogSoftmax"),
    "masked_fill": _plain("MaskedFill", "self", "mask", "value"),
    "matmul": _plain("MatMul", "self", "other"),
    "max_pool": _pool("MaxPool"),
    "mean": _over("ReduceMean"),
    "mish": _plain("Mish"),
    "mul": _plain("Mul", "self", "other"),
    "neg": _plain("Neg"),
    "pad": _pad,
    "permute": _permute,
    "pixel_shuffle": _blocks("DepthToSpace", "upscale_factor"),
    "pixel_unshuffle": _blocks("SpaceToDepth", "downscale_factor"),
    "pow": _plain("Pow", "self", "exponent"),
    "prelu": _plain("PRelu", "self", "weight"),
    "relu": _plain("Relu"),
    "relu6": _plain("Clip", min=0.0, max=6.0),
    "repeat": _repeat,
    "repeat_interleave": _repeat_interleave,
    "round": _round,
    "rsub": _reversed_difference,
    "select": _select,
    "selu": _plain("Selu", alpha=1.6732632423543772, gamma=1.0507009873554805),
    "sigmoid": _plain("Sigmoid"),
    "silu": _plain("Silu"),
    "slice": _slice,
    "softmax": _axis("Softmax"),
    "softplus": _softplus,
    "softshrink": _numbers("Shrink", lambd="lambd", bias="lambd"),
    "stack": _stack,
    "std": _spread("ReduceStd"),
    "sub": _binary("Sub"),
    "sum": _over("ReduceSum"),
    "tanh": _plain("Tanh"),
    "threshold": _numbers("Threshold", threshold="threshold", value="value"),
    "to": _plain("Identity"),
    "transpose": _transpose,
    "type_as": _plain("Identity"),
    "upsample_bilinear": _resize(b"linear"),
    "upsample_linear": _resize(b"linear"),
    "upsample_nearest": _resize(b"nearest"),
    "upsample_trilinear": _resize(b"linear"),
    "where": _plain("Where", "condition", "self", "other"),
    "zeros_like": lambda call: ("Mul", (*call.tensors("self"), call.literal(np.asarray(0.0))), {}),
    "var": _spread("ReduceVar"),
    **{name: _plain(op) for name, op in ONE.items()},
    **{name: _pair(op) for name, op in TWO.items()},
    **dict.fromkeys(RESHAPES, _reshape),
}


def reads_torch(*operators: str) -> Callable[[Translation], Translation]:
    """Decorator that registers a function to translate PyTorch operators, by ATen name, to ONNX.

    The function takes the `Call` and returns the operator's name, inputs and attributes.
    """

    def register(translate: Translation) -> Translation:
        TRANSLATIONS.update(dict.fromkeys(operators, translate))
        return translate

    return register
