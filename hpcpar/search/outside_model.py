"""Causes of deviation that a prediction leaves out, as far as they apply to plan and machine."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hpcpar.cost.compute.kernel_model import fitted
from hpcpar.cost.trust import kind_of, published
from hpcpar.plan.plan import Synchronisation
from hpcpar.search.candidates import Candidate

#: Rows below which published runs say little of a kind of network.
FEW_RUNS = 20
#: A median of measured over predicted times is named if its logarithm exceeds this.
BIAS = 0.1


def outside_model(chosen: Candidate) -> tuple[str, ...]:
    """A line for each cause."""
    p, parts = chosen.prediction, []
    if not p.io_s:
        parts.append("reading and decoding images (--io counts reading)")
    if p.training:
        parts.append("start-up, the first iterations, evaluation and checkpoints")
    parts += [*_of_computing(chosen), *_of_several_ranks(chosen)]
    return (*parts, *_of_published_runs(chosen)) if p.trust.runs else tuple(parts)


def _of_computing(chosen: Candidate) -> Iterator[str]:
    machine = chosen.task.machine
    if chosen.prediction.trust.calibrated:
        yield "a machine whose speed changes after its calibration"
        return
    host_s = fitted().host_s if machine.device.multiprocessors else machine.device.launch_s
    yield (f"host time of an operation beyond {1e6 * host_s:.3g} us (Python, a framework's own), "
           "which small batches wait for")
    yield "layers that a compiler fuses, layouts with the channels last"
    if machine.kind == "gpu" or machine.processor == "GPU":
        yield "clocks that fall under load"


def _of_several_ranks(chosen: Candidate) -> Iterator[str]:
    machine = chosen.task.machine
    if chosen.prediction.ranks == 1:
        return
    if not any(level.load for level in machine.levels):
        yield "other jobs on the same links (--load)"
    yield "ranks that are slower than others, and jitter (hpcpar simulate --slow, --jitter)"
    if chosen.plan.synchronisation is Synchronisation.SERVER:
        yield "parameter servers on hosts: here one rank updates all weights"


def _of_published_runs(chosen: Candidate) -> Iterator[str]:
    """Where the runs behind the interval differ in kind from the plan."""
    p, runs = chosen.prediction, published()
    assert p.trust.runs is not None
    if abs(math.log(p.trust.runs.median)) > BIAS:
        yield (f"published runs that are predicted so take {p.trust.runs.median:.2g} times as long "
               "in the median")
    if any(c.n != p.ranks for c in chosen.plan.configs.values()):
        yield "strategies other than data parallelism: no published run checks their price"
    if p.ranks > runs.most_ranks:
        yield f"more than {runs.most_ranks} ranks: the largest published run behind the interval"
    kind = kind_of(chosen.task.network)
    if runs.kinds.get(kind, 0) < FEW_RUNS:
        yield f"networks with {kind}: {runs.kinds.get(kind, 0)} published runs behind the interval"
