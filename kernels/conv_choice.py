"""Which library computes a convolution on a CPU: NumPy or PyTorch, by its kind and pass."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib.util import find_spec

from hpcpar.errors import InputError
from hpcpar.kernels.geometry import ConvSpec, Ints

NUMPY, TORCH, LAST, AUTO = "numpy", "torch", "channels-last", "auto"
#: NumPy, PyTorch on the arrays as they are, and PyTorch on copies with the channels last.
LIBRARIES = (NUMPY, TORCH, LAST)
#: Kernels of convolutions: the default (on CPUs the calibrated choice), or one library.
CONVOLUTIONS = (AUTO, NUMPY, TORCH)
PASSES = ("forward", "backward data", "backward weight")
FORMS = ("1x1", "strided 1x1", "window", "volume", "grouped")
SIZES = ("small", "large")
#: Output images with at least this number of pixels are large.
LARGE_PIXELS = 1024
#: Library by kind and pass, as in `Machine.convolutions`.
Choice = Mapping[str, str]
#: The choice for ``torch``: NumPy multiplies 1 x 1 kernels in place; sums over many pixels pay for
#: copies.
RULE: Choice = {f"{form} {size} {name}": NUMPY if "1x1" in form else (
    LAST if (form, name) == ("window", "backward weight") else TORCH)
    for form in FORMS for size in SIZES for name in PASSES}


def conv_kind(w: Ints, y: Ints, spec: ConvSpec) -> str:
    """The kind of a convolution with weights [O, C, ...] and outputs [N, O, ...]."""
    if len(spec.segments) > 1:
        form = "grouped"
    elif math.prod(w[2:]) > 1:
        form = "window" if len(w) == 4 else "volume"
    else:
        form = "1x1" if max(spec.stride) == 1 else "strided 1x1"
    return f"{form} {SIZES[math.prod(y[2:]) >= LARGE_PIXELS]}"


def has_torch() -> bool:
    """Whether PyTorch is installed."""
    return find_spec("torch") is not None


def chosen(kernels: str, calibrated: Choice) -> Choice:
    """The choice for an option of `CONVOLUTIONS`; ``auto`` is NumPy unless a calibration measured
    that PyTorch is faster.

    Parameters
    ----------
    calibrated
        The machine's choice; empty if it has none. It must be the choice for every kind.

    Raises
    ------
    InputError
        The calibrated choice misses a kind, or names another library.
    """
    if kernels == TORCH:
        return RULE
    if kernels == NUMPY or not (calibrated and has_torch()):
        return dict.fromkeys(RULE, NUMPY)
    wrong = [kind for kind in RULE if calibrated.get(kind) not in LIBRARIES]
    if wrong:
        raise InputError(f"the machine's [convolutions] lacks '{wrong[0]}' = "
                         f"{', '.join(LIBRARIES[:-1])} or {LIBRARIES[-1]}: calibrate again, or "
                         "name a library with --kernels")
    return calibrated


def in_words(choice: Choice) -> str:
    """The kinds and passes that PyTorch computes: ``window small (all), 1x1 small (forward,
    channels-last backward weight)``.
    """
    out = []
    for form in FORMS:
        for size in SIZES:
            of = {name: choice[f"{form} {size} {name}"] for name in PASSES}
            passes = [name if library == TORCH else f"{library} {name}"
                      for name, library in of.items() if library != NUMPY]
            if passes:
                what = "all" if passes == [*PASSES] else ", ".join(passes)
                out.append(f"{form} {size} ({what})")
    return ", ".join(out)
