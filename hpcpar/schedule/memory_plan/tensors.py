"""The views that a step of a pass moves, reads or writes on one rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hpcpar.network.graph import Network
from hpcpar.plan.plan import Plan
from hpcpar.schedule.memory_plan.passes import PassPlan, PassPlans
from hpcpar.schedule.memory_plan.views import View
from hpcpar.schedule.steps import Comm, Compute, Kind, Op, Phase, Role


@dataclass(frozen=True)
class Touch:
    """A step reads or writes a view; with `makes`, it computes what is in it."""

    view: View | None
    makes: bool = False


class StepTensors:
    """Finds the views of steps in the passes of a rank."""

    def __init__(self, network: Network, plan: Plan, rank: int, passes: PassPlans) -> None:
        self.network, self.plan, self.rank, self.passes = network, plan, rank, passes

    def producer(self, step: Comm) -> str:
        """The layer whose output a movement of an input moves."""
        ref = step.tensor
        return self.network.by_name[ref.layer].inputs[ref.input]

    def moved(self, step: Comm) -> tuple[View, View]:
        """The views before and after a movement of an input or output, or of its gradient."""
        ref = step.tensor
        here = self.passes.find(ref.layer, step.part)
        blocks = here.blocks[ref.layer]
        if ref.role is Role.OUTPUT:
            before, after = (blocks.dout, blocks.dy) if ref.gradient else (blocks.y, blocks.out)
            assert before is not None and after is not None
            return before, after
        e = here.edges[ref.layer][ref.input]
        there = self.passes.find(e.producer.name, step.part)
        producer = there.blocks[e.producer.name]
        if not ref.gradient:
            assert producer.out is not None
            return self._rows(producer.out, here, there, step), blocks.xs[ref.input]
        dx = blocks.dxs[ref.input]
        assert dx is not None
        if ref.input in blocks.arriving:
            return dx, blocks.arriving[ref.input]
        # for a tensor with several readers, what is summed in place is added to the others' later
        if step.kind is Kind.ALLREDUCE and len(self.network.consumers[e.producer.name]) > 1:
            return dx, dx
        assert producer.dout is not None
        return dx, self._rows(producer.dout, here, there, step)

    def _rows(self, whole: View, here: PassPlan, there: PassPlan, step: Comm) -> View:
        """An FC pass's part of a block before the switch; of one rank's samples, the others hold
        nothing that counts.
        """
        if here is there or self.plan.fc_passes == 1:
            return whole
        if step.phase is Phase.BACKWARD and self.plan.switch == "one":
            assert step.group is not None
            if step.group.members(self.rank)[step.root] != self.rank:
                unused = here.blocks[step.layer].dxs[0]
                assert unused is not None
                return unused
        return self.passes.rows_of(whole, step.part)

    def touched(self, step: Comm | Compute) -> Iterator[Touch]:
        """The views that a step of a pass reads or writes."""
        if isinstance(step, Comm):
            if step.tensor.role is not Role.MOMENTS:
                before, after = self.moved(step)
                yield Touch(before)
                yield Touch(after, True)
        elif step.op is Op.ACCUMULATE:
            yield from self._accumulated(step)
        elif step.phase is Phase.BACKWARD:
            yield from self._backward(step)
        else:
            yield from self._forward(step)

    def _accumulated(self, step: Compute) -> Iterator[Touch]:
        ref = step.tensor
        assert ref is not None
        blocks = self.passes.find(ref.layer, step.part).blocks[ref.layer]
        yield Touch(self.passes.find(step.layer, step.part).blocks[step.layer].dout)
        yield Touch(blocks.arriving.get(ref.input))
        yield Touch(blocks.dxs[ref.input])

    def _forward(self, step: Compute) -> Iterator[Touch]:
        blocks = self.passes.find(step.layer, step.part).blocks[step.layer]
        yield from (Touch(x) for x in blocks.xs)
        yield Touch(blocks.y, True)
        if blocks.y is None:  # the loss makes its gradient with its value
            yield from (Touch(dx) for dx in blocks.dxs)

    def _backward(self, step: Compute) -> Iterator[Touch]:
        layer = self.network.by_name[step.layer]
        blocks = self.passes.find(step.layer, step.part).blocks[step.layer]
        yield Touch(blocks.dy)
        if "input" in layer.backward_reads:
            yield from (Touch(x) for x in blocks.xs)
        if "output" in layer.backward_reads:
            yield Touch(blocks.y)
        if step.op is Op.BACKWARD:
            yield from (Touch(dx) for dx in (*blocks.dxs, *blocks.begins.values(), *blocks.clears))
