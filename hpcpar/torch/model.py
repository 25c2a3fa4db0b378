"""A PyTorch module whose forward and backward pass run a plan's schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_unflatten

from hpcpar.comm.world import World
from hpcpar.errors import InputError, RunError, on_all_ranks
from hpcpar.network.layers.base import Shape, image_of, shape_text
from hpcpar.network.read.torch_module import TracedModule
from hpcpar.plan.boxes import Box, shape, whole_box
from hpcpar.plan.plan import Plan
from hpcpar.torch import tensors
from hpcpar.torch.autocast import outputs_as_asked, require_as_planned
from hpcpar.torch.autograd import AddedGradients, SchedulePasses
from hpcpar.torch.engine import TOLERANCE, Engine
from hpcpar.torch.own_boxes import in_module, rows_index
from hpcpar.torch.recording import Recording
from hpcpar.torch.samples import require_equal

#: Number of first iterations in which ranks with the same outputs compare their gradients.
COMPARED_ITERATIONS = 3


class ParallelModule(nn.Module):
    """This rank's part of a module, made by `hpcpar.torch.parallelize`.

    Its parameters are this rank's parts of the module's parameters, under the module's names. They
    and their gradients share the executor's memory. All ranks call every method together.
    """

    def __init__(self, module: nn.Module, traced: TracedModule, plan: Plan, world: World,
                 seed: int, kernels: str = "auto", device: str = "cpu") -> None:
        super().__init__()
        self.plan, self.rank, self.ranks = plan, world.rank, world.size
        self._traced, self._image = traced, traced.input
        self.engine = Engine(world, traced.network, plan, seed, kernels, device)
        #: Tensors that the schedule reads, by the module's names, in the module's order.
        self.tensor_places = tensors.places(module, traced)
        first = module.state_dict()
        #: Tensors that the schedule does not read: unused weights, constants, counters.
        self._others = {name: t.clone() for name, t in first.items()
                        if name not in self.tensor_places}
        self._names = list(first)
        frozen = {name for name, p in module.named_parameters() if not p.requires_grad}
        #: Each parameter, its gradient, and whether this rank counts it in a norm.
        self.parts: list[tuple[nn.Parameter, Tensor, bool]] = []
        with self.engine.tensors.turn():
            parts = [*tensors.own_parts(self.engine.executor, self.tensor_places,
                                        self.engine.tensors.to_torch)]
        for name, value, gradient, counts in parts:
            fixed = name in frozen or self.tensor_places[name].layer.weights == "frozen"
            parameter = nn.Parameter(value, not fixed)
            self._add_parameter(name, parameter)
            self.parts.append((parameter, gradient, counts))
        self._anchor = torch.zeros((), device=self.device, requires_grad=True)
        world.expect_all_at_end()
        self.load_state_dict({name: _from_first(world, t) for name, t in first.items()})

    def _add_parameter(self, name: str, parameter: nn.Parameter) -> None:
        """Register a parameter under a module's name."""
        *path, last = name.split(".")
        module: Any = self
        for part in path:
            module = module._modules.setdefault(part, _Names())
        module._parameters[last] = parameter

    @property
    def device(self) -> torch.device:
        """Where outputs, parameters and the results of `local` are."""
        return self.engine.tensors.device

    def extra_repr(self) -> str:
        return f"{self.plan.strategy}, rank {self.rank} of {self.ranks}"

    # -- samples -----------------------------------------------------------------------------------
    def local_images(self, images: Tensor) -> Tensor:
        """This rank's box of a whole batch of images."""
        executor = self.engine.executor
        box = in_module(executor.image_box, self._image)
        return self._samples(images, executor.image_rows)[
            tuple(slice(*i) for i in ((0, None), *box))]

    def local(self, labels: Tensor, of: int = 0, incomplete: bool = False) -> Tensor:
        """This rank's box of a whole batch of labels or targets.

        Parameters
        ----------
        labels : Tensor
            [batch, ...]; if the last axes have the extents of the output's image axes, they are cut
            in the same way. Those of another output, of the images or of a rank's box are refused.
        of : int
            Number of the output.
        incomplete : bool
            The batch has fewer samples than a full one (see `forward`).
        """
        rows = self.engine.own_rows
        if incomplete:
            whole = labels.new_zeros(self.plan.batch, *labels.shape[1:])
            whole[:len(labels)] = labels
            return self._cut(whole, rows, of)[torch.from_numpy(rows < len(labels))]
        return self._cut(labels, rows, of)

    def _samples(self, batch: Tensor, rows: NDArray[np.int64]) -> Tensor:
        """Samples from a whole batch, or from this rank's samples of it (`BatchSampler`)."""
        if len(batch) not in (self.plan.batch, len(self.engine.samples)):
            raise InputError(f"{len(batch)} samples: pass the whole batch of {self.plan.batch}, or "
                             f"the {len(self.engine.samples)} from BatchSampler on this rank")
        if len(batch) != self.plan.batch:
            rows = np.searchsorted(self.engine.samples, rows)
        return batch[rows_index(rows)]

    def _cut(self, labels: Tensor, rows: NDArray[np.int64], output: int) -> Tensor:
        extents, pixels = self._traced.outputs[output][1:], self._pixels(output)[1:]
        box, axes = self._samples(labels, rows).to(self.device), len(extents)
        if not extents or labels.dim() <= axes:
            return box
        given = tuple(labels.shape[-axes:])
        if given != extents:
            self._require_other(given, output)
            return box
        place: tuple[Any, ...] = (..., *(slice(*i) for i in pixels))
        return box[place]

    def _require_other(self, given: Shape, output: int) -> None:
        """Refuse labels whose last axes are the extents of another image than the output."""
        images = {self._image[1:], *(shape[1:] for shape in self._traced.outputs)}
        boxes = (self.engine.pixels(output, rank) for rank in range(self.ranks))
        images |= {shape(in_module(box, self._traced.outputs[output])[1:]) for box in boxes}
        if given in images:
            extents = shape_text(self._traced.outputs[output][1:])
            raise InputError(f"labels of {shape_text(given)} pixels for output {output}, which has "
                             f"{extents}: pass labels of {extents}, for example reduced by "
                             "labels[..., ::2, ::2], or name their output with model.local(labels, "
                             "of=NUMBER)")

    def _pixels(self, output: int) -> Box:
        """This rank's box of a sample of an output, with the module's axes."""
        return in_module(self.engine.pixels(output), self._traced.outputs[output])

    def _images(self, images: Tensor) -> Tensor:
        """This rank's box of the images, in the executor's shape."""
        require_as_planned(self.device, self.plan)
        if images.requires_grad and torch.is_grad_enabled():
            raise InputError("the images require a gradient, which a parallel model does not "
                             "compute: put the layers before the model into its module, or pass "
                             "images.detach()")
        executor = self.engine.executor
        local = (len(executor.image_rows), *shape(executor.image_box))
        given, rows, box = tuple(images.shape), executor.image_rows, executor.image_box
        own = images
        if given[1:] == self._image and (given[0], *image_of(given[1:])) != local:
            own = self.local_images(images)
            rows, box = self.engine.samples, whole_box(image_of(self._image))
        elif (given[0], *image_of(given[1:])) != local:
            raise InputError(f"images of shape {shape_text(given)}: pass the whole batch, "
                             f"{shape_text((self.plan.batch, *self._image))}, or this rank's box "
                             f"of it, {shape_text(local)} (model.local_images)")
        if self.training:
            require_equal(self.engine, images, rows, box)
        own = own.detach().reshape(local)
        return own.float() if own.dtype is torch.bfloat16 else own

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
        if incomplete and self.training:
            raise InputError("a training iteration takes a full batch; leave the last samples of "
                             "an epoch out (drop_last=True)")
        if not self.training:
            return self._evaluate(images, incomplete)
        box = self._images(images)
        if torch.is_grad_enabled():
            return self._structured(SchedulePasses.apply(self._anchor, self, box))
        return self._structured(self.run_forward(box))

    def _evaluate(self, images: Tensor, incomplete: bool) -> Any:
        present = torch.from_numpy(self.engine.own_rows < (len(images) if incomplete
                                                           else self.plan.batch))
        if incomplete:
            missing = self.plan.batch - len(images)
            images = torch.cat([images, images.new_zeros(missing, *self._image)])
        outputs = self._shaped(self.engine.evaluate(self._images(images)))
        return self._structured([out[present] for out in outputs] if incomplete else outputs)

    def run_forward(self, images: Tensor) -> list[Tensor]:
        """Run the forward pass of a training iteration; returns the outputs."""
        for name in self._others:
            if name.endswith("num_batches_tracked"):
                self._others[name] += 1
        return self._shaped(self.engine.forward(images))

    def run_backward(self, gradients: Sequence[Tensor]) -> None:
        """Run the backward pass from the gradients of the outputs."""
        boxes = self._boxes(gradients, len(self.engine.own_rows))
        self._compare(boxes)
        with AddedGradients(self.parts):
            self.engine.backward(boxes)

    def backward(self, loss: Tensor) -> None:
        """Call `check_loss`, then ``loss.backward()``."""
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
        engine, total = self.engine, [0.0]

        def gradients(part: int, outputs: list[Tensor]) -> list[Tensor]:
            outs = [out.requires_grad_() for out in self._shaped(outputs)]
            rows = engine.rows[part]
            local = self._cut(labels, rows, 0) if isinstance(labels, Tensor) else [
                self._cut(tensor, rows, i) for i, tensor in enumerate(labels)]
            with torch.enable_grad():
                value = loss(self._structured(outs), local) * engine.weight_of(part)
            engine.require_alike_losses(float(value.detach()))
            value.backward()
            total[0] += float(value.detach())
            return self._boxes([torch.zeros_like(out) if out.grad is None else out.grad
                                for out in outs], len(rows))

        everyone, box = engine.group, self._images(images)
        engine.group = engine.last_ranks
        try:
            with AddedGradients(self.parts):
                engine.step(box, gradients)
        finally:
            engine.group = everyone
        engine.last_loss = engine.share("the mean loss", total[0])[engine.first_of_last]
        return torch.tensor(engine.last_loss, dtype=torch.float64)

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
    def _shaped(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs with the module's axes."""
        shaped = []
        for i, out in enumerate(outputs):
            axes = len(self._traced.outputs[i])
            box = shape(self._pixels(i)) if axes != out.dim() - 1 else out.shape[1:]
            shaped.append(out.reshape(len(out), *box))
        return shaped

    def _boxes(self, gradients: Sequence[Tensor], rows: int) -> list[Tensor]:
        """Gradients of the outputs in the executor's shapes."""
        shapes = (shape(self.engine.pixels(i)) for i in range(len(gradients)))
        return [g.detach().contiguous().reshape(rows, *box)
                for g, box in zip(gradients, shapes, strict=True)]

    def places(self, output: int) -> list[NDArray[np.int64]]:
        """Indices of this rank's box of an output, along every axis."""
        return [self.engine.own_rows, *(np.arange(*i) for i in self._pixels(output))]

    def sample_shape(self, output: int) -> Shape:
        """Shape of a sample of an output."""
        return self._traced.outputs[output]

    def _structured(self, outputs: Sequence[Tensor]) -> Any:
        return tree_unflatten(outputs_as_asked(self.device, outputs), self._traced.structure)

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
        self.engine.share("the state of the module", None)
        with self.engine.tensors.turn():
            saved = tensors.whole(self.engine.executor, self.engine.world, self.tensor_places)
        saved = {name: t.to(self.device) for name, t in saved.items()}
        saved |= {name: t.clone() for name, t in self._others.items()}
        destination.update({prefix + name: saved[name] for name in self._names})

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True,
                        assign: bool = False) -> Any:
        """Load this rank's parts from the whole tensors of the module, under its names."""
        missing, unexpected, wrong = self._differences(state_dict)
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
        missing, unexpected, wrong = self._differences(given)
        missing_keys += [prefix + name for name in missing]
        unexpected_keys += [prefix + name for name in unexpected]
        error_msgs += [f"{prefix}{name} has a different shape" for name in wrong]
        if wrong:
            return
        with self.engine.tensors.turn():
            tensors.put(self.engine.executor, self.tensor_places, given)
        for name in self._others.keys() & given.keys():
            self._others[name] = given[name].clone()

    def _differences(self, given: Mapping[str, Any]) -> tuple[list[str], list[str], list[str]]:
        """Names of tensors that are missing, are unknown, or have a different shape."""
        return ([name for name in self._names if name not in given],
                [name for name in given if name not in self._names],
                [name for name, place in self.tensor_places.items()
                 if name in given and tuple(given[name].shape) != place.shape])

    # -- records -----------------------------------------------------------------------------------
    def record(self, path: str) -> AbstractContextManager[Recording, None]:
        """A context that records its iterations, for ``hpcpar compare`` and ``hpcpar trace``."""
        return Recording(self.engine, path)


class _Names(nn.Module):
    """A node in the tree of the module's names; the model saves and loads the tensors below it."""

    def _save_to_state_dict(self, *args: Any) -> None:
        """Save nothing."""

    _load_from_state_dict = _save_to_state_dict


def _from_first(world: World, tensor: Tensor) -> Tensor:
    """Rank 0's tensor, on every rank."""
    array = tensor.detach().cpu().numpy()
    return torch.from_numpy(world.bcast_array(array, array.shape, array.dtype)).reshape(array.shape)
