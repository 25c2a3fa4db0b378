"""Networks from the user's functions, and the command that shows networks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from hpcpar.cli.main import main
from hpcpar.errors import InputError
from hpcpar.network.builtin import network

TEXT = '''
from hpcpar.network.builder import Chain, Graph
from hpcpar.network.graph import Network
from hpcpar.network.layers import *  # noqa: F403

HERE = 3

def build(shape=(3, 8, 8), classes=5):
    net = Graph("mine", shape)
    x = net.add(Conv2d, "conv", out_channels=3, kernel=3, padding=1)
    net.add(Add, "sum", after=("input", x))
    net.add(Flatten, "flat")
    net.add(Linear, "fc", out_features=classes)
    net.add(SoftmaxCrossEntropy, "loss")
    return net.build()

def fixed():
    return build()

def anything(**options):
    return build(**options)

def required(shape, classes, depth):
    return build(shape, classes)

def unbuilt():
    return Chain("x", (3,))

def nothing():
    return None

def bad():
    raise KeyError("a\\nb")

def leaves():
    raise SystemExit(3)

def too_small(shape=(3, 8, 8)):
    return Graph("x", shape).add(MaxPool2d, "pool", kernel=9)

class Both:
    def __call__(self): pass
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a module in the current directory."""
    monkeypatch.chdir(tmp_path)
    name = f"networks_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(TEXT)
    return name


def test_a_function_of_the_current_directory_is_found(module: str) -> None:
    before = list(sys.path)
    net = network(f"{module}:build")
    assert net.parameters == 84 + 193 * 5
    assert (net.image_shape, net.classes) == ((3, 8, 8), 5)
    other = network(f"{module}:build", (3, 4, 4), 2)
    assert (other.image_shape, other.classes) == ((3, 4, 4), 2)
    assert network(f"{module}:fixed", (3, 8, 8),
                   5) == network(f"{module}:fixed") == network(f"{module}:build")
    assert sys.path == before


@pytest.mark.parametrize(
    ("name", "shape", "classes", "message"),
    [
        ("no_such_module_here:build", None, None,
         "cannot import 'no_such_module_here' (ModuleNotFoundError"),
        ("MODULE:biuld", None, None, "did you mean 'build'?"),
        ("MODULE:HERE", None, None, "'HERE' is a int, not a function"),
        ("MODULE:", None, None, "write module:function"),
        (":build", None, None, "write module:function"),
        ("MODULE:required", None, None, "missing a required argument: 'shape'; give --input"),
        ("MODULE:required", (3, 8, 8), 5, "missing a required argument: 'depth'"),
        ("MODULE:fixed", (3, 4, 4), None, "takes inputs 3x8x8, not 3x4x4; leave --input out"),
        ("MODULE:fixed", None, 2, "has 5 outputs, not 2; leave --classes out"),
        ("MODULE:unbuilt", None, None,
         "returned a Chain, not a Network or a torch.nn.Module; return what build() gives"),
        ("MODULE:nothing", None, None, "returned a NoneType, not a Network"),
        ("MODULE:anything", None, 2, "has 5 outputs, not 2; leave --classes out, or give its "
                                     "function a parameter 'classes'"),
        ("MODULE:bad", None, None, "the function raised KeyError"),
        ("MODULE:leaves", None, None, "the function raised SystemExit: 3"),
        ("MODULE:too_small", None, None, "layer 'pool' (maxpool2d): a window of 9 does not fit"),
    ],
)
def test_errors_are_one_line(module: str, name: str, shape: tuple[int, ...] | None,
                             classes: int | None, message: str) -> None:
    with pytest.raises(InputError) as err:
        network(name.replace("MODULE", module), shape, classes)
    assert message in str(err.value) and "\n" not in str(err.value)


def test_a_module_that_does_not_compile_is_refused(tmp_path: Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken_networks.py").write_text("def build(:\n")
    with pytest.raises(InputError, match="cannot import 'broken_networks' \\(SyntaxError"):
        network("broken_networks:build")


def test_the_command_shows_graphs(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["networks", f"{module}:build"]) == 0
    shown = capsys.readouterr().out
    assert "inputs" in shown and "input, conv" in shown
    assert main(["networks", f"{module}:build", "--classes", "2", "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert out["classes"] == 2 and out["layers"][2]["inputs"] == ["input", "conv"]
    assert main(["networks", "lenet5"]) == 0
    assert "inputs" not in capsys.readouterr().out
    assert main(["networks", f"{module}:bad"]) == 2
