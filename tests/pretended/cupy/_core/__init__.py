"""Types that products compute in."""

from __future__ import annotations

from typing import Any

from . import _routines_linalg

__all__ = ["_routines_linalg", "compute_types", "set_compute_type"]

compute_types: dict[Any, int] = {}


def set_compute_type(dtype: Any, compute_type: int) -> None:
    compute_types[dtype] = compute_type
