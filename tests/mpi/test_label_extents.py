"""Networks whose output is not as large as their input: each rank reads the labels of its part of
the output, and loss and gradients are PyTorch's, which reads the whole file by itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import World, world
from hpcpar.data.augment import Augmentation
from hpcpar.data.box_reader import BoxReader
from hpcpar.errors import InputError, RunError
from hpcpar.kernels import backend
from hpcpar.network.graph import Network
from hpcpar.network.layers import DiceCrossEntropy, Loss, MeanSquaredError, SoftmaxCrossEntropy
from hpcpar.network.read.torch_module import traced
from hpcpar.plan.plan import NetworkSpec, Plan
from hpcpar.plan.strategies import configurations, plan_options
from hpcpar.runtime.executor import Executor
from hpcpar.schedule.lower import lower
from hpcpar.train import global_tensors, verify
from hpcpar.train.job import open_data
from hpcpar.train.verify import Verification, VerifyOptions, comparable
from tests.mpi.sharing import bcast

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra 'oracle')")
nn = torch.nn
P = world().size
pytestmark = pytest.mark.skipif(P > 4, reason="more ranks add nothing here")
BATCH, CLASSES, SAMPLES, TESTS = 5, 3, 10, 3

#: A module, the shape of its input, and the extents of its output.
CASES: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...]]] = {
    "strides": (lambda: nn.Conv2d(2, CLASSES, 3, stride=2, padding=1), (2, 16, 13), (8, 7)),
    "pointwise strides": (lambda: nn.Conv2d(2, CLASSES, 1, stride=2), (2, 16, 16), (8, 8)),
    "unpadded": (lambda: nn.Sequential(nn.Conv2d(2, 4, 5), nn.Tanh(), nn.Conv2d(4, CLASSES, 3)),
                 (2, 16, 13), (10, 7)),
    "dilated": (lambda: nn.Conv2d(2, CLASSES, 3, dilation=3), (2, 15, 14), (9, 8)),
    "enlarged": (lambda: nn.Sequential(nn.ConvTranspose2d(2, 4, 2, stride=2), nn.Tanh(),
                                       nn.Conv2d(4, CLASSES, 3, padding=1)), (2, 5, 7), (10, 14)),
    "one pixel": (lambda: nn.Conv2d(2, CLASSES, 4), (2, 4, 4), (1, 1)),
    "volumes": (lambda: nn.Sequential(nn.Conv3d(1, 4, 3, stride=(1, 2, 2), padding=1), nn.Tanh(),
                                      nn.Conv3d(4, CLASSES, (3, 1, 1))), (1, 7, 8, 6), (5, 4, 3)),
    "signals": (lambda: nn.Conv1d(2, CLASSES, 5, stride=2, padding=2), (2, 31), (16,)),
}
LOSSES = SoftmaxCrossEntropy, DiceCrossEntropy, MeanSquaredError


def written(path: Path, shape: tuple[int, ...], extents: tuple[int, ...], loss: type[Loss],
            ignored: bool = False) -> str:
    """A data file of random images and of labels or targets with these extents."""
    rng = np.random.default_rng(1)
    with h5py.File(path, "w") as f:
        for prefix, count in ("", SAMPLES), ("test_", TESTS):
            f[f"{prefix}images"] = rng.normal(size=(count, *shape)).astype("f4")
            if loss.takes_targets:
                f[f"{prefix}targets"] = rng.normal(size=(count, CLASSES, *extents)).astype("f4")
            else:
                f[f"{prefix}labels"] = rng.integers(-int(ignored), CLASSES, (count, *extents))
        if ignored:
            f.attrs["ignore_label"] = -1
    return str(path)


def shared(tmp_path: Path, ranks: World) -> Path:
    """Rank 0's folder, on every rank."""
    return Path(bcast(ranks, str(tmp_path)))


def network_of(name: str, loss: type[Loss]) -> Network:
    make, shape, _ = CASES[name]
    network = traced(make().double(), shape, loss).network
    assert network.shapes[network.loss.name][0] == CLASSES
    return network


def plan_of(network: Network, strategy: str) -> Plan:
    return Plan(NetworkSpec.of(network), P, BATCH, strategy,
                configurations(network, strategy, P), precision="fp64",
                **plan_options(strategy, P, BATCH))


def in_torch(loss: type[Loss], out: Any, truth: np.ndarray) -> Any:
    """The loss of PyTorch's output [N, C, ...]."""
    known = torch.from_numpy(truth)
    if loss.takes_targets:
        return nn.functional.mse_loss(out, known.double())
    entropy = nn.functional.cross_entropy(out, known.long(), ignore_index=-1)
    if loss is SoftmaxCrossEntropy:
        return entropy
    p, t = out.softmax(1).flatten(2), nn.functional.one_hot(known.flatten(1), CLASSES).mT
    return entropy + (1 - (2 * (p * t).sum(2) + 1e-5) / (p.sum(2) + t.sum(2) + 1e-5)).mean()


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.kind)
@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_are_pytorchs(name: str, loss: type[Loss], ranks: World,
                                         tmp_path: Path) -> None:
    """In a training step, and in an evaluation whose batch is not full."""
    make, shape, extents = CASES[name]
    folder, ignored = shared(tmp_path, ranks), loss is SoftmaxCrossEntropy
    path = folder / "d.h5"
    if ranks.rank == 0:
        written(path, shape, extents, loss, ignored)
    ranks.barrier()
    network = network_of(name, loss)
    for strategy in ("spatial", "data"):
        plan = plan_of(network, strategy)
        choose = lambda step: ("ring", 1)  # noqa: E731
        executor = Executor(network, plan, lower(network, plan, choose),
                            Communicator(ranks, backend("cpu")), backend("cpu"), 3,
                            lower(network, plan, choose, training=False))
        before = dict(global_tensors.weights(executor, ranks))
        with open_data(executor, str(path), 0, "test", ()) as loader:
            tested, _ = executor.evaluate(*loader.batch(0, 0), loader.counted(0, 0))
        with open_data(executor, str(path), 0, "train", ()) as loader:
            chosen = np.sort(loader.order(0)[:BATCH])
            trained, _ = executor.iterate(*loader.batch(0, 0), 0, 1.0, 0.0, 0.0,
                                          loader.counted(0, 0))
        after = dict(global_tensors.weights(executor, ranks))
        if ranks.rank:
            continue
        module = make().double()
        parameters = dict(module.named_parameters())
        named = {tensor: f"{layer}/{what}" for layer, tensors in network.origins.items()
                 for tensor, what in zip(tensors, ("weight", "bias"), strict=False)}
        with torch.no_grad():
            for tensor, parameter in parameters.items():
                layer = network.by_name[named[tensor].partition("/")[0]]
                value = before[named[tensor]]
                value = layer.exchanged(value) if tensor.endswith("weight") else value
                parameter.copy_(torch.from_numpy(np.array(value)).reshape(parameter.shape))
        truth = "targets" if loss.takes_targets else "labels"
        with h5py.File(path) as f:
            held = in_torch(loss, module(torch.from_numpy(f["test_images"][...]).double()),
                            f[f"test_{truth}"][...])
            value = in_torch(loss, module(torch.from_numpy(f["images"][chosen]).double()),
                             f[truth][chosen])
        assert tested == pytest.approx(held.item(), rel=1e-10)
        assert trained == pytest.approx(value.item(), rel=1e-10)
        value.backward()
        for tensor, parameter in parameters.items():
            layer = network.by_name[named[tensor].partition("/")[0]]
            step = before[named[tensor]] - after[named[tensor]]
            step = layer.exchanged(step) if tensor.endswith("weight") else step
            np.testing.assert_allclose(step.reshape(parameter.shape), parameter.grad, rtol=1e-8,
                                       atol=1e-10)


def verification(ranks: World, path: str, network: Network, monkeypatch: pytest.MonkeyPatch,
                 augment: tuple[Augmentation, ...] = ()) -> Verification:
    monkeypatch.setattr(verify, "schedule_for",
                        lambda network, plan: lower(network, plan, lambda step: ("ring", 1)))
    plan = comparable(network, plan_of(network, "spatial"), "fp64")
    return Verification(ranks, network, plan, backend("cpu"),
                        VerifyOptions(steps=3, data=path, augment=augment))


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.kind)
@pytest.mark.parametrize("name", ["strides", "enlarged", "volumes", "signals"])
def test_verify_reads_its_own_labels(name: str, loss: type[Loss], ranks: World, tmp_path: Path,
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan passes, and a loader that reads other labels on all ranks alike is found."""
    _, shape, extents = CASES[name]
    folder = shared(tmp_path, ranks)
    if ranks.rank == 0:
        written(folder / "d.h5", shape, extents, loss, ignored=loss is SoftmaxCrossEntropy)
    ranks.barrier()
    network = network_of(name, loss)
    verification(ranks, str(folder / "d.h5"), network, monkeypatch).run(
        lambda step, result: None).check()
    honest = BoxReader._read

    def shifted(reader: BoxReader, chosen: np.ndarray) -> np.ndarray:
        values = honest(reader, chosen)
        return values if "images" in reader.dataset.name else np.roll(values, 1, axis=-1)

    monkeypatch.setattr(BoxReader, "_read", shifted)
    result = verification(ranks, str(folder / "d.h5"), network, monkeypatch).run(
        lambda step, result: None)
    with pytest.raises(RunError, match="does not train as one rank does"):
        result.check()


@pytest.mark.parametrize("shape", [(2, 13, 11), (2, 19)])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.kind)
def test_verify_cuts_its_own_crops(loss: type[Loss], shape: tuple[int, ...], ranks: World,
                                   tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels of images that are cropped and mirrored with them."""
    folder = shared(tmp_path, ranks)
    if ranks.rank == 0:
        written(folder / "d.h5", shape, shape[1:], loss)
    ranks.barrier()
    taken = (2, *(extent - 3 for extent in shape[1:]))
    conv = nn.Conv2d if len(shape) == 3 else nn.Conv1d
    network = traced(conv(2, CLASSES, 3, padding=1).double(), taken, loss).network
    verification(ranks, str(folder / "d.h5"), network, monkeypatch, tuple(Augmentation)).run(
        lambda step, result: None).check()


@pytest.mark.parametrize("name", ["pointwise strides", "unpadded", "enlarged", "volumes",
                                  "signals"])
def test_labels_of_other_extents_are_refused_on_all_ranks(name: str, ranks: World,
                                                          tmp_path: Path) -> None:
    """The extents of the input, of a part of the output, and of one more pixel."""
    _, shape, extents = CASES[name]
    folder = shared(tmp_path, ranks)
    network = network_of(name, SoftmaxCrossEntropy)
    plan = plan_of(network, "spatial")
    executor = Executor(network, plan, None, Communicator(ranks, backend("cpu")), backend("cpu"),
                        3, lower(network, plan, lambda step: ("ring", 1), training=False))
    wrong = [shape[1:], (-(-extents[0] // 2), *extents[1:]), (*extents[:-1], extents[-1] + 1)]
    for number, other in enumerate(wrong):
        path = folder / f"{number}.h5"
        if ranks.rank == 0:
            written(path, shape, other, SoftmaxCrossEntropy)
        ranks.barrier()
        for split in ("train", "test"):
            with pytest.raises(InputError) as caught:
                open_data(executor, str(path), 0, split, ())
            has, takes = ("x".join(map(str, e)) for e in (other, extents))
            message = f"holds labels {has}, but the network's output is {takes}; make the file "
            assert message in str(caught.value)


