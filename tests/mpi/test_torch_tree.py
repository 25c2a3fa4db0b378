"""`hpcpar.torch` keeps the user's tree of modules; what changes in it counts, or is refused."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

from hpcpar.errors import InputError

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed (extra 'oracle')", allow_module_level=True)

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import swa_utils

import hpcpar.torch
from tests.mpi import test_torch
from tests.mpi.test_torch import SIZE, close, loss_of, parallel, train

batch = test_torch.batch
STRATEGIES = ["data", "filter", "spatial"]


class Block(nn.Module):
    """Convolution, normalization, dropout and an option."""

    def __init__(self, channels: int, drop: float) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 6, 3, padding=1)
        self.norm, self.drop, self.slope = nn.BatchNorm2d(6), nn.Dropout(drop), 0.1

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(functional.leaky_relu(self.norm(self.conv(x)), self.slope))


class Blocks(nn.Module):
    """A stem and a block, tied weights, a part without layers, and a parameter that the forward
    pass does not read.
    """

    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        self.stem, self.block = Block(2, drop), Block(6, drop)
        self.twin = nn.Conv2d(6, 6, 3, padding=1)
        self.twin.weight, self.twin.bias = self.block.conv.weight, self.block.conv.bias
        self.last, self.unused = nn.Linear(6 * 36, 5), nn.Parameter(torch.ones(3))
        self.shortcut = nn.Sequential()  # without layers, as of residual networks

    def forward(self, x: Tensor) -> Tensor:
        x = self.shortcut(x)
        x = functional.max_pool2d(self.twin(self.block(self.stem(x))), 2)
        return self.last(x.flatten(1))


class HeadOnly(Blocks):
    """Its stem never leaves evaluation mode, as of published backbones."""

    def train(self, mode: bool = True) -> HeadOnly:
        super().train(mode)
        self.stem.eval()
        return self


@pytest.fixture
def module() -> Blocks:
    torch.manual_seed(3)
    return Blocks().double()


def equal(model: Any, module: nn.Module) -> bool:
    state = model.state_dict()
    return list(state) == list(module.state_dict()) and all(
        close(state[name], value) for name, value in module.state_dict().items())


def both(model: Any, module: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    """Three steps of both with weight decay, which shows a gradient that is not None."""
    train(model, module, batch, [torch.optim.SGD(
        [p for p in each.parameters() if p.requires_grad], 0.1, weight_decay=0.1)
        for each in (model, module)])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_model_has_the_modules_of_the_user(strategy: str, module: Blocks) -> None:
    """Classes, names and attributes; parameters are the executor's."""
    model = parallel(module, strategy)
    for name, part in [*module.named_modules()][1:]:
        ours = model.get_submodule(name)
        assert type(ours) is type(part) and ours is not part
        assert ours.extra_repr() == part.extra_repr()
    for names in "named_parameters", "named_buffers", "named_modules":
        assert [name for name, _ in getattr(model, names)()] == [
            name for name, _ in getattr(module, names)()]
    assert model.get_submodule("twin").weight is model.get_submodule("block.conv").weight
    assert model.get_submodule("block").slope == 0.1
    shared = model.engine.executor.parameters
    for name, p in model.named_parameters():
        if name != "unused" and p.numel() and not model.engine.communicator.backend.works_later:
            flat = shared[model.tensor_places[name].layer.name].flat
            assert 0 <= p.data_ptr() - flat.ctypes.data < flat.nbytes


def freeze_norms(net: nn.Module) -> None:
    """As guides to finetuning write it."""
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.eval()
            part.weight.requires_grad_(False)
            part.bias.requires_grad_(False)


def rest_stem(net: nn.Module) -> None:
    net.get_submodule("stem").eval()


def slow_norms(net: nn.Module) -> None:
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.momentum = 0.01


def freeze_convolutions(net: nn.Module) -> None:
    for part in net.modules():
        if isinstance(part, nn.Conv2d):
            part.requires_grad_(False)


CHANGES = [freeze_norms, rest_stem, slow_norms, freeze_convolutions]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("when", ["before", "after"])
def test_changes_by_type_train_as_in_pytorch(when: str, change: Callable[[nn.Module], None],
                                             strategy: str, module: Blocks,
                                             batch: tuple[Tensor, Tensor]) -> None:
    """Running statistics differ from a batch's after a few steps."""
    warm = parallel(module, strategy)
    both(warm, module, batch)
    change(module)
    model = parallel(module, strategy) if when == "before" else warm
    if when == "after":
        change(model)
    both(model, module, batch)
    assert equal(model, module)
    y = hpcpar.torch.gather(model.eval()(batch[0]), model)
    assert close(y, module.eval()(batch[0]).detach())
    both(model.train(), module.train(), batch)
    assert equal(model, module)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_users_own_train_counts(strategy: str, batch: tuple[Tensor, Tensor]) -> None:
    torch.manual_seed(3)
    module = HeadOnly().double()
    model = parallel(module, strategy)
    module.load_state_dict(model.state_dict())
    for _ in range(2):
        both(model.train(), module.train(), batch)
        assert equal(model, module) and not model.get_submodule("stem.norm").training
        assert not model.eval().get_submodule("block").training
        module.eval()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_resting_dropout_drops_nothing(strategy: str, batch: tuple[Tensor, Tensor]) -> None:
    torch.manual_seed(3)
    module = Blocks(0.5).double()
    model = parallel(module, strategy)
    module.load_state_dict(model.state_dict())
    for net in model, module:
        for part in net.modules():
            if isinstance(part, nn.Dropout):
                part.eval()
    both(model, module, batch)
    assert equal(model, module)
    model.train()
    y, z = (hpcpar.torch.gather(model(batch[0]), model).detach() for _ in range(2))
    assert not close(y, z)  # it drops again


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("averaged", [False, True])
def test_update_bn_takes_the_mean_over_batches(averaged: bool, strategy: str, module: Blocks,
                                               batch: tuple[Tensor, Tensor]) -> None:
    model = parallel(module, strategy)
    both(model, module, batch)
    nets = [swa_utils.AveragedModel(each) if averaged else each for each in (model, module)]
    loader = [(batch[0] * scale, batch[1]) for scale in (1, 2, 3)]
    for net in nets:
        swa_utils.update_bn(loader, net)
    states = [net.state_dict() for net in nets]
    assert all(close(value, states[1][name]) for name, value in states[0].items())
    both(*(getattr(net, "module", net) for net in nets), batch)


@pytest.mark.skipif(SIZE not in (2, 3), reason="pipelines of two or three stages")
def test_update_bn_needs_whole_batches(batch: tuple[Tensor, Tensor]) -> None:
    model = parallel(nn.Sequential(nn.BatchNorm2d(2), *test_torch.plain()), "pipeline",
                     microbatches=2)
    model.get_submodule("0").momentum = None
    with pytest.raises(InputError, match=r"'0' averages its statistics .* with microbatches=1"):
        model(batch[0])


def forward_hook(model: Any) -> None:
    model.get_submodule("stem").register_forward_hook(lambda *args: None)


def backward_hook(model: Any) -> None:
    model.get_submodule("stem").register_full_backward_hook(lambda *args: None)


def hook_of_a_tensor(model: Any) -> None:
    model.get_submodule("last").weight.register_hook(lambda gradient: None)


def other_option(model: Any) -> None:
    model.get_submodule("stem").slope = 0.2


def other_rate(model: Any) -> None:
    model.get_submodule("stem.drop").p = 0.3


def other_layer(model: Any) -> None:
    model.last = nn.Linear(6 * 36, 5).double()


def new_layer(model: Any) -> None:
    model.more = nn.Linear(6 * 36, 5).double()


def other_parameter(model: Any) -> None:
    model.get_submodule("last").weight = nn.Parameter(torch.zeros(5, 6 * 36, dtype=torch.float64))


def other_memory(model: Any) -> None:
    weight = model.get_submodule("last").weight
    weight.data = weight.data.clamp(-0.01, 0.01)


def other_forward(model: Any) -> None:
    model.get_submodule("stem").forward = lambda x: x


REFUSED = {forward_hook: r"'stem' has a hook \(forward_hooks\), which would never be called",
           backward_hook: r"'stem' has a hook \(backward_hooks\), which would never be called",
           hook_of_a_tensor: r"'last.weight' has a hook \(of its gradient\)",
           other_option: "'stem.slope' has changed since hpcpar.torch.parallelize",
           other_rate: "'stem.drop.p' has changed since", other_layer: "'last' has changed since",
           new_layer: "'more' has changed", other_parameter: "'last.weight' has changed since",
           other_memory: "'last.weight' is not in the executor's memory any more: change it in",
           other_forward: "'stem.forward' has changed"}


@pytest.mark.parametrize("change", REFUSED)
def test_a_change_that_would_not_count_is_refused(change: Callable[[Any], None], module: Blocks,
                                                  batch: tuple[Tensor, Tensor]) -> None:
    model = parallel(module)
    assert model(batch[0]).requires_grad
    change(model)
    calls: list[Any] = [lambda: model(batch[0]), lambda: model.eval()(batch[0]),
                        lambda: model.step(*batch, loss_of(model))]
    if change in (other_layer, new_layer, other_parameter, other_memory):
        calls += [model.state_dict, lambda: copy.deepcopy(model)]
    for call in calls:
        with pytest.raises(InputError, match=REFUSED[change]):
            call()


def test_a_layer_cannot_be_called_by_itself(module: Blocks, batch: tuple[Tensor, Tensor]) -> None:
    model = parallel(module)
    stem = model.get_submodule("stem")
    for call in lambda: stem(batch[0]), stem.state_dict, lambda: stem.load_state_dict({}):
        with pytest.raises(InputError, match=r"'stem' cannot be .* by itself, because its weights"):
            call()


def test_a_layer_that_was_frozen_cannot_train(module: Blocks, batch: tuple[Tensor, Tensor]) -> None:
    module.last.requires_grad_(False)
    model = parallel(module)
    assert model(batch[0]).requires_grad
    model.get_submodule("last").requires_grad_(True)
    with pytest.raises(InputError, match=r"'last.weight' was frozen in hpcpar.torch.parallelize"):
        model(batch[0])


@pytest.mark.parametrize("layer", ["stem.norm", "stem.drop"])
def test_a_layer_that_trains_in_an_evaluation_is_refused(layer: str,
                                                         batch: tuple[Tensor, Tensor]) -> None:
    """As samples of dropout in evaluations would."""
    model = parallel(Blocks(0.5)).eval()
    model(batch[0])
    model.get_submodule(layer).train()
    with pytest.raises(InputError, match=f"'{layer}' is in training mode and the model in eval"):
        model(batch[0])


class Attention(nn.Module):
    """A part that no layer describes, with dropout, behind a batch normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(2)
        self.mix = nn.TransformerEncoderLayer(2, 1, 4, 0.3, batch_first=True)
        self.last = nn.Linear(2, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.mix(self.norm(x).flatten(2).transpose(1, 2)).mean(1))


@pytest.mark.parametrize("layer", ["mix.dropout", "mix.self_attn"])
def test_a_part_that_runs_whole_has_one_mode(layer: str, batch: tuple[Tensor, Tensor]) -> None:
    model = parallel(Attention(), "data")
    model.get_submodule("norm").eval()
    assert model(batch[0]).requires_grad
    model.get_submodule(layer).eval()
    with pytest.raises(InputError, match=f"'{layer}' is in evaluation .* part that runs whole"):
        model(batch[0])
    model.eval().get_submodule(layer).train()
    with pytest.raises(InputError, match=f"'{layer}' is in training mode and the model in eval"):
        model(batch[0])


def test_hooks_of_the_module_are_noted(module: Blocks, capsys: pytest.CaptureFixture[str],
                                       batch: tuple[Tensor, Tensor]) -> None:
    """The plan has what hooks compute on outputs."""
    module.stem.register_forward_hook(lambda part, args, y: 2 * y)
    model = parallel(module)
    note = "hooks of stem ran while the module was traced, and are not called again"
    shown = capsys.readouterr()
    assert (note in shown.out + shown.err) == (model.rank == 0)
    both(model, module, batch)
    assert equal(model, module)
