"""ONNX files that are damaged, or made to harm: refused in one line that names the node."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcpar.errors import InputError
from hpcpar.network.builtin import network

onnx = pytest.importorskip("onnx")

from tests.limits import SOON_S  # noqa: E402
from tests.unit.network.onnx_nodes import HEAD, Spec, write  # noqa: E402

WEIGHTS: dict[str, Any] = {"w": (192, 4), "k": (4, 3, 3, 3), "v": (3,), "to": np.array([], int),
                           "half": np.array([0.5, 1.5])}
WINDOW = {"kernel_shape": [2, 2]}


def refusal(path: str) -> str:
    """The one line of an error."""
    with pytest.raises(InputError) as err:
        network(path)
    assert "\n" not in str(err.value)
    return str(err.value)


@pytest.mark.parametrize(("node", "message"), [
    (("LRN", "x", "h"), "attribute 'size' is missing or is not a whole number"),
    (("LRN", "x", "h", {"size": 1.5}), "attribute 'size' is missing or is not a whole number"),
    (("LRN", "x", "h", {"size": 3, "alpha": "a"}), "'alpha' is missing or is not a finite number"),
    (("LRN", "x", "h", {"size": 3, "alpha": float("nan")}), "'alpha' is missing or is not a finit"),
    (("Concat", ("x", "x"), "h"), "attribute 'axis' is missing or is not a whole number"),
    (("MaxPool", "x", "h", {"kernel_shape": 2}), "'kernel_shape' is missing or is not a list of"),
    (("MaxPool", "x", "h", WINDOW | {"strides": [0.5, 2.0]}), "'strides' is missing or is not a"),
    (("MaxPool", "x", "h", WINDOW | {"auto_pad": b"\xff"}), "'auto_pad' is missing or is not a n"),
    (("MaxPool", "x", "h", WINDOW | {"auto_pad": 3}), "'auto_pad' is missing or is not a name"),
    (("Conv", ("x", "v"), "h"), "constants or attributes do not fit it (IndexError"),
    (("Reshape", ("x", "to"), "h"), "node 'the_Reshape' (Reshape): "),
    (("Div", ("x", "zero"), "h"), "node 'the_Div' (Div): constants or attributes do not fit it"),
    (("Pad", ("x", "half"), "h"), "node 'the_Pad' (Pad): "),
])
def test_a_node_that_does_not_fit_is_named(tmp_path: Path, node: Any, message: str) -> None:
    weights = WEIGHTS | {"zero": np.array(0.0)}
    assert message in refusal(write(tmp_path / "bad.onnx", [node, *HEAD], weights=weights))


@pytest.mark.parametrize(("nodes", "message"), [
    ([("Relu", "b", "a"), ("Relu", "a", "b"), ("Add", "xa", "h"), *HEAD],
     "reads 'b', which no node before it makes"),
    ([("Relu", "x", ""), *HEAD], "it has no output"),
])
def test_nodes_out_of_order_are_refused(tmp_path: Path, nodes: Spec, message: str) -> None:
    assert message in refusal(write(tmp_path / "bad.onnx", nodes, weights=WEIGHTS))


def test_names_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "net.onnx", [("Relu", "x", "h"), *HEAD], weights=WEIGHTS)
    content = Path(path).read_bytes()
    Path(path).write_bytes(content.replace(b"the_Relu", b"the_\xff\xfflu"))
    assert "a name is no text" in refusal(path)


def test_constants_that_double_with_every_node_end_in_time(tmp_path: Path,
                                                           monkeypatch: Any) -> None:
    ladder: Spec = [("Add", (f"c{i}", f"c{i}"), (f"c{i + 1}",)) for i in range(60)]
    growing: Spec = [("Concat", (f"d{i}", f"d{i}"), (f"d{i + 1}",), {"axis": 0})
                     for i in range(60)]
    weights = WEIGHTS | {"c0": np.array([1.0]), "d0": np.array([1.0])}
    monkeypatch.setattr("hpcpar.network.importer.MOST_VALUES", 1 << 12)
    begin = time.process_time()
    nodes = [*ladder, *growing, ("Mul", ("x", "c60"), "h"), ("Mul", ("h", "d60"), "g"),
             ("Flatten", "g", "f"), ("Gemm", ("f", "w"), "y")]
    assert "it has 8192 values" in refusal(write(tmp_path / "big.onnx", nodes, weights=weights))
    assert time.process_time() - begin < SOON_S
