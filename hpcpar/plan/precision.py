"""Number formats in training: formats of products, and bytes per item."""

from __future__ import annotations

from dataclasses import dataclass

#: Bytes per item of each type.
TYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class Precision:
    """Number formats of a plan; products accumulate in `dtype`.

    Attributes
    ----------
    dtype : str
        Type of weights, weight gradients and optimizer state, in memory and in messages.
    item_dtype : str
        Type of activations and their gradients, in memory and in messages, and of the copy of the
        weights that products read. There is no copy if both types are the same.
    update_bytes : int
        Bytes per weight that an update moves in addition to the optimizer's.
    work : str
        Name of the format in tables of measured work.
    rates : tuple of str
        Entries of a device's ``[rates]`` for products, of which the fastest counts; empty for
        float32 and float64, which every device can price.
    """

    dtype: str
    item_dtype: str
    update_bytes: int = 0
    work: str = ""
    rates: tuple[str, ...] = ()

    @property
    def item_bytes(self) -> int:
        """Bytes per item of activations and their gradients."""
        return TYPE_BYTES[self.item_dtype]

    @property
    def weight_bytes(self) -> int:
        """Bytes per weight, weight gradient or value of optimizer state."""
        return TYPE_BYTES[self.dtype]

    @property
    def copy_bytes(self) -> int:
        """Bytes per weight of the copy that products read; 0 if they read the weight itself."""
        return self.item_bytes if self.mixed else 0

    @property
    def mixed(self) -> bool:
        """True if activations and weights have different types."""
        return self.item_dtype != self.dtype


#: Number formats by name. ``tf32`` rounds the factors of float32 products to a 10-bit fraction, on
#: tensor cores; ``amp`` is mixed precision as in PyTorch's autocast, with activations and products
#: in bfloat16 (priced at the faster of float16 and bfloat16). Its update also converts the gradient
#: from 2 to 4 bytes, unscales it (read and write), and makes the next copy of the weight (4 to 2
#: bytes): 6 + 8 + 6 bytes.
PRECISIONS = {
    "fp64": Precision("float64", "float64", work="float64"),
    "fp32": Precision("float32", "float32", work="float32"),
    "tf32": Precision("float32", "float32", work="tf32", rates=("tf32",)),
    "amp": Precision("float32", "bfloat16", 20, work="amp", rates=("float16", "bfloat16")),
}
#: Formats by their names in tables of measured work.
OF_WORK = {precision.work: precision for precision in PRECISIONS.values()}
