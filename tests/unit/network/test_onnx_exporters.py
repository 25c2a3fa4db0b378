"""ONNX files in the styles of exporters are read, and compute what ONNX's reference computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="ONNX files are read with the package onnx")
pytest.importorskip("mpi4py", exc_type=ImportError)

from bench.random_networks import algorithm, ours
from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import world
from hpcpar.errors import InputError
from hpcpar.kernels import backend
from hpcpar.network.builder import Graph
from hpcpar.network.graph import Network
from hpcpar.network.layers import BatchNorm
from hpcpar.network.read import onnx_ops
from hpcpar.network.read.importer import Importer
from hpcpar.network.read.join_formulas import joined
from hpcpar.network.read.onnx import load
from hpcpar.network.read.operations import Node
from hpcpar.network.spec import NetworkSpec
from hpcpar.plan.config import Config
from hpcpar.plan.plan import Plan
from hpcpar.runtime.executor import Executor
from hpcpar.runtime.observe import Watch
from hpcpar.schedule.lower import lower
from tests.unit.network.onnx_exporters import CASES, Case
from tests.unit.network.onnx_exporters_torch import cases
from tests.unit.network.onnx_nodes import write


class Stored:
    """The values in a file of each layer's weights, and of its running statistics."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.weights: dict[str, list[Any]] = {}
        self.running: dict[str, list[Any]] = {}
        read, add, now = Importer.weights, Importer.add, dict[str, list[Any]]()

        def recorded(imp: Importer, node: Node, *which: int, transposed: bool = False) -> Any:
            made = read(imp, node, *which, transposed=transposed)
            values = [constant.read() for constant in made]
            now[node.outputs[0]] = [values[0].T, *values[1:]] if transposed else values
            return made

        def added(imp: Importer, layer: Any, node: Node, *args: Any, **options: Any) -> str:
            name = add(imp, layer, node, *args, **options)
            if imp.graph.layers[-1].has_weights:
                self.weights[name] = now.pop(node.outputs[0])
            if layer is BatchNorm:
                self.running[name] = [imp.value(node, i) for i in (3, 4)]
            return name

        def renamed(graph: Graph, ends: Any, origins: Any) -> Any:
            names = joined(graph, ends, origins)
            self.weights = {new: self.weights[old] for old, new in zip(origins, names, strict=True)}
            return names

        patch.setattr(onnx_ops, "joined", renamed)
        patch.setattr(Importer, "weights", recorded)
        patch.setattr(Importer, "add", added)


def computed(network: Network, stored: Stored, images: Any) -> Any:
    """The output of the last layer before the loss, with the file's weights."""
    spec = NetworkSpec(network.name, network.image_shape, network.classes)
    plan = Plan(spec, 1, len(images), "serial", {layer.name: Config() for layer in network.layers},
                precision="fp64")
    forward = lower(network, plan, algorithm, training=False)
    executor = Executor(network, plan, None, Communicator(world(), backend("cpu")),
                        backend("cpu"), 0, forward)
    for layer in network.stateful:
        held = executor.parameters[layer.name]
        for which, array in enumerate(held.split(held.flat)):
            if array is not None and array.size:
                value = stored.weights[layer.name][which]
                array[...] = ours(network, layer, which, value)
        if held.buffers is not None:
            held.buffers[...] = stored.running[layer.name]
    watch = Watch(executor, executor.evaluation)
    shape = network.shapes[network.layers[-1].name]
    executor.evaluate(images, np.zeros((len(images), *shape[1:]), np.int64))
    return watch.outputs[network.layers[-1].inputs[0]]


def for_reference(path: str) -> Any:
    """The model of a file, as the reference computes what ONNX says.

    It changes running statistics in inference of old opsets, takes Resize of opset 10 as in
    opset 11, ignores `output_shape` without automatic padding, and does not know a mode of Resize
    that for whole factors is the usual one.
    """
    import onnx

    model = onnx.load(path)
    for node in model.graph.node:
        attributes = {a.name: a for a in node.attribute}
        if node.op_type == "BatchNormalization" and model.opset_import[0].version < 14:
            if "momentum" in attributes:
                node.attribute.remove(attributes["momentum"])
            node.attribute.append(onnx.helper.make_attribute("momentum", 1.0))
        elif node.op_type == "Resize" and model.opset_import[0].version == 10:
            node.op_type = "Upsample"
        elif any(a.s == b"tf_half_pixel_for_nn" for a in node.attribute):
            del node.attribute[:]
        elif "output_shape" in attributes and "auto_pad" not in attributes:
            node.attribute.append(onnx.helper.make_attribute("auto_pad", "SAME_LOWER"))
    return model


@pytest.mark.parametrize(("name", "make"), [*cases()])
def test_a_file_computes_what_the_reference_does(name: str, make: Callable[[], Case],
                                                 tmp_path: Path,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    from onnx.reference import ReferenceEvaluator

    case = make()
    path = write(tmp_path / "n.onnx", case.nodes, case.dims, case.weights, opset=case.opset,
                 kind=case.kind)
    rng = np.random.default_rng(3)
    x: Any = rng.normal(size=(2, *case.dims[1:]))
    if case.kind == 2:
        x = rng.integers(0, 256, x.shape).astype(np.uint8)
    (expected,) = ReferenceEvaluator(for_reference(path)).run(None, {"x": x})
    stored = Stored(monkeypatch)
    network = load(path)
    last = case.dims[-1] == 3
    images = np.moveaxis(x, -1, 1) if last else x
    images = images.reshape(len(x), *network.image_shape)
    assert images.shape[1] == case.dims[-1 if last else 1]
    found = computed(network, stored, images.astype(np.float64))
    expected = np.moveaxis(expected, -1, 1) if case.last else expected
    ends = [op for op, *_ in case.nodes[-2:] if op in ("Softmax", "LogSoftmax")]
    if ends:  # part of the loss
        assert not any(layer.kind == "reduce" for layer in network.layers[-2:])
        found = np.exp(found - found.max(1, keepdims=True))
        found /= found.sum(1, keepdims=True)
        found = found if ends[0] == "Softmax" else np.log(found)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


def notes(path: Path, case: Case, **options: Any) -> str:
    return "; ".join(load(write(path / "n.onnx", case.nodes, case.dims, case.weights,
                                opset=case.opset, kind=case.kind, **options)).notes)


def test_renamed_axes_and_bytes_are_noted(tmp_path: Path) -> None:
    found = notes(tmp_path, CASES["keras bytes"]())
    assert "the input 'x' has its channels last in the file; here they are first" in found
    assert "takes whole numbers as 'x' and scales them itself: give images that are not" in found
    assert "(Transpose): the output has its channels last" not in found
    assert "the output has its channels last in the source" in notes(tmp_path, CASES["tf unet"]())
    plain = notes(tmp_path, CASES["pytorch opset 9"]())
    assert "channels last" not in plain and "whole numbers" not in plain


def test_the_first_of_several_outputs_is_trained(tmp_path: Path) -> None:
    case = CASES["mxnet cnn"]()
    assert "left out" not in notes(tmp_path, case)
    noted = notes(tmp_path, case, outputs=("g", "f", "y"))
    assert ("the network ends in 'g', the file's first output; layers that only f, y needs are "
            "left out" in noted)
    network = load(str(tmp_path / "n.onnx"))
    assert network.layers[-2].kind == "linear" and network.classes == 5


def test_a_transpose_of_images_that_no_convolution_reads_stays_refused(tmp_path: Path) -> None:
    """Rows as channels are in an order that no layer has."""
    case = Case([("Transpose", "x", "a", {"perm": [0, 2, 1, 3]}), ("Conv", ("a", "k"), "y")],
                {"k": np.zeros((4, 8, 3, 3))})
    with pytest.raises(InputError, match="in an order that no layer has; selections of channels"):
        notes(tmp_path, case)
