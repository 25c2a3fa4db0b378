"""Networks from PyTorch modules: `from_torch`, and modules as ``--network``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import hpcpar  # noqa: E402
from hpcpar.cli.main import main  # noqa: E402
from hpcpar.errors import InputError  # noqa: E402
from hpcpar.network import from_torch  # noqa: E402
from hpcpar.network.builder import Graph  # noqa: E402
from hpcpar.network.builtin import network  # noqa: E402
from hpcpar.network.layers import (  # noqa: E402
    Add,
    BatchNorm,
    Conv2d,
    GlobalAvgPool,
    Linear,
    MeanSquaredError,
    Outputs,
    Pad,
    ReLU,
    SoftmaxCrossEntropy,
)
from hpcpar.network.read.torch_module import traced  # noqa: E402

SHAPE = (3, 10, 12)


class Block(nn.Module):
    """A residual block as torchvision writes it: activations and sums work in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(4, momentum=0.2, affine=False)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Any) -> Any:
        y = self.bn(self.conv(x))
        y += x
        return self.relu(y)


class Small(nn.Module):
    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), nn.ReLU())
        self.block = Block()
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(4, classes)

    def forward(self, x: Any) -> Any:
        x = self.block(self.stem(x))
        return self.fc(torch.flatten(self.pool(x), 1))


def test_layers_are_named_as_the_modules() -> None:
    want = Graph("Small", SHAPE)
    want.add(Pad, "stem.0.pad", begin=(1, 1), end=(1, 1), mode="periodic")
    want.add(Conv2d, "stem.0", out_channels=4, kernel=3)
    x = want.add(ReLU, "stem.1")
    want.add(Conv2d, "block.conv", out_channels=4, kernel=3, padding=1, bias=False)
    y = want.add(BatchNorm, "block.bn", momentum=0.2, affine=False)
    want.add(Add, "block", after=(y, x))
    want.add(ReLU, "block.relu")
    want.add(GlobalAvgPool, "pool")
    want.add(Linear, "fc", out_features=5)
    want.add(SoftmaxCrossEntropy, "loss")
    module = Small().double().eval()
    assert from_torch(module, SHAPE) == want.build()
    assert not module.training and not module.block.bn.training
    assert from_torch(module, SHAPE, MeanSquaredError).layers[-1] == MeanSquaredError("loss",
                                                                                       ("fc",))


class Written(nn.Module):
    """A module of one function."""

    def __init__(self, function: Any, *parts: nn.Module) -> None:
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)

    def forward(self, x: Any) -> Any:
        return self.function(x, *self.parts)


def test_in_place_changes_are_read() -> None:
    """The convolution's readers after the activation in place read its result."""
    def forward(x: Any, conv: Any) -> Any:
        y = conv(x)
        functional.relu_(y)
        return (y + y.mul(2.0)).mean((2, 3))

    net = from_torch(Written(forward, nn.Conv2d(3, 4, 1)), SHAPE)
    relu = net.layers[2]
    assert relu.kind == "relu" and net.consumers[net.layers[1].name] == (relu.name,)
    assert [layer.inputs for layer in net.layers[3:5]] == [(relu.name,),
                                                           (relu.name, net.layers[3].name)]


def changed_under_a_view(x: Any) -> Any:
    y = torch.sin(x)
    before = y[:, :2]
    y[:, 0] = x[:, 1]
    return torch.cat([before, y], 1)


def frozen() -> nn.Module:
    module = Small()
    module.fc.weight.requires_grad_(False)
    return module


def test_frozen_layers_and_buffers_are_frozen_here() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(480, 2))
    module[:2].requires_grad_(False)
    net = from_torch(module, SHAPE)
    assert [layer.weights == "frozen" for layer in net.layers] == [
        layer.name in ("0", "1") for layer in net.layers]
    assert net.by_name["1"].has_weights and not net.by_name["1"].learns
    (note,) = net.notes
    assert note.startswith("the weights of 0, 1 are frozen: load the module's weights with")


def tied() -> nn.Module:
    a, b = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)
    b.weight = a.weight
    return nn.Sequential(a, b, nn.Flatten(), nn.Linear(360, 2))


@pytest.mark.parametrize("activation", [nn.ELU(), nn.SELU(), nn.Mish(), nn.GELU()])
def test_activations_of_channels_last_images(activation: nn.Module) -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), Written(lambda x: activation(
        x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)), nn.Flatten(), nn.Linear(4 * 36, 5))
    kinds = [layer.kind for layer in from_torch(module, (3, 8, 8)).layers]
    assert kinds[1] == "conv2d" and kinds[3:] == ["flatten", "linear", "softmax_cross_entropy"]


def test_untrained_parameters_are_noted() -> None:
    (note,) = from_torch(frozen(), SHAPE).notes
    assert ("(Gemm): a tensor used as weights has requires_grad=False: the layer can be planned, "
            "but not run") in note
    norm = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 3, 1))
    (note,) = from_torch(nn.Sequential(norm, nn.Flatten(), nn.Linear(360, 2)), SHAPE).notes
    assert "is computed from 0.parametrizations.weight.original0, 0.param" in note
    assert from_torch(Small(), SHAPE).notes == ()
    extra = Small()
    extra.more = nn.Conv2d(3, 3, 1)
    (note,) = from_torch(extra, SHAPE).notes
    assert note.startswith("the output does not depend on the parameters more.bias, more.weight;")


@pytest.mark.parametrize("module", [
    tied,
    lambda: Written(lambda x: torch.div(x, 2, rounding_mode="floor").flatten(1)),
    lambda: Written(lambda x: torch.round(x, decimals=1).flatten(1)),
    lambda: Written(lambda x: functional.avg_pool2d(x, 2, divisor_override=3).flatten(1)),
    lambda: Written(lambda x: functional.batch_norm(x, torch.zeros(3), torch.ones(3)).flatten(1)),
    lambda: Written(lambda x: x.unsqueeze(2).mean(2).flatten(1)),
    lambda: Written(lambda x: functional.max_pool2d(x.permute(0, 1, 3, 2), 2).flatten(1)),
    lambda: Written(lambda x: x.flatten(1).sort(1)[0]),
    lambda: nn.Sequential(nn.AdaptiveMaxPool2d(4), nn.Flatten()),
    lambda: nn.Sequential(nn.Upsample(scale_factor=1.25), nn.Flatten())])
def test_what_no_layer_describes_is_a_part(module: Any) -> None:
    network = from_torch(module(), SHAPE)
    assert [layer.kind for layer in network.layers].count("whole") == 1
    assert "PyTorch computes" in network.notes[-1]


def test_a_vector_may_belong_to_several_formulas() -> None:
    mean = torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1)
    network = from_torch(Written(lambda x: ((x - mean).relu() + mean).flatten(1)), SHAPE)
    assert [layer.kind for layer in network.layers[1:4]] == ["pointwise", "relu", "pointwise"]


def test_a_new_tensor_of_numbers_is_a_constant() -> None:
    """PyTorch exports it as a copy that is detached in place."""
    network = from_torch(Written(lambda x: (x * torch.tensor(
        [1.0, 2.0, 3.0]).view(3, 1, 1)).flatten(1)), SHAPE)
    assert [layer.kind for layer in network.layers[1:3]] == ["pointwise", "flatten"]


@pytest.mark.parametrize(("module", "message"), [
    (lambda: nn.BatchNorm2d(3, track_running_stats=False), "node 'batch_norm' (batch_norm.default):"
     " operator batch_norm.default is not supported; let it normalize by the batch when the module "
     "trains, and keep track_running_stats=True for its evaluation"),
    (lambda: nn.InstanceNorm2d(3, track_running_stats=True), "node 'instance_norm' (instance_norm."
     "default): operator instance_norm.default is not supported; leave track_running_stats=True "
     "out: each image has its own statistics"),
    (lambda: nn.BatchNorm2d(3, momentum=None), "averages its statistics over all batches "
     "(momentum=None), which cannot be read; give it a number"),
    (lambda: Written(lambda x: checkpoint(torch.relu, x.mean((2, 3)), use_reentrant=True)),
     "checkpoint(..., use_reentrant=True) hides its gradients; call checkpoint with"),
    (lambda: Written(lambda x: (x, x)), "returns 2 tensors in training, but a "
     "network has one output"),
    (lambda: Written(lambda x: x.mean((2, 3)) if x.sum() > 0 else x), "a branch or a size in its "
     "forward pass depends on values of tensors (test_torch_module.py, line"),
    (lambda: Written(lambda x: nn.Linear(5, 6)(x.flatten(1))), "torch.export cannot trace it on "
     "samples (3, 10, 12) (RuntimeError: a and b must have same reduction dim, but got"),
    (lambda: Written(lambda x: x.cumsum(0).cumsum(1).mean((2, 3))), "(cumsum): "
     "operator cumsum is not supported; leave it out, or use one from docs/reference/networks.md; "
     "as a layer of its own: its result for a sample depends on the other samples"),
    (lambda: Written(lambda x: x + x.flip(0)), "its result for a sample depends on the other"),
    (lambda: Written(lambda x: (x + torch.bernoulli(x)).flatten(1)), "aten.bernoulli.default draws "
     "random numbers; only dropout, attention's dropout, rand, randn, rand_like and randn_like"),
    (lambda: Written(lambda x: x.mean()), "(mean.default): operator mean.default is not supported"),
    (lambda: Written(lambda x: x.flatten(0)), "is not supported; keep the values of each sample"),
    (lambda: Written(changed_under_a_view), "changes a tensor in place that has other views"),
    (lambda: Written(lambda x: x + torch.ones(x.nonzero().shape[0]).sum()),
     "computes with a size that depends on values"),
])
def test_unsupported_modules_are_named(module: Any, message: str,
                                       capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError) as err:
        from_torch(module(), SHAPE)
    assert message in str(err.value) and "\n" not in str(err.value)
    assert not capsys.readouterr().err


def test_pooled_features_as_the_output_are_planned() -> None:
    """One weird trick switches at the loss, where nothing is left to run in passes."""
    module = nn.Sequential(nn.Conv2d(3, 6, 3), nn.AdaptiveAvgPool2d(1))
    network = traced(module, SHAPE, Outputs).network
    assert hpcpar.plan(network, ranks=2, batch=8, strategy="auto").plan.ranks == 2


MODEL = '''
import torch.nn as nn
from helper import widths

class Plain(nn.Module):
    def __init__(self, num_classes=7):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, widths[0], 3), nn.Linear(widths[0], num_classes)

    def forward(self, x):
        return self.fc(self.conv(x).mean((2, 3)))

def make():
    return Plain()

def sized(shape=(3, 9, 9), classes=4):
    return Plain(classes)
'''


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A file outside of the current directory, which imports a file beside it."""
    name = f"model_{abs(hash(tmp_path))}.py"
    (tmp_path / name).write_text(MODEL.replace("helper", f"helper_{abs(hash(tmp_path))}"))
    (tmp_path / f"helper_{abs(hash(tmp_path))}.py").write_text("widths = (6,)")
    return str(tmp_path / name)


def test_modules_on_the_command_line(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The file's path, its class, and a module of the current directory."""
    options = ["--ranks", "2", "--batch", "4", "--strategy", "data"]
    assert main(["plan", "--network", f"{model}:make", "--input", "3x8x8", *options]) == 0
    assert main(["plan", "--network", f"{model}:make", *options]) == 2
    assert "does not state its image size; give --input" in capsys.readouterr().err
    assert network(f"{model}:make", (3, 8, 8)).classes == 7
    assert network(f"{model}:Plain", (3, 8, 8), 3).classes == 3
    assert network(f"{model}:sized").image_shape == (3, 9, 9)
    with pytest.raises(InputError, match="has 7 outputs, not 3; leave --classes out"):
        network(f"{model}:make", (3, 8, 8), 3)
    with pytest.raises(InputError, match=r"network 'none\.py': no such file"):
        network("none.py:make", (3, 8, 8))


def test_a_softplus_that_ends_early_is_not_translated() -> None:
    """Beyond the threshold it is the identity. Layers of other tests may take the operator."""
    values = {"self": Tensor("x"), "beta": 1.0, "threshold": 20.0}
    call = Call("softplus", "y", values, (3, 4, 4), (3, 4, 4))
    assert _softplus(call)[0] == "Softplus"
    with pytest.raises(UnknownCall):
        _softplus(replace(call, values=values | {"threshold": 5.0}))
from hpcpar.network.read.torch_call import Call, Tensor, UnknownCall  # noqa: E402
from hpcpar.network.read.torch_ops import _softplus  # noqa: E402
from hpcpar.network.source import load  # noqa: E402


def test_all_plans_of_an_unseeded_module_start_alike(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text("""from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.MultiheadAttention(3, 1, batch_first=True)
    def forward(self, x):
        t = x.flatten(2).transpose(1, 2)
        return self.a(t, t, t, need_weights=False)[0].mean(1)
""")
    first, second = (load(f"{file}:Net", (3, 4, 4)) for _ in range(2))
    assert first == second
