"""`hpcpar.torch` on a pretended GPU (tests/pretended): the tests of `hpcpar.torch` once more.

The pretended card's tensors are PyTorch's on the CPU, which work at once; the executor works as
late as the order of streams allows, so a hand-over that is missing shows as a wrong result.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed (extra 'oracle')", allow_module_level=True)

import torch
from torch import Tensor
from torch.nn import functional

from hpcpar.comm.communicator import Communicator
from hpcpar.errors import InputError
from hpcpar.torch.parallelize import parallelize
from tests import cuda_cpu
from tests.mpi.few_ranks import few_ranks
from tests.mpi.test_lightning import *  # noqa: F403
from tests.mpi.test_torch import *  # noqa: F403
from tests.mpi.test_torch import parallel, plain
from tests.mpi.test_torch_forward_only import *  # noqa: F403
from tests.mpi.test_torch_honest import *  # noqa: F403
from tests.mpi.test_torch_mixed import *  # noqa: F403
from tests.mpi.test_torch_pieces import *  # noqa: F403
from tests.mpi.test_torch_tree import *  # noqa: F403

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pretended"))
pytestmark = few_ranks


@pytest.fixture(autouse=True)
def on_a_pretended_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the GPU the default device of `parallelize`."""
    if cuda_cpu.missing():
        pytest.skip(cuda_cpu.missing())
    defaults = {name: p.default for name, p in inspect.signature(parallelize).parameters.items()
                if p.default is not p.empty and p.kind is p.POSITIONAL_OR_KEYWORD}
    assert defaults["device"] == "cpu"
    monkeypatch.setattr(parallelize, "__defaults__", (*(defaults | {"device": "gpu"}).values(),))


def test_the_executor_works_on_the_gpu(batch: tuple[Tensor, Tensor],
                                       communicator: Communicator) -> None:
    model = parallel(plain())
    assert model.engine.communicator.backend.name == "gpu"
    shared = model.engine.executor.parameters
    for name, place in model.tensor_places.items():
        weight, bias = shared[place.layer.name].split(shared[place.layer.name].flat)
        array = weight if place.what == "weight" else bias
        assert model.get_parameter(name).data_ptr() == array.data.ptr


def test_pytorch_may_call_from_a_thread_of_its_own(batch: tuple[Tensor, Tensor],
                                                   communicator: Communicator) -> None:
    """As for tensors of a card, whose backward passes run in a thread for each device."""
    images, labels = batch
    model, other = parallel(plain()), parallel(plain())
    other.load_state_dict(model.state_dict())

    def loss(of: Any) -> Tensor:
        return functional.cross_entropy(of(images), of.local(labels), reduction="sum")

    loss(model).backward()
    value = loss(other)
    thread = threading.Thread(target=value.backward)
    thread.start()
    thread.join()
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one.grad, two.grad) and one.grad.abs().sum() > 0


def test_kernels_of_cpus_are_refused(communicator: Communicator) -> None:
    with pytest.raises(InputError, match="kernels='numpy' runs on CPUs, but device is gpu"):
        parallel(plain(), kernels="numpy")
