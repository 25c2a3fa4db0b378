"""Programs of parts that run whole: dropout of attention, and what a file cannot make them do."""

from __future__ import annotations

import json
from typing import Any

import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from hpcpar.errors import InputError  # noqa: E402
from hpcpar.network import from_torch  # noqa: E402
from hpcpar.network.aten import AtenProgram, _attention  # noqa: E402
from hpcpar.network.layers import Linear, MeanSquaredError, Whole  # noqa: E402
from hpcpar.network.read import program_of  # noqa: E402
from hpcpar.plan.boxes import whole_box  # noqa: E402
from tests.ops_support import make  # noqa: E402
from tests.whole_programs import attention  # noqa: E402


@pytest.mark.parametrize("options", [
    {}, {"is_causal": True}, {"scale": 0.3}, {"enable_gqa": True},
    {"attn_mask": torch.arange(35).reshape(5, 7) % 3 > 0},
    {"attn_mask": torch.linspace(-1, 1, 35, dtype=torch.float64).reshape(5, 7)}], ids=str)
def test_attention_with_dropout_of_nothing_equals_pytorchs(options: dict[str, Any]) -> None:
    heads = 2 if options.get("enable_gqa") else 4
    query = torch.randn(2, 4, 5, 6, dtype=torch.float64)
    key, value = torch.randn(2, 2, heads, 7, 6, dtype=torch.float64)
    seen = []

    def drop(shares: Any, axis: int, rate: float, number: int) -> Any:
        seen.append((tuple(shares.shape), axis, rate, number))
        return torch.ones_like(shares)

    expected = functional.scaled_dot_product_attention(query, key, value, **options)
    for given in (drop, None):
        got = _attention(given, 3, query, key, value, dropout_p=0.4, axis=0, **options)
        torch.testing.assert_close(got, expected)
    assert seen == [((2, 4, 5, 7), 0, 0.4, 3)]


@pytest.mark.parametrize("name", ["aten.from_file.default", "aten.relu_.default", "aten.no.default",
                                  "os.system", "aten.relu", "prims.abs.default"])
def test_only_operators_that_compute_are_called(name: str) -> None:
    text = json.dumps({"inputs": [[2]], "calls": [[name, {"self": "%x0"}]], "constants": [],
                       "drops": [0, 0], "state": []})
    with pytest.raises(InputError, match="that only computes; read the network again from"):
        AtenProgram(text)


@pytest.mark.parametrize("program", ["{", "{}", "[]", '{"calls": [[1]]}'])
def test_a_damaged_program_is_one_line(program: str) -> None:
    layer = Whole("part", ("x",), **attention((2,)) | {"program": program})
    x = torch.zeros(3, 2).numpy()
    with pytest.raises(InputError, match=r"layer 'part' \(whole\): its program is damaged") as err:
        make(layer, 3, [x], whole_box(x.shape), x)
    assert "\n" not in str(err.value)


class Table(nn.Module):
    """Sums of differences to the rows of a table."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("table", torch.randn(length, 4))

    def forward(self, x: Any) -> Any:
        return (self.linear(x)[:, None] - self.table).cumsum(1).sum(1)


def test_large_buffers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    network = from_torch(Table(5), (4,), MeanSquaredError)
    assert [type(layer) for layer in network.layers[1:-1]] == [Linear, Whole]
    monkeypatch.setattr(program_of, "MOST_BYTES", 79)
    with pytest.raises(InputError, match="its buffers have 0 MiB; at most 0 MiB are stored"):
        from_torch(Table(5), (4,), MeanSquaredError)


class Path(nn.Module):
    """Drop path, with or without the division by the share that is kept."""

    def __init__(self, divides: bool) -> None:
        super().__init__()
        self.divides = divides

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x
        factors = x.new_empty(len(x), *(1,) * (x.ndim - 1)).bernoulli_(0.75)
        return x * (factors.div_(0.75) if self.divides else factors)


class Block(nn.Module):
    """Attention on a path that is dropped for some samples."""

    def __init__(self, divides: bool = True) -> None:
        super().__init__()
        self.qkv, self.path, self.last = nn.Linear(3, 9), Path(divides), nn.Linear(3, 2)

    def mixed(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(x).chunk(3, 2)
        return functional.scaled_dot_product_attention(query, key, value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(2).transpose(1, 2)
        return self.last((x + self.path(self.mixed(x))).mean(1))


def test_drop_path_inside_of_a_part_is_a_dropout_of_samples() -> None:
    torch.manual_seed(0)
    block = Block()
    (layer,) = [layer for layer in from_torch(block, (3, 4, 5), MeanSquaredError).layers
                if isinstance(layer, Whole)]
    program, images = AtenProgram(layer.program), torch.randn(4, 3, 4, 5)
    weights = [block.qkv.weight, block.qkv.bias]
    factors = torch.tensor([0.0, 4 / 3, 4 / 3, 0.0])[:, None, None]
    seen = []

    def drop(ones: torch.Tensor, axis: int, rate: float, number: int) -> torch.Tensor:
        seen.append((tuple(ones.shape), axis, rate, number))
        return factors

    x = images.flatten(2).transpose(1, 2)
    for given, factor in ((drop, factors), (None, 1.0)):
        torch.testing.assert_close(program([images], weights, given),
                                   (x + factor * block.mixed(x)).mean(1))
    assert seen == [((4, 1, 1), 0, 0.25, 0)] and program.drops == (1, 1)


@pytest.mark.parametrize(("view", "axis", "shape"), [
    ((3, 2, 2, 5), 0, (4, 3, 1, 1, 1)), ((3, 4, 5), 1, (1, 4, 1, 1, 1))])
@pytest.mark.filterwarnings("ignore:dropout3d")
def test_channels_dropped_inside_of_a_part_are_a_dropout_of_ones(
        view: tuple[int, ...], axis: int, shape: tuple[int, ...]) -> None:
    """Dropout3d of 2-D images drops whole samples, as PyTorch takes their axis for channels."""
    def last(x: torch.Tensor) -> torch.Tensor:
        return x.sort(-1)[0] if x.ndim == 5 else x

    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout3d(0.25)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = last(self.drop(x.view(-1, *view)))
            return x.reshape(-1, 3, 4, 5).mean((2, 3))

    (layer,) = [layer for layer in from_torch(Dropped(), (3, 4, 5), MeanSquaredError).layers
                if isinstance(layer, Whole)]
    program, images = AtenProgram(layer.program), torch.randn(4, 3, 4, 5)
    factors, seen = torch.rand(shape), []

    def drop(ones: torch.Tensor, *values: Any) -> torch.Tensor:
        seen.append((tuple(ones.shape), *values))
        return factors

    for given, factor in ((drop, factors), (None, torch.ones(shape))):
        expected = images.view(-1, *view) * (factor if axis == 0 else factor[0])
        torch.testing.assert_close(program([images], [], given).flatten(),
                                   last(expected).flatten())
    assert seen == [(shape, axis, 0.25, 0)] and layer.random


def test_other_random_factors_inside_of_a_part_are_refused() -> None:
    with pytest.raises(InputError, match="does not divide it by the share that is kept"):
        from_torch(Block(divides=False), (3, 4, 5), MeanSquaredError)
