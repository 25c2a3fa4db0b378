"""The CUDA C sources as text. This module does not import CuPy."""

from __future__ import annotations

import functools
import re
from pathlib import Path

#: Each subject has a ``.cu`` file.
SUBJECTS = ("activation", "batchnorm", "boxes", "conv", "hold", "loss", "lrn", "pool", "update")
#: C type of REAL in the sources, by name of the NumPy dtype.
REALS = {"float32": "float", "float64": "double", "bfloat16": "Bfloat16"}
#: Threads per block: a power of two, at most MAX_THREADS of common.cuh.
THREADS = 256

_FOLDER = Path(__file__).resolve().parent
_INCLUDE = re.compile(r'^#include "(\w+\.cuh)"$', re.MULTILINE)


@functools.cache
def source(subject: str) -> str:
    """The complete source of a subject, including the text of the headers.

    CuPy caches compiled kernels by the text of their source, so it would miss changes in an
    included file.
    """
    def read(name: str) -> str:
        return (_FOLDER / name).read_text(encoding="utf-8")

    return _INCLUDE.sub(lambda header: read(header[1]), read(f"{subject}.cu"))


@functools.cache
def kernels() -> dict[str, str]:
    """Subjects by name of the kernel."""
    pattern = re.compile(r"^KERNEL (\w+)\(", re.MULTILINE)
    return {name: subject for subject in SUBJECTS for name in pattern.findall(source(subject))}
