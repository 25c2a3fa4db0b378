"""Convolution on a block."""

from __future__ import annotations

from hpcpar.kernels.interface import ConvSpec, Segment
from hpcpar.network.layers import Conv
from hpcpar.plan.boxes import Box, items, local
from hpcpar.runtime.ops.base import Context, Operator
from hpcpar.runtime.ops.windows import reaches

#: (slices of x, slices of y, geometry) of some outputs.
_Call = tuple[tuple[slice, ...], tuple[slice, ...], ConvSpec]


class ConvOp(Operator):
    """The owned outputs of a convolution of images or volumes: partial sums, where the inputs here
    are some of the channels.
    """

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        assert isinstance(ctx.layer, Conv) and ctx.parameters is not None
        self.layer, self.parameters = ctx.layer, ctx.parameters
        #: Worked out once for each box: the parts of an output whose halo travels are computed in
        #: every iteration.
        self._calls: dict[Box, _Call | None] = {}
        self._whole = self._call(ctx.own)
        dx = self.blocks.dx
        # inputs that no window of this rank reads get no gradient from it
        self._dx_partial = dx is not None and self._whole is not None and dx[
            self._whole[0]].shape != dx.shape

    def _segments(self) -> tuple[Segment, ...]:
        """The groups that this rank's channels belong to, in local indices."""
        layer, own, need = self.layer, self.ctx.own[1], self.ctx.need[1]
        if layer.groups == 1:
            # all inputs that are here, which may be some of them only (k)
            return (Segment(0, need[1] - need[0], 0, own[1] - own[0]),)
        per_out, per_in = layer.out_channels // layer.groups, self.ctx.input_shape[
            0] // layer.groups
        out = []
        for g in range(own[0] // per_out, -(-own[1] // per_out)):
            start, stop = max(own[0], g * per_out), min(own[1], (g + 1) * per_out)
            out.append(Segment(g * per_in - need[0], (g + 1) * per_in - need[0], start - own[0],
                               stop - own[0]))
        return tuple(out)

    def _call(self, box: Box) -> _Call | None:
        """What the outputs in `box` take; None where there are none."""
        if items(box) == 0:
            return None
        layer, need = self.layer, self.ctx.need
        inner, pads = reaches(layer.windows(), box, need, self.ctx.input_shape[1:])
        spec = ConvSpec(layer.stride, layer.dilation, pads, self._segments())
        return (slice(None), slice(None), *inner), local(box, self.ctx.own), spec

    def forward(self) -> None:
        self._run(self._whole)

    def interior(self, box: Box) -> None:
        if box not in self._calls:
            self._calls[box] = self._call(box)
        self._run(self._calls[box])

    def _run(self, call: _Call | None) -> None:
        if call is None:
            return
        x, y, p = self.blocks.x, self.blocks.y, self.parameters
        assert x is not None and y is not None
        self.backend.conv_forward(x[call[0]], p.weight, p.bias, call[2], y[call[1]], self.ctx.tick)

    def backward(self) -> None:
        dx, dy = self.blocks.dx, self.blocks.dy
        assert dx is not None
        if self._whole is None:
            dx[...] = 0
            return
        if self._dx_partial:
            dx[...] = 0
        self.backend.conv_backward_data(dy, self.parameters.weight, self._whole[2],
                                        dx[self._whole[0]], self.ctx.tick)

    def backward_weight(self) -> None:
        p = self.parameters
        if self._whole is None:
            p.grad[...] = 0
            return
        x = self.blocks.x
        assert x is not None
        self.backend.conv_backward_weight(x[self._whole[0]], self.blocks.dy, self._whole[2],
                                          p.dweight, p.dbias, self.ctx.tick)
