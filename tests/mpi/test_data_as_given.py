"""Data as people have it: 16-bit images and masks whose pixels do not all count train as in PyTorch
under any cut; a dataset of one's own is read by box; batch normalization of one value is refused.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcpar.comm.world import World, world
from hpcpar.data.arrays import ArrayOptions
from hpcpar.data.numpy_files import from_numpy
from hpcpar.errors import InputError
from hpcpar.kernels import backend
from hpcpar.network.graph import Network
from hpcpar.network.layers import DiceCrossEntropy, SoftmaxCrossEntropy
from hpcpar.network.read.torch_module import from_torch
from hpcpar.plan import plan as plans
from hpcpar.train import global_tensors
from hpcpar.train.inference import Inference
from hpcpar.train.job_options import JobOptions
from hpcpar.train.loop import Progress, Training

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed (extra 'oracle')", allow_module_level=True)

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset

import hpcpar
import hpcpar.torch
from hpcpar.torch.parallelize import parallelize

P = world().size
pytestmark = pytest.mark.skipif(P > 4, reason="every cut occurs on 1 to 4 ranks")
SHAPE, BATCH, STEPS, RATE = (2, 12, 10), 4, 4, 0.1
#: How masks reach PyTorch, and their values here.
IGNORED = 255


def net(norm: bool = True) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1),
                         nn.BatchNorm2d(4) if norm else nn.Identity(), nn.ReLU(),
                         nn.Conv2d(4, 3, 1)).double()


@pytest.fixture
def made(tmp_path: Path, ranks: World) -> tuple[str, np.ndarray, np.ndarray]:
    """A data file on a path that all ranks know, its images and its masks; 3 or so are held out."""
    rng = np.random.default_rng(7)
    images = rng.integers(-1000, 3000, (16, *SHAPE)).astype(np.int16)
    masks = rng.integers(0, 3, (16, *SHAPE[1:])).astype(np.uint8)
    masks[rng.random(masks.shape) < 0.3] = IGNORED
    masks[:, :4, 5:], masks[3] = IGNORED, IGNORED
    path = ranks.comm.bcast(str(tmp_path / "d.h5"))
    if ranks.rank == 0:
        np.save(tmp_path / "x.npy", images)
        np.save(tmp_path / "y.npy", masks)
        from_numpy(path, str(tmp_path / "x.npy"), str(tmp_path / "y.npy"),
                   ArrayOptions(ignore=IGNORED))
    ranks.comm.Barrier()
    return path, images, masks


def planned(network: Network, ranks: World, strategy: str, microbatches: int = 1) -> plans.Plan:
    """A plan in float64, the same on every rank."""
    return plans.from_json(ranks.first(lambda: plans.to_json(hpcpar.plan(
        network, P, BATCH, "local", strategy, precision="fp64",
        microbatches=microbatches).plan)), "the plan")


def put(module: nn.Module, weights: dict[str, np.ndarray]) -> None:
    """Gives a module our weights."""
    module.load_state_dict({name.replace("/", ".").replace("running_variance", "running_var"):
                            torch.from_numpy(value) for name, value in weights.items()},
                           strict=False)


def close(found: Any, wanted: Any) -> bool:
    return bool(np.allclose(found, wanted, rtol=1e-9, atol=1e-12))


class Theirs:
    """Plain PyTorch on one process: normalized images, `ignore_index`."""

    def __init__(self, module: nn.Module, path: str, dice: bool = False) -> None:
        import h5py

        self.dice = dice
        self.module = module
        self.optimizer = torch.optim.SGD(module.parameters(), RATE)
        with h5py.File(path) as f:
            mean, scale = f.attrs["mean"][:, None, None], f.attrs["scale"][:, None, None]
            self.parts = {prefix: (torch.from_numpy((f[f"{prefix}images"][...] - mean) * scale),
                                   torch.from_numpy(f[f"{prefix}labels"][...]))
                          for prefix in ("", "test_")}
            assert f["images"].dtype == np.int16 and (f["labels"][...] == -1).any()

    def step(self, chosen: np.ndarray) -> float:
        images, labels = (each[chosen] for each in self.parts[""])
        loss = self.loss(self.module(images), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def loss(self, y: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy of the pixels that count, plus perhaps Dice of these, by sample."""
        loss = functional.cross_entropy(y, labels, ignore_index=-1)
        if not self.dice:
            return loss
        known = (labels >= 0).double()[:, None]
        p = y.softmax(1) * known
        truth = functional.one_hot(labels.clamp(0), 3).movedim(-1, 1) * known
        above, below = (2 * (p * truth).sum((2, 3)) + 1e-5, (p + truth).sum((2, 3)) + 1e-5)
        return loss + (1 - above / below).mean()

    def test(self) -> tuple[float, float]:
        """Loss and accuracy on the held-out part."""
        images, labels = self.parts["test_"]
        self.module.eval()
        with torch.no_grad():
            y = self.module(images)
        known = labels >= 0
        return (float(self.loss(y, labels)),
                float((y.argmax(1) == labels)[known].double().mean()))


@pytest.mark.parametrize("strategy", ["data", "spatial", "filter", "micro-batches", "dice"])
def test_pixels_that_do_not_count_train_as_in_pytorch(
        strategy: str, made: tuple[str, np.ndarray, np.ndarray], ranks: World) -> None:
    parts = strategy == "micro-batches"
    module = net(norm=not parts)  # micro-batches have batch statistics of their own
    dice = strategy == "dice"
    network = from_torch(module, SHAPE, DiceCrossEntropy if dice else SoftmaxCrossEntropy)
    plan = planned(network, ranks, "spatial" if parts or dice else strategy, 2 if parts else 1)
    options = JobOptions(data=made[0], steps=STEPS, rate=RATE, momentum=0.0, decay=0.0)
    job = Training(ranks, network, plan, backend("cpu"), options)
    put(module, ranks.comm.bcast(dict(global_tensors.weights(job.executor, ranks))))
    order, theirs = [job.loader.order(epoch) for epoch in range(2)], Theirs(module, made[0], dice)
    told: list[Progress] = []
    job.run(told.append)
    per_epoch = job.loader.batches_per_epoch
    losses = [theirs.step(order[i // per_epoch][i % per_epoch * BATCH:][:BATCH])
              for i in range(STEPS)]
    assert close([now.loss for now in told], losses)
    loss, accuracy = theirs.test()
    assert close(told[-1].test_loss, loss) and close(told[-1].test_accuracy, accuracy)
    job.close()


@pytest.mark.parametrize("strategy", ["data", "spatial"])
def test_inference_counts_only_valid_labels(strategy: str, ranks: World,
                                            made: tuple[str, np.ndarray, np.ndarray]) -> None:
    module = net()
    network = from_torch(module, SHAPE)
    plan = planned(network, ranks, strategy)
    job = Inference(ranks, network, plan, backend("cpu"), JobOptions(data=made[0]))
    put(module, ranks.comm.bcast(dict(global_tensors.weights(job.executor, ranks))))
    told: list[Any] = []
    job.run(told.append)
    loss, accuracy = Theirs(module, made[0]).test()
    assert close(told[-1].loss, loss) and close(told[-1].accuracy, accuracy)
    job.close()


class Scans(Dataset[dict[str, Tensor]]):
    """A map-style dataset as people write them: samples are made by number, 16-bit images."""

    def __init__(self, images: np.ndarray, masks: np.ndarray) -> None:
        self.images, self.masks, self.read = images, masks, list[int]()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        self.read.append(i)
        return {"image": torch.from_numpy(self.images[i]),
                "mask": torch.from_numpy(self.masks[i].astype(np.int64))}


@pytest.mark.parametrize("kind", ["int16", "uint16", "float64"])
@pytest.mark.parametrize("strategy", ["data", "spatial", "filter"])
def test_any_dataset_is_read_by_box(strategy: str, kind: str, ranks: World,
                                    made: tuple[str, np.ndarray, np.ndarray]) -> None:
    """Each sample once per epoch, its box by rank; the same training as PyTorch's."""
    _, images, masks = made
    images, module = abs(images).astype(kind), net()
    model = parallelize(module, SHAPE, BATCH, strategy)
    module.load_state_dict(model.state_dict())
    data = Scans(images, masks)
    sampler = hpcpar.torch.BatchSampler(model, data, seed=3)
    pairs = [(m, torch.optim.SGD(m.parameters(), 1e-6)) for m in (model, module)]
    for epoch in range(2):
        data.read.clear()
        order = torch.randperm(16, generator=torch.Generator().manual_seed(3 + epoch))
        for i, batch in enumerate(DataLoader(data, batch_sampler=sampler)):
            own = model.local(batch["mask"])
            losses = functional.cross_entropy(model(batch["image"]), own, ignore_index=IGNORED,
                                              reduction="none")
            counted = hpcpar.torch.sum((own != IGNORED).double().sum(), model)
            loss = hpcpar.torch.sum(losses.sum(), model) / counted
            model.backward(loss)
            chosen = order[i * BATCH:][:BATCH]
            expected = functional.cross_entropy(
                module(torch.from_numpy(images.astype(float))[chosen]),
                torch.from_numpy(masks.astype(np.int64))[chosen], ignore_index=IGNORED)
            expected.backward()
            assert close(loss.detach(), expected.detach())
            for _, optimizer in pairs:
                optimizer.step()
                optimizer.zero_grad()
        assert len(set(data.read)) == len(data.read)
        everyone = sorted(i for each in ranks.comm.allgather(data.read) for i in each)
        assert everyone == sorted([*range(16)] * (1 if strategy == "data" else P))
    state = module.state_dict()
    assert all(close(value, state[name]) for name, value in model.state_dict().items())


def test_iterable_datasets_are_refused_by_the_sampler() -> None:
    class Stream(IterableDataset[Tensor]):
        def __iter__(self) -> Any:
            return iter(torch.zeros(9, *SHAPE))

    model = parallelize(net(), SHAPE, BATCH, "data")
    with pytest.raises(InputError, match=r"Stream has no samples by number .*DataLoader\(data, "
                                         r"batch_size=model.plan.batch, drop_last=True\)"):
        hpcpar.torch.BatchSampler(model, Stream())  # type: ignore[arg-type]
    batches = list(DataLoader(Stream(), batch_size=BATCH, drop_last=True))
    assert len(batches) == 2 and all(len(model(x.double())) for x in batches)


def test_normalization_of_a_single_value_is_refused_on_every_rank(ranks: World) -> None:
    module = nn.Sequential(nn.Conv2d(2, 4, 3), nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(4),
                           nn.Flatten(), nn.Linear(4, 3))
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        module(torch.zeros(1, *SHAPE))
    with pytest.raises(InputError, match="Expected more than 1 value per channel when training"):
        parallelize(module, SHAPE, 1, "spatial" if P > 1 else "data")
    network = from_torch(module, SHAPE)
    plan = hpcpar.plan(network, P, P + 1, "local", "data").plan
    alone = replace(plan, batch=1)
    with pytest.raises(InputError, match=r"layer .2. .*Expected more than 1 value per channel"):
        parallelize(module, SHAPE, 1, alone)
    assert ranks.comm.allreduce(1) == P
