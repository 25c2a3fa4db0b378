"""Unsupported operators of an ONNX file are refused by name, all at once; differences are noted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hpcpar.cli.main import main
from hpcpar.errors import InputError
from hpcpar.network.builtin import network

onnx = pytest.importorskip("onnx", reason="ONNX files are read with the package onnx")

from tests.unit.network.onnx_nodes import HEAD, Spec, export, write  # noqa: E402

WEIGHTS = {"w": (192, 4), "k": (3, 3, 1, 1)}


def test_all_unsupported_operators_at_once(tmp_path: Path) -> None:
    """Also those behind others; what computes with the shape of a refused tensor is not one."""
    nodes: Spec = [
        ("Hardmax", "x", "a", {"name": "first"}), ("Hardmax", "a", "b", {"name": "second"}),
        ("NonZero", "b", "c"), ("Shape", "c", "s"), ("Cast", "s", "t", {"to": 7}),
        ("MaxPool", "x", "d", {"kernel_shape": [2, 2], "dilations": [2, 2]}),
        ("ScatterND", ("c", "t"), "h"), *HEAD]
    with pytest.raises(InputError) as err:
        network(write(tmp_path / "bad.onnx", nodes, weights=WEIGHTS))
    text = str(err.value)
    assert "bad.onnx': nodes 'first', 'second' (Hardmax): operator Hardmax is not sup" in text
    assert "; node 'the_NonZero' (NonZero): operator NonZero is not sup" in text
    assert "node 'the_ScatterND' (ScatterND): operator ScatterND" in text
    assert "Cast" not in text and "Shape" not in text and "\n" not in text
    assert "Pool" not in text  # the output does not depend on it


@pytest.mark.parametrize("second", [
    ("Conv", ("a", "k"), "h", {"name": "two"}),
    ("Conv", ("a", "again"), "h", {"name": "two"}),
])
def test_shared_weights_are_refused(tmp_path: Path, second: tuple[object, ...]) -> None:
    nodes: Spec = [("Identity", "k", ("again",)), ("Conv", ("x", "k"), "a", {"name": "one"}),
                   second, *HEAD]
    with pytest.raises(InputError, match=r"node 'two' \(Conv\): shares the weights 'k' with node "
                                         r"'one'; give each layer its own, or share all"):
        network(write(tmp_path / "tied.onnx", nodes, weights=WEIGHTS))


def test_equal_vectors_that_an_exporter_stored_once_are_noted(tmp_path: Path) -> None:
    norm = ("one", "zero", "zero", "one")
    nodes: Spec = [("BatchNormalization", ("x", *norm), "a", {"name": "p"}),
                   ("BatchNormalization", ("a", *norm), "h", {"name": "q"}), *HEAD]
    net = network(write(tmp_path / "n.onnx", nodes, weights=WEIGHTS | {"one": (3,), "zero": (3,)}))
    assert len(net.weighted) == 3
    assert any("'q' (BatchNormalization): shares the vector 'one' with 'p'" in n for n in net.notes)


def test_weights_that_the_source_does_not_train_are_noted(tmp_path: Path) -> None:
    """A literal, one computed from others, and one with a batch normalization folded in."""
    value = onnx.numpy_helper.from_array(np.ones((3, 3, 1, 1), np.float32))
    nodes: Spec = [
        ("Constant", (), ("fixed",), {"value": value}),
        ("Conv", ("x", "fixed"), "a", {"name": "literal"}),
        ("Mul", ("k", "k"), ("kk",)), ("Conv", ("a", "kk"), "b", {"name": "computed"}),
        ("Conv", ("b", "c.weight"), "h", {"name": "c", "note": "FuseBatchNormIntoConv"}), *HEAD]
    net = network(write(tmp_path / "n.onnx", nodes, weights=WEIGHTS | {"c.weight": (3, 3, 1, 1)}))
    assert len(net.notes) == 3
    for note, text in zip(net.notes, (
            "'literal' (Conv): a tensor used as weights is a literal; hpcpar trains it",
            "'computed' (Conv): a tensor used as weights is computed from k, as weight_norm does",
            "'c' (Conv): the exporter folded a batch normalization into it"), strict=True):
        assert text in note
    plain: Spec = [("Conv", ("x", "k"), "h"), *HEAD]
    assert network(write(tmp_path / "p.onnx", plain, weights=WEIGHTS)).notes == ()
    noted = network(write(tmp_path / "p.onnx", plain, weights=WEIGHTS, producer="pytorch")).notes
    assert "is not a weight or bias of a module: it may be fixed" in noted[0]


def test_pytorchs_weight_norm_and_folded_normalization_are_noted(tmp_path: Path) -> None:
    nn = pytest.importorskip("torch.nn", exc_type=ImportError)
    norm = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 3, 1))
    module = nn.Sequential(norm, nn.Flatten(), nn.Linear(192, 4))
    net = network(export(tmp_path / "w.onnx", module, (3, 8, 8)))
    assert "as weight_norm does" in net.notes[0]
    folded = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(192, 4))
    folded[1].running_mean.fill_(0.5)
    net = network(export(tmp_path / "f.onnx", folded.eval(), (3, 8, 8), train=False))
    assert "was computed at export, from batch normalization or weight_norm" in net.notes[0]


def test_the_command_line_shows_notes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes: Spec = [("Mul", ("k", "k"), ("kk",)), ("Conv", ("x", "kk"), "h"), *HEAD]
    path = write(tmp_path / "n.onnx", nodes, weights=WEIGHTS)
    assert main(["plan", "--network", path, "--ranks", "2", "--batch", "4"]) == 0
    shown = " ".join(capsys.readouterr().err.split())
    assert "note: node 'the_Conv' (Conv): a tensor used as weights is computed from k" in shown
