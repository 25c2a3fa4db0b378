"""Decides which effects that apply to a plan and a machine its prediction leaves out."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hpcpar.cost.compute.kernel_model import fitted
from hpcpar.cost.compute.priced_formats import device_for
from hpcpar.cost.published_runs import kind_of, published
from hpcpar.plan.plan import Synchronization
from hpcpar.search.candidates import Candidate

#: A kind of network with fewer published runs is reported.
FEW_RUNS = 20
#: A median ratio of measured to predicted time is reported if its logarithm exceeds this.
BIAS = 0.1


def outside_model(chosen: Candidate) -> tuple[str, ...]:
    """One line per effect."""
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
        yield "changes of the machine's speed after its calibration"
        return
    device = device_for(machine.device, chosen.plan.formats)
    host_s = fitted().host_s if device.multiprocessors else device.launch_s
    yield (f"host time of an operation beyond {1e6 * host_s:.3g} us (Python, the framework), which "
           "limits small batches")
    yield "layers that a compiler fuses, channels-last layouts"
    if machine.kind == "gpu" or machine.processor == "GPU":
        yield "clocks that drop under load"


def _of_several_ranks(chosen: Candidate) -> Iterator[str]:
    machine = chosen.task.machine
    if chosen.prediction.ranks == 1:
        return
    if not any(level.load for level in machine.levels):
        yield "other jobs on the same links (--load)"
    yield "ranks that are slower than others, and jitter (hpcpar simulate --slow, --jitter)"
    if chosen.plan.synchronization is Synchronization.SERVER:
        yield ("parameter servers on hosts (--synchronization server-host): the plan's server is a "
               "rank that updates all weights")


def _of_published_runs(chosen: Candidate) -> Iterator[str]:
    """Differences between the plan and the published runs behind its interval."""
    p, runs = chosen.prediction, published()
    assert p.trust.runs is not None
    if abs(math.log(p.trust.runs.median)) > BIAS:
        yield (f"bias: published runs of this class take {p.trust.runs.median:.2g} times the "
               "predicted time (median)")
    if any(c.n != p.ranks for c in chosen.plan.configs.values()):
        yield "strategies other than data parallelism: no published run checks their price"
    if p.ranks > runs.most_ranks:
        yield f"more than {runs.most_ranks} ranks: no published run behind the interval is larger"
    kind = kind_of(chosen.task.network)
    if runs.kinds.get(kind, 0) < FEW_RUNS:
        yield f"networks with {kind}: {runs.kinds.get(kind, 0)} published runs behind the interval"
