"""Convolution and transposed convolution on a block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

from hpcpar.kernels.geometry import ConvSpec, Segment
from hpcpar.kernels.interface import Array, Tick
from hpcpar.network.layers import Conv, ConvTranspose
from hpcpar.plan.boxes import Box, items, local
from hpcpar.runtime.ops.base import Context, Operator
from hpcpar.runtime.ops.registry import operator
from hpcpar.runtime.ops.windows import reaches

#: (slices of x, slices of y, geometry) for a box of outputs.
_Call = tuple[tuple[slice, ...], tuple[slice, ...], ConvSpec]


@operator(Conv)
class ConvOp(Operator):
    """A convolution; partial sums where the rank has only some input channels (k)."""

    takes_bfloat16 = True

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        assert isinstance(ctx.layer, Conv)
        self.layer = ctx.layer
        #: One entry per box of outputs (the whole block, or its interior and boundary boxes).
        self._calls: dict[Box, _Call] = {}
        self._forwards: dict[Box, Tick] = {}

    def _segments(self) -> tuple[Segment, ...]:
        """The groups that this rank's channels belong to, in local indices."""
        layer, own, need = self.layer, self.ctx.own[1], self.ctx.need[1]
        if layer.groups == 1:
            # all input channels that this rank has (with k, only a part)
            return (Segment(0, need[1] - need[0], 0, own[1] - own[0]),)
        per_out = layer.out_channels // layer.groups
        per_in = self.ctx.input_shape[0] // layer.groups
        out = []
        for g in range(own[0] // per_out, -(-own[1] // per_out)):
            start, stop = max(own[0], g * per_out), min(own[1], (g + 1) * per_out)
            out.append(Segment(g * per_in - need[0], (g + 1) * per_in - need[0], start - own[0],
                               stop - own[0]))
        return tuple(out)

    def _call(self, box: Box) -> _Call:
        if box not in self._calls:
            layer, ctx = self.layer, self.ctx
            windows = layer.fields() if isinstance(layer, ConvTranspose) else layer.windows()
            inner, pads = reaches(windows, box, ctx.need, ctx.input_shape[1:])
            spec = ConvSpec(layer.stride, layer.dilation, pads, self._segments())
            self._calls[box] = inner, local(box, ctx.own), spec
        return self._calls[box]

    def _forward(self) -> None:
        self.interior(self.ctx.own)

    def interior(self, box: Box) -> None:
        if box not in self._forwards:
            self._forwards[box] = self._bound(box) if items(box) else lambda: None
        self._forwards[box]()

    def _bound(self, box: Box) -> Tick:
        inner, outputs, spec = self._call(box)
        p = self.parameters
        return self.backend.bind("conv_forward", self.x[inner], p.weight, p.bias, spec,
                                 self.y[outputs], self.ctx.tick)

    def _backward(self) -> None:
        clears, gradient = self._data_gradient
        if clears:
            self.dx[...] = 0
        gradient()

    @cached_property
    def _data_gradient(self) -> tuple[bool, Tick]:
        """Whether this rank's windows leave out a part of the input, and the input's gradient."""
        inner, _, spec = self._call(self.ctx.own)
        dx = self.dx[inner]
        return dx.shape != self.dx.shape, self.backend.bind(
            "conv_backward_data", self.dy, self.parameters.weight, spec, dx, self.ctx.tick)

    @cached_property
    def _backward_weight(self) -> Tick:
        inner, _, spec = self._call(self.ctx.own)
        p = self.parameters
        return self.backend.bind("conv_backward_weight", self.x[inner], self.dy, spec, p.dweight,
                                 p.dbias, self.ctx.tick)


#: (slices of x's channels, slices of y's channels, one group with these channels).
_Group = tuple[slice, slice, ConvSpec]


@operator(ConvTranspose)
class ConvTransposeOp(ConvOp):
    """A transposed convolution: a convolution's kernels from outputs to inputs, by group."""

    def _groups(self, spec: ConvSpec) -> Iterator[_Group]:
        for s in spec.segments:
            ins, outs = slice(s.in_start, s.in_stop), slice(s.out_start, s.out_stop)
            one = Segment(0, s.out_stop - s.out_start, 0, s.in_stop - s.in_start)
            yield ins, outs, replace(spec, segments=(one,))

    def _weight(self, outs: slice) -> Array:
        """Weights [in, out, ...] of a group, contiguous."""
        return self.backend.xp.ascontiguousarray(self.parameters.weight[outs].swapaxes(0, 1))

    def interior(self, box: Box) -> None:
        if items(box) == 0:
            return
        inner, outputs, spec = self._call(box)
        x, y = self.x[inner], self.y[outputs]
        for ins, outs, group in self._groups(spec):
            self.backend.conv_backward_data(x[:, ins], self._weight(outs), group, y[:, outs],
                                            self.ctx.tick)
        if self.parameters.bias is not None:
            self.backend.add_bias(y, self.parameters.bias)

    def _backward(self) -> None:
        inner, _, spec = self._call(self.ctx.own)
        self._clear_unread(inner)
        dx = self.dx[inner]
        for ins, outs, group in self._groups(spec):
            self.backend.conv_forward(self.dy[:, outs], self._weight(outs), None, group, dx[:, ins],
                                      self.ctx.tick)

    def _backward_weight(self) -> None:
        inner, _, spec = self._call(self.ctx.own)
        p, x = self.parameters, self.x[inner]
        for ins, outs, group in self._groups(spec):
            rows = p.dweight[outs].swapaxes(0, 1)
            dw = self.backend.empty(rows.shape, rows.dtype)
            self.backend.conv_backward_weight(self.dy[:, outs], x[:, ins], group, dw, None,
                                              self.ctx.tick)
            rows[...] = dw
        if p.dbias is not None:
            self.backend.sum_samples(self.dy, p.dbias)
