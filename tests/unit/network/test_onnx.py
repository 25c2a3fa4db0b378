"""Networks from ONNX files: exports of PyTorch, and unsupported files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcpar.errors import InputError
from hpcpar.network.builder import Chain, Graph
from hpcpar.network.builtin import network
from hpcpar.network.layers import (
    LRN,
    Add,
    AvgPool2d,
    BatchNorm,
    Concat,
    Conv2d,
    Conv3d,
    Dropout,
    Flatten,
    GlobalAvgPool,
    Linear,
    MaxPool2d,
    MaxPool3d,
    ReLU,
    SoftmaxCrossEntropy,
)

onnx = pytest.importorskip("onnx", reason="ONNX files are read with the package onnx")

from tests.unit.network.onnx_nodes import HEAD, Spec, export, write  # noqa: E402


@pytest.mark.parametrize("dynamic", [False, True])
def test_residual_blocks_and_concatenations_are_read(tmp_path: Path, dynamic: bool) -> None:
    nn = pytest.importorskip("torch.nn", exc_type=ImportError)
    import torch

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.bn = (nn.Conv2d(3, 8, 3, 2, 1, bias=False),
                                   nn.BatchNorm2d(8, eps=0.001, momentum=0.2))
            self.conv2, self.relu = nn.Conv2d(8, 8, 3, padding=2, dilation=2), nn.ReLU()
            self.side = nn.Sequential(nn.Conv2d(8, 4, (1, 3), padding=(0, 1), groups=2), nn.ReLU())
            self.pool, self.mean = (nn.MaxPool2d(3, 2, 1, ceil_mode=True),
                                    nn.AvgPool2d(2, 1, 1, count_include_pad=False))
            self.here, self.drop, self.fc = (
                nn.AdaptiveAvgPool2d((5, 5)), nn.Dropout(0.25), nn.Linear(300, 10))

        def forward(self, x: Any) -> Any:
            x = self.relu(self.bn(self.conv1(x)))
            y = self.relu(self.conv2(x) + x)
            y = self.here(self.mean(self.pool(torch.cat([y, self.side(x)], 1))))
            return torch.log_softmax(self.fc(self.drop(y.view(y.size(0), -1))), 1)

    name = export(tmp_path / "net.onnx", Net(), (3, 12, 12), dynamic=dynamic)
    want = Graph("net", (3, 12, 12))
    want.add(Conv2d, "conv1", out_channels=8, kernel=3, stride=2, padding=1, bias=False)
    want.add(BatchNorm, "bn", eps=0.001, momentum=0.2)
    x = want.add(ReLU, "relu")
    y = want.add(Conv2d, "conv2", out_channels=8, kernel=3, padding=2, dilation=2)
    want.add(Add, "Add", after=(y, x))
    y = want.add(ReLU, "relu_1")
    want.add(Conv2d, "side.0", after=x, out_channels=4, kernel=(1, 3), padding=(0, 1), groups=2)
    want.add(Concat, "Concat", after=(y, want.add(ReLU, "side.1")))
    want.add(MaxPool2d, "pool", kernel=3, padding=1, ceil_mode=True)
    want.add(AvgPool2d, "mean", kernel=2, stride=1, padding=1, count_include_pad=False)
    want.add(Flatten, "Reshape")
    want.add(Dropout, "drop", rate=0.25)
    want.add(Linear, "fc", out_features=10)
    want.add(SoftmaxCrossEntropy, "loss")
    net = network(name)
    assert net == want.build()
    assert net.parameters == sum(p.numel() for p in Net().parameters())
    assert (net.image_shape, net.classes) == ((3, 12, 12), 10)


def test_volumes_and_folded_normalization(tmp_path: Path) -> None:
    nn = pytest.importorskip("torch.nn", exc_type=ImportError)
    model = nn.Sequential(nn.Conv3d(2, 4, 3, padding=1, bias=False), nn.BatchNorm3d(4), nn.ReLU(),
                          nn.MaxPool3d(2), nn.Flatten(), nn.Dropout(), nn.Linear(32, 3),
                          nn.Softmax(1)).eval()
    net = network(export(tmp_path / "cube.onnx", model, (2, 4, 4, 4), train=False, dynamic=True))
    want = Chain("cube", (2, 4, 4, 4)).add(Conv3d, "0", out_channels=4, kernel=3,
                                           padding=1).add(ReLU, "2").add(MaxPool3d, "3")
    assert (
        net
        == want.add(Flatten, "4")
        .add(Linear, "6", out_features=3)
        .add(SoftmaxCrossEntropy, "loss")
        .build()
    )


def test_pytorchs_resnet_block_keeps_its_names(tmp_path: Path) -> None:
    nn = pytest.importorskip("torch.nn", exc_type=ImportError)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer1 = nn.Sequential(nn.Sequential(nn.Conv2d(3, 6, 1), nn.BatchNorm2d(6)))
            self.fc = nn.Linear(6, 2)

        def forward(self, x: Any) -> Any:
            return self.fc(self.layer1(x).mean((2, 3)))

    net = network(export(tmp_path / "n.onnx", Net(), (3, 4, 4)))
    assert [layer.name for layer in net.layers] == ["input", "layer1.0.0", "layer1.0.1",
                                                    "ReduceMean", "fc", "loss"]


def test_operators_of_other_exporters_are_read(tmp_path: Path) -> None:
    nodes: Spec = [
        ("Constant", (), ("axes",), {"value": onnx.numpy_helper.from_array(np.array([2, 3]))}),
        ("Identity", "x", "i"),
        ("LRN", "i", "l", {"size": 3, "alpha": 0.5}),
        ("AveragePool", "l", "p", {"kernel_shape": [2, 2], "auto_pad": "VALID"}),
        ("Sum", ("p", "b"), "z"),
        ("MaxPool", "l", "b", {"kernel_shape": [2, 2]}),
        ("ReduceMean", ("z", "axes"), "m", {"keepdims": 1}),
        ("Squeeze", ("m", "axes"), "s"),
        ("Dropout", "s", "d"),
        ("Transpose", ("w",), ("wt",), {"perm": [1, 0]}),
        ("MatMul", ("d", "wt"), "t"),
        ("Add", ("bias", "t"), "y"),
        ("Relu", "z", "unused"),
    ]
    nodes[4], nodes[5] = nodes[5], nodes[4]
    net = network(write(tmp_path / "other.onnx", nodes, (None, 3, 8, 8),
                        {"w": (5, 3), "bias": (5,)}))
    want = Graph("other", (3, 8, 8))
    x = want.add(LRN, "the_LRN", size=3, alpha=0.5, k=1.0)
    y = want.add(AvgPool2d, "the_AveragePool", stride=1, count_include_pad=False)
    z = want.add(MaxPool2d, "the_MaxPool", after=x, stride=1)
    want.add(Add, "the_Sum", after=(y, z))
    want.add(GlobalAvgPool, "the_ReduceMean")
    want.add(Dropout, "the_Dropout")
    want.add(Linear, "the_MatMul", out_features=5)
    want.add(SoftmaxCrossEntropy, "loss")
    assert net == want.build()


def test_a_file_is_read_for_another_image_size(tmp_path: Path) -> None:
    mean: Spec = [("Relu", "x", "h"), ("GlobalAveragePool", "h", "g"), ("Flatten", "g", "f"),
                  ("Gemm", ("f", "w"), "y", {"transB": 1})]
    name = write(tmp_path / "any.onnx", mean, weights={"w": (4, 3)})
    assert network(name).image_shape == (3, 8, 8) and network(name, (3, 20, 30),
                                                              4).image_shape == (3, 20, 30)
    open_size = write(tmp_path / "open.onnx", mean, ("n", 3, "h", "w"), {"w": (4, 3)})
    assert network(open_size, (3, 5, 5)).image_shape == (3, 5, 5)
    fixed = write(tmp_path / "fixed.onnx", [("Relu", "x", "h"), *HEAD], weights={"w": (192, 4)})
    assert network(fixed).parameters == 768
    for name, shape, classes, message in [
        (open_size, None, None, "has no fixed image shape; give --input"),
        (fixed, (3, 9, 9), None, "node 'the_Gemm' (Gemm): has weights 192x4 for input samples "
                                 "243; flatten before it, and leave --input"),
        (fixed, (3, 4, 4, 4), None, "images have 3 axes, not 3x4x4x4"),
        (fixed, None, 5, "has 4 outputs, not 5"),
    ]:
        with pytest.raises(InputError) as err:
            network(name, shape, classes)
        assert message in str(err.value)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([("NonZero", "x", "h"), *HEAD], "node 'the_NonZero' (NonZero): operator NonZero is not "
         "supported; leave it out, or use one from docs/reference/networks.md"),
        ([("DepthToSpace", "x", "h", {"blocksize": 1, "mode": "RCD"}), *HEAD],
         "mode 'RCD' is not supported; use DCR or CRD"),
        ([("Hardmax", "x", "h"), *HEAD],
         "operator Hardmax is not supported; leave it out, or use one from docs/reference/"),
        ([("AveragePool", "x", "h", {"kernel_shape": [2, 2], "pads": [0, 0, 1, 1]}), *HEAD],
         "node 'the_AveragePool' (AveragePool): pads [0, 0, 1, 1] differ"),
        ([("Conv", ("x", "k"), "h", {"group": 2}), *HEAD],
         "has weights for 6 channels, but its input has 3"),
        ([("Conv", ("x", "flat"), "h"), *HEAD], "4 image axes are not supported"),
        ([("Conv", ("x", "x"), "h"), *HEAD], "input 'x' must be a constant of the file"),
        ([("MaxPool", "x", "h", {"kernel_shape": [2, 2], "dilations": [2, 2]}), *HEAD],
         "pooling with dilations [2, 2] is not supported"),
        ([("MaxPool", "x", "h", {"kernel_shape": [9, 9]}), *HEAD], "a window of 9 does not fit"),
        ([("LRN", "x", "h", {"size": 4}), *HEAD], "an even size (4)"),
        ([("Add", ("x", "row"), "h"), *HEAD],
         "node 'the_Add' (Add): input 'row' is a constant of shape 1x7 for samples 3x8x8"),
        ([("Concat", ("x", "x"), "h", {"axis": 2}), *HEAD],
         "axis 2 is not supported, only channels"),
        ([("Reshape", ("x", "to"), "h"), *HEAD],
         "a reshape of samples 3x8x8 to 24x8 is not supported; keep the values of each"),
        ([("Flatten", "x", "h", {"axis": 2}), *HEAD], "axis 2 is not supported"),
        ([("Softmax", "x", "h", {"axis": 0}), *HEAD], "reduces over samples; keep them apart"),
        ([("ReduceMean", "x", "h", {"axes": [0, 1]}), *HEAD],
         "reduces over samples; keep them apart"),
        ([("Gemm", ("x", "w"), "y", {"transA": 1})], "transA is not supported, because it mixes"),
        ([("MatMul", ("x", "w"), "y")],
         "has weights 192x4 for input samples 3x8x8; flatten before it"),
        ([("Dropout", "x", ("d", "h")), *HEAD], "input 'h' is a second output of another node"),
        ([("Reshape", ("w", "to"), "h"), *HEAD],
         "node 'the_Reshape' (Reshape): cannot be computed from constants"),
        ([("Identity", ("w",), "y")], "does not depend on the input"),
    ],
)
def test_unsupported_operators_are_named(tmp_path: Path, nodes: Spec, message: str) -> None:
    weights = {"w": (192, 4), "k": (4, 3, 3, 3), "flat": (4, 3, 1, 1, 1, 1), "row": (1, 7),
               "to": np.array([24, 8])}
    with pytest.raises(InputError) as err:
        network(write(tmp_path / "bad.onnx", nodes, weights=weights))
    assert message in str(err.value) and "\n" not in str(err.value)


def test_other_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.onnx").write_text("not a network")
    nodes: Spec = [("Relu", "x", "h"), *HEAD]
    for name, message in [
        (str(tmp_path / "none.onnx"), "No such file"),
        (str(tmp_path / "text.onnx"), "is not an ONNX file"),
        (write(tmp_path / "open.onnx", nodes, weights={"w": (192, 4)}, outputs=()),
         "has no output; export it again"),
        (write(tmp_path / "flat.onnx", nodes, ("n", 3), {"w": (3, 4)}),
         "the input 'x' has 2 axes; export images N x C x W, "),
    ]:
        with pytest.raises(InputError) as err:
            network(name)
        assert message in str(err.value)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(InputError, match=r"pip install hpcpar\[onnx\]"):
        network(name)
