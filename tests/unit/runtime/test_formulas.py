"""Every operator of formulas: its value and derivatives equal PyTorch's in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpcpar.errors import InputError
from hpcpar.network.builder import Graph
from hpcpar.network.layers import Add, Conv2d, Flatten, Linear, Pointwise, SoftmaxCrossEntropy
from hpcpar.network.layers.elementwise_table import TABLE
from hpcpar.network.layers.formula import derivatives, formula
from hpcpar.network.spec import NetworkSpec
from tests.ops_support import at, make, parameters, random, torch
from tests.reference_layers import function

#: Operators whose argument must lie in another interval than [-2, 2].
POSITIVE = {"log", "log2", "log10", "sqrt", "rsqrt", "pow", "acosh"}
SMALL = {"acos", "asin", "atanh", "log1p"}


def inputs_of(op: str) -> list[Any]:
    """Inputs in the domain of the operator, some of them at the kinks of others."""
    rng = np.random.default_rng(3)
    xs = [np.round(rng.uniform(-2, 2, (3, 4, 5, 1)) * 8) / 8 + 1 / 64 for _ in TABLE[op].slopes]
    if len(xs) > 1:
        xs[-1][0] = xs[0][0]  # ties
    if op in POSITIVE:
        xs[0] = np.abs(xs[0]) + (1 if op == "acosh" else 0)
    return [x / 4 for x in xs] if op in SMALL else xs


@pytest.mark.parametrize("op", TABLE)
def test_an_operator_equals_pytorch(op: str) -> None:
    xs, dy = inputs_of(op), random(9, (3, 4, 5, 1), np.float64)
    names = [f"x{i}" for i in range(len(xs))]
    layer = Pointwise("p", tuple("abc"[: len(xs)]), steps=((op, *names),))
    assert layer.output_shape(*(x.shape[1:] for x in xs)) == (4, 5, 1)
    op_on_block = make(layer, 3, xs, tuple((0, n) for n in dy.shape), dy)
    op_on_block.forward()
    op_on_block.backward()
    given = [torch.from_numpy(x).requires_grad_() for x in xs]
    y = function(op)(*given)
    np.testing.assert_allclose(op_on_block.blocks.y, y.detach().numpy().astype(float), rtol=1e-13,
                               atol=1e-15)
    if y.requires_grad:
        y.backward(torch.from_numpy(dy))
    for x, dx in zip(given, op_on_block.blocks.dxs, strict=True):
        want = np.zeros_like(dx) if x.grad is None else x.grad.numpy()
        np.testing.assert_allclose(dx, want, rtol=1e-12, atol=1e-14)


def test_a_formula_keeps_no_input_that_its_derivative_does_not_read() -> None:
    linear = formula(("sub", ("mul", "x0", 2.0), ("neg", "x1")))
    assert Pointwise("p", ("a", "b"), steps=linear).backward_reads == ()
    squared = Pointwise("p", ("a",), steps=formula(("square", "x0")))
    assert squared.backward_reads == ("input",)
    learned = Pointwise("p", ("a",), steps=formula(("mul", "x0", "w")), parameter=(4,))
    assert learned.backward_reads == ("input",)  # the parameter's gradient reads it


def test_derivatives_share_steps_and_leave_out_what_they_do_not_need() -> None:
    steps = formula(("mul", ("exp", "x0"), ("exp", "x0")))
    assert steps == (("exp", "x0"), ("mul", "t0", "t0"))
    found, (gradient,) = derivatives(steps, ["x0"])
    assert [op for op, *_ in found] == ["exp", "mul", "add", "mul"]
    assert gradient == "t3"
    assert derivatives((("floor", "x0"),), ["x0"]) == ((), (0.0,))


def test_a_large_block_is_computed_in_pieces() -> None:
    """With a parameter that is cut along all axes, on the parts of an image."""
    layer = Pointwise("p", ("a",), parameter=(3, 6, 5), steps=formula(
        ("mul", "x0", ("sin", ("mul", "w", "x0")))))
    x, dy = random(1, (4, 3, 6, 5), np.float64), random(2, (4, 3, 6, 5), np.float64)
    box = ((0, 4), (0, 3), (2, 6), (0, 5))
    ops = [make(layer, 4, [x], box, dy, p=parameters(layer, x.shape[1:], np.float64, (0, 3)))
           for _ in range(2)]
    ops[1]._piece_items = 4
    assert len(list(ops[1]._pieces())) == 4 * 3 * 4 * 2
    for op in ops:
        op.forward()
        op.backward()
        op.backward_weight()
    w = ops[0].parameters.weight
    np.testing.assert_allclose(ops[1].blocks.y, (x * np.sin(w * x))[at(box)], rtol=1e-14)
    np.testing.assert_allclose(ops[1].blocks.dx, ops[0].blocks.dx, rtol=1e-14)
    np.testing.assert_allclose(ops[1].parameters.dweight, ops[0].parameters.dweight, rtol=1e-13)
    assert not ops[0].parameters.dweight[:, :2].any() and ops[0].parameters.dweight[:, 2:].all()


@pytest.mark.parametrize(("steps", "parameter", "message"), [
    ((), (), "it has no steps; give a list such as"),
    ((("exec", "x0"),), (), "step 0: unknown operator 'exec'; use one of abs, acos"),
    (((), ("exp", "x0")), (), "step 0: unknown operator ''"),
    ((("add", "x0"),), (), "step 0: 'add' has 1 arguments; give 2"),
    ((("exp", "x0"), ("add", "t0", "t1")), (), "step 1: 't1' is not defined; name an input"),
    ((("mul", "x0", "w"),), (), "step 0: 'w' is not defined"),
    ((("exp", "x1"),), (), "step 0: 'x1' is not defined"),
    ((("add", 1.0, 2.0), ("mul", "t0", "x0")), (), "step 0: 'add' reads only numbers"),
    ((("exp", "x0"), ("sin", "x0")), (), "nothing reads 't0'; leave it out"),
    ((("exp", "x0"),), (4,), "nothing reads 'w'; leave it out"),
    ((("mul", "x0", "w"),), (3,), "a parameter (3,) for samples (4, 6, 6); give it 1 or 3 axes"),
    ((("mul", "x0", "w"),), (4, 6), "a parameter (4, 6) for samples (4, 6, 6)"),
])
def test_a_fault_of_a_formula_is_one_line(steps: Any, parameter: Any, message: str) -> None:
    layer = Pointwise("p", ("a",), steps=steps, parameter=parameter)
    with pytest.raises(InputError) as err:
        layer.output_shape((4, 6, 6))
    assert str(err.value).startswith(f"layer 'p' (pointwise): {message}")
    assert "\n" not in str(err.value)


def small(**options: Any) -> Any:
    net = Graph("small", (2, 6, 6))
    x = net.add(Conv2d, "conv", out_channels=4, kernel=3, padding=1)
    y = net.add(Pointwise, "formula", **options)
    net.add(Add, "sum", after=(x, y))
    net.add(Flatten, "flat")
    net.add(Linear, "fc", out_features=3)
    net.add(SoftmaxCrossEntropy, "loss")
    return net.build()


def test_a_network_file_holds_a_formula() -> None:
    network = small(steps=(("exp", "x0"), ("mul", "t0", "w"), ("add", "t1", 1.0)), parameter=(4,))
    spec = NetworkSpec.of(network)
    (stored,) = [layer for layer in spec.to_json()["layers"] if layer["name"] == "formula"]
    assert stored == {"type": "Pointwise", "name": "formula", "inputs": ["conv"], "parameter": [4],
                      "steps": [["exp", "x0"], ["mul", "t0", "w"], ["add", "t1", 1.0]]}
    assert spec.build() == network
    stored["steps"] = [["exp", ["x0"]]]
    layers = [stored if layer["name"] == "formula" else layer
              for layer in spec.to_json()["layers"]]
    with pytest.raises(InputError) as err:
        NetworkSpec(spec.name, spec.shape, spec.classes, layers).build()
    assert "layer 3, 'steps', entry 1, entry 2: expected" in str(err.value)


def test_flops_and_traffic_follow_from_the_formula() -> None:
    layer = small(steps=(("exp", "x0"), ("add", "t0", 1.0))).by_name["formula"]
    assert layer.forward_flops((4, 6, 6)) == 9 * 4 * 36
    assert layer.work("backward").flops == 9 / 9  # exp again, and a product
    assert (layer.work("backward").inputs, layer.work("backward").outputs) == (2, 1)
    assert layer.variant(4, 4) == " exp+add"
