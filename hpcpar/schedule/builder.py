"""Decides the steps of one layer or edge, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial

import numpy as np

from hpcpar.errors import InputError
from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer
from hpcpar.plan.axis import Axis
from hpcpar.plan.config import Config, Flags
from hpcpar.plan.layout import Layout, computed, owned
from hpcpar.plan.plan import Overlap, Plan
from hpcpar.schedule.buckets import Pending, closes, summed
from hpcpar.schedule.edges import Edge
from hpcpar.schedule.loss_sums import LOSS_SUMS, unscale
from hpcpar.schedule.moments import MOMENT_BYTES, moments_layout, moments_pattern
from hpcpar.schedule.overlap import Emitter
from hpcpar.schedule.pattern_family import collective_along
from hpcpar.schedule.recompute import Recompute, recompute
from hpcpar.schedule.steps import CODES, NOTHING, Chooser, Comm, Kind, Op, Phase, Role, TensorRef
from hpcpar.schedule.weights import gradient, update


class Builder(Emitter):
    """The steps of layers, edges and weights; see `Emitter`."""

    def __init__(self, network: Network, plan: Plan, choose: Chooser, training: bool = True,
                 starts: Sequence[int] = (0,)) -> None:
        super().__init__(network, plan, choose, starts)
        self.training, self.trains = training, network.trained if training else frozenset()
        self.full = plan.overlap is Overlap.FULL
        self._received: set[str] = set()

    @cached_property
    def recompute(self) -> Recompute:
        """The layers that gradient checkpointing recomputes."""
        return recompute(self.network, self.plan)

    # -- parts, for the cost tables of a search ----------------------------------------------------
    def node(self, layer: Layer, batch: int) -> None:
        """Append every step that depends on this layer's configuration alone: all of its steps but
        the movements of its inputs.
        """
        if layer.inputs:
            self.layer_forward(layer, batch, [])
        if layer is self.network.layers[-1]:
            self.loss()
        update(self, self.backward([layer] if self.training else [], batch, moving=False))
        if layer.name in self.trains:
            for _ in self.network.consumers[layer.name][1:]:
                self.compute(Phase.BACKWARD, layer, Op.ACCUMULATE, batch)

    def edge(self, e: Edge) -> None:
        """Append an edge's movements, which depend on the configurations at both of its ends."""
        self.fetch(e)
        if e.producer.name in self.trains:
            self.return_gradient(e)

    # -- forward -----------------------------------------------------------------------------------
    def forward(self, layers: Sequence[Layer], batch: int) -> None:
        for layer in layers:
            edges = self.edges.into(layer, batch)
            self.layer_forward(layer, batch, [(e, self.fetch(e)) for e in edges])

    def fetch(self, e: Edge, phase: Phase = Phase.FORWARD) -> Comm | None:
        """Bring the boxes that the consumer needs to its ranks."""
        return self.move(phase, e.consumer.name, e.tensor, e.forward, e.owned, e.needed, e.key)

    def recompute_segment(self, segment: int, batch: int) -> None:
        """Recompute the outputs of a segment that the backward pass reads.

        Batch normalization keeps its statistics from the forward pass.
        """
        for layer in self.network.layers[1:]:
            if self.recompute.segment_of(layer.name) != segment or not self.recompute.needs(layer):
                continue
            dropped = [e for e in self.edges.into(layer, batch)
                       if e.producer.name in self.recompute.layers]
            moves = [(e, self.fetch(e, Phase.RECOMPUTE)) for e in dropped]
            if layer.name in self.recompute.layers:
                self.layer_forward(layer, batch, moves, Phase.RECOMPUTE)
            else:
                for _, move in moves:
                    self.wait(move)

    def layer_forward(self, layer: Layer, batch: int, arriving: list[tuple[Edge, Comm | None]],
                      phase: Phase = Phase.FORWARD) -> None:
        """Compute a layer once its inputs have arrived; the interior overlaps with the halo."""
        halo: Flags = False
        if self.full and layer.has_interior and arriving:
            halo = np.asarray(arriving[0][0].forward.code) == CODES[Kind.HALO]
            self.compute(phase, layer, Op.INTERIOR, batch, halo)
        for _, move in arriving:
            self.wait(move)
        self.compute(phase, layer, Op.BOUNDARY, batch, halo)
        if layer.statistics and phase is Phase.FORWARD and (
                self.training or layer.statistics == "sample"):
            self.compute(phase, layer, Op.STATISTICS, batch)
            self.wait(self.moments(phase, layer, batch))
        self.compute(phase, layer, Op.FORWARD, batch, np.logical_not(halo))
        self.wait(self.sum_of_parts(layer, batch, phase))

    def moments(self, phase: Phase, layer: Layer, batch: int) -> Comm | None:
        """Add the sums behind means and variances over the ranks that share them."""
        layout = moments_layout(self.network, self.plan, layer, batch)
        pattern = moments_pattern(self.network, self.plan, layer)
        tensor = TensorRef(layer.name, Role.MOMENTS, gradient=phase is Phase.BACKWARD)
        samples = batch if layer.statistics == "sample" else 0
        return self.move(phase, layer.name, tensor, pattern, layout, layout,
                         ("moments", self.edges.key(layer, samples)), MOMENT_BYTES)

    def sum_of_parts(self, layer: Layer, batch: int, phase: Phase) -> Comm | None:
        """Add the partial sums of a reduction that is cut (k).

        The backward pass does the adjoint: every part gets the gradient of the sum.
        """
        config = self.plan.configs[layer.name]
        if not config.reduces:
            return None
        if not layer.is_matmul or getattr(layer, "groups", 1) > 1:
            raise InputError(f"layer '{layer.name}' ({layer.kind}) cannot be cut by k; cut only "
                             "linear layers and convolutions with one group by k")
        parts = computed(self.network, layer, config, batch)
        whole = owned(self.network, layer, config, batch)
        key = ("sum", self.edges.key(layer, batch))
        tensor = TensorRef(layer.name, Role.OUTPUT, gradient=phase is Phase.BACKWARD)
        if phase is Phase.BACKWARD:
            gathers = config.scatter
            pattern = collective_along(Kind.ALLGATHER, config, ("k",)) if gathers else NOTHING
            return self.move(phase, layer.name, tensor, pattern, whole, parts, key)
        kind = Kind.REDUCE_SCATTER if config.scatter else Kind.ALLREDUCE
        pattern = collective_along(kind, config, ("k",))
        return self.move(phase, layer.name, tensor, pattern, parts, whole, key)

    def loss(self, votes: bool = False) -> Comm | None:
        """Sum the loss over all ranks, unless the caller computes it; or sum their `votes`."""
        if self.network.loss.outside:
            return None
        everyone, items = Config(n=self.plan.ranks), 1 if votes else LOSS_SUMS
        layout = Layout(everyone, (Axis("sums", items, items),))
        pattern = collective_along(Kind.ALLREDUCE, everyone, ("n",))
        name, tensor = self.network.layers[-1].name, TensorRef("", Role.LOSS, gradient=votes)
        return self.move(Phase.LOSS, name, tensor, pattern, layout, layout, ("loss", items), 8)

    # -- backward ----------------------------------------------------------------------------------
    def backward(self, layers: Sequence[Layer], batch: int, moving: bool = True) -> list[Pending]:
        """Append the backward steps; return every layer that owns weights with the movement that
        sums its gradient (None where no sum is needed).

        A full bucket's sum starts after the movements of the next layer with weights, because
        compute waits for those. Without `moving`, input gradients are computed but not sent.
        """
        pending: list[Pending] = []
        bucket: list[Pending] = []
        full: list[Pending] = []
        names = [layer.name for layer in summed(self.plan, layers)]
        ends = closes(self.network, self.plan, summed(self.plan, layers), self.plan.bucket_bytes)
        closes_bucket = dict(zip(names, ends, strict=True))
        self._received.clear()
        segment = self.recompute.segment_of(layers[-1].name) if moving and layers else 0
        for layer in reversed(layers):
            if moving and self.recompute.segment_of(layer.name) != segment:
                segment = self.recompute.segment_of(layer.name)
                self.recompute_segment(segment, batch)
            if not (layer.learns or self.needs_input_gradient(layer)):
                continue
            self.wait(self.sum_of_parts(layer, batch, Phase.BACKWARD))
            if layer.statistics and not layer.is_loss:
                self.compute(Phase.BACKWARD, layer, Op.BACKWARD_WEIGHT, batch)
                if layer.statistics == "batch" or self.needs_input_gradient(layer):
                    self.wait(self.moments(Phase.BACKWARD, layer, batch))
            returned = self.input_gradients(layer, batch, moving)
            if layer.name in closes_bucket:
                self.sum_bucket(full)
                full = []
            if layer.learns and not layer.statistics:
                if not self.full:
                    self.receive_gradients(returned, batch)
                self.compute(Phase.BACKWARD, layer, Op.BACKWARD_WEIGHT, batch)
                if self.full:
                    self.receive_gradients(returned, batch)
            else:
                self.receive_gradients(returned, batch)
            if layer.learns and layer.owns_weights:
                pending.append(Pending(layer))
            if layer.name in closes_bucket:
                bucket.append(pending[-1])
                if closes_bucket[layer.name]:
                    full, bucket = bucket, []
        self.sum_bucket(full)
        if self.plan.formats.scaled:
            unscale(self, pending, partial(self.loss, votes=True) if moving else None)
        return pending

    def sum_bucket(self, bucket: list[Pending]) -> None:
        """Sum the gradients of a bucket, if there is one."""
        if bucket:
            move = gradient(self, [p.layer for p in bucket])
            for p in bucket:
                p.move = move

    def needs_input_gradient(self, layer: Layer) -> bool:
        """True if a layer before this one is trained."""
        return any(name in self.trains for name in layer.inputs)

    def input_gradients(self, layer: Layer, batch: int,
                        moving: bool) -> list[tuple[Edge, Comm | None]]:
        """Compute the gradients of the layer's inputs; with `moving`, send them to their owners."""
        if not self.needs_input_gradient(layer):
            return []
        self.compute(Phase.BACKWARD, layer, Op.BACKWARD, batch)
        if not moving:
            return []
        return [(e, self.return_gradient(e)) for e in self.edges.into(layer, batch)
                if e.producer.name in self.trains]

    def return_gradient(self, e: Edge) -> Comm | None:
        """Sum the gradients of needed boxes onto owned boxes."""
        self.wait(self.move(Phase.BACKWARD, e.consumer.name, e.gradient, e.total, e.needed,
                            e.needed, ("total", e.key)))
        return self.move(Phase.BACKWARD, e.consumer.name, e.gradient, e.backward, e.needed,
                         e.owned, e.key)

    def receive_gradients(self, returned: list[tuple[Edge, Comm | None]], batch: int) -> None:
        """Wait for input gradients; a tensor with several readers accumulates them."""
        for e, move in returned:
            self.wait(move)
            if e.producer.name in self._received:
                self.compute(Phase.BACKWARD, e.producer, Op.ACCUMULATE, batch, tensor=e.tensor)
            self._received.add(e.producer.name)
