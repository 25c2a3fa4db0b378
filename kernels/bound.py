"""Kernels with their arrays."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

#: Callback between the blocks of a long kernel, for communication progress.
Tick = Callable[[], None]


class Bound:
    """A kernel with arrays that keep their memory, prepared when it is called first.

    Attributes
    ----------
    kernel
        The name of the backend's method.
    args
        Its arguments without those that only go by name.
    """

    def __init__(self, kernel: str, args: tuple[Any, ...], prepare: Callable[[], Tick]) -> None:
        self.kernel, self.args, self._prepare = kernel, args, prepare

    @cached_property
    def run(self) -> Tick:
        return self._prepare()

    def __call__(self) -> None:
        self.run()
