"""The patterns of movements between pairs of layouts, all in one go: of a plan's edges, or of every
two configurations of a search's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcpar.plan.axis import each_part
from hpcpar.plan.config import Digit
from hpcpar.plan.layout import Layout
from hpcpar.plan.lines import TOGETHER, Block, Kind, Lines, Two, lay_out, shape_of
from hpcpar.schedule.pattern import (
    COLLECTIVE,
    PARTIAL,
    Pattern,
    backward_code,
    facing,
    forward_code,
    mixed_digits,
    partial_digits,
    same_digits,
)
from hpcpar.schedule.steps import CODES
from hpcpar.schedule.steps import Kind as StepKind

#: What is said of an axis, and of all axes of a case: see `Facing` and `backward_code`.
_GATHER, _NARROW, _HALO, _INEXACT, _IRREGULAR, _PARTIAL, _SAME = (1 << i for i in range(7))
_BITS = [np.arange(128) & bit > 0 for bit in (_GATHER, _NARROW, _HALO, _INEXACT, _IRREGULAR)]
#: The codes of movements and of their adjoints, for all that may be said.
_FORWARD = forward_code(*_BITS).astype(np.int8)
_BACKWARD = backward_code(*(np.arange(128) & bit > 0 for bit in (_PARTIAL, _SAME)),
                          *_BITS).astype(np.int8)


class Patterns:
    """How the axes of pairs of layouts face each other, worked out once for each two ways of
    cutting them.
    """

    def __init__(self, lines: Lines) -> None:
        self.lines, self._flags = lines, np.empty(len(lines), np.uint8)
        #: Stride held, stride and parts wanted, how many are gathered, how many narrowed.
        self._digits = np.empty((5, len(lines)), np.int32)
        for kind in lines.kinds:
            found = facing(kind.a, kind.b, *lines.cut(kind), lambda kind=kind: _inside(lines, kind))  # type: ignore[misc]
            values = (lines.x.stride[kind.ways], found.depends.stride, found.depends.size,
                      found.gather.size, found.narrow.size)
            for row, value in zip(self._digits, values, strict=True):
                row[kind.ways] = value
            self._flags[kind.ways] = found.halo * _HALO + found.inexact * _INEXACT + found.irregular * _IRREGULAR
        self._flags += (self._digits[3] > 1) * np.uint8(_GATHER) + (self._digits[4] > 1) * np.uint8(_NARROW)

    def alike(self, also: Sequence[Any]) -> list[list[int]]:
        """Pairs of layouts that have the same patterns; `also` is equal for them."""
        return self.lines.alike(np.concatenate((self._digits, [self._flags]),
                                               dtype=np.int32).T.copy(), also)

    def of(self, block: Block) -> tuple[Pattern, Pattern]:
        """Each movement, and its adjoint."""
        flags = self._flags.take(block.index[0])
        for places in block.index[1:]:
            flags |= self._flags.take(places)
        partials = [_partials(group.want) for group in block.groups]
        for (group, here), found in zip(block.of(flags), partials, strict=True):
            have, want = group.have.config, group.want.config
            if have.first != want.first:
                here |= np.uint8(_IRREGULAR)
            else:
                here |= np.not_equal(*group.facing(have.ranks, want.ranks)) * np.uint8(_IRREGULAR)
            here |= (found[1] > 1).any(axis=0) * np.uint8(_PARTIAL)
        some = (flags & (_GATHER | _IRREGULAR) == _GATHER).nonzero()[0]
        if len(some):
            held, stride, parts, gather, _ = self._digits[:, block.index[:, some]]
            flags[some] |= mixed_digits(Digit(held, gather),
                                        Digit(stride, parts)) * np.uint8(_IRREGULAR)
        whose = np.empty(len(flags), np.int32)
        first = 0
        for (_, here), found in zip(block.of(whose), partials, strict=True):
            here[...] = np.arange(first, first + found.shape[2])
            first += found.shape[2]
        partial = np.concatenate(partials, axis=2)
        some = (flags & (_PARTIAL | _GATHER | _IRREGULAR | _HALO | _INEXACT | _NARROW) == _PARTIAL
                | _GATHER).nonzero()[0]
        if len(some):
            held, _, _, gather, _ = self._digits[:, block.index[:, some]]
            flags[some] |= same_digits(Digit(held, gather),
                                       Digit(*partial[:, :, whose[some]])) * np.uint8(_SAME)
        there, back = _FORWARD[flags], _BACKWARD[flags]
        at = COLLECTIVE[there].nonzero()[0]
        held, _, _, gather, _ = self._digits[:, block.index[:, at]]
        forward = Pattern(there, False, at, Digit(held, gather))
        at = COLLECTIVE[back].nonzero()[0]
        gathers = back[at] == CODES[StepKind.ALLGATHER]
        _, stride, _, _, narrow = self._digits[:, block.index[:, at]]
        strides, sizes = partial[:, :, whose[at]]
        digits = Digit(np.concatenate((strides, stride)),
                       np.concatenate((np.where(gathers, 1, sizes), np.where(gathers, narrow, 1))))
        return forward, Pattern(back, True, at, digits)


def _partials(layout: Layout) -> Any:
    """[stride or size, axes, configurations] of the coordinates over which gradients are partial
    sums.
    """
    return layout.of_cutting("partials", _work_out_partials)


def _work_out_partials(layout: Layout) -> Any:
    out = np.ones((2, len(PARTIAL), np.size(layout.config.ranks)), np.int32)
    for name, digit in partial_digits(layout).items():
        i = PARTIAL.index(name)
        out[0, i], out[1, i] = digit.stride, digit.size
    return out


def _inside(lines: Lines, kind: Kind) -> Any:
    """Whether every part holds the interval that it wants, halo included, for equal cuts."""

    def work_out(some: Any, parts: Any) -> Any:
        (h0, h1, begins), (w0, w1, _) = each_part(kind.held.at(some),
                                                  parts), each_part(kind.own[1].at(some), parts)
        return np.logical_and.reduceat((w1 <= w0) | ((h0 <= w0) & (w1 <= h1)), begins)

    return lines.for_both(kind, kind.once(lines.sides[1].parts[kind.places[1]], work_out))


def patterns_of(pairs: Sequence[Two]) -> list[tuple[Pattern, Pattern]]:
    """Of each movement from owned boxes to needed ones, and of its adjoint, case by case."""
    some = max(1, TOGETHER // math.prod(shape_of(pairs)))
    if len(pairs) > some:
        return [each for i in range(0, len(pairs), some)
                for each in patterns_of(pairs[i: i + some])]
    laid = lay_out(pairs)
    there, back = Patterns(laid[0].block.lines).of(laid[0].block)
    return [(there.of(pair.group.cases, pair.shape), back.of(pair.group.cases, pair.shape))
            for pair in laid]


def patterns(owned: Layout, needed: Layout) -> tuple[Pattern, Pattern]:
    """`patterns_of` two layouts."""
    return patterns_of([(owned, needed)])[0]
