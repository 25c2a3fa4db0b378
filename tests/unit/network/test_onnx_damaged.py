"""ONNX files that are damaged, or made to harm: refused in one line that names the node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcpar.errors import InputError
from hpcpar.network.builtin import network

onnx = pytest.importorskip("onnx")

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
    (("Conv", ("x", "v"), "h"), "constants or attributes are invalid (IndexError"),
    (("Reshape", ("x", "to"), "h"), "node 'the_Reshape' (Reshape): "),
    (("Div", ("x", "zero"), "h"), "node 'the_Div' (Div): its constants or attributes are invalid"),
    (("Pad", ("x", "half"), "h"), "node 'the_Pad' (Pad): "),
])
def test_a_node_that_does_not_fit_is_named(tmp_path: Path, node: Any, message: str) -> None:
    weights = WEIGHTS | {"zero": np.array(0.0)}
    assert message in refusal(write(tmp_path / "bad.onnx", [node, *HEAD], weights=weights))


@pytest.mark.parametrize(("nodes", "message"), [
    ([("Relu", "b", "a"), ("Relu", "a", "b"), ("Add", ("x", "a"), "h"), *HEAD],
     "reads 'b' before any node computes it"),
    ([("Relu", "x", ()), *HEAD], "it has no output"),
])
def test_nodes_out_of_order_are_refused(tmp_path: Path, nodes: Spec, message: str) -> None:
    assert message in refusal(write(tmp_path / "bad.onnx", nodes, weights=WEIGHTS))


def test_names_that_are_not_text_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "net.onnx", [("Relu", "x", "h"), *HEAD], weights=WEIGHTS)
    content = Path(path).read_bytes()
    Path(path).write_bytes(content.replace(b"the_Relu", b"the_\xff\xfflu"))
    assert "a name is not text" in refusal(path)


@pytest.mark.parametrize(("op", "inputs", "message"), [
    ("ConstantOfShape", ("huge",), "it has 2147483648 values"),
    ("ConstantOfShape", ("wide",), f"it has {1 << 60} values"),
    ("Expand", ("v", "huge"), f"it has {3 << 31} values"),
    ("Mul", ("column", "row"), "it has 268435456 values"),
    ("Range", ("zero", "end", "one"), "operator Range is not computed here"),
    ("Tile", ("v", "huge"), "operator Tile is not computed here"),
])
def test_large_results_are_refused_before_they_are_computed(
        tmp_path: Path, monkeypatch: Any, op: str, inputs: tuple[str, ...], message: str) -> None:
    def compute(*_: Any) -> None:
        raise AssertionError(f"{op} ran")

    monkeypatch.setattr("onnx.reference.ReferenceEvaluator.run", compute)
    weights = WEIGHTS | {
        "huge": np.array([1 << 31]), "wide": np.array([1 << 30, 1 << 30]), "zero": np.array(0),
        "end": np.array(1 << 62), "one": np.array(1), "column": np.zeros((1 << 14, 1), np.float32),
        "row": np.zeros((1, 1 << 14), np.float32)}
    nodes: Spec = [(op, inputs, ("c",)), ("Mul", ("x", "c"), "h"), *HEAD]
    assert message in refusal(write(tmp_path / "big.onnx", nodes, weights=weights))


def test_a_loop_of_constants_is_not_run(tmp_path: Path) -> None:
    helper, kind = onnx.helper, onnx.TensorProto
    values = [helper.make_tensor_value_info(name, type_, ()) for name, type_ in (
        ("i", kind.INT64), ("go", kind.BOOL), ("a", kind.FLOAT), ("on", kind.BOOL),
        ("b", kind.FLOAT))]
    body = helper.make_graph([helper.make_node("Identity", ["go"], ["on"]),
                              helper.make_node("Add", ["a", "a"], ["b"])], "body",
                             values[:3], values[3:])
    weights = WEIGHTS | {"trips": np.array(1 << 62), "yes": np.array(True),
                         "start": np.array(1, np.float32)}
    nodes: Spec = [("Loop", ("trips", "yes", "start"), ("c",), {"body": body}),
                   ("Mul", ("x", "c"), "h"), *HEAD]
    assert "operator Loop is not computed here" in refusal(
        write(tmp_path / "loop.onnx", nodes, weights=weights))


@pytest.mark.parametrize(("location", "offset", "message"), [
    ("beside.bin", 0, ""),
    ("beside.bin", 16, "'beside.bin' is shorter than the model says"),
    ("../outside.bin", 0, "'../outside.bin' is not a file in the model's folder"),
    ("link.bin", 0, "'link.bin' is not a file in the model's folder"),
    ("/dev/zero", 0, "'/dev/zero' is not a file in the model's folder"),
])
def test_external_values_are_read_from_the_models_folder_only(
        tmp_path: Path, monkeypatch: Any, location: str, offset: int, message: str) -> None:
    """Not from the current one either."""
    model = tmp_path / "model" / "net.onnx"
    model.parent.mkdir()
    monkeypatch.chdir(tmp_path)
    half = np.float32([0.5]).tobytes()
    (model.parent / "beside.bin").write_bytes(half)
    (tmp_path / "outside.bin").write_bytes(half)
    (tmp_path / "beside.bin").write_bytes(np.float32([7] * 9).tobytes())
    (model.parent / "link.bin").symlink_to(tmp_path / "outside.bin")
    path = write(model, [("Mul", ("x", "s"), "h"), *HEAD], weights=WEIGHTS | {"s": (1,)})
    made = onnx.load(path)
    (tensor,) = (each for each in made.graph.initializer if each.name == "s")
    tensor.ClearField("raw_data")
    tensor.data_location = tensor.EXTERNAL
    for key, value in ("location", location), ("offset", str(offset)):
        tensor.external_data.add(key=key, value=value)
    model.write_bytes(made.SerializeToString())
    if message:
        assert message in refusal(path)
    else:
        assert network(path).layers[1].scale == 0.5


def test_an_external_attribute_is_not_read(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.bin").write_bytes(np.float32([0.5]).tobytes())
    value = onnx.TensorProto(data_type=onnx.TensorProto.FLOAT, dims=[1],
                             data_location=onnx.TensorProto.EXTERNAL)
    value.external_data.add(key="location", value="here.bin")
    nodes: Spec = [("Constant", (), ("c",), {"value": value}), ("Mul", ("x", "c"), "h"), *HEAD]
    assert "its attribute is sparse or in an external file" in refusal(
        write(tmp_path / "net.onnx", nodes, weights=WEIGHTS))


def test_constants_that_double_with_every_node_are_refused_in_time(
        tmp_path: Path, monkeypatch: Any) -> None:
    ladder: Spec = [("Add", (f"c{i}", f"c{i}"), (f"c{i + 1}",)) for i in range(60)]
    growing: Spec = [("Concat", (f"d{i}", f"d{i}"), (f"d{i + 1}",), {"axis": 0})
                     for i in range(60)]
    weights = WEIGHTS | {"c0": np.array([1.0]), "d0": np.array([1.0])}
    monkeypatch.setattr("hpcpar.network.read.folded_size._MOST_VALUES", 1 << 12)
    nodes = [*ladder, *growing, ("Mul", ("x", "c60"), "h"), ("Mul", ("h", "d60"), "g"),
             ("Flatten", "g", "f"), ("Gemm", ("f", "w"), "y")]
    assert "it has 8192 values" in refusal(write(tmp_path / "big.onnx", nodes, weights=weights))
