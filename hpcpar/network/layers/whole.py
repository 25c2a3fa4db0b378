"""Parts of a PyTorch module that need samples whole."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from hpcpar.errors import InputError
from hpcpar.network.layers.base import AXES, Layer, PassWork, Shape
from hpcpar.network.receptive_field import Full, Relation, Same

NotNegative = Annotated[float, Meta(ge=0)]
#: Shape, mean and standard deviation of a tensor of weights.
Tensor = tuple[Shape, float, NotNegative]


@dataclass(frozen=True)
class Whole(Layer):
    """A part of a PyTorch module that no other layer describes, such as attention.

    Only samples are cut. A rank with a part of the output's image computes whole samples and keeps
    its part. It runs in PyTorch.

    Attributes
    ----------
    program : str
        PyTorch's operators as JSON (`hpcpar.network.aten`).
    output : tuple of int
        Shape of an output sample.
    tensors : tuple of Tensor
        The weights, which are one vector in this order, and the distribution of their initial
        values.
    sample_flops : float
        Flops of the forward pass for one sample.
    kept_items : int
        Values that PyTorch keeps for the backward pass of one sample.
    """

    program: str = ""
    output: Shape = ()
    tensors: tuple[Tensor, ...] = ()
    sample_flops: NotNegative = 0.0
    kept_items: Annotated[int, Meta(ge=0)] = 0
    kind: ClassVar[str] = "whole"
    merges: ClassVar[bool] = True
    least_inputs: ClassVar[int] = 1
    backward_reads: ClassVar[tuple[str, ...]] = ("input",)
    splits_channels: ClassVar[bool] = False
    gathers_channels: ClassVar[bool] = True
    whole_samples: ClassVar[bool] = True

    @property
    def has_weights(self) -> bool:  # type: ignore[override]
        return bool(self.tensors)

    @property
    def random(self) -> bool:  # type: ignore[override]
        return "aten.dropout." in self.program or "aten.rand" in self.program

    def output_shape(self, x: Shape, *more: Shape) -> Shape:
        if len(self.output) + 1 not in AXES or not self.program:
            raise InputError(f"layer '{self.name}' (whole): it has no program with an output of "
                             "features or images; read it from a PyTorch module")
        return self.output

    def relation(self, axis: str, x: Shape, which: int = 0) -> Relation:
        return Same() if axis == "n" else Full()

    def weight_shape(self, x: Shape) -> Shape:
        return (1, sum(math.prod(shape) for shape, _, _ in self.tensors)) if self.tensors else ()

    def initial_row(self, stream: np.random.Generator, shape: Shape, deviation: float
                    ) -> npt.NDArray[np.float64]:
        """Normal numbers with each tensor's mean and deviation."""
        return np.concatenate([stream.normal(mean, own, math.prod(tensor))
                               for tensor, mean, own in self.tensors])

    def forward_flops(self, x: Shape) -> float:
        return self.sample_flops

    def work(self, op: str) -> PassWork:
        # one backward step computes all gradients; every trained part has the weights' step
        kept = -(-self.kept_items // math.prod(self.output))
        if op == "backward" and self.learns:
            return PassWork(0.0, inputs=2)
        factor = 1.0 if op == "forward" else 2.0
        return PassWork(factor, inputs=1, outputs=1 + kept)

    def variant(self, channels: int, whole: int) -> str:
        return " " + hashlib.sha256(self.program.encode()).hexdigest()[:12]

    def kept_bytes(self, item_bytes: int) -> int:
        return -(-self.kept_items * item_bytes // math.prod(self.output))
