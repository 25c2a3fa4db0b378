"""A PyTorch module whose forward and backward pass run a plan's schedule."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_unflatten

from hpcpar.comm.world import World
from hpcpar.errors import InputError, RunError, on_all_ranks
from hpcpar.network.layers.base import Shape
from hpcpar.network.read.evaluation import Evaluation
from hpcpar.network.read.torch_module import TracedModule
from hpcpar.plan.plan import Plan
from hpcpar.torch import samples, tensors
from hpcpar.torch.autocast import outputs_as_asked
from hpcpar.torch.autograd import AddedGradients, SchedulePasses
from hpcpar.torch.engine import TOLERANCE, Engine
from hpcpar.torch.mixing import refuse_mixing
from hpcpar.torch.modes import Modes
from hpcpar.torch.own_boxes import OwnBoxes
from hpcpar.torch.recording import Recording
from hpcpar.torch.tree import Tree

#: Number of first iterations in which ranks with the same outputs compare their gradients.
COMPARED_ITERATIONS = 3


class ParallelModule(nn.Module):
    """This rank's part of a module, made by `hpcpar.torch.parallelize`.

    Its parameters are this rank's parts of the module's parameters, under the module's names. They
    and their gradients share the executor's memory. All ranks call every method together.
    """

    def __init__(self, module: nn.Module, traced: TracedModule, plan: Plan, world: World,
                 seed: int, kernels: str = "auto", device: str = "cpu",
                 forward_only: bool = False) -> None:
        super().__init__()
        self.plan, self.rank, self.ranks = plan, world.rank, world.size
        self._traced, self._image = traced, traced.input
        self._make_engine = partial(Engine, world, traced.network, plan, seed, kernels, device,
                                    forward_only)
        #: Tensors that the schedule reads, by the module's names, in the module's order.
        self.tensor_places = tensors.places(module, traced)
        first = module.state_dict()
        self._shapes = {name: tuple(t.shape) for name, t in first.items()}
        fixed = traced.held | (traced.read - self.tensor_places.keys())
        #: Tensors that the plan holds as numbers.
        self._fixed = {name: first[name].clone().cpu() for name in sorted(fixed & first.keys())}
        self._bind(module)
        world.expect_all_at_end()
        self.load_state_dict({name: tensors.from_first(world, t) for name, t in first.items()})

    def _bind(self, module: nn.Module) -> None:
        """Make this rank's part: the tree of a module with parameters and buffers in its memory."""
        self.engine = self._make_engine()
        #: Digests of the labels of the current iteration, in the order of calls.
        self._labels: list[samples.Digests] = []
        self._boxes = OwnBoxes(self.engine, self._traced)
        with self.engine.tensors.turn():
            parts = [*tensors.own_parts(self.engine.executor, self.tensor_places,
                                        self.engine.tensors.to_torch)]
            statistics = dict(tensors.own_statistics(self.engine.executor, self.tensor_places,
                                                     self.engine.tensors.to_torch))
        stored = dict([*module.named_parameters(remove_duplicate=False),
                       *module.named_buffers(remove_duplicate=False)])
        views = statistics | {name: value for name, value, _, _ in parts}
        replaced: dict[int, Tensor] = {}
        for name in self._shapes:
            if id(old := stored[name]) not in replaced:
                value = views[name] if name in views else old.detach().clone()
                replaced[id(old)] = nn.Parameter(value, old.requires_grad) if isinstance(
                    old, nn.Parameter) else value
        #: Tensors that the schedule does not read: unused weights, constants, counters.
        self._others = {name: replaced[id(stored[name])].detach() for name in self._shapes
                        if name not in self.tensor_places}
        #: Each parameter, its gradient, and whether this rank counts it in a norm.
        self.parts = [(own, gradient, counts) for name, _, gradient, counts in parts
                      if gradient is not None
                      and isinstance(own := replaced[id(stored[name])], nn.Parameter)]
        self._tree = Tree(module, replaced)
        root = self._tree.root.eval() if self.engine.forward_only else self._tree.root
        self._modules, self._parameters, self._buffers = (
            root._modules, root._parameters, root._buffers)
        self.training = root.training
        self._modes = Modes(self, self._traced)
        #: Parameters whose gradient the schedule does not compute.
        self._untrained = [(name, p) for name, p in self.named_parameters() if
                           name in self.tensor_places
                           and self.tensor_places[name].layer.weights == "frozen"]
        is_cut = any(p.numel() != math.prod(self._shapes[name]) for name, p in
                     self.named_parameters())
        if self.engine.world.max(is_cut):
            refuse_mixing(self)
        self._anchor = torch.zeros((), device=self.device, requires_grad=True)

    def __deepcopy__(self, memo: dict[int, Any]) -> ParallelModule:
        """A model of its own with the same weights, as `AveragedModel` makes one; all ranks call it
        together.
        """
        made = type(self).__new__(type(self))
        made.__dict__.update({name: copy.copy(value) if isinstance(value, dict) else value
                              for name, value in vars(self).items()})
        self._tree.require_own_tensors()
        made._bind(self._tree.root)
        memo[id(self)] = made
        with made.engine.tensors.turn():
            for name, p in self.engine.executor.parameters.items():
                made.engine.executor.parameters[name].copy_from(p)
        memo |= {id(other): own for own, other in zip(made.parameters(), self.parameters(),
                                                     strict=True)}
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise InputError("a parallel model belongs to the ranks of its job and cannot be pickled: "
                         "save model.state_dict(), which all ranks call")

    @property
    def device(self) -> torch.device:
        """Where outputs, parameters and the results of `local` are."""
        return self.engine.tensors.device

    def extra_repr(self) -> str:
        return f"{self.plan.strategy}, rank {self.rank} of {self.ranks}"

    def train(self, mode: bool = True) -> ParallelModule:
        """As the user's module does it, which may keep some layers in evaluation mode."""
        if mode and self.engine.forward_only:
            raise InputError("the model was made with forward_only=True: to train, leave that out "
                             "of hpcpar.torch.parallelize")
        self._tree.root.train(mode)
        self.training = mode
        return self

    # -- samples -----------------------------------------------------------------------------------
    def local_images(self, images: Tensor) -> Tensor:
        """This rank's box of a whole batch of images."""
        return self._boxes.of_images(images)

    def local(self, labels: Tensor, of: int = 0, incomplete: bool = False) -> Tensor:
        """This rank's box of a whole batch of labels or targets.

        Parameters
        ----------
        labels : Tensor
            [batch, ...]; with the output's shape, or if the last axes have the extents of its image
            axes, cut as the output. Those of another image, or of a rank's box, are refused.
        of : int
            Number of the output, in training.
        incomplete : bool
            The batch has fewer samples than a full one (see `forward`).
        """
        rows = self.engine.own_rows
        if incomplete:
            whole = labels.new_zeros(self.plan.batch, *labels.shape[1:])
            whole[:len(labels)] = labels
            return self._boxes.cut(whole, rows, of)[torch.from_numpy(rows < len(labels))]
        box = self._boxes.cut(labels, rows, of)
        if self.training and samples.are_compared(self.engine.iterations - self.engine.under_way):
            self._labels.append(samples.digests(self.engine, labels, self.engine.samples, of))
        return box

    # -- forward and backward ----------------------------------------------------------------------
    def forward(self, images: Tensor, incomplete: bool = False) -> Any:
        """This rank's box of the outputs, in the structure that the module returns.

        Under ``torch.autocast``, which needs a plan in ``amp``, outputs are bfloat16; else they
        have the parameters' type.

        Parameters
        ----------
        images : Tensor
            [batch, ...] the whole batch, this rank's samples, or this rank's box of them.
        incomplete : bool
            In evaluation, the batch has fewer samples than a full one; the same on all ranks.
        """
        self._tree.require_unchanged()
        if incomplete and self.training:
            raise InputError("a training iteration takes a full batch; leave the last samples of "
                             "an epoch out (drop_last=True)")
        if not self.training:
            return self._evaluate(images, incomplete, self._modes.require_evaluation())
        self._begin_training()
        box = self._boxes.taken(images, self.training, returns=True)
        if torch.is_grad_enabled():
            return self._structured(SchedulePasses.apply(self._anchor, self, box, images))
        return self._structured(self.run_forward(box))

    def _evaluate(self, images: Tensor, incomplete: bool, returned: Evaluation) -> Any:
        present = torch.from_numpy(self.engine.own_rows < (len(images) if incomplete
                                                           else self.plan.batch))
        if incomplete:
            missing = self.plan.batch - len(images)
            images = torch.cat([images, images.new_zeros(missing, *self._image)])
        outputs = self._boxes.shaped(self.engine.evaluate(self._boxes.taken(images, self.training)))
        return self._structured([outputs[i][present] if incomplete else outputs[i]
                                 for i in returned.places], returned.structure)

    def _begin_training(self) -> None:
        """Hand modes to the executor for a training pass."""
        for name, parameter in self._untrained:
            if parameter.requires_grad:
                raise InputError(f"'{name}' was frozen in hpcpar.torch.parallelize, so the plan "
                                 "does not compute its gradient: freeze it afterwards instead, "
                                 "with requires_grad_(False)")
        self._modes.set(self.engine.executor, self.plan.microbatches)

    def run_forward(self, images: Tensor) -> list[Tensor]:
        """Run the forward pass of a training iteration; returns the outputs."""
        return self._boxes.shaped(self.engine.forward(images))

    def run_backward(self, gradients: Sequence[Tensor]) -> None:
        """Run the backward pass from the gradients of the outputs."""
        boxes = self._boxes.joined(gradients, len(self.engine.own_rows))
        self._compare_labels(self.engine.iterations - 1)
        self._compare(boxes)
        with AddedGradients(self.parts):
            self.engine.backward(boxes)

    def backward(self, loss: Tensor) -> None:
        """Call `check_loss`, then ``loss.backward()``."""
        if not loss.requires_grad:
            raise InputError("the loss has no gradient: call model.train() before the forward "
                             "pass, and leave torch.no_grad out")
        self.check_loss(loss)
        loss.backward()

    def check_loss(self, loss: Tensor) -> None:
        """Check that all ranks have the same finite loss.

        Raises
        ------
        RunError
            The losses differ, because a mean or sum covers only this rank's part, or one is not
            finite, or ranks are at different places of the training loop; on every rank.
        """
        self.engine.last_loss = float(loss.detach())
        self.engine.require_alike_losses(self.engine.last_loss)

    def step(self, images: Tensor, labels: Any, loss: Callable[..., Tensor]) -> Tensor:
        """Run the forward and backward pass, micro-batch by micro-batch, as 1F1B pipelines need.

        Parameters
        ----------
        labels : Tensor, or sequence of Tensor
            Labels of the whole batch; a sequence has one entry per output.
        loss : callable
            Maps this rank's boxes of the outputs and the labels to the mean loss of a micro-batch,
            over all ranks that hold it (`hpcpar.torch.mean`).

        Returns
        -------
        Tensor
            The mean loss over the micro-batches.
        """
        self._tree.require_unchanged()
        self._begin_training()
        engine, total = self.engine, [0.0]

        def gradients(part: int, outputs: list[Tensor]) -> list[Tensor]:
            outs = [out.requires_grad_() for out in self._boxes.shaped(outputs)]
            rows = engine.rows[part]
            local = self._boxes.cut(labels, rows, 0) if isinstance(labels, Tensor) else [
                self._boxes.cut(tensor, rows, i) for i, tensor in enumerate(labels)]
            with torch.enable_grad():
                value = loss(self._structured(outs), local) * engine.weight_of(part)
            engine.require_alike_losses(float(value.detach()))
            value.backward()
            total[0] += float(value.detach())
            return self._boxes.joined([torch.zeros_like(out) if out.grad is None else out.grad
                                for out in outs], len(rows))

        everyone, box = engine.group, self._boxes.taken(images, self.training)
        if samples.are_compared(engine.iterations):
            self._labels = [samples.digests(engine, of, engine.samples, number) for number, of in
                            enumerate([labels] if isinstance(labels, Tensor) else labels)]
        self._compare_labels(engine.iterations)
        engine.group = engine.last_ranks
        try:
            with AddedGradients(self.parts):
                engine.step(box, gradients)
        finally:
            engine.group = everyone
        engine.last_loss = engine.share("the mean loss", total[0])[engine.first_of_last]
        return torch.tensor(engine.last_loss, dtype=torch.float64)

    def _compare_labels(self, iteration: int) -> None:
        """Compare the labels of an iteration, counted from 0, over all ranks."""
        given, self._labels = self._labels, []
        if samples.are_compared(iteration):
            samples.require_equal(self.engine, "labels", {
                (name, f"{number} {part}"): digest for number, own in enumerate(given)
                for (name, part), digest in own.items()})

    def _compare(self, gradients: Sequence[Tensor]) -> None:
        """Check that ranks with the same outputs have the same gradients, in first iterations."""
        if self.engine.iterations > COMPARED_ITERATIONS:
            return
        engine = self.engine
        norms = [float(g.abs().sum(dtype=torch.float64)) for g in gradients]
        rows = engine.own_rows.tolist()
        boxes = [engine.pixels(i) for i in range(len(gradients))] if rows else []
        shared = engine.share("the comparison of gradients", (f"{rows} {boxes}", norms))
        engine.require_finite("gradient of the loss",
                              {rank: sum(norms) for rank, (_, norms) in shared.items()})
        first: dict[str, tuple[int, list[float]]] = {}
        for rank, (key, values) in shared.items():
            other, expected = first.setdefault(key, (rank, values))
            if rows and not np.allclose(values, expected, TOLERANCE, 0.0):
                raise on_all_ranks(RunError(
                    f"ranks {other} and {rank} hold the same outputs, but the gradients of their "
                    "losses differ; compute the same loss on every rank, without random numbers"))

    # -- outputs -----------------------------------------------------------------------------------
    def places(self, output: int) -> list[NDArray[np.int64]]:
        """Indices of this rank's box of an output, along every axis."""
        return [self.engine.own_rows, *(np.arange(*i) for i in self._boxes.pixels(output))]

    def sample_shape(self, output: int) -> Shape:
        """Shape of a sample of an output."""
        return self._traced.outputs[output].shape

    def _structured(self, outputs: Sequence[Tensor], structure: Any = None) -> Any:
        return tree_unflatten(outputs_as_asked(self.device, outputs),
                              self._traced.structure if structure is None else structure)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ParallelModule:
        """Refuse functions that move parameters out of the executor's memory."""
        for p, _, _ in self.parts:
            if fn(p.data).data_ptr() != p.data_ptr():
                raise InputError("a parallel module keeps its device and number format; convert "
                                 "the module before hpcpar.torch.parallelize")
        return self

    # -- tensors -----------------------------------------------------------------------------------
    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str,
                            keep_vars: bool) -> None:
        """Save the whole tensors of the module under its names; all ranks call it together."""
        self._tree.require_own_tensors()
        self.engine.share("the state of the module", None)
        with self.engine.tensors.turn():
            saved = tensors.whole(self.engine.executor, self.engine.world, self.tensor_places)
        saved = {name: t.to(self.device) for name, t in saved.items()}
        saved |= {name: t.clone() for name, t in self._others.items()}
        destination.update({prefix + name: saved[name] for name in self._shapes})

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True,
                        assign: bool = False) -> Any:
        """Load this rank's parts from the whole tensors of the module, under its names."""
        missing, unexpected, wrong = tensors.differences(self._shapes, state_dict)
        if wrong or (strict and (missing or unexpected)):
            raise InputError(f"the state does not fit the module: {len(missing)} tensors are "
                             f"missing, {len(unexpected)} are unknown, {len(wrong)} have a "
                             f"different shape ({', '.join([*missing, *unexpected, *wrong][:3])})")
        return super().load_state_dict(state_dict, strict, assign)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str,
                              local_metadata: Any, strict: bool, missing_keys: list[str],
                              unexpected_keys: list[str], error_msgs: list[str]) -> None:
        """See `load_state_dict`; PyTorch also calls this for a model inside another module."""
        given = {name.removeprefix(prefix): tensor for name, tensor in state_dict.items()}
        missing, unexpected, wrong = tensors.differences(self._shapes, given)
        missing_keys += [prefix + name for name in missing]
        unexpected_keys += [prefix + name for name in unexpected]
        error_msgs += [f"{prefix}{name} has a different shape" for name in wrong]
        if wrong:
            return
        self._require_fixed(given)
        with self.engine.tensors.turn():
            tensors.put(self.engine.executor, self.tensor_places, given)
        for name in self._others.keys() & given.keys():
            self._others[name].copy_(given[name])

    def _require_fixed(self, given: Mapping[str, Any]) -> None:
        """Check that a state has the buffers that the plan holds as numbers."""
        changed = next((name for name, value in self._fixed.items() if name in given
                        and not torch.equal(value, given[name].cpu().to(value.dtype))), "")
        if changed := next(filter(None, self.engine.world.share(
                "the buffers", changed, self.engine.group, in_loop=False).values()), ""):
            raise InputError(f"'{changed}' differs from its value when the module was split "
                             "(or on another rank), but the plan holds it as numbers: load the "
                             "state into the module before parallelize")

    # -- records -----------------------------------------------------------------------------------
    def record(self, path: str) -> AbstractContextManager[Recording, None]:
        """A context that records its iterations, for ``hpcpar compare`` and ``hpcpar trace``."""
        if self.engine.forward_only:
            raise InputError("a record needs iterations of training: make the model without "
                             "forward_only=True")
        return Recording(self.engine, path)
