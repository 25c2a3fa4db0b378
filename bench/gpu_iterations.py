"""Iterations on one card: hpcpar's, step by step and as graphs, beside PyTorch's."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

#: Iterations before the first that is timed: warm-up and capture.
WARM_UP = 4


def _executor(name: str, batch: int, precision: str, graphs: bool) -> Any:
    from hpcpar.comm.communicator import Communicator
    from hpcpar.comm.world import world
    from hpcpar.kernels import backend
    from hpcpar.network.builtin import network
    from hpcpar.plan.plan import NetworkSpec, make_plan
    from hpcpar.runtime.executor import Executor
    from hpcpar.schedule.lower import lower

    net = network(name)
    plan = make_plan(NetworkSpec(name, net.image_shape, net.classes), "data", 1, batch,
                     precision=precision)
    gpu = backend("gpu", "fp32" if precision == "fp32" else "tf32")
    return Executor(net, plan, lower(net, plan, lambda step: ("ring", 1)),
                    Communicator(world(), gpu), gpu, 0, graphs=graphs)


def _batch(executor: Any) -> tuple[Any, Any]:
    """Random images on the card, and labels."""
    net, batch = executor.network, executor.plan.batch
    rng = np.random.default_rng(0)
    images = rng.standard_normal((batch, *net.image_shape)).astype(np.float32)
    return executor.backend.upload(images), rng.integers(0, net.classes, batch)


def own_s(name: str, batch: int, precision: str, graphs: bool, repeats: int) -> float:
    """Median seconds between the ends of iterations, each read one iteration late."""
    executor = _executor(name, batch, precision, graphs)
    images, labels = _batch(executor)
    ends, flight = [], None
    for i in range(WARM_UP + repeats):
        following = executor.begin(images, labels, i, 0.001, 0.9, 0.0, noted=False)
        if flight is not None:
            ends.append(flight.result().ended_s)
        flight = following
    assert flight is not None
    ends.append(flight.result().ended_s)
    return float(statistics.median(np.diff(ends)[WARM_UP - 1:]))


def replayed_as_submitted(name: str, batch: int, iterations: int) -> dict[str, Any]:
    """Whether losses and weights are bitwise the same, and what the graphs did."""
    found = []
    for graphs in (False, True):
        executor = _executor(name, batch, "fp32", graphs)
        images, labels = _batch(executor)
        losses = [executor.begin(images, labels, i, 0.001, 0.9, 0.0, noted=False).result().loss
                  for i in range(iterations)]
        weights = [np.empty(p.flat.shape, p.flat.dtype) for p in executor.parameters.values()]
        for p, host in zip(executor.parameters.values(), weights, strict=True):
            executor.backend.to_host(p.flat, host)
        found.append((losses, [w.tobytes() for w in weights]))
    replays = executor.replays
    return {"network": name, "batch": batch, "equal": found[0] == found[1],
            "graphs": replays.graphs, "replayed": replays.replayed,
            "left out": "; ".join(replays.cautions) or "-"}


def row(name: str, batch: int, precision: str, repeats: int) -> dict[str, Any]:
    """Milliseconds of an iteration in every way; "-" where there is none."""
    out: dict[str, Any] = {"network": name, "batch": batch, "format": precision}
    for way, graphs in (("submitted", False), ("replayed", True)):
        out[f"hpcpar {way} ms"] = 1e3 * own_s(name, batch, precision, graphs, repeats)
    peers = _peers_ms(name, batch, precision, repeats)
    out |= {f"PyTorch {way} ms": ms for way, ms in peers.items()}
    own_ms, peer_ms = out["hpcpar replayed ms"], peers["eager"]
    measured = isinstance(own_ms, float) and isinstance(peer_ms, float)
    return out | {"PyTorch eager/hpcpar replayed": peer_ms / own_ms if measured else "-"}


def _peers_ms(name: str, batch: int, precision: str, repeats: int) -> dict[str, float | str]:
    """PyTorch's milliseconds by way; the error where a way fails, and "-" without a card."""
    try:
        import torch
    except ImportError:
        return dict.fromkeys(("eager", "compiled", "graph"), "-")
    from bench import torch_ways

    if not torch.cuda.is_available():
        return dict.fromkeys(torch_ways.WAYS, "-")
    out: dict[str, float | str] = {}
    for way in torch_ways.WAYS:
        try:
            out[way] = 1e3 * torch_ways.iteration_s(name, batch, precision, way, repeats)
        except Exception as err:  # a way that fails costs its own cell
            out[way] = type(err).__name__
        torch.cuda.empty_cache()
    return out
