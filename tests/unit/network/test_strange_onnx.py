"""ONNX files from strangers: refused in one line, within bounds of time and memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcpar.errors import InputError
from hpcpar.io import read_limit
from hpcpar.network.read.onnx import load

helper: Any = pytest.importorskip("onnx.helper", reason="ONNX needs the extra 'onnx'")


def saved(path: Path, nodes: list[Any], constants: dict[str, Any]) -> str:
    from onnx import numpy_helper, save

    value, stored = helper.make_tensor_value_info, [
        numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items()]
    graph = helper.make_graph(nodes, "g", [value("input", 1, ["N", 1, 8, 8])],
                              [value("output", 1, None)], stored)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]), str(path))
    return str(path)


def test_an_empty_branch_is_refused(tmp_path: Path) -> None:
    empty = helper.make_graph([], "empty", [], [])
    node = helper.make_node("If", ["yes"], ["output"], "if", then_branch=empty, else_branch=empty)
    with pytest.raises(InputError, match="'if'"):
        load(saved(tmp_path / "a.onnx", [node], {"yes": True}))


def test_computed_constants_are_summed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_limit, "MOST_BYTES", 1 << 28)
    nodes = [helper.make_node("ConstantOfShape", ["many"], [f"c{i}"], f"c{i}") for i in range(100)]
    nodes.append(helper.make_node("Sum", ["input", *(f"c{i}" for i in range(100))], ["output"]))
    with pytest.raises(InputError, match=r"constants that the file computes.*folded"):
        load(saved(tmp_path / "a.onnx", nodes, {"many": np.array([1 << 20])}))


def test_layers_of_one_name_are_numbered(tmp_path: Path) -> None:
    names = ["input", *(f"t{i}" for i in range(3))]
    nodes = [helper.make_node("Relu", [a], [b], "same")
             for a, b in zip(names, [*names[1:], "flat"], strict=True)]
    nodes.append(helper.make_node("Flatten", ["flat"], ["output"], "flat"))
    layers = load(saved(tmp_path / "a.onnx", nodes, {})).layers
    assert [x.name for x in layers if x.kind == "relu"] == ["same", "same_2", "same_3", "same_4"]
