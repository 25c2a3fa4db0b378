"""A network: layers in topological order, with the shape of every layer's samples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from hpcpar.errors import InputError
from hpcpar.network.layers import Input, Layer, Loss, Shape


@dataclass(frozen=True)
class Network:
    """Layers in the order of execution; the first is the input, the last the loss.

    Raises
    ------
    InputError
        If names repeat, an input is not defined before its use, or shapes do not fit.
    """

    name: str
    layers: tuple[Layer, ...]

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for layer in self.layers:
            if layer.name in seen:
                raise InputError(f"network '{self.name}' has two layers named '{layer.name}'; names must differ")
            for name in layer.inputs:
                if name not in seen:
                    raise InputError(f"layer '{layer.name}' reads '{name}', which is not defined before it")
            if not isinstance(layer, Input) and len(layer.inputs) != 1:
                raise InputError(f"layer '{layer.name}' has {len(layer.inputs)} inputs; this version runs chains (one input each)")
            seen.add(layer.name)
        if not self.layers or not isinstance(self.layers[0], Input) or not isinstance(self.layers[-1], Loss):
            raise InputError(f"network '{self.name}' must begin with an input layer and end with a loss")
        consumers = [name for layer in self.layers for name in layer.inputs]
        if len(set(consumers)) != len(consumers):
            raise InputError(f"network '{self.name}' is not a chain: one output feeds several layers")
        self.shapes  # noqa: B018 - shape errors belong to construction

    @cached_property
    def shapes(self) -> dict[str, Shape]:
        """Shape of one output sample of every layer."""
        out: dict[str, Shape] = {}
        for layer in self.layers:
            out[layer.name] = layer.output_shape(out[layer.inputs[0]] if layer.inputs else ())
        return out

    @cached_property
    def by_name(self) -> dict[str, Layer]:
        return {layer.name: layer for layer in self.layers}

    def input_shape(self, layer: Layer) -> Shape:
        """Shape of one sample of the layer's (first) input."""
        return self.shapes[layer.inputs[0]] if layer.inputs else ()

    @property
    def image_shape(self) -> Shape:
        return self.shapes[self.layers[0].name]

    @property
    def classes(self) -> int:
        return self.shapes[self.layers[-1].name][0]

    @cached_property
    def weighted(self) -> tuple[Layer, ...]:
        """Layers with weights, in order (the papers' i = 1..L)."""
        return tuple(layer for layer in self.layers if layer.has_weights)

    @cached_property
    def parameters(self) -> int:
        return sum(layer.parameters(self.input_shape(layer)) for layer in self.layers)

    @cached_property
    def forward_flops(self) -> float:
        """Flops of the forward pass of one sample."""
        return sum(layer.forward_flops(self.input_shape(layer)) for layer in self.layers)
