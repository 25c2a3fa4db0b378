"""A network: layers in topological order, with the shape of every layer's samples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from hpcpar.errors import InputError
from hpcpar.network.layers import Input, Layer, Loss, Shape
from hpcpar.network.receptive_field import Same


@dataclass(frozen=True)
class Network:
    """Layers in the order of execution, any graph without cycles: the first is the input, the last
    the loss.

    Raises
    ------
    InputError
        If names repeat, an input is not defined before its use, an output is never read, or shapes
        do not fit.
    """

    name: str
    layers: tuple[Layer, ...]

    def __post_init__(self) -> None:
        self._check_ends()
        seen: set[str] = set()
        for layer in self.layers:
            if layer.name in seen:
                raise InputError(
                    f"network '{self.name}' has two layers named '{layer.name}'; names must differ")
            check_inputs(layer, seen)
            seen.add(layer.name)
        dangling = [layer.name for layer in self.layers[:-1] if not self.consumers[layer.name]]
        if dangling:
            raise InputError(f"network '{self.name}': no layer reads the output of '{dangling[0]}'; give it to a layer, or leave it out")
        self.shapes  # noqa: B018 - shape errors belong to construction

    def _check_ends(self) -> None:
        if not self.layers or not isinstance(self.layers[0],
                                             Input) or not isinstance(self.layers[-1], Loss):
            raise InputError(
                f"network '{self.name}' must begin with an input layer and end with a loss")
        for layer in self.layers[1:-1]:
            if isinstance(layer, Input | Loss):
                raise InputError(f"network '{self.name}': '{layer.name}' ({layer.kind}) stands in the middle; there is one input, first, "
                                 "and one loss, last")

    @cached_property
    def shapes(self) -> dict[str, Shape]:
        """Shape of one output sample of every layer."""
        out: dict[str, Shape] = {}
        for layer in self.layers:
            out[layer.name] = layer.output_shape(*(out[name] for name in layer.inputs)) if layer.inputs else layer.output_shape(())
        return out

    @cached_property
    def by_name(self) -> dict[str, Layer]:
        return {layer.name: layer for layer in self.layers}

    @cached_property
    def consumers(self) -> dict[str, tuple[str, ...]]:
        """The layers that read each layer's output, in order of execution; none for the loss."""
        out: dict[str, list[str]] = {layer.name: [] for layer in self.layers}
        for layer in self.layers:
            for name in layer.inputs:
                out[name].append(layer.name)
        return {name: tuple(readers) for name, readers in out.items()}

    @cached_property
    def is_chain(self) -> bool:
        """Whether every layer reads the one before it, and no other."""
        return all(layer.inputs == (before.name,) for before, layer in zip(self.layers, self.layers[1:], strict=False))

    def input_shape(self, layer: Layer) -> Shape:
        """Shape of one sample of the layer's (first) input."""
        return self.shapes[layer.inputs[0]] if layer.inputs else ()

    def input_shapes(self, layer: Layer) -> tuple[Shape, ...]:
        """Shapes of one sample of each of the layer's inputs."""
        return tuple(self.shapes[name] for name in layer.inputs)

    @property
    def image_shape(self) -> Shape:
        return self.shapes[self.layers[0].name]

    @property
    def classes(self) -> int:
        return self.shapes[self.layers[-1].name][0]

    @cached_property
    def weighted(self) -> tuple[Layer, ...]:
        """Layers with parameters, in order, batch normalisation included."""
        return tuple(layer for layer in self.layers if layer.has_weights)

    @cached_property
    def trained(self) -> frozenset[str]:
        """Layers whose output's gradient somebody needs: those with weights in them or before them.
        """
        out: set[str] = set()
        for layer in self.layers:
            if layer.has_weights or any(name in out for name in layer.inputs):
                out.add(layer.name)
        return frozenset(out)

    @cached_property
    def granules(self) -> dict[str, int]:
        """Unit in which each layer's channels are cut: flattened images stay cut at channels until
        a layer mixes features.
        """
        out: dict[str, int] = {}
        for layer in self.layers:
            x = self.input_shape(layer)
            out[layer.name] = layer.granule(x) if layer.inputs else 1
            if out[layer.name] == 1 and layer.inputs and isinstance(layer.relation("c", x), Same):
                out[layer.name] = out[layer.inputs[0]]
        return out

    @cached_property
    def signatures(self) -> dict[str, int]:
        """A number for each layer, equal for layers of equal kind, options, shapes and granules:
        they work alike.
        """
        known: dict[object, int] = {}
        out = {}
        for layer in self.layers:
            options = tuple([getattr(layer, name) for name in layer.__dataclass_fields__
                             if name not in ("name", "inputs")])
            granules = tuple(self.granules[name] for name in (layer.name, *layer.inputs))
            key = (type(layer), options, self.input_shapes(layer), self.shapes[layer.name],
                   granules)
            out[layer.name] = known.setdefault(key, len(known))
        return out

    @cached_property
    def products(self) -> tuple[Layer, ...]:
        """Convolutions and linear layers, in order (the papers' i = 1..L)."""
        return tuple(layer for layer in self.layers if layer.products)

    @cached_property
    def parameters(self) -> int:
        return sum(layer.parameters(self.input_shape(layer)) for layer in self.layers)

    @cached_property
    def forward_flops(self) -> float:
        """Flops of the forward pass of one sample."""
        return sum(layer.forward_flops(self.input_shape(layer)) for layer in self.layers)


def check_inputs(layer: Layer, seen: set[str] | dict[str, Shape]) -> None:
    """Raise an InputError unless the layer has a proper name and reads the right number of layers
    defined before it.
    """
    if not layer.name or "/" in layer.name:
        raise InputError(f"layer '{layer.name}' ({layer.kind}): a name must not be empty or hold '/', it names a group in checkpoints")
    for name in layer.inputs:
        if name not in seen:
            raise InputError(f"layer '{layer.name}' reads '{name}', which is not defined before it")
    count = len(layer.inputs)
    if len(set(layer.inputs)) != count:
        raise InputError(f"layer '{layer.name}' ({layer.kind}) reads {' and '.join(map(repr, layer.inputs))}; each input may be read once")
    if layer.merges:
        if count < 2:
            raise InputError(
                f"layer '{layer.name}' ({layer.kind}) reads {count} inputs; name at least two")
    elif count != (0 if isinstance(layer, Input) else 1):
        raise InputError(f"layer '{layer.name}' ({layer.kind}) reads {count} inputs, not {0 if isinstance(layer, Input) else 1}; "
                         "only add and concat read several")
