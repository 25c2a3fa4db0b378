"""ATen's names of elementwise operators that ONNX has under another name, or not at all."""

from __future__ import annotations

#: Operators of one tensor.
ONE: dict[str, str] = {
    "abs": "Abs", "acos": "Acos", "acosh": "Acosh", "asin": "Asin", "asinh": "Asinh",
    "atan": "Atan", "atanh": "Atanh", "bitwise_not": "Not", "ceil": "Ceil", "cos": "Cos",
    "cosh": "Cosh", "detach": "Detach", "erf": "Erf", "exp": "Exp", "expm1": "Expm1",
    "floor": "Floor", "log": "Log", "log10": "Log10", "log1p": "Log1p", "log2": "Log2",
    "logical_not": "Not", "reciprocal": "Reciprocal", "rsqrt": "Rsqrt",
    "sgn": "Sign", "sign": "Sign", "sin": "Sin", "sinh": "Sinh", "sqrt": "Sqrt",
    "square": "Square", "tan": "Tan", "trunc": "Trunc",
}
#: Operators of two tensors, or of a tensor and a number on either side.
TWO: dict[str, str] = {
    "__and_": "And", "__or_": "Or", "atan2": "Atan2", "bitwise_and": "And",
    "bitwise_or": "Or", "eq": "Equal", "ge": "GreaterOrEqual", "gt": "Greater",
    "le": "LessOrEqual", "logaddexp": "LogAddExp", "logical_and": "And", "logical_or": "Or",
    "logical_xor": "Xor", "lt": "Less", "max": "Max", "maximum": "Max", "min": "Min",
    "minimum": "Min", "ne": "NotEqual",
}
