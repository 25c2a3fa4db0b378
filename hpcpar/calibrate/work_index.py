"""Index from pieces of work to the compute steps of a schedule that measure them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpar.cost.compute.work import Work, Workload
from hpcpar.network.graph import Network
from hpcpar.plan.plan import Plan
from hpcpar.schedule.freeze import samples_of
from hpcpar.schedule.pipeline_order import switch
from hpcpar.schedule.steps import Compute, Op, Schedule


class WorkIndex:
    """The compute steps of a plan by the keys of their work.

    A convolution's interior and boundary are priced as parts of the whole: together they are one
    measurement of it. Of micro-batches that differ by a sample, those of the largest count.
    """

    def __init__(self, network: Network, plan: Plan, schedule: Schedule) -> None:
        self.plan = plan
        load, batch = Workload(network, plan), plan.batch
        #: The pieces of work by their keys, as in a machine's table.
        self.works: dict[str, Work] = {}
        #: By key: the steps of every measurement of it, by layer and measurement.
        self._whole: dict[str, dict[Any, list[int]]] = defaultdict(lambda: defaultdict(list))
        before, largest = set(), max(samples_of(plan, m) for m in range(plan.microbatches))
        if plan.fc_passes > 1:
            before = {layer.name for layer in network.layers[:switch(network)]}
            largest = batch // plan.fc_passes
        for step in schedule.steps:
            if not isinstance(step, Compute):
                continue
            if step.layer in before:
                samples = batch
            else:
                samples = largest if plan.fc_passes > 1 else samples_of(plan, step.part)
            if samples < largest:
                continue
            parts = step.op in (Op.INTERIOR, Op.BOUNDARY)
            one = (step.layer, step.part, step.phase) if parts else (step.layer, step.index)
            work = load.work(network.by_name[step.layer], step.op, samples)
            self.works.setdefault(work.key, work)
            self._whole[work.key][one].append(step.index)

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the pieces of work, in the order of `seconds`."""
        return tuple(self.works)

    def seconds(self, steps_s: NDArray[Any], rank: int) -> NDArray[np.float64]:
        """[..., keys] seconds of every piece of work on a rank; 0 where it has none of it.

        The mean counts where there are several measurements.

        Parameters
        ----------
        steps_s : ndarray
            [..., steps] seconds of the rank's steps.
        """
        out = np.zeros((*steps_s.shape[:-1], len(self.keys)))
        for k, key in enumerate(self.keys):
            mine = [steps for one, steps in self._whole[key].items() if self._lives(one[0], rank)]
            for steps in mine:
                out[..., k] += steps_s[..., steps].sum(axis=-1) / len(mine)
        return out

    def totals(self, steps_s: Sequence[float]) -> dict[str, float]:
        """Seconds that an iteration spends on every piece of work, from those of its steps."""
        return {key: sum(steps_s[i] for steps in self._whole[key].values() for i in steps)
                for key in self.keys}

    def _lives(self, layer: str, rank: int) -> bool:
        config = self.plan.configs[layer]
        return bool(config.first <= rank < config.first + config.ranks)
