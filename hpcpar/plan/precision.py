"""Number formats in training: formats of products, and bytes per item."""

from __future__ import annotations

from dataclasses import dataclass

#: Bytes per item of each type.
TYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Precision:
    """Number formats of a plan; products accumulate in `dtype`.

    Attributes
    ----------
    dtype : str
        Type of weights, weight gradients and optimizer state, in memory and in messages.
    item_dtype : str
        Type of activations and their gradients, in memory and in messages, and of the copy of the
        weights that products read. If both types are the same, products read the weights.
    item_bytes : int
        Bytes per item of activations and their gradients.
    weight_bytes : int
        Bytes per weight, weight gradient or value of optimizer state.
    copy_bytes : int
        Bytes per weight of the copy; 0 without one.
    update_bytes : int
        Bytes per weight that an update moves in addition to the optimizer's.
    work : str
        Name of the format in tables of measured work.
    rates : tuple of str
        Entries of a device's ``[rates]`` for products, of which the fastest counts; empty for
        float32 and float64, which every device can price.
    scaled : bool
        A loss scale keeps the gradients of activations in the range of their type.
    """

    dtype: str
    item_dtype: str
    item_bytes: int
    weight_bytes: int
    copy_bytes: int
    update_bytes: int
    work: str
    rates: tuple[str, ...]
    scaled: bool = False

    @property
    def mixed(self) -> bool:
        """True if activations and weights have different types."""
        return self.copy_bytes > 0


def _of_types(work: str, dtype: str, item_dtype: str, update_bytes: int = 0,
              rates: tuple[str, ...] = ()) -> Precision:
    item_bytes = TYPE_BYTES[item_dtype]
    copy_bytes = item_bytes if item_dtype != dtype else 0
    return Precision(dtype, item_dtype, item_bytes, TYPE_BYTES[dtype], copy_bytes, update_bytes,
                     work, rates, item_dtype == "float16")


#: Number formats by name. ``tf32`` rounds the factors of float32 products to a 10-bit fraction, on
#: tensor cores; ``amp`` is mixed precision as in PyTorch's autocast, with activations and products
#: in bfloat16 (priced at the faster of float16 and bfloat16). Its update also converts the gradient
#: from 2 to 4 bytes, unscales it (read and write), and makes the next copy of the weight (4 to 2
#: bytes): 6 + 8 + 6 bytes. ``amp-fp16`` is the same in float16, and has a step of its own that
#: unscales.
PRECISIONS = {
    "fp64": _of_types("float64", "float64", "float64"),
    "fp32": _of_types("float32", "float32", "float32"),
    "tf32": _of_types("tf32", "float32", "float32", rates=("tf32",)),
    "amp": _of_types("amp", "float32", "bfloat16", 20, ("float16", "bfloat16")),
    "amp-fp16": _of_types("amp", "float32", "float16", 12, ("float16", "bfloat16")),
}
#: Formats by their names in tables of measured work; ``amp`` stands for both of its name.
OF_WORK = {PRECISIONS[name].work: PRECISIONS[name] for name in reversed(PRECISIONS)}
