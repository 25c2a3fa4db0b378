"""Maps pieces of work to the compute steps of a schedule that measure them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpar.cost.compute.work import Work, Workload
from hpcpar.network.graph import Network
from hpcpar.plan.plan import Plan
from hpcpar.schedule.lower import samples_of
from hpcpar.schedule.one_weird_trick import switch
from hpcpar.schedule.steps import Compute, Op, Schedule


class WorkIndex:
    """The compute steps of a plan, grouped by the keys of their work.

    A convolution's interior and boundary are priced as parts of the whole, so both steps form one
    measurement. If micro-batches differ by a sample, only the largest ones count.
    """

    def __init__(self, network: Network, plan: Plan, schedule: Schedule) -> None:
        self.plan = plan
        load, batch = Workload(network, plan), plan.batch
        #: The pieces of work by their keys, as in a machine's table.
        self.works: dict[str, Work] = {}
        #: By key: the steps of each measurement, by (layer, ...).
        self._measurements: dict[str, dict[Any, list[int]]] = defaultdict(
            lambda: defaultdict(list))
        before_fc, largest = set(), max(samples_of(plan, m) for m in range(plan.microbatches))
        if plan.fc_passes > 1:
            before_fc = {layer.name for layer in network.layers[:switch(network)]}
            largest = batch // plan.fc_passes
        for step in schedule.steps:
            if not isinstance(step, Compute):
                continue
            if step.layer in before_fc:
                samples = batch
            else:
                samples = largest if plan.fc_passes > 1 else samples_of(plan, step.part)
            if samples < largest:
                continue
            split = step.op in (Op.INTERIOR, Op.BOUNDARY)
            measurement = (step.layer, step.part, step.phase) if split else (step.layer, step.index)
            work = load.work(network.by_name[step.layer], step.op, samples)
            self.works.setdefault(work.key, work)
            self._measurements[work.key][measurement].append(step.index)

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the pieces of work, in the order of `seconds`."""
        return tuple(self.works)

    def seconds(self, steps_s: NDArray[Any], rank: int) -> NDArray[np.float64]:
        """[..., keys] time (s) of every piece of work on a rank, the mean over its measurements.

        The time is 0 if the rank does not have the work.

        Parameters
        ----------
        steps_s : ndarray
            [..., steps] times (s) of the rank's steps.
        """
        means_s = np.zeros((*steps_s.shape[:-1], len(self.keys)))
        for k, key in enumerate(self.keys):
            measurements = [steps for (layer, *_), steps in self._measurements[key].items()
                            if self.plan.configs[layer].holds(rank)]
            for steps in measurements:
                means_s[..., k] += steps_s[..., steps].sum(axis=-1) / len(measurements)
        return means_s

    def totals(self, steps_s: Sequence[float]) -> dict[str, float]:
        """Time per iteration (s) of every piece of work, from the times of all steps."""
        return {key: sum(steps_s[i] for steps in self._measurements[key].values() for i in steps)
                for key in self.keys}
