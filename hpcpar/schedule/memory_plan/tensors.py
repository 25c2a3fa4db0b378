"""The views that a step of a pass moves, reads or writes on one rank."""

from __future__ import annotations

from collections.abc import Iterator

from hpcpar.network.graph import Network
from hpcpar.plan.plan import Plan
from hpcpar.schedule.memory_plan.passes import PassPlan, PassPlans
from hpcpar.schedule.memory_plan.views import View
from hpcpar.schedule.steps import Comm, Compute, Kind, Op, Phase, Role


class StepTensors:
    """Finds the views of a rank's steps in its passes."""

    def __init__(self, network: Network, plan: Plan, rank: int, passes: PassPlans) -> None:
        self.network, self.plan, self.rank, self.passes = network, plan, rank, passes

    def producer(self, step: Comm) -> str:
        """The layer whose output `step` moves to a consumer's input."""
        ref = step.tensor
        return self.network.by_name[ref.layer].inputs[ref.input]

    def moved(self, step: Comm) -> tuple[View, View]:
        """The views before and after a movement of an input, an output, or a gradient of these."""
        ref = step.tensor
        consumer_pass = self.passes.find(ref.layer, step.part)
        blocks = consumer_pass.blocks[ref.layer]
        if ref.role is Role.OUTPUT:
            before, after = (blocks.dout, blocks.dy) if ref.gradient else (blocks.y, blocks.out)
            assert before is not None and after is not None
            return before, after
        e = consumer_pass.edges[ref.layer][ref.input]
        producer_pass = self.passes.find(e.producer.name, step.part)
        producer = producer_pass.blocks[e.producer.name]
        if not ref.gradient:
            assert producer.out is not None
            rows = self._rows(producer.out, consumer_pass, producer_pass, step)
            return rows, blocks.xs[ref.input]
        dx = blocks.dxs[ref.input]
        assert dx is not None
        if ref.input in blocks.arriving:
            return dx, blocks.arriving[ref.input]
        # with several readers, an ACCUMULATE step later adds this in-place sum to the others
        if step.kind is Kind.ALLREDUCE and len(self.network.consumers[e.producer.name]) > 1:
            return dx, dx
        assert producer.dout is not None
        return dx, self._rows(producer.dout, consumer_pass, producer_pass, step)

    def _rows(self, whole: View, consumer_pass: PassPlan, producer_pass: PassPlan,
              step: Comm) -> View:
        """An FC pass's part of a block before the switch."""
        if consumer_pass is producer_pass or self.plan.fc_passes == 1:
            return whole
        if step.phase is Phase.BACKWARD and self.plan.switch == "one":
            assert step.group is not None
            # a pass has one rank's samples, so the other ranks need no result of the reduction
            if step.group.members(self.rank)[step.root] != self.rank:
                unused = consumer_pass.blocks[step.layer].dxs[0]
                assert unused is not None
                return unused
        return self.passes.rows_of(whole, step.part)

    def touched(self, step: Comm | Compute) -> Iterator[tuple[View | None, bool]]:
        """The views that a step of a pass reads or writes; true for one whose contents the step
        produces.
        """
        if isinstance(step, Comm):
            if step.tensor.role is not Role.MOMENTS:
                before, after = self.moved(step)
                yield before, False
                yield after, True
        elif step.op is Op.ACCUMULATE:
            yield from ((view, False) for view in self._accumulated(step))
        elif step.phase is Phase.BACKWARD:
            yield from ((view, False) for view in self._backward(step))
        else:
            blocks = self.passes.find(step.layer, step.part).blocks[step.layer]
            # the loss, which has no y, computes its gradient with its value
            others = blocks.xs if blocks.y is not None else [*blocks.xs, *blocks.dxs]
            yield from ((view, False) for view in others)
            yield blocks.y, True

    def _accumulated(self, step: Compute) -> list[View | None]:
        ref = step.tensor
        assert ref is not None
        blocks = self.passes.find(ref.layer, step.part).blocks[ref.layer]
        total = self.passes.find(step.layer, step.part).blocks[step.layer].dout
        return [total, blocks.arriving.get(ref.input), blocks.dxs[ref.input]]

    def _backward(self, step: Compute) -> list[View | None]:
        layer = self.network.by_name[step.layer]
        blocks = self.passes.find(step.layer, step.part).blocks[step.layer]
        touched = [blocks.dy]
        if "input" in layer.backward_reads:
            touched += blocks.xs
        if "output" in layer.backward_reads:
            touched.append(blocks.y)
        if step.op is Op.BACKWARD:
            touched += [*blocks.dxs, *blocks.begins.values(), *blocks.clears]
        return touched
