"""A module of PyTorch whose forward and backward pass are a plan's schedule."""

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
from hpcpar.plan.boxes import Box, shape
from hpcpar.plan.plan import Plan
from hpcpar.torch import tensors
from hpcpar.torch.autograd import TOLERANCE, AddedGradients, SchedulePasses, require_alike
from hpcpar.torch.engine import Engine
from hpcpar.torch.recording import Recording

#: First iterations in which ranks that hold the same outputs compare their gradients.
COMPARED_ITERATIONS = 3


class ParallelModule(nn.Module):
    """The part of a module that this rank holds. `hpcpar.torch.parallelize` makes it.

    Parameters are this rank's parts of the module's, under the module's names, and share the memory
    of the executor, as their gradients do. All methods are for all ranks at the same time.

    Attributes
    ----------
    plan : Plan
        What each rank does.
    rank, ranks : int
        The number of this rank, and how many there are.
    """

    def __init__(self, module: nn.Module, traced: TracedModule, plan: Plan, world: World,
                 seed: int, kernels: str = "numpy") -> None:
        super().__init__()
        self.plan, self.rank, self.ranks = plan, world.rank, world.size
        self._traced, self._image = traced, traced.input
        self.engine = Engine(world, traced.network, plan, seed, kernels)
        #: The communicator over which losses are summed.
        self.group: Any = world.comm
        #: Every tensor that the schedule reads, by the module's names, in the module's order.
        self.tensor_places = tensors.places(module, traced)
        first = module.state_dict()
        #: Tensors that the schedule does not read: unused weights, constants, counters.
        self._others = {name: t.clone() for name, t in first.items()
                        if name not in self.tensor_places}
        self._names = list(first)
        frozen = {name for name, p in module.named_parameters() if not p.requires_grad}
        #: Every parameter with its gradient, and whether it counts in a norm.
        self.parts: list[tuple[nn.Parameter, Tensor, bool]] = []
        for name, value, gradient, counts in tensors.own_parts(self.engine.executor,
                                                               self.tensor_places):
            stays = name in frozen or self.tensor_places[name].layer.weights == "frozen"
            parameter = nn.Parameter(value, not stays)
            self._hold(name, parameter)
            self.parts.append((parameter, gradient, counts))
        self._anchor = torch.zeros((), requires_grad=True)
        self.load_state_dict({name: _from_first(world, t) for name, t in first.items()})

    def _hold(self, name: str, parameter: nn.Parameter) -> None:
        """Registers a parameter under a module's name."""
        *path, last = name.split(".")
        at: Any = self
        for part in path:
            at = at._modules.setdefault(part, _Names())
        at._parameters[last] = parameter

    def extra_repr(self) -> str:
        return f"{self.plan.strategy}, rank {self.rank} of {self.ranks}"

    # -- samples -----------------------------------------------------------------------------------
    def local_images(self, images: Tensor) -> Tensor:
        """This rank's box of a whole batch of images."""
        executor = self.engine.executor
        box = _in_module(executor.image_box, self._image)
        return self._of(images, executor.image_rows)[
            tuple(slice(*i) for i in ((0, None), *box))]

    def local(self, labels: Tensor, of: int = 0, incomplete: bool = False) -> Tensor:
        """This rank's box of a whole batch of labels or targets.

        Parameters
        ----------
        labels : Tensor
            [batch, ...]; its last axes are cut as the image axes of the output, if they have its
            extents.
        of : int
            Number of the output.
        incomplete : bool
            The labels are of fewer samples than a batch (see `forward`).
        """
        rows = self.engine.own_rows
        if incomplete:
            whole = labels.new_zeros(self.plan.batch, *labels.shape[1:])
            whole[:len(labels)] = labels
            return self._cut(whole, rows, of)[torch.from_numpy(rows < len(labels))]
        return self._cut(labels, rows, of)

    def _of(self, batch: Tensor, rows: NDArray[np.int64]) -> Tensor:
        """Some samples of a whole batch, or of this rank's samples of it (`BatchSampler`)."""
        if len(batch) not in (self.plan.batch, len(self.engine.samples)):
            raise InputError(f"{len(batch)} samples: give the whole batch of {self.plan.batch}, or "
                             f"the {len(self.engine.samples)} that BatchSampler hands this rank")
        if len(batch) != self.plan.batch:
            rows = np.searchsorted(self.engine.samples, rows)
        return batch[_index(rows)]

    def _cut(self, labels: Tensor, rows: NDArray[np.int64], of: int) -> Tensor:
        extents, pixels = self._traced.outputs[of][1:], self._pixels(of)[1:]
        here = self._of(labels, rows)
        if extents and tuple(labels.shape[-len(extents):]) == extents and labels.dim() > len(
                extents):
            place: tuple[Any, ...] = (..., *(slice(*i) for i in pixels))
            here = here[place]
        return here

    def _pixels(self, of: int) -> Box:
        """The box of a sample of an output, with the axes that it has in the module."""
        return _in_module(self.engine.pixels(of), self._traced.outputs[of])

    def _images(self, images: Tensor) -> NDArray[Any]:
        """This rank's box of the images, as the executor takes it."""
        executor = self.engine.executor
        own = (len(executor.image_rows), *shape(executor.image_box))
        given = tuple(images.shape)
        if given[1:] == self._image and (given[0], *image_of(given[1:])) != own:
            images = self.local_images(images)
        elif (given[0], *image_of(given[1:])) != own:
            raise InputError(f"images of shape {shape_text(given)}: give the whole batch, "
                             f"{shape_text((self.plan.batch, *self._image))}, or this rank's box "
                             f"of it, {shape_text(own)} (model.local_images)")
        return images.detach().cpu().numpy().reshape(own)

    # -- forward and backward ----------------------------------------------------------------------
    def forward(self, images: Tensor, incomplete: bool = False) -> Any:
        """This rank's box of the outputs, as the module returns them.

        Parameters
        ----------
        images : Tensor
            [batch, ...] the whole batch, this rank's samples of it, or its box of these.
        incomplete : bool
            In evaluation: the images, the same on every rank, are fewer than a batch.
        """
        if incomplete and self.training:
            raise InputError("a training iteration takes a full batch; leave the last samples of "
                             "an epoch out (drop_last=True)")
        if not self.training:
            return self._evaluate(images, incomplete)
        here = self._images(images)
        if torch.is_grad_enabled():
            return self._structured(SchedulePasses.apply(self._anchor, self, here))
        return self._structured(self.run_forward(here))

    def _evaluate(self, images: Tensor, incomplete: bool) -> Any:
        known = torch.from_numpy(self.engine.own_rows < (len(images) if incomplete
                                                         else self.plan.batch))
        if incomplete:
            missing = self.plan.batch - len(images)
            images = torch.cat([images, images.new_zeros(missing, *self._image)])
        found = self._shaped(self.engine.evaluate(self._images(images)))
        return self._structured([out[known] for out in found] if incomplete else found)

    def run_forward(self, images: NDArray[Any]) -> list[Tensor]:
        """The outputs of a training pass."""
        for name in self._others:
            if name.endswith("num_batches_tracked"):
                self._others[name] += 1
        return self._shaped(self.engine.forward(images))

    def run_backward(self, gradients: Sequence[Tensor]) -> None:
        """The gradients of the parameters from those of the outputs."""
        given = self._host(gradients, len(self.engine.own_rows))
        self._compare(given)
        with AddedGradients(self.parts):
            self.engine.backward(given)

    def backward(self, loss: Tensor) -> None:
        """``loss.backward()``, after `check_loss`."""
        self.check_loss(loss)
        loss.backward()

    def check_loss(self, loss: Tensor) -> None:
        """Check that all ranks have the same loss.

        Raises
        ------
        RunError
            On every rank, where they differ: a mean or a sum is over this rank's part alone.
        """
        self.engine.last_loss = float(loss.detach())
        require_alike(self.engine.last_loss, self.group)

    def step(self, images: Tensor, labels: Any, loss: Callable[..., Tensor]) -> Tensor:
        """Forward and backward pass, micro-batch by micro-batch; needed where these go back before
        others go forward.

        Parameters
        ----------
        labels : Tensor, or sequence of Tensor
            Of the whole batch; a sequence has those of each output.
        loss : callable
            The mean loss of a micro-batch over all ranks that hold it (`hpcpar.torch.mean`), from
            this rank's box of the outputs and of the labels.

        Returns
        -------
        Tensor
            The loss: the mean over the micro-batches.
        """
        engine, total = self.engine, [0.0]

        def gradients(part: int, outputs: list[NDArray[Any]]) -> list[NDArray[Any]]:
            outs = [out.requires_grad_() for out in self._shaped(outputs)]
            rows = engine.rows[part]
            several = not isinstance(labels, Tensor)
            own = [self._cut(each, rows, i) for i, each in enumerate(labels)] if several else \
                self._cut(labels, rows, 0)
            with torch.enable_grad():
                value = loss(self._structured(outs), own) * engine.weight_of(part)
            require_alike(float(value.detach()), self.group)
            value.backward()
            total[0] += float(value.detach())
            return self._host([torch.zeros_like(out) if out.grad is None else out.grad
                               for out in outs], len(rows))

        world = self.group
        self.group = engine.last_ranks
        try:
            with AddedGradients(self.parts):
                engine.step(self._images(images), gradients)
        finally:
            self.group = world
        engine.last_loss = float(world.bcast(total[0], root=engine.first_of_last))
        return torch.tensor(engine.last_loss, dtype=torch.float64)

    def _compare(self, gradients: Sequence[NDArray[Any]]) -> None:
        """Ranks that hold the same outputs must have the same gradients; looked at at first."""
        if self.engine.iterations > COMPARED_ITERATIONS:
            return
        mine = [float(np.abs(g).sum(dtype=np.float64)) for g in gradients]
        rows = self.engine.own_rows.tolist()
        boxes = [self.engine.pixels(i) for i in range(len(gradients))] if rows else []
        found: dict[str, tuple[int, list[float]]] = {}
        for rank, (key, values) in enumerate(self.group.allgather((f"{rows} {boxes}", mine))):
            other, known = found.setdefault(key, (rank, values))
            if rows and not np.allclose(values, known, TOLERANCE, 0.0):
                raise on_all_ranks(RunError(
                    f"ranks {other} and {rank} hold the same outputs, but their losses have other "
                    "gradients; compute the same loss on every rank, without random numbers"))

    # -- outputs -----------------------------------------------------------------------------------
    def _shaped(self, outputs: Sequence[NDArray[Any]]) -> list[Tensor]:
        """The outputs with the axes that they have in the module."""
        shaped = []
        for i, out in enumerate(outputs):
            theirs = self._traced.outputs[i]
            box = shape(self._pixels(i)) if len(theirs) != out.ndim - 1 else out.shape[1:]
            shaped.append(torch.from_numpy(out.reshape(len(out), *box)))
        return shaped

    def _host(self, gradients: Sequence[Tensor], rows: int) -> list[NDArray[Any]]:
        """Gradients of outputs as the executor takes them."""
        shapes = (shape(self.engine.pixels(i)) for i in range(len(gradients)))
        return [np.ascontiguousarray(g.detach().numpy()).reshape(rows, *own)
                for g, own in zip(gradients, shapes, strict=True)]

    def places(self, of: int) -> list[NDArray[np.int64]]:
        """Where this rank's box of an output lies, along every axis."""
        return [self.engine.own_rows, *(np.arange(*i) for i in self._pixels(of))]

    def sample_shape(self, of: int) -> Shape:
        """Shape of a sample of an output."""
        return self._traced.outputs[of]

    def _structured(self, outputs: Sequence[Tensor]) -> Any:
        return tree_unflatten(list(outputs), self._traced.structure)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ParallelModule:
        """Refuse what would move parameters away from the executor's memory."""
        for p, _, _ in self.parts:
            if fn(p.data).data_ptr() != p.data_ptr():
                raise InputError("a parallel module keeps its device and number format; convert "
                                 "the module before hpcpar.torch.parallelize")
        return self

    # -- tensors -----------------------------------------------------------------------------------
    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str,
                            keep_vars: bool) -> None:
        """The whole tensors of the module by its own names, on every rank; all ranks call it."""
        found = tensors.whole(self.engine.executor, self.engine.world, self.tensor_places)
        known = found | {name: t.clone() for name, t in self._others.items()}
        destination.update({prefix + name: known[name] for name in self._names})

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True,
                        assign: bool = False) -> Any:
        """Takes this rank's parts of the whole tensors of the module, by its own names."""
        missing, unexpected, wrong = self._differences(state_dict)
        if wrong or (strict and (missing or unexpected)):
            raise InputError(f"the state does not fit the module: {len(missing)} tensors are "
                             f"missing, {len(unexpected)} unknown, {len(wrong)} of another shape "
                             f"({', '.join([*missing, *unexpected, *wrong][:3])})")
        return super().load_state_dict(state_dict, strict, assign)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str,
                              local_metadata: Any, strict: bool, missing_keys: list[str],
                              unexpected_keys: list[str], error_msgs: list[str]) -> None:
        """See `load_state_dict`; for a model that is a part of another module, too."""
        given = {name.removeprefix(prefix): tensor for name, tensor in state_dict.items()}
        missing, unexpected, wrong = self._differences(given)
        missing_keys += [prefix + name for name in missing]
        unexpected_keys += [prefix + name for name in unexpected]
        error_msgs += [f"{prefix}{name} has another shape" for name in wrong]
        if wrong:
            return
        tensors.put(self.engine.executor, self.tensor_places, given)
        for name in self._others.keys() & given.keys():
            self._others[name] = given[name].clone()

    def _differences(self, given: Mapping[str, Any]) -> tuple[list[str], list[str], list[str]]:
        """Names of tensors that are missing, unknown, and of another shape."""
        return ([name for name in self._names if name not in given],
                [name for name in given if name not in self._names],
                [name for name, place in self.tensor_places.items()
                 if name in given and tuple(given[name].shape) != place.shape])

    # -- records -----------------------------------------------------------------------------------
    def record(self, path: str) -> AbstractContextManager[Recording, None]:
        """Records the iterations within it, for ``hpcpar compare`` and ``hpcpar trace``."""
        return Recording(self.engine, path)


class _Names(nn.Module):
    """A part of the module's names: the model itself saves and loads what stands below it."""

    def _save_to_state_dict(self, *args: Any) -> None:
        """Nothing."""

    _load_from_state_dict = _save_to_state_dict


def _from_first(world: World, tensor: Tensor) -> Tensor:
    """Rank 0's tensor, on every rank."""
    mine = tensor.detach().cpu().numpy()
    return torch.from_numpy(world.bcast_array(mine, mine.shape, mine.dtype)).reshape(mine.shape)


def _in_module(box: Box, theirs: Shape) -> Box:
    """The box of a sample with the axes that it has in the module: a signal is an image with one
    row, and features may be images of one pixel.
    """
    if len(box) == len(theirs):
        return box
    if len(theirs) == 2:
        return box[0], box[2] if box[1][1] > box[1][0] else (0, 0)
    return (box[0], *((0, 1) for _ in theirs[1:]))


def _index(rows: NDArray[np.int64]) -> slice | Tensor:
    """Rows as a slice where they are consecutive: it copies nothing."""
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return torch.from_numpy(rows)
