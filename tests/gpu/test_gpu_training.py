"""Streams, NCCL and whole iterations on a GPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from hpcpar.comm.communicator import Communicator
from hpcpar.comm.transport import Transport
from hpcpar.comm.world import world
from hpcpar.errors import InputError
from hpcpar.kernels.numpy_backend import NumpyBackend
from hpcpar.network.builtin import network
from hpcpar.plan.plan import NetworkSpec, make_plan
from hpcpar.runtime.executor import Executor
from hpcpar.schedule.lower import lower
from tests.kernel_support import fetch

#: Networks, their images and batches.
NETWORKS = {"lenet5": ((1, 28, 28), 8), "alexnet": ((3, 99, 99), 4), "resnet50": ((3, 64, 64), 4)}


def losses(name: str, backend: Any, precision: str,
           transport: Transport = Transport.STAGED) -> list[float]:
    """Losses of three iterations on this rank alone."""
    image, batch = NETWORKS[name]
    net = network(name, image, 10)
    plan = make_plan(NetworkSpec(name, image, 10), "data", 1, batch, precision=precision)
    executor = Executor(net, plan, lower(net, plan, lambda step: ("ring", 1)),
                        Communicator(world().alone(), backend, transport), backend, 0)
    rng = np.random.default_rng(1)
    images = rng.standard_normal((batch, *image)).astype(plan.dtype)
    labels = rng.integers(0, 10, batch)
    return [executor.iterate(images, labels, i, 0.001, 0.9, 0.0)[0] for i in range(3)]


@pytest.mark.parametrize(("precision", "within"), [("fp64", 1e-10), ("fp32", 1e-3)])
@pytest.mark.parametrize("name", NETWORKS)
def test_training_equals_the_cpus(name: str, precision: str, within: float, gpu: Any) -> None:
    expected = losses(name, NumpyBackend(), precision)
    assert losses(name, gpu, precision) == pytest.approx(expected, rel=within)


def test_two_trainings_give_the_same_bits(gpu: Any) -> None:
    assert losses("alexnet", gpu, "fp32") == losses("alexnet", gpu, "fp32")


def test_a_single_rank_trains_with_nccl(gpu: Any) -> None:
    try:
        gpu.require_groups()
    except InputError as err:
        pytest.skip(str(err))
    assert losses("lenet5", gpu, "fp32", Transport.NCCL) == losses("lenet5", gpu, "fp32")
    group = gpu.group(1, 0, lambda mine: mine)
    numbers = gpu.xp.arange(12, dtype=np.float32)
    group.allreduce(numbers)
    group.allgather([numbers])
    group.reduce_scatter([numbers])
    assert group.fault() == ""
    host = np.empty(12, np.float32)
    gpu.to_host(numbers, host)
    assert host.tolist() == list(range(12))


def test_a_thread_uploads_while_the_device_computes(gpu: Any) -> None:
    """Its copies are complete, and the compute stream stays the current one."""
    compute = gpu.xp.cuda.get_current_stream()
    batches = [np.full((4, 3, 8, 8), i, np.uint8) for i in range(20)]
    sums = gpu.zeros((4, 3, 8, 8), np.float32)
    with ThreadPoolExecutor(1) as pool:
        for images in pool.map(gpu.upload, batches):
            assert isinstance(images, gpu.xp.ndarray) and images.dtype == np.uint8
            gpu.xp.add(sums, images, out=sums)
    assert (fetch(gpu.upload(batches[1])) == 1).all() and gpu.upload(sums) is sums
    assert gpu.xp.cuda.get_current_stream() == compute
    host = np.empty(sums.shape, np.float32)
    gpu.to_host(sums, host)
    assert (host == sum(range(20))).all()


def test_one_stream_waits_for_the_other(gpu: Any) -> None:
    """A copy on the communication stream comes after the work that it follows, and before the work
    that follows it.
    """
    compute = gpu.xp.cuda.get_current_stream()
    assert compute != gpu.xp.cuda.Stream.null
    items = 1 << 20
    numbers, host = gpu.zeros((items,), np.float32), gpu.host_buffer(items, np.float32)
    for round_ in range(20):
        gpu.xp.add(numbers, 1, out=numbers)
        made = gpu.mark()
        with gpu.communication_stream():
            gpu.follow(made)
            gpu.enqueue_to_host(numbers, host)
            copied = gpu.mark()
        assert gpu.xp.cuda.get_current_stream() == compute
        gpu.follow(copied)
        gpu.xp.add(numbers, 1, out=numbers)
        gpu.enqueue_to_device(host, numbers)
        last = gpu.mark()
        while not gpu.reached(last):
            pass
        assert (host == round_ + 1).all()
        first_s, second_s = gpu.times_s([made, last])
        assert first_s <= second_s


def test_a_copy_of_an_array_with_gaps_keeps_the_stream(gpu: Any) -> None:
    """CuPy enters the stream in use for it, and leaves it for the one entered before."""
    compute = gpu.xp.cuda.get_current_stream()
    assert gpu.zeros((4, 4), np.float32)[:, 1:3].get().sum() == 0
    assert gpu.xp.cuda.get_current_stream() == compute != gpu.xp.cuda.Stream.null
