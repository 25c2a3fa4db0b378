"""Training and evaluation mode of a model's parts, and the momentum of their statistics."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from hpcpar.errors import InputError
from hpcpar.network.read.evaluation import Evaluation
from hpcpar.network.read.torch_module import TracedModule
from hpcpar.runtime.executor import Executor


class Modes:
    """The modes of a model's layers, which its submodules may change before any pass."""

    def __init__(self, model: nn.Module, traced: TracedModule) -> None:
        self._evaluation, network = traced.evaluation, traced.network
        modules = dict(model.named_modules(remove_duplicate=False))
        self._parts = [(layer, *_module_of(layer.name, modules)) for layer in network.layers
                       if layer.random or layer.statistics == "batch"]
        rests = {part for layer, _, part in self._parts if not layer.whole_samples}
        owners = {name.rpartition(".")[0] for name in traced.state}
        drops = any(layer.whole_samples for layer, _, _ in self._parts)
        #: Dropout and owners of state in parts that run whole, in one mode.
        self._whole = [(path, part) for path, part in model.named_modules()
                       if path in owners or (drops and _drops(part) and part not in rests)]
        self._state = min(traced.state, default="")
        self._parts = [each for each in self._parts if not each[0].whole_samples]

    def require_evaluation(self) -> Evaluation:
        """Check that all parts evaluate, where the model does; what the module then returns.

        Raises
        ------
        InputError
            A normalization with running statistics, or dropout, is in training mode; or the module
            computes in evaluation what it does not compute in training.
        """
        if isinstance(self._evaluation, str):
            raise InputError(self._evaluation)
        for path, part in (*((path, part) for _, path, part in self._parts), *self._whole):
            if part.training:
                raise InputError(f"'{path}' is in training mode and the model in evaluation mode, "
                                 "in which all layers evaluate: call eval() on the whole model")
        return self._evaluation

    def set(self, executor: Executor, microbatches: int) -> None:
        """Set the modes of a training pass, and count its batch.

        Raises
        ------
        InputError
            Statistics are averaged over all batches (momentum=None), or a part that runs whole has
            state, but a batch has micro-batches; or dropout rests in a part that runs whole.
        """
        if self._state and microbatches > 1:
            raise InputError(f"'{self._state}' changes once in a batch, but a batch has "
                             f"{microbatches} micro-batches: plan with microbatches=1")
        for path, part in self._whole:
            if not part.training:
                raise InputError(f"'{path}' is in evaluation mode and the model in training mode, "
                                 "but it is in a part that runs whole in PyTorch, which has one "
                                 "mode: call train() on the whole model")
        for layer, _, part in self._parts:  # a module that is called twice counts twice
            if (layer.statistics == "batch" and part.training
                    and part._buffers.get("num_batches_tracked") is not None):
                part.num_batches_tracked.add_(1)
        momenta: dict[str, float] = {}
        for layer, path, part in self._parts:
            planned = getattr(layer, "momentum", None)
            if planned is None or not isinstance(part, _BatchNorm):
                continue
            if part.momentum is None and microbatches > 1:
                raise InputError(f"'{path}' averages its statistics over all batches (momentum="
                                 f"None), but a batch has {microbatches} micro-batches with "
                                 "statistics of their own: plan with microbatches=1")
            momentum = 1 / int(part.num_batches_tracked) if part.momentum is None else part.momentum
            if not math.isclose(momentum, planned, abs_tol=1e-6):
                momenta[layer.name] = momentum
        executor.set_modes(frozenset(layer.name for layer, _, part in self._parts
                                     if not part.training), momenta)


def _drops(part: nn.Module) -> bool:
    """Whether a module has a rate of dropout, as dropout, attention and recurrent layers do."""
    rates = (getattr(part, name, 0.0) for name in ("p", "dropout"))
    return any(isinstance(rate, float) and rate > 0 for rate in rates)


def _module_of(layer: str, modules: Mapping[str, nn.Module]) -> tuple[str, nn.Module]:
    """Name of a layer's module, and the module: the layer has its name, maybe with more behind."""
    while layer not in modules:
        layer = layer.rpartition(".")[0]
    return layer, modules[layer]
