"""Layers from outside the package are planned, searched, priced, stored and imported."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import hpcpar
from hpcpar.errors import InputError
from hpcpar.network.graph import Network
from hpcpar.plan import plan as plans
from tests.limits import LIMIT_S
from tests.mpi.zoo import own
from tests.strategies import named

MODULE = str(Path(__file__).parents[1] / "own_layers.py")
NETWORK = '''"""A network with them."""
from hpcpar.network.builder import Graph
from hpcpar.network.layers import Conv2d, Flatten, Linear, SoftmaxCrossEntropy
from own_layers import Blur, Softplus


def build():
    net = Graph("blurred", (1, 12, 12))
    net.add(Conv2d, "conv", out_channels=4, kernel=3)
    net.add(Softplus, "plus")
    net.add(Blur, "blur", stride=2)
    net.add(Flatten, "flat")
    net.add(Linear, "fc", out_features=10)
    net.add(SoftmaxCrossEntropy, "loss")
    return net.build()
'''


@pytest.mark.parametrize("strategy", [*named(4), "auto", "layerwise"])
def test_outside_layers_are_planned_priced_and_stored(strategy: str, tmp_path: Path) -> None:
    made = hpcpar.plan(own(), 4, 16, "p100x4x4", strategy)
    again = hpcpar.simulate(made.plan).simulated.played
    assert again.mean_s == pytest.approx(made.prediction.iteration_s, rel=1e-9)
    path = str(tmp_path / "plan.json")
    made.save(path)
    assert plans.load(path) == made.plan
    assert plans.load(path).network.build() == own()


def _hpcpar(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "hpcpar", *words], cwd=folder, text=True,
                          capture_output=True, timeout=LIMIT_S)


def test_the_command_line_reads_outside_layers_of_a_named_module(tmp_path: Path) -> None:
    (tmp_path / "blurred.py").write_text(NETWORK)
    (tmp_path / "own_layers.py").write_text(Path(MODULE).read_text())
    made = _hpcpar(tmp_path, "plan", "--network", "blurred.py:build", "--ranks", "2", "--batch",
                   "4", "--machine", "local", "-o", "plan.json")
    assert made.returncode == 0, made.stderr
    (tmp_path / "blurred.py").unlink()
    for name in ("own_layers", "own_layers.py"):
        assert _hpcpar(tmp_path, "simulate", "--plan", "plan.json", "--layers", name
                       ).returncode == 0
    refused = _hpcpar(tmp_path, "simulate", "--plan", "plan.json")
    assert refused.returncode == 2 and len(refused.stderr.splitlines()) == 1
    assert "unknown type 'own_layers.Softplus'" in refused.stderr and "--layers" in refused.stderr
    wrong = _hpcpar(tmp_path, "simulate", "--plan", "plan.json", "--layers", "own_layer")
    assert wrong.returncode == 2 and "--layers own_layer: cannot import it" in wrong.stderr


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_pytorch_modules_become_outside_layers() -> None:
    from torch import nn

    from hpcpar.network.read.torch_module import from_torch

    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Softplus(), nn.Flatten(), nn.Linear(400, 10))
    network = from_torch(module, (1, 12, 12))
    assert [layer.kind for layer in network.layers] == [
        "input", "conv2d", "softplus", "flatten", "linear", "softmax_cross_entropy"]


def test_a_layer_without_operator_is_refused_before_it_runs() -> None:
    from hpcpar.runtime.ops.registry import operator_of
    from tests.unit.network.test_spec import Nameless

    with pytest.raises(InputError, match=r"layer 'a' is a Nameless, but no operator computes it; "
                       r"register one with @operator\(Nameless\)"):
        operator_of(Nameless("a", ("input",)))


def test_layers_with_larger_kernels_cost_more() -> None:
    network = own()
    blur = network.by_name["blur2"]
    wide = replace(blur, kernel=(5, 5), padding=(2, 2))
    other = Network("wide", tuple(wide if layer is blur else layer for layer in network.layers))
    own_s, wide_s = (hpcpar.plan(each, 2, 16, "p100x4x4", "data").prediction.iteration_s
                     for each in (network, other))
    assert wide_s > own_s
