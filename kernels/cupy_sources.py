"""The CUDA C sources of this package as text, without importing CuPy."""

from __future__ import annotations

import functools
import re
from pathlib import Path

#: The subjects, one ``.cu`` file each.
SUBJECTS = ("batchnorm", "boxes", "conv", "loss", "lrn", "pool", "update")
#: What REAL stands for in the sources, by NumPy's name of the type.
REALS = {"float32": "float", "float64": "double"}
#: Threads per block: a power of two, at most MAX_THREADS of common.cuh.
THREADS = 256

_FOLDER = Path(__file__).resolve().parent
_INCLUDE = '#include "common.cuh"'


@functools.cache
def source(subject: str) -> str:
    """The complete source of a subject.

    The common header is put in place of its include line, because CuPy's cache of compiled kernels
    looks at the source's text only: it would miss a change in an included file.
    """
    text = (_FOLDER / f"{subject}.cu").read_text(encoding="utf-8")
    return text.replace(_INCLUDE, (_FOLDER / "common.cuh").read_text(encoding="utf-8"))


@functools.cache
def kernels() -> dict[str, str]:
    """The subject of every kernel, by the kernel's name."""
    return {name: subject for subject in SUBJECTS for name in re.findall(r"^KERNEL (\w+)\(", source(subject), re.MULTILINE)}
