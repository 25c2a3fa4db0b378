"""Training and evaluation mode of a module's parts, of which a plan has one for all."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from hpcpar.errors import InputError


def require_one_mode(module: nn.Module) -> None:
    """Check that all parts whose mode counts have the module's mode.

    Raises
    ------
    InputError
        A normalization with running statistics, or dropout, has another mode.
    """
    for name, part in module.named_modules():
        if part.training != module.training and (
                part._buffers.get("running_mean") is not None or isinstance(part, _DropoutNd)):
            modes = [("evaluation", "training")[mode] for mode in (part.training, module.training)]
            raise InputError(f"'{name}' is in {modes[0]} mode and the module around it in "
                             f"{modes[1]} mode, but a plan has one mode for all layers: call "
                             "train() or eval() on the whole module")
