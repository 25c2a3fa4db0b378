"""Number formats in training: formats of products, and bytes per item."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Precision:
    """Number formats of a plan; sums accumulate in `dtype`.

    Attributes
    ----------
    dtype : str
        Type of weights, weight gradients and optimizer state.
    item_bytes : int
        Bytes per item of activations and their gradients, in memory and in messages.
    weight_bytes : int
        Bytes per weight, weight gradient or value of optimizer state, in memory and in messages.
    copy_bytes : int
        Bytes per weight of the copy that products read; 0 if they read the weight itself.
    update_bytes : int
        Bytes per weight that an update moves in addition to the optimizer's.
    work : str
        Name of the format in tables of measured work.
    rates : tuple of str
        Entries of a device's ``[rates]`` for products, of which the fastest counts; empty for
        float32 and float64, which every device can price.
    runs : bool
        Whether `hpcpar run` executes it.
    """

    dtype: str
    item_bytes: int
    weight_bytes: int
    copy_bytes: int = 0
    update_bytes: int = 0
    work: str = ""
    rates: tuple[str, ...] = ()
    runs: bool = True


#: Number formats by name. ``tf32`` rounds the factors of float32 products to a 10-bit fraction, on
#: tensor cores; ``amp`` is mixed precision as in PyTorch's autocast, with activations and products
#: in float16 or bfloat16. Its update also converts the gradient from 2 to 4 bytes, unscales it
#: (read and write), and makes the next copy of the weight (4 to 2 bytes): 6 + 8 + 6 bytes.
PRECISIONS = {
    "fp64": Precision("float64", 8, 8, work="float64"),
    "fp32": Precision("float32", 4, 4, work="float32"),
    "tf32": Precision("float32", 4, 4, work="tf32", rates=("tf32",)),
    "amp": Precision("float32", 2, 4, 2, 20, work="amp", rates=("float16", "bfloat16"),
                     runs=False),
}
#: Names of the formats that `hpcpar run` executes.
EXECUTED = tuple(name for name, precision in PRECISIONS.items() if precision.runs)
#: Formats by their names in tables of measured work.
OF_WORK = {precision.work: precision for precision in PRECISIONS.values()}
