"""Number formats of a training: in which products are computed, and the bytes of every item."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Precision:
    """A number format of `Plan`; sums are added in `dtype`.

    Attributes
    ----------
    dtype : str
        Type of weights, of their gradients and of the optimizer's state.
    item_bytes : int
        An item of an activation or of its gradient, in memory and in messages.
    weight_bytes : int
        A weight, its gradient, or a value of the optimizer's state, in memory and in messages.
    copy_bytes : int
        The copy of a weight that products read; 0 where they read the weight.
    update_bytes : int
        Bytes that an update moves of a weight beside those of the optimizer.
    work : str
        Name of the format in tables of measured work.
    rates : tuple of str
        Entries of a device's ``[rates]`` for its products, the fastest counts; none for float32 and
        float64, which every device prices.
    runs : bool
        `hpcpar run` executes it.
    """

    dtype: str
    item_bytes: int
    weight_bytes: int
    copy_bytes: int = 0
    update_bytes: int = 0
    work: str = ""
    rates: tuple[str, ...] = ()
    runs: bool = True


#: Number formats by name. ``tf32`` rounds float32 products to 10 bits of fraction, on tensor cores;
#: ``amp`` is mixed precision, as PyTorch's autocast: activations and products in float16 or
#: bfloat16. Its update also converts the gradient from 2 bytes to 4, scales it back (read and
#: written), and makes the next copy of the weight (4 bytes to 2): 6 + 8 + 6 bytes.
PRECISIONS = {
    "fp64": Precision("float64", 8, 8, work="float64"),
    "fp32": Precision("float32", 4, 4, work="float32"),
    "tf32": Precision("float32", 4, 4, work="tf32", rates=("tf32",)),
    "amp": Precision("float32", 2, 4, 2, 20, work="amp", rates=("float16", "bfloat16"),
                     runs=False),
}
#: Names of formats that `hpcpar run` executes.
EXECUTED = tuple(name for name, precision in PRECISIONS.items() if precision.runs)
#: Formats by their names in tables of measured work.
OF_WORK = {precision.work: precision for precision in PRECISIONS.values()}
