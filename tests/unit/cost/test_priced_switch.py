"""The priced schedule against one weird trick's switch and the layer-wise papers' servers, on a
flat machine without latency.
"""

from __future__ import annotations

import math
from functools import lru_cache

import pytest

from bench.papers.equations import optcnn, owt
from hpcpar.machine.model import Device, Level, Machine
from hpcpar.network.builtin import network
from hpcpar.plan.plan import NetworkSpec, make_plan
from hpcpar.prediction.prediction import Prediction, StepCost
from tests.unit.closed import price

BETA_S = 1e-9
FLAT = Machine("flat", Device(10**12, 1e12, 1e12), (Level("all", 0, 0.0, BETA_S),))
NET = network("alexnet-owt")
SPEC = NetworkSpec("alexnet-owt", NET.image_shape, NET.classes)
IMAGES = 128
#: Activations of one worker's images at the switch.
BATCH_BYTES = 4.0 * IMAGES * math.prod(NET.input_shape(NET.by_name["fc6"]))
STRATEGIES = {"a": "owt", "b": "owt-b", "c": "owt-c"}


@lru_cache
def priced(strategy: str, workers: int, synchronization: str = "allreduce") -> Prediction:
    # the papers' servers and broadcasts send to each of the others, as ours do beside the library's
    # collectives
    direct = synchronization == "server" or strategy == STRATEGIES["b"]
    collectives = "mpi" if direct else "ring"
    plan = make_plan(
        SPEC, strategy, workers, IMAGES * workers, network=NET, machine=FLAT,
        overlap="none", collectives=collectives, synchronization=synchronization,
    )
    return price(NET, plan, FLAT)


def switch(scheme: str, workers: int, phase: str) -> list[StepCost]:
    """The movements at the switch: activations into fc6, or their gradients back."""
    return [s for s in priced(STRATEGIES[scheme], workers).steps if s.is_comm and s.layer == "fc6"
            and s.phase == phase]


@pytest.mark.parametrize("workers", [2, 4, 8])
@pytest.mark.parametrize("scheme", ["a", "b", "c"])
def test_the_switch_moves_the_papers_bytes(scheme: str, workers: int) -> None:
    """All schemes move the same total bytes, over their number of passes; only one rank sends in a
    broadcast.
    """
    steps = switch(scheme, workers, "forward")
    senders = 1 if scheme == "b" else workers
    assert len(steps) == owt.fc_passes(scheme, workers)  # type: ignore[arg-type]
    received = owt.received_bytes(scheme, workers, BATCH_BYTES)  # type: ignore[arg-type]
    assert senders * sum(s.sent_bytes for s in steps) == received


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_a_pass_takes_the_time_of_its_busiest_receiver(workers: int) -> None:
    """Schemes (a) and (c) by rings; in (b) the paper counts a broadcast once, ours is sent to each
    of the others.
    """
    for scheme in ("a", "c"):
        pass_s = owt.pass_s(scheme, workers, BATCH_BYTES, 1 / BETA_S, receivers=True)  # type: ignore[arg-type]
        for phase in ("forward", "backward"):
            passes = owt.fc_passes(scheme, workers)  # type: ignore[arg-type]
            assert [s.seconds for s in switch(scheme, workers, phase)] == pytest.approx(
                [pass_s] * passes)
    once = owt.pass_s("b", workers, BATCH_BYTES, 1 / BETA_S)
    assert [s.seconds for s in switch("b", workers, "forward")] == pytest.approx(
        [(workers - 1) * once] * workers)


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_convolution_weights_are_reduced_and_spread(workers: int) -> None:
    convs = [layer for layer in NET.matmul_layers if layer.name.startswith("conv")]
    weights = 4.0 * sum(layer.parameters(NET.input_shape(layer)) for layer in convs)
    seconds = sum(s.seconds for s in priced("owt", workers).steps if s.is_comm
                  and s.phase == "gradient" and s.layer.startswith("conv"))
    # uneven blocks
    assert seconds == pytest.approx(owt.weight_sync_s(workers, weights, 1 / BETA_S), rel=1e-4)


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_parameter_servers(workers: int) -> None:
    """The papers let a server's own gradient travel as well; ours stays. Distributed servers reduce
    and scatter, and gather back.
    """
    config = optcnn.Configuration(n=workers)
    for layer in NET.matmul_layers:
        weights = 4.0 * layer.parameters(NET.input_shape(layer))
        for synchronization, expected in (
            ("server", (workers - 1) / workers * optcnn.ts_s(weights, config, 1 / BETA_S)),
            ("sharded", optcnn.ts_s(weights, config, 1 / BETA_S, distributed=True)),
        ):
            steps = [s for s in priced("data", workers, synchronization).steps if s.is_comm
                     and s.layer == layer.name]
            there = [s.seconds for s in steps if s.phase == "gradient"]
            back = [s.seconds for s in steps if s.phase == "update"]
            assert there == pytest.approx([expected]) and back == pytest.approx([expected])
