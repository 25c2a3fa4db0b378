"""Layers on blocks, whole and cut by hand, against PyTorch (see ops_support): pooling, merging,
products.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hpcpar.kernels.numpy_backend import NumpyBackend
from hpcpar.network.layers import (
    GELU,
    LRN,
    Add,
    Affine,
    AvgPool2d,
    AvgPool3d,
    BatchNorm,
    ChannelNorm,
    ChannelScale,
    ChannelShift,
    Clip,
    Concat,
    Conv2d,
    Conv3d,
    ConvTranspose2d,
    ConvTranspose3d,
    Expand,
    GlobalAvgPool,
    GlobalMaxPool,
    GroupNorm,
    Layer,
    LayerNorm,
    LeakyReLU,
    Linear,
    MaxPool2d,
    MaxPool3d,
    Multiply,
    Pad,
    PReLU,
    ReLU,
    Select,
    Sigmoid,
    SiLU,
    Tanh,
    Unflatten,
    Upsample,
)
from hpcpar.plan.boxes import block
from tests import reference_layers
from tests.ops_support import (
    DTYPES,
    at,
    boxes,
    close,
    gather,
    make,
    parameters,
    random,
    reference,
    torch,
)
from tests.reference_layers import torch_weight

F = torch.nn.functional


# -- layers without weights ------------------------------------------------------------------------
PLAIN: dict[str, tuple[Layer, Callable[..., Any], list[tuple[int, ...]]]] = {
    "maxpool2d": (
        MaxPool2d("p", kernel=(3, 2), stride=(2, 1), padding=(1, 0), ceil_mode=True),
        lambda x: F.max_pool2d(x, (3, 2), (2, 1), (1, 0), ceil_mode=True), [(3, 8, 7)],
    ),
    "maxpool3d": (
        MaxPool3d("p", kernel=(3, 2, 3), stride=(2, 2, 1), padding=(1, 0, 1), ceil_mode=True),
        lambda x: F.max_pool3d(x, (3, 2, 3), (2, 2, 1), (1, 0, 1), ceil_mode=True), [(3, 6, 7, 5)],
    ),
    "avgpool2d": (
        AvgPool2d("p", kernel=3, stride=2, padding=1, ceil_mode=True),
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), [(3, 8, 7)],
    ),
    "avgpool3d": (
        AvgPool3d("p", kernel=(3, 2, 2), stride=(2, 1, 2), padding=(1, 1, 0), ceil_mode=True),
        lambda x: F.avg_pool3d(x, (3, 2, 2), (2, 1, 2), (1, 1, 0), ceil_mode=True), [(3, 6, 5, 5)],
    ),
    "avgpool3d without padding": (
        AvgPool3d("p", kernel=3, stride=2, padding=1, count_include_pad=False),
        lambda x: F.avg_pool3d(x, 3, 2, 1, count_include_pad=False), [(3, 6, 5, 7)],
    ),
    "upsample nearest": (Upsample("u", scale=(2, 3)),
                         lambda x: F.interpolate(x, scale_factor=(2, 3)), [(3, 5, 4)]),
    "upsample bilinear": (
        Upsample("u", scale=(2, 3), mode="linear"),
        lambda x: F.interpolate(x, scale_factor=(2, 3), mode="bilinear"), [(3, 5, 4)],
    ),
    "upsample bilinear corners": (
        Upsample("u", scale=(4, 2), mode="linear", align_corners=True),
        lambda x: F.interpolate(x, scale_factor=(4, 2), mode="bilinear", align_corners=True),
        [(3, 5, 1)],
    ),
    "upsample volumes": (
        Upsample("u", scale=(2, 1, 3), mode="linear"),
        lambda x: F.interpolate(x, scale_factor=(2, 1, 3), mode="trilinear"), [(2, 3, 4, 2)],
    ),
    "upsample volumes corners": (
        Upsample("u", scale=(2, 2, 3), mode="linear", align_corners=True),
        lambda x: F.interpolate(x, scale_factor=(2, 2, 3), mode="trilinear", align_corners=True),
        [(2, 3, 4, 2)],
    ),
    "pad": (Pad("p", begin=(2, 0), end=(0, 3)), lambda x: F.pad(x, (0, 3, 2, 0)), [(3, 4, 5)]),
    "pad volumes": (Pad("p", begin=(1, 0, 2), end=(3, 1, 0)),
                    lambda x: F.pad(x, (2, 0, 0, 1, 1, 3)), [(2, 3, 2, 4)]),
    "pad periodic": (
        Pad("p", begin=(1, 3), end=(4, 2), mode="periodic"),
        lambda x: F.pad(x, (3, 2, 1, 4), mode="circular"), [(3, 4, 5)],
    ),
    "pad periodic volumes": (
        Pad("p", begin=(0, 2, 1), end=(0, 1, 4), mode="periodic"),
        lambda x: F.pad(x, (1, 4, 2, 1, 0, 0), mode="circular"), [(2, 3, 2, 4)],
    ),
    "globalavgpool2d": (GlobalAvgPool("g"), lambda x: x.mean((2, 3)), [(5, 4, 3)]),
    "globalavgpool3d": (GlobalAvgPool("g"), lambda x: x.mean((2, 3, 4)), [(5, 4, 3, 2)]),
    "globalmaxpool2d": (GlobalMaxPool("g"), lambda x: F.adaptive_max_pool2d(x, 1).flatten(1),
                        [(5, 4, 3)]),
    "globalmaxpool3d": (GlobalMaxPool("g"), lambda x: F.adaptive_max_pool3d(x, 1).flatten(1),
                        [(5, 4, 3, 2)]),
    "relu": (ReLU("a"), F.relu, [(5, 4, 3)]),
    "leaky relu": (LeakyReLU("a", slope=0.2), lambda x: F.leaky_relu(x, 0.2), [(5, 4, 3)]),
    "relu6": (Clip("a", high=0.7), lambda x: F.hardtanh(x, 0, 0.7), [(5, 4, 3, 2)]),
    "silu": (SiLU("a"), F.silu, [(5, 4, 3)]),
    "gelu": (GELU("a"), F.gelu, [(5, 4, 3, 2)]),
    "gelu by tanh": (GELU("a", tanh=True), lambda x: F.gelu(x, approximate="tanh"), [(7,)]),
    "sigmoid": (Sigmoid("a"), torch.sigmoid, [(7,)]),
    "tanh": (Tanh("a"), torch.tanh, [(5, 4, 3)]),
    "affine": (Affine("a", scale=-2.0, shift=0.5), lambda x: 0.5 - 2 * x, [(5, 4, 3)]),
    "multiply": (Multiply("m", ("i", "j")), lambda a, b: a * b, [(5, 4, 3)] * 2),
    "multiply features": (Multiply("m", ("i", "j")), lambda a, b: a * b, [(7,)] * 2),
    "gate": (Multiply("m", ("i", "j")), lambda a, b: a * b[:, :, None, None], [(5, 4, 3), (5,)]),
    "gate of volumes": (Multiply("m", ("i", "j")), lambda a, b: a * b[:, :, None, None, None],
                        [(5, 4, 3, 2), (5,)]),
    "lrn": (LRN("l"), lambda x: F.local_response_norm(x, 5, 1e-4, 0.75, 2.0), [(9, 4, 3)]),
    "lrn of volumes": (LRN("l", alpha=0.5), lambda x: F.local_response_norm(x, 5, 0.5, 0.75, 2.0),
                       [(9, 4, 3, 2)]),
    "select": (Select("s", channels=(2, 0, 2), begin=(1, 0), step=(2, 1), size=(2, 3)),
               lambda x: x[:, [2, 0, 2], 1:4:2, :3], [(3, 5, 4)]),
    "expand": (Expand("e", size=(2, 3)), lambda x: x[:, :, None, None].expand(-1, -1, 2, 3),
               [(5,)]),
    "unflatten": (Unflatten("u", shape=(3, 2, 2)), lambda x: x.reshape(-1, 3, 2, 2), [(12,)]),
    "add": (Add("a", ("i", "j", "k")), lambda a, b, c: a + b + c, [(5, 4, 3)] * 3),
    "add features": (Add("a", ("i", "j")), lambda a, b: a + b, [(7,)] * 2),
    "concat": (
        Concat("c", ("i", "j", "k"), (3, 1, 6)), lambda a, b, c: torch.cat([a, b, c], 1),
        [(3, 4, 3), (1, 4, 3), (6, 4, 3)],
    ),
    "concat volumes": (Concat("c", ("i", "j"), (2, 3)), lambda a, b: torch.cat([a, b], 1),
                       [(2, 4, 3, 2), (3, 4, 3, 2)]),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cuts",
                         [(1, 1, 1, 1, 1), (2, 1, 1, 1, 1), (1, 3, 1, 1, 1), (1, 1, 2, 3, 2),
                          (2, 2, 3, 2, 1), (5, 11, 1, 2, 3)])
@pytest.mark.parametrize("kind", PLAIN)
def test_layer_without_weights(kind: str, cuts: tuple[int, ...], dtype: Any) -> None:
    layer, function, shapes = PLAIN[kind]
    inputs = [random(i, (3, *s), dtype) for i, s in enumerate(shapes)]
    dy = random(9, (3, *layer.output_shape(*shapes)), dtype)
    want, gradients = reference(function, inputs, dy)
    ops = [make(layer, 3, inputs, own, dy) for own in boxes(dy.shape, cuts[: dy.ndim])]
    for op in ops:
        op.forward()
        op.backward()
    y, dxs = gather(ops, inputs, dy)
    close(y, want)
    for dx, gradient in zip(dxs, gradients, strict=True):
        close(dx, gradient)


def test_add_in_place_and_untrained_inputs() -> None:
    x, z, dy = (random(i, (2, 3), np.float64) for i in range(3))
    op = make(Add("a", ("i", "j")), 2, [x, z], ((0, 2), (0, 3)), dy)
    op.blocks.y = op.blocks.xs[0]
    op.blocks.dxs = [op.blocks.dy, None]
    op.forward()
    op.backward()
    close(op.blocks.y, x + z)
    close(op.blocks.dxs[0], dy)


@pytest.mark.parametrize("layer", [ReLU("a"), LeakyReLU("a"), Clip("a"), Sigmoid("a"), Tanh("a"),
                                   Affine("a")])
def test_activations_that_keep_no_input_work_in_place(layer: Layer) -> None:
    x, dy = random(0, (2, 3), np.float64), random(1, (2, 3), np.float64)
    ops = [make(layer, 2, [x], ((0, 2), (0, 3)), dy) for _ in range(2)]
    ops[1].blocks.y, ops[1].blocks.dxs = ops[1].blocks.x, [ops[1].blocks.dy]
    for op in ops:
        op.forward()
        op.backward()
    np.testing.assert_array_equal(ops[0].blocks.y, ops[1].blocks.y)
    np.testing.assert_array_equal(ops[0].blocks.dx, ops[1].blocks.dx)


def test_a_gate_before_which_nothing_is_trained() -> None:
    x, gate, dy = (random(i, s, np.float64) for i, s in enumerate([(2, 3, 4, 5), (2, 3),
                                                                   (2, 3, 4, 5)]))
    box = ((0, 2), (0, 3), (0, 4), (0, 5))
    for kept in (0, 1):
        op = make(Multiply("m", ("i", "j")), 2, [x, gate], box, dy)
        op.blocks.dxs[1 - kept] = None
        op.backward()
        close(op.blocks.dxs[kept], (dy * x).sum((2, 3)) if kept else dy * gate[:, :, None, None])


def test_concat_of_inputs_that_lie_in_the_output() -> None:
    x, z, dy = random(0, (2, 3), np.float64), random(1, (2, 4),
                                                     np.float64), random(2, (2, 7), np.float64)
    op = make(Concat("c", ("i", "j"), (3, 4)), 2, [x, z], ((0, 2), (0, 7)), dy)
    op.blocks.y[:, :3] = x
    op.blocks.xs[0] = op.blocks.y[:, :3]
    op.blocks.dxs = [None, op.blocks.dy[:, 3:]]
    op.forward()
    op.backward()
    close(op.blocks.y, np.concatenate([x, z], 1))
    close(op.blocks.dxs[1], dy[:, 3:])


# -- products --------------------------------------------------------------------------------------
PRODUCTS: dict[str, tuple[Layer, Callable[..., Any], tuple[int, ...]]] = {
    "conv2d": (
        Conv2d("c", out_channels=6, kernel=(3, 2), stride=(2, 1), padding=(1, 1)),
        lambda x, w, b: F.conv2d(x, w, b, (2, 1), (1, 1)), (4, 7, 6),
    ),
    "conv2d groups": (
        Conv2d("c", out_channels=6, kernel=3, padding=1, groups=2), lambda x, w,
        b: F.conv2d(x, w, b, 1, 1, 1, 2), (4, 6, 5),
    ),
    "conv3d": (Conv3d("c", out_channels=5, kernel=3, padding=1), lambda x, w,
               b: F.conv3d(x, w, b, 1, 1), (4, 6, 5, 7)),
    "conv3d strided": (
        Conv3d("c", out_channels=5, kernel=(3, 2, 3), stride=(2, 2, 1), padding=(1, 0, 2)),
        lambda x, w, b: F.conv3d(x, w, b, (2, 2, 1), (1, 0, 2)), (4, 7, 6, 5),
    ),
    "conv3d dilated": (
        Conv3d("c", out_channels=4, kernel=(2, 3, 2), dilation=(3, 2, 1), padding=(1, 2, 0),
               groups=2),
        lambda x, w, b: F.conv3d(x, w, b, 1, (1, 2, 0), (3, 2, 1), 2), (4, 7, 6, 5),
    ),
    "transposed": (
        ConvTranspose2d("t", out_channels=6, kernel=(3, 2), stride=(2, 3), padding=(1, 0),
                        output_padding=(1, 2)),
        lambda x, w, b: F.conv_transpose2d(x, torch_weight(w, 1), b, (2, 3), (1, 0), (1, 2)),
        (4, 5, 4),
    ),
    "transposed groups": (
        ConvTranspose2d("t", out_channels=6, kernel=3, padding=(1, 0), dilation=2, groups=2,
                        output_padding=(0, 1)),
        lambda x, w, b: F.conv_transpose2d(x, torch_weight(w, 2), b, 1, (1, 0), (0, 1), 2, 2),
        (4, 6, 5),
    ),
    "transposed with gaps": (
        ConvTranspose2d("t", out_channels=3, kernel=(1, 2), stride=(3, 4)),
        lambda x, w, b: F.conv_transpose2d(x, torch_weight(w, 1), b, (3, 4)), (2, 4, 3),
    ),
    "transposed volumes": (
        ConvTranspose3d("t", out_channels=5, kernel=(2, 3, 2), stride=(2, 1, 2),
                        padding=(0, 2, 1)),
        lambda x, w, b: F.conv_transpose3d(x, torch_weight(w, 1), b, (2, 1, 2), (0, 2, 1)),
        (4, 3, 5, 4),
    ),
    "linear": (Linear("f", out_features=6), lambda x, w, b: F.linear(x, w, b), (7,)),
}


def whole_weights(layer: Layer, x: tuple[int, ...]) -> Any:
    return parameters(layer, x, np.float64, (0, layer.weight_shape(x)[0]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cuts",
                         [(1, 1, 1, 1, 1), (2, 1, 1, 1, 1), (1, 3, 1, 1, 1), (1, 1, 2, 3, 2),
                          (2, 2, 3, 2, 1), (4, 8, 1, 2, 3)])
@pytest.mark.parametrize("kind", PRODUCTS)
def test_product(kind: str, cuts: tuple[int, ...], dtype: Any) -> None:
    layer, function, sample = PRODUCTS[kind]
    x, dy = random(0, (3, *sample), dtype), random(9, (3, *layer.output_shape(sample)), dtype)
    p = whole_weights(layer, sample)
    want, (dx, dw, db) = reference(function, [x, p.weight, p.bias], dy)
    total_w, total_b = np.zeros(dw.shape, dtype), np.zeros(db.shape, dtype)
    ops = []
    for own in boxes(dy.shape, cuts[: dy.ndim]):
        part = parameters(layer, sample, dtype, own[1])
        op = make(layer, 3, [x], own, dy, p=part)
        op.forward()
        op.backward()
        op.backward_weight()
        total_w[slice(*own[1])] += part.dweight
        total_b[slice(*own[1])] += part.dbias
        ops.append(op)
    y, (got_dx,) = gather(ops, [x], dy)
    close(y, want)
    close(got_dx, dx)
    close(total_w, dw)
    close(total_b, db)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("parts", [2, 3, 9])
@pytest.mark.parametrize("kind", ["conv2d", "conv3d", "transposed", "transposed volumes", "linear"])
def test_product_with_a_cut_reduction(kind: str, parts: int, dtype: Any) -> None:
    """Each part has some of the input channels, the first the bias; the outputs are partial sums.
    """
    layer, function, sample = PRODUCTS[kind]
    x, dy = random(0, (2, *sample), dtype), random(9, (2, *layer.output_shape(sample)), dtype)
    p = whole_weights(layer, sample)
    want, (dx, dw, db) = reference(function, [x, p.weight, p.bias], dy)
    y, got_dx = np.zeros_like(dy), np.zeros_like(x)
    for own in boxes(dy.shape, (1, 2, *(1 for _ in dy.shape[2:]))):
        for k in range(parts):
            columns = block(sample[0], parts, k)
            part = parameters(layer, sample, dtype, own[1], columns)
            if k:
                part.bias = part.dbias = None
            need = (own[0], columns, *((0, extent) for extent in sample[1:]))
            op = make(layer, 2, [x], own, dy, (need,), part)
            op.forward()
            op.backward()
            op.backward_weight()
            y[at(own)] += op.blocks.y
            got_dx[at(need)] += op.blocks.dx
            close(part.dweight, dw[slice(*own[1]), slice(*columns)])
            if not k:
                close(part.dbias, db[slice(*own[1])])
    close(y, want)
    close(got_dx, dx)


@pytest.mark.parametrize("kind", ["conv2d", "conv3d", "transposed", "transposed groups"])
def test_interior_and_strips_make_the_block(kind: str) -> None:
    layer, function, sample = PRODUCTS[kind]
    x, dy = random(0, (2, *sample), np.float64), random(9, (2, *layer.output_shape(sample)),
                                                        np.float64)
    p = whole_weights(layer, sample)
    whole = tuple((0, extent) for extent in dy.shape)
    op = make(layer, 2, [x], whole, dy, p=p)
    for rows in ((0, 1), (1, 3), (3, dy.shape[2])):
        op.interior((*whole[:2], rows, *whole[3:]))
    close(op.blocks.y, reference(function, [x, p.weight, p.bias], dy)[0])


# -- numbers of channels ---------------------------------------------------------------------------
CHANNELWISE: dict[str, tuple[Layer, tuple[int, ...]]] = {
    "prelu": (PReLU("a"), (5, 4, 3)), "prelu, one number": (PReLU("a", shared=True), (5, 4, 3)),
    "scale": (ChannelScale("a"), (5, 4, 3)), "scale of features": (ChannelScale("a"), (7,)),
    "shift": (ChannelShift("a"), (5, 4, 3, 2)), "norm": (ChannelNorm("n"), (5, 4, 3)),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", CHANNELWISE)
def test_numbers_of_channels(kind: str, dtype: Any) -> None:
    """The whole; every cut runs in tests/mpi."""
    layer, sample = CHANNELWISE[kind]
    x, dy = random(0, (3, *sample), dtype), random(9, (3, *sample), dtype)
    p = parameters(layer, sample, dtype, (0, layer.weight_shape(sample)[0]))
    given = [x, p.weight, *([p.bias] if layer.bias_shape(sample) else [])]
    want, (dx, *gradients) = reference(
        lambda x, *weights: reference_layers.forward(layer, [x], list(weights)), given, dy)
    op = make(layer, 3, [x], tuple((0, extent) for extent in dy.shape), dy, p=p)
    op.forward()
    op.backward()
    op.backward_weight()
    close(op.blocks.y, want)
    close(op.blocks.dx, dx)
    for got, gradient in zip((p.dweight, p.dbias), gradients, strict=False):
        close(got, gradient)


def test_every_layer_kind_is_tested_or_elementwise() -> None:
    from hpcpar.runtime.ops.registry import _OPERATORS

    cases = (*PLAIN.values(), *PRODUCTS.values(), *CHANNELWISE.values())
    tested = {type(layer) for layer, *_ in cases} | {
        BatchNorm, GroupNorm, LayerNorm}
    own = [kind for kind in _OPERATORS if kind.__module__.startswith("hpcpar.")]
    untested = {kind.__name__ for kind in own if not any(issubclass(t, kind) for t in tested)}
    assert untested == {
        "DiceCrossEntropy", "Dropout", "Flatten", "LogisticCrossEntropy", "MeanSquaredError",
        "Outputs", "SoftmaxCrossEntropy"}


def test_long_kernels_tick() -> None:
    """Products and updates of large layers let communication progress every few milliseconds; small
    ones need not.
    """
    numpy, ticks = NumpyBackend(), []
    w, x = np.ones((4096, 2304), np.float32), np.ones((4, 2304), np.float32)
    y, grad, velocity = np.empty((4, 4096), np.float32), np.zeros_like(w), np.zeros_like(w)
    for long in (
        lambda tick: numpy.gemm(x, w, y, transpose_b=True, tick=tick),
        lambda tick: numpy.gemm(y, x, grad, transpose_a=True, tick=tick),
        lambda tick: numpy.gemm(y, w, x, tick=tick),
        lambda tick: [numpy.sgd_update(*parts, 0.1, 0.9, 0.0) for parts in numpy.blocks(
            (w.ravel(), grad.ravel(), velocity.ravel()), tick)],
    ):
        ticks.clear()
        long(lambda: ticks.append(1))
        assert 2 <= len(ticks) <= 10
    ticks.clear()
    numpy.gemm(x[:, :64], w[:64, :64], y[:, :64], tick=lambda: ticks.append(1))
    assert not ticks
