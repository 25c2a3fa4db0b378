"""Several kernels in one launch on a GPU: batch normalization with what is before and after it, and
sums with an activation.

`fuse` recognizes kernels that hand their result to the next one. A joint kernel keeps each element
in a register, and rounds it where the single kernels would store it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from itertools import chain, product
from typing import Any

import cupy as cp

from hpcpar.kernels.bfloat16 import wide_type
from hpcpar.kernels.cupy_batchnorm import (
    channel_moments,
    for_shares,
    partial_sums,
    parts,
    statistics,
)
from hpcpar.kernels.cupy_launch import Launching, merge_dims, strides
from hpcpar.kernels.interface import ACTIVATIONS, Array, Bound, Tick, address

#: Arguments of a kernel for f: the identity.
_IDENTITY = (-1.0, 0.0, 0.0)
#: Sources of a batch's statistics, as in batchnorm.cu.
_KEPT, _MOMENTS, _INPUT = range(3)
#: Uses of a second array in a forward pass, as in batchnorm.cu.
_NOTHING, _ADD, _KEEP = range(3)


class _NotFused(Exception):
    """No joint kernel does this."""


def fuse(gpu: Launching, calls: Sequence[Bound],
         unread: Sequence[Collection[int]]) -> Tick | None:
    """See `Backend.fuse`."""
    names, queue = {call.kernel for call in calls}, _Calls(calls, unread)
    try:
        if len(calls) > 1 and "batchnorm_forward" in names:
            return _forward(gpu, queue)
        if len(calls) > 1 and names & {"channel_moments_backward", "batchnorm_backward"}:
            return _backward(gpu, queue)
        if len(calls) > 1 and names & {"add", "add_bias"}:
            return _sum(gpu, queue)
    except _NotFused:
        pass
    return None


class _Calls:
    """Calls to take one after the other."""

    def __init__(self, calls: Sequence[Bound], unread: Sequence[Collection[int]]) -> None:
        self._calls = list(zip(calls, unread, strict=True))
        self._unread: Collection[int] = ()

    def take(self, kernel: str) -> tuple[Any, ...] | None:
        """The arguments of the next call if it is of this kernel; otherwise it stays."""
        call = self.take_call(kernel)
        return None if call is None else call.args

    def take_call(self, kernel: str) -> Bound | None:
        """The next call itself, if it is of this kernel."""
        if not self._calls or self._calls[0][0].kernel != kernel:
            return None
        call, self._unread = self._calls.pop(0)
        return call

    def reads(self, array: Array) -> bool:
        """Whether someone reads an array of the call that was taken last."""
        return address(array) not in self._unread

    def end(self) -> None:
        """Check that no call is left."""
        _require(not self._calls)


def _require(condition: bool) -> None:
    if not condition:
        raise _NotFused


def _same(a: Array, b: Array) -> bool:
    """Whether two arrays have the same elements at the same positions."""
    return a is b or (a.shape, a.strides, a.dtype, address(a)) == (
        b.shape, b.strides, b.dtype, address(b))


def _bytes(a: Array) -> range:
    """Addresses from an array's first to its last byte."""
    last = sum((n - 1) * step for n, step in zip(a.shape, a.strides, strict=True))
    return range(address(a), address(a) + last + a.itemsize)


def _require_elementwise(written: Sequence[Array], others: Sequence[Array]) -> None:
    """Check that an element is only written over elements at its own position."""
    for a, b in product(written, others):
        one, other = _bytes(a), _bytes(b)
        _require(a.shape == b.shape and a.dtype == b.dtype)
        _require(_same(a, b) or one.stop <= other.start or other.stop <= one.start)


def _require_weights(x: Array, *weights: Array) -> None:
    """Check that a kernel can read weights where they are."""
    _require(all(w.flags.c_contiguous and w.dtype == wide_type(x) for w in weights))


def _function(activation: tuple[Any, ...] | None) -> tuple[float, float, float]:
    """Arguments of a kernel for an activation, if there is one."""
    if activation is None:
        return _IDENTITY
    function, (p, q), *_ = activation
    return float(ACTIVATIONS.index(function)), float(p), float(q)


def _forward(gpu: Launching, calls: _Calls) -> Tick:
    """channel_moments?, batchnorm_statistics?, batchnorm_forward, add?, activation_forward?"""
    sums, found = calls.take("channel_moments"), calls.take("batchnorm_statistics")
    normalization = calls.take("batchnorm_forward")
    if normalization is None:
        raise _NotFused
    x, mean, inv_std, w, b, out = normalization
    _require(parts(x.shape) > 0)
    _require_weights(x, w, b)
    source, first = _KEPT, None
    if found is not None:
        source = _MOMENTS
        _require(found[0].flags.c_contiguous and found[3] is mean and found[4] is inv_std)
        _require(found[5] is None or found[5].dtype == wide_type(x))
    if sums is not None:
        _require(found is not None and _same(sums[0], x) and sums[1] is found[0])
        if parts(x.shape) == 1:
            source = _INPUT
        else:
            first = gpu.launch.prepare(partial(channel_moments, gpu, *sums))
    given = found or (mean, 1, 0.0, mean, inv_std, None, 0.0)
    second, other, is_read = _NOTHING, x, calls.reads(out)
    addition = calls.take("add")
    if addition is not None:
        _require(any(_same(out, a) for a in addition[:2]))
        _require(_same(out, addition[2]) or not is_read)
        second, other = _ADD, addition[1 if _same(out, addition[0]) else 0]
        _require(not _same(out, other))
        out, is_read = addition[2], calls.reads(addition[2])
    activation = calls.take("activation_forward")
    if activation is not None:
        _require(_same(out, activation[2]))
        result = activation[3]
        if not _same(out, result) and is_read:
            _require(second == _NOTHING)
            second, other = _KEEP, out
        out = result
    calls.end()
    _require_elementwise([out], [x, other])
    if second == _KEEP:
        _require_elementwise([other], [x])
    more = (given[0], *statistics(*given), w, b, source, second, *_function(activation))
    launch = gpu.launch.prepare(
        partial(for_shares, gpu, "batchnorm_joint_forward", (x, other, out), more))
    return launch if first is None else _both(first, launch)


def _sum(gpu: Launching, calls: _Calls) -> Tick:
    """gemm?, add or add_bias, activation_forward"""
    matrices, bias = calls.take_call("gemm"), calls.take("add_bias")
    addition = calls.take("add") if bias is None else None
    total = addition[2] if addition is not None else bias[0] if bias is not None else None
    is_read = total is not None and calls.reads(total)
    activation = calls.take("activation_forward")
    calls.end()
    if activation is None:
        raise _NotFused
    if bias is not None:
        y, column = bias
        column = column.reshape(-1, *(1,) * (y.ndim - 2))
        addition = y, cp.broadcast_to(column, y.shape), y
    _require(addition is not None and (matrices is None or bias is not None))
    one, other, total = addition or ()
    x, out = activation[2:]
    _require(one.size > 0 and gpu.launch.supports(one.dtype))
    _require(_same(total, x) and (_same(x, out) or not is_read))
    _require_elementwise([out], [one, other])
    shape, steps = merge_dims(one.shape, *map(strides, (one, other, out)))
    args = (one, other, out, *shape, *chain(*steps), *_function(activation))
    launch = gpu.launch.prepare(
        partial(gpu.launch, "add_activation", one.dtype, one.size, args))
    return launch if matrices is None else _both(matrices, launch)


def _both(first: Tick, second: Tick) -> Tick:
    def launch() -> None:
        first()
        second()

    return launch


def _backward(gpu: Launching, calls: _Calls) -> Tick:
    """accumulate?, activation_backward?, copies, channel_moments_backward?, and then
    batchnorm_gradients and batchnorm_backward?
    """
    before = _Before(calls)
    sums, gradients = calls.take("channel_moments_backward"), calls.take("batchnorm_gradients")
    last = calls.take("batchnorm_backward")
    calls.end()
    w = db = dw = dx = None
    moments: Any = None
    count = 1
    if last is not None and gradients is not None:
        x, g, mean, inv_std, w, _, count, dx = last
        moments, weight, _, db, dw = gradients
        _require(_same(weight, w))
        _require_weights(x, w)
    else:
        _require(last is None and gradients is None and sums is not None)
    if sums is not None:
        _require(last is None or (
            sums[4] is moments and all(map(_same, sums[:4], (x, g, mean, inv_std)))))
        x, g, mean, inv_std, moments = sums
    _require(parts(x.shape) > 0 and moments.flags.c_contiguous)
    _require(sums is not None or not before.results)
    dy = kept = arriving = copy = g
    if before.results:
        dy = before.start
        others = [a for a, is_read in before.results if is_read and not _same(a, g)]
        _require(any(_same(a, g) for a, _ in before.results))
        _require(all(_same(a, others[0]) for a in others))
        kept = x if before.activation is None else before.activation[2]
        arriving = g if before.addition is None else before.addition[0]
        copy = others[0] if others else g
        _require_elementwise([g, copy], [x, dy, kept, arriving, g, copy])
    adds = before.addition is not None
    first = 0 if not before.results else 1 if not adds and copy is g else 2
    if last is not None:
        _require_elementwise([dx], [x, dy, kept, arriving, g, copy])
        _require(copy is g or not _same(dx, copy))
    # Kernels do not accept None: an array to ignore takes its place.
    arrays = (x, dy, kept, arriving, g, copy, g if dx is None else dx)
    weights = (mean if w is None else w, moments, *(
        (mean, mean, 0) if db is None or dw is None else (db, dw, 1)))

    def launch(has_sums: bool, has_rest: bool) -> Tick:
        more = (mean, inv_std, *weights, float(count), int(has_sums), first,
                int(adds), int(has_rest), *_function(before.activation),
                *partial_sums(gpu, x.shape))
        return gpu.launch.prepare(
            partial(for_shares, gpu, "batchnorm_joint_backward", arrays, more))

    if sums is None or last is None or parts(x.shape) == 1:
        return launch(sums is not None, last is not None)
    return _both(launch(True, False), launch(False, True))


class _Before:
    """Elementwise kernels on a gradient: accumulate?, activation_backward?, copies.

    Attributes
    ----------
    start : array or None
        The gradient that they begin with.
    results : list
        The arrays that hold their result, and whether someone reads them.
    """

    def __init__(self, calls: _Calls) -> None:
        self.start: Array = None
        self.results: list[tuple[Array, bool]] = []
        self.addition = calls.take("accumulate")
        if self.addition is not None:
            self.start = self.addition[1]
            self.results = [(self.start, calls.reads(self.start))]
        self.activation = calls.take("activation_backward")
        if self.activation is not None:
            dy, dx = self.activation[3:]
            # a sum before the activation is another gradient
            _require(all(_same(a, dy) and (_same(dy, dx) or not is_read)
                         for a, is_read in self.results))
            self.start, self.results = dy, [(dx, calls.reads(dx))]
        for source, target in iter(partial(calls.take, "copy"), None):
            if not self.results:
                self.start, self.results = source, [(source, False)]  # it is there already
            _require(_same(source, self.results[0][0]))
            self.results.append((target, calls.reads(target)))
