"""Capture of streams: what replays, and what CUDA and CuPy refuse."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np
import pytest


class Capture:
    """A stream, and a pool for the memory of a capture."""

    def __init__(self, cuda: Any) -> None:
        self.cuda, self.stream, self.pool = cuda, cuda.Stream(non_blocking=True), cuda.MemoryPool()

    def of(self, work: Callable[[], Any], owns_memory: bool = True) -> Any:
        """The graph of some work."""
        memory = self.cuda.using_allocator(self.pool.malloc) if owns_memory else nullcontext()
        with memory, self.stream:
            self.stream.begin_capture()
            try:
                work()
            except BaseException:
                with suppress(RuntimeError):  # the error may have broken the capture
                    self.stream.end_capture()
                raise
            return self.stream.end_capture()


@pytest.fixture
def capture(gpu: Any) -> Capture:
    return Capture(gpu.xp.cuda)


def test_a_graph_does_its_work_at_every_launch(gpu: Any, capture: Capture) -> None:
    numbers = gpu.xp.arange(4, dtype=np.float64)
    gpu.synchronize()
    graph = capture.of(lambda: gpu.scale(numbers, 2.0))
    gpu.synchronize()
    assert numbers.get().tolist() == [0, 1, 2, 3]
    for _ in range(2):
        graph.upload(capture.stream)
        graph.launch(capture.stream)
    capture.stream.synchronize()
    assert numbers.get().tolist() == [0, 4, 8, 12]


def test_a_graph_owns_the_memory_between_its_kernels(gpu: Any, capture: Capture) -> None:
    numbers, total = gpu.xp.arange(4, dtype=np.float64), gpu.zeros((), np.float64)
    gpu.synchronize()
    graph = capture.of(lambda: gpu.xp.add(total, (numbers * 2).sum(), out=total))
    for _ in range(2):
        graph.launch(capture.stream)
    capture.stream.synchronize()
    assert total.get() == 24 and capture.pool.total_bytes() > 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_are_captured(dtype: Any, gpu: Any, capture: Capture) -> None:
    if gpu.products == "CuPy":
        pytest.skip("nvmath-python is not installed")
    rng = np.random.default_rng(0)
    a, b = (gpu.upload(rng.standard_normal((6, 6)).astype(dtype)) for _ in range(2))
    out = gpu.zeros((6, 6), dtype)
    for _ in range(2):
        with capture.stream:
            gpu.gemm(a, b, out, transpose_b=True)  # makes cuBLAS's handle and workspace
        graph = capture.of(lambda: gpu.gemm(a, b[:, ::-1], out, transpose_b=True))
    graph.launch(capture.stream)
    capture.stream.synchronize()
    np.testing.assert_allclose(out.get(), a.get() @ b.get()[:, ::-1].T, rtol=1e-5)


def test_another_stream_joins_by_an_event(gpu: Any, capture: Capture) -> None:
    cuda, numbers = gpu.xp.cuda, gpu.xp.arange(4, dtype=np.float64)
    other, began, ended = cuda.Stream(non_blocking=True), cuda.Event(), cuda.Event()
    gpu.synchronize()

    def work() -> None:
        gpu.scale(numbers, 2.0)
        began.record()
        other.wait_event(began)
        with other:
            gpu.scale(numbers, 5.0)
            ended.record()
        assert other.is_capturing()
        capture.stream.wait_event(ended)
        gpu.xp.add(numbers, 1.0, out=numbers)

    graph = capture.of(work)
    assert not other.is_capturing()
    for _ in range(2):
        graph.launch(capture.stream)
    capture.stream.synchronize()
    assert numbers.get().tolist() == [11, 111, 211, 311]


def test_a_stream_that_does_not_come_back_is_refused(gpu: Any, capture: Capture) -> None:
    cuda, numbers = gpu.xp.cuda, gpu.zeros((4,), np.float64)
    other, began = cuda.Stream(non_blocking=True), cuda.Event()
    gpu.synchronize()

    def work() -> None:
        began.record()
        other.wait_event(began)
        with other:
            gpu.scale(numbers, 5.0)

    with pytest.raises(cuda.runtime.CUDARuntimeError, match="Unjoined"):
        capture.of(work)
    assert not other.is_capturing() and not capture.stream.is_capturing()


REFUSED = {
    "get": (lambda gpu, a: a.get(), RuntimeError, "is capturing"),
    "set": (lambda gpu, a: a.set(np.zeros((4, 4))), RuntimeError, "is capturing"),
    "asnumpy": (lambda gpu, a: gpu.xp.asnumpy(a), RuntimeError, "is capturing"),
    "a number": (lambda gpu, a: float(a.sum()), RuntimeError, "is capturing"),
    "asarray": (lambda gpu, a: gpu.xp.asarray(np.zeros(3)), RuntimeError, "is capturing"),
    "copy to the device": (lambda gpu, a: gpu.enqueue_to_device(
        gpu.host_buffer(16, np.float64).reshape(4, 4), a), RuntimeError, "is capturing"),
    "cuBLAS": (lambda gpu, a: gpu.xp.matmul(a, a), NotImplementedError, "cuBLAS"),
    "stream": (lambda gpu, a: gpu.xp.cuda.get_current_stream().synchronize(), RuntimeError,
               "Unsupported"),
    "device": (lambda gpu, a: gpu.synchronize(), RuntimeError, "Unsupported"),
    "event": (lambda gpu, a: gpu.mark().synchronize(), RuntimeError, "Captured"),
    "a second capture": (lambda gpu, a: gpu.xp.cuda.get_current_stream().begin_capture(),
                         RuntimeError, "IllegalState"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_waits_for_the_device_is_refused(name: str, gpu: Any, capture: Capture) -> None:
    work, error, words = REFUSED[name]
    array = gpu.zeros((4, 4), np.float64)
    gpu.synchronize()
    with pytest.raises(error, match=words):
        capture.of(lambda: work(gpu, array))
    assert not capture.stream.is_capturing()
    capture.stream.synchronize()


def test_the_default_stream_is_refused(gpu: Any) -> None:
    with pytest.raises(RuntimeError, match="cannot capture on the default"):
        gpu.xp.cuda.Stream.null.begin_capture()


def test_the_fake_gpu_refuses_memory_that_others_get_later(gpu: Any, capture: Capture) -> None:
    if "pretended" not in gpu.versions["cupy"]:
        pytest.skip("CuPy does not refuse it")
    with pytest.raises(RuntimeError, match="memory of the shared pool"):
        capture.of(lambda: gpu.xp.arange(4) + 1, owns_memory=False)
