"""Layers on blocks, whole and cut by hand, against PyTorch (see ops_support): pooling, merging,
products.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from hpcpar.kernels.numpy_backend import NumpyBackend
from hpcpar.network.layers import (
    Activation,
    Add,
    Concat,
    Dropout,
    Layer,
    Loss,
    Multiply,
    Shape,
    Upsample,
)
from hpcpar.plan.boxes import block, whole_box
from tests.layer_cases import TESTED, cases
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
)
from tests.reference_layers import forward

CASES = cases(2)
#: Numbers of parts of samples, channels, and axes of the image; some parts are empty.
CUTS = [(1, 1, 1, 1, 1), (2, 1, 1, 1, 1), (1, 3, 1, 1, 1), (1, 1, 2, 3, 2), (2, 2, 3, 2, 1),
        (5, 11, 1, 2, 3)]


@functools.cache
def case(name: str) -> tuple[Layer, tuple[Shape, ...]]:
    """A layer, and the shapes of its inputs."""
    network = CASES[name].network()
    return network.by_name[TESTED], network.input_shapes(network.by_name[TESTED])


def computed(name: str) -> bool:
    """Whether a block of the layer is computed from its inputs alone."""
    layer = CASES[name].layer
    return not layer.statistics and not issubclass(layer, Loss | Dropout)


PRODUCTS = [name for name in CASES if computed(name) and case(name)[0].is_matmul]
CHANNELWISE = [name for name in CASES
               if computed(name) and case(name)[0].has_weights and name not in PRODUCTS]
PLAIN = [name for name in CASES if computed(name) and not case(name)[0].has_weights]

#: Layers on inputs that `CASES` does not have.
OTHER_SHAPES: dict[str, tuple[Layer, tuple[Shape, ...]]] = {
    "bilinear with corners, of one column": (
        Upsample("u", scale=(4, 2), mode="linear", align_corners=True), ((3, 5, 1),)),
    "trilinear": (Upsample("u", scale=(2, 1, 3), mode="linear"), ((2, 3, 4, 2),)),
    "add features": (Add("a", ("i", "j")), ((7,), (7,))),
    "multiply features": (Multiply("m", ("i", "j")), ((7,), (7,))),
    "concat unequal channels": (Concat("c", ("i", "j", "k"), (3, 1, 6)),
                                ((3, 4, 3), (1, 4, 3), (6, 4, 3))),
}


def data(layer: Layer, shapes: tuple[Shape, ...], dtype: Any) -> tuple[list[Any], Any]:
    """Three samples of each input, and the gradient of the output."""
    inputs = [random(i, (3, *shape), dtype) for i, shape in enumerate(shapes)]
    return inputs, random(9, (3, *layer.output_shape(*shapes)), dtype)


# -- layers without weights ------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("name", PLAIN)
def test_blocks_of_layers_without_weights_equal_pytorch(name: str, cuts: tuple[int, ...],
                                                        dtype: Any) -> None:
    compare_blocks(*case(name), cuts, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("name", OTHER_SHAPES)
def test_blocks_of_other_shapes_equal_pytorch(name: str, cuts: tuple[int, ...], dtype: Any) -> None:
    compare_blocks(*OTHER_SHAPES[name], cuts, dtype)


def compare_blocks(layer: Layer, shapes: tuple[Shape, ...], cuts: tuple[int, ...],
                   dtype: Any) -> None:
    """Both passes of a layer without weights, on every block of these cuts."""
    inputs, dy = data(layer, shapes, dtype)
    want, gradients = reference(lambda *xs: forward(layer, list(xs), []), inputs, dy)
    ops = [make(layer, 3, inputs, own, dy)
           for own in boxes(dy.shape, cuts[: dy.ndim], layer.granule(shapes[0]))]
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


@pytest.mark.parametrize("name", [
    name for name in PLAIN
    if issubclass(CASES[name].layer, Activation) and "input" not in case(name)[0].backward_reads])
def test_activations_that_keep_no_input_work_in_place(name: str) -> None:
    layer, _ = case(name)
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
def weights(layer: Layer, sample: Shape, dtype: Any) -> Any:
    """All weights of a layer."""
    return parameters(layer, sample, dtype, (0, layer.weight_shape(sample)[0]))


def whole(layer: Layer, x: np.ndarray, dy: np.ndarray) -> tuple[Any, Any, list[Any]]:
    """Output, input gradient and gradients of weight and bias, by PyTorch."""
    p = weights(layer, x.shape[1:], np.float64)
    given = [w for w in (p.weight, p.bias) if w is not None]
    want, (dx, *gradients) = reference(lambda x, *ws: forward(layer, [x], list(ws)), [x, *given],
                                       dy)
    return want, dx, gradients


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("name", PRODUCTS)
def test_blocks_of_products_equal_pytorch(name: str, cuts: tuple[int, ...], dtype: Any) -> None:
    layer, (sample,) = case(name)
    (x,), dy = data(layer, (sample,), dtype)
    want, dx, gradients = whole(layer, x, dy)
    totals, ops = [np.zeros(gradient.shape, dtype) for gradient in gradients], []
    for own in boxes(dy.shape, cuts[: dy.ndim]):
        part = parameters(layer, sample, dtype, own[1])
        op = make(layer, 3, [x], own, dy, p=part)
        op.forward()
        op.backward()
        op.backward_weight()
        for total, gradient in zip(totals, (part.dweight, part.dbias), strict=False):
            total[slice(*own[1])] += gradient
        ops.append(op)
    y, (got_dx,) = gather(ops, [x], dy)
    for got, wanted in zip((y, got_dx, *totals), (want, dx, *gradients), strict=True):
        close(got, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("parts", [2, 3, 9])
@pytest.mark.parametrize("name", [name for name in PRODUCTS
                                  if CASES[name].options.get("groups", 1) == 1])
def test_parts_of_a_cut_reduction_add_up(name: str, parts: int, dtype: Any) -> None:
    """Each part has some of the input channels, the first part also the bias."""
    layer, (sample,) = case(name)
    (x,), dy = data(layer, (sample,), dtype)
    want, dx, (dw, db) = whole(layer, x, dy)
    y, got_dx = np.zeros_like(dy), np.zeros_like(x)
    for own in boxes(dy.shape, (1, 2, *(1 for _ in dy.shape[2:]))):
        for k in range(parts):
            columns = block(sample[0], parts, k)
            part = parameters(layer, sample, dtype, own[1], columns)
            if k:
                part.bias = part.dbias = None
            need = (own[0], columns, *((0, extent) for extent in sample[1:]))
            op = make(layer, 3, [x], own, dy, (need,), part)
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


@pytest.mark.parametrize("name", [name for name in PRODUCTS
                                  if CASES[name].dimensions > 1])
def test_interior_and_strips_make_the_block(name: str) -> None:
    layer, (sample,) = case(name)
    (x,), dy = data(layer, (sample,), np.float64)
    own = whole_box(dy.shape)
    op = make(layer, 3, [x], own, dy, p=weights(layer, sample, np.float64))
    for rows in ((0, 1), (1, 3), (3, dy.shape[2])):
        op.interior((*own[:2], rows, *own[3:]))
    close(op.blocks.y, whole(layer, x, dy)[0])


# -- numbers of channels ---------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CHANNELWISE)
def test_numbers_of_channels_equal_pytorch(name: str, dtype: Any) -> None:
    """The whole layer; tests/mpi has every cut."""
    layer, (sample, *_) = case(name)
    inputs, dy = data(layer, case(name)[1], dtype)
    p = weights(layer, sample, dtype)
    count, given = len(inputs), [*inputs, p.weight, *([] if p.bias is None else [p.bias])]
    want, gradients = reference(
        lambda *all: forward(layer, list(all[:count]), list(all[count:])), given, dy)
    op = make(layer, 3, inputs, whole_box(dy.shape), dy, p=p)
    op.forward()
    op.backward()
    op.backward_weight()
    close(op.blocks.y, want)
    for got, gradient in zip((*op.blocks.dxs, p.dweight, p.dbias), gradients, strict=False):
        close(got, gradient)


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
