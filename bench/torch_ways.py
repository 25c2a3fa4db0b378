"""An iteration of PyTorch on one card, in the ways that a user has: eager, compiled, as a graph.

`iteration_s` times one. Every way trains the same module from the same weights on the same batch:
SGD with momentum, cross-entropy. ``fp32`` and ``tf32`` keep PyTorch's layout; ``amp`` is autocast
to bfloat16 and channels last.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

WAYS = ("eager", "compiled", "graph")
#: Iterations before a capture or a time, as PyTorch's guide has it.
WARM_UP = 3


def iteration_s(name: str, batch: int, precision: str, way: str, repeats: int) -> float:
    """Median seconds of an iteration, images and labels on the card."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = True
    iterate = training(name, batch, precision, way, "cuda")
    times_s = []
    for _ in range(WARM_UP + repeats):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        iterate()
        torch.cuda.synchronize()
        times_s.append(time.perf_counter() - begin)
    return statistics.median(times_s[WARM_UP:])


def training(name: str, batch: int, precision: str, way: str, device: str) -> Callable[[], Any]:
    """A call that trains one iteration and returns its loss."""
    from bench.ddp import twin
    from hpcpar.network.builtin import network

    torch.manual_seed(0)
    net = network(name)
    model = twin(net).to(device)
    images = torch.randn(batch, *net.image_shape, device=device)
    labels = torch.randint(net.classes, (batch,), device=device)
    if precision == "amp":
        last = torch.channels_last_3d if len(net.image_shape) == 4 else torch.channels_last
        model, images = model.to(memory_format=last), images.to(memory_format=last)
    update = torch.optim.SGD(model.parameters(), 0.001, 0.9)
    run = torch.compile(model) if way == "compiled" else model

    def iterate() -> Any:
        update.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=precision == "amp"):
            loss = torch.nn.functional.cross_entropy(run(images), labels)
        loss.backward()
        update.step()
        return loss

    return _captured(iterate) if way == "graph" else iterate


def _captured(iterate: Callable[[], Any]) -> Callable[[], Any]:
    """The call as one graph, after some iterations on a stream of their own."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            iterate()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = iterate()

    def replay() -> Any:
        graph.replay()
        return loss

    return replay
