"""The CUDA C sources as text; this module does not import CuPy."""

from __future__ import annotations

import functools
import re
from pathlib import Path

#: Subjects with one ``.cu`` file each.
SUBJECTS = ("activation", "batchnorm", "boxes", "conv", "loss", "lrn", "pool", "update")
#: C type that REAL stands for in the sources, by NumPy's type name.
REALS = {"float32": "float", "float64": "double"}
#: Threads per block: a power of two, at most MAX_THREADS of common.cuh.
THREADS = 256

_FOLDER = Path(__file__).resolve().parent
_INCLUDE = '#include "common.cuh"'


@functools.cache
def source(subject: str) -> str:
    """The complete source of a subject, the common header included.

    CuPy's cache of compiled kernels is keyed by the text of the source, so it would miss a change
    in an included file.
    """
    text = (_FOLDER / f"{subject}.cu").read_text(encoding="utf-8")
    return text.replace(_INCLUDE, (_FOLDER / "common.cuh").read_text(encoding="utf-8"))


@functools.cache
def kernels() -> dict[str, str]:
    """Subject of each kernel by the kernel's name."""
    pattern = re.compile(r"^KERNEL (\w+)\(", re.MULTILINE)
    return {name: subject for subject in SUBJECTS for name in pattern.findall(source(subject))}
