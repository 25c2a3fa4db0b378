"""Elementwise idioms and random formulas under random plans equal PyTorch."""

from __future__ import annotations

import importlib.util
import random
from typing import Any

import pytest

from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import world

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed (extra 'oracle')", allow_module_level=True)

import torch

from bench.random_networks import check_truth, truth_of
from hpcpar.network.layers import MeanSquaredError
from tests.idioms import IDIOMS, SHAPE, WHOLE, WIDTH, Between, module
from tests.reference_layers import function

SIZE = world().size
#: Each number of ranks has a share of them, without one with tied weights, which a random plan does
#: not cut alike.
NAMES = sorted({*IDIOMS, *WHOLE} - {"learned gate"})[SIZE % 3::3]
SEEDS = [100 * SIZE + i for i in range(8 if SIZE <= 4 else 3)]
ONE = ("abs", "asinh", "atan", "cos", "erf", "neg", "sigmoid", "sin", "softplus", "square", "tanh")
TWO = ("add", "maximum", "minimum", "mul", "sub")


def term(rng: random.Random, leaves: list[str], depth: int) -> Any:
    """A random nested term; the arguments of divisions and roots are at least 1."""
    if depth == 0:
        return rng.choice(leaves)

    def part() -> Any:
        return term(rng, leaves, depth - 1)

    draw = rng.random()
    if draw < 0.35:
        return rng.choice(ONE), part()
    if draw < 0.7:
        return rng.choice(TWO), part(), part()
    if draw < 0.8:
        return "where", ("greater", part(), part()), part(), part()
    positive = ("add", ("square", part()), 1.0)
    return rng.choice((("div", part(), positive), ("mul", part(), ("rsqrt", positive)),
                       ("log", positive), ("pow", positive, -0.7)))


def value(given: Any, names: dict[str, Any]) -> Any:
    """The value of a term in PyTorch."""
    if isinstance(given, tuple):
        return function(given[0])(*(value(part, names) for part in given[1:]))
    return names[given] if isinstance(given, str) else given


def random_formula(seed: int) -> Any:
    """A float64 module with a random term of one to three tensors and a parameter."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    branches = rng.randint(1, 3)
    dims = rng.choice(((1,), (WIDTH, 1, 1), (1, WIDTH, *SHAPE[1:]), (1, *SHAPE[1:]),
                       (WIDTH, 1, SHAPE[2])))
    leaves = [f"x{i}" for i in range(branches)]
    drawn = term(rng, leaves, 3)
    for leaf in leaves:
        drawn = ("add", drawn, ("tanh", leaf))

    def between(*given: Any) -> Any:
        return value(("mul", "w", ("sin", drawn)), dict(zip((*leaves, "w"), given, strict=True)))

    made = Between(between, branches, w=torch.randn(dims)).double()
    made(torch.zeros(1, *SHAPE, dtype=torch.float64))
    return made


@pytest.mark.parametrize("name", NAMES)
def test_an_idiom_equals_pytorch(name: str, communicator: Communicator) -> None:
    faults = check_truth(lambda: truth_of(module(name), SHAPE, 5, MeanSquaredError),
                         len(name), communicator)
    assert not faults, "; ".join(faults)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_formula_equals_pytorch(seed: int, communicator: Communicator) -> None:
    faults = check_truth(lambda: truth_of(random_formula(seed), SHAPE, 5, MeanSquaredError),
                         seed, communicator)
    assert not faults, "; ".join(faults)
