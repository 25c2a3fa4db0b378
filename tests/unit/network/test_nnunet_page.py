"""The how-to's reader of nnU-Net's plans: it builds the network that they describe."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="nnU-Net's networks are modules of PyTorch")

from hpcpar.network.builtin import network  # noqa: E402

PAGE = Path(__file__).parents[3] / "docs/how-to/my-network.md"


class Plain(torch.nn.Sequential):
    """A network with the arguments of dynamic_network_architectures."""

    def __init__(self, input_channels: int, num_classes: int, features: list[int], conv_op: Any,
                 dropout_op: Any) -> None:
        assert dropout_op is None
        super().__init__(conv_op(input_channels, features[0], 3, padding=1), torch.nn.ReLU(),
                         conv_op(features[0], num_classes, 1))


def test_the_page_reads_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall("```python\n(import json.*?)```", PAGE.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("nnunet.py").write_text(code)
    arguments = {"features": [4], "conv_op": "torch.nn.modules.conv.Conv3d", "dropout_op": None}
    architecture = {"network_class_name": f"{__name__}.Plain", "arch_kwargs": arguments,
                    "_kw_requires_import": ["conv_op", "dropout_op"]}
    Path("nnUNetPlans.json").write_text(json.dumps({"configurations": {"3d_fullres": {
        "patch_size": [8, 12, 10], "architecture": architecture}}}))
    net = network("nnunet.py:make", classes=4)
    assert net.image_shape == (1, 8, 12, 10) and net.classes == 4
    assert net.parameters == 4 * 27 + 4 + 4 * 4 + 4
