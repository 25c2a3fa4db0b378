"""What arrays share."""

from __future__ import annotations

from hpcpar.kernels.interface import Array


def _address(a: Array) -> int:
    return int(a.__array_interface__["data"][0] if hasattr(a, "__array_interface__")
               else a.data.ptr)


def same_start(a: Array, b: Array) -> bool:
    """True where two arrays of equally many items are the same memory: blocks that begin at one
    place never differ elsewhere.
    """
    return _address(a) == _address(b)
