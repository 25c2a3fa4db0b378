"""``hpcpar weights``: converts checkpoints to and from a PyTorch module's ``state_dict``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hpcpar.api.options import NetworkOptions, about_network
from hpcpar.errors import InputError
from hpcpar.network.layers.base import Shape
from hpcpar.network.source import load_module
from hpcpar.options.checks import image, path
from hpcpar.options.fields import required
from hpcpar.options.output_files import CHECKPOINT, STATE, holds_something
from hpcpar.report.tables import say


@dataclass(frozen=True, kw_only=True)
class WeightsCommand(NetworkOptions, section="network and data"):
    """The options that both directions share."""

    network: str = field(metadata=about_network())

    def convert(self) -> str:
        """Writes the file; returns its path."""
        raise NotImplementedError

    def module(self) -> tuple[Any, Shape]:
        """The network's module, and the shape of its samples."""
        shape = None if self.input is None else image(self.input)
        return load_module(self.network, shape, self.classes)


@dataclass(frozen=True, kw_only=True)
class ToTorchCommand(WeightsCommand):
    """Write a checkpoint's weights as the state_dict of its PyTorch module."""

    example = "hpcpar weights to-torch weights.h5 unet.pt --network model.py:unet"
    checkpoint: str = required(path, "checkpoint to read", "FILE.h5", names=("checkpoint",))
    state: str = required(STATE, "file to write, for torch.load", "FILE.pt", names=("state",))

    def convert(self) -> str:
        module, shape = self.module()
        from hpcpar.torch.checkpoint import write_state

        write_state(self.state, module, shape, self.checkpoint)
        return self.state


@dataclass(frozen=True, kw_only=True)
class FromTorchCommand(WeightsCommand):
    """Write a state_dict's weights as a checkpoint for hpcpar run --resume --partial."""

    example = "hpcpar weights from-torch unet.pt weights.h5 --network model.py:unet"
    state: str = required(path, "file from torch.save", "FILE.pt", names=("state",))
    checkpoint: str = required(CHECKPOINT, "checkpoint to write", "FILE.h5",
                               names=("checkpoint",))

    def convert(self) -> str:
        CHECKPOINT.check_content(self.checkpoint)
        from hpcpar.train.checkpoint import read_state

        if holds_something(self.checkpoint) and (step := read_state(self.checkpoint).step):
            raise InputError(f"checkpoint {self.checkpoint} has {step} iterations of a run: "
                             "it is not replaced; remove it, or choose another name")
        module, shape = self.module()
        from hpcpar.torch.checkpoint import write_checkpoint

        write_checkpoint(self.checkpoint, module, shape, self.state)
        return self.checkpoint


KINDS = {"to-torch": ToTorchCommand, "from-torch": FromTorchCommand}


def main(args: WeightsCommand) -> int:
    say(f"wrote {args.convert()}")
    return 0
