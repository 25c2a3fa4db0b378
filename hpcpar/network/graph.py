"""A network: an acyclic graph of layers in topological order, and their sample shapes."""

from __future__ import annotations

import math
from collections.abc import Container, Hashable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property

from hpcpar.errors import InputError
from hpcpar.network.layers import Input, Layer, Loss, Shape
from hpcpar.network.receptive_field import Same

#: Largest number of a layer's outputs per sample, and of its weights; sizes in bytes fit 64 bits.
LARGEST = 10**12


@dataclass(frozen=True)
class Network:
    """Layers in the order of execution; the first is the input, the last the loss.

    Attributes
    ----------
    notes : tuple of str
        Differences between an imported network and its source, one line each.
    origins : dict
        Names of the source tensors that hold an imported layer's weight and bias, by layer; an
        empty name if no tensor stores the values as they are.

    Raises
    ------
    InputError
        Names repeat, an input is not defined before its use, an output is never read, or shapes do
        not fit.
    """

    name: str
    layers: tuple[Layer, ...]
    notes: tuple[str, ...] = field(default=(), compare=False, repr=False)
    origins: Mapping[str, tuple[str, ...]] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        self._check_ends()
        seen: set[str] = set()
        for layer in self.layers:
            check_inputs(self.name, layer, seen)
            if layer.weights_of and layer.weights_of not in seen:
                raise InputError(f"layer '{layer.name}' uses the weights of '{layer.weights_of}', "
                                 "which is not defined before it")
            seen.add(layer.name)
        dangling = [layer.name for layer in self.layers[:-1] if not self.consumers[layer.name]]
        if dangling:
            raise InputError(f"network '{self.name}': no layer reads the output of "
                             f"'{dangling[0]}'; connect it to a layer, or leave it out")
        self.shapes  # noqa: B018 - shape errors belong to construction
        for owner, names in self.tied.items():
            for name in names:
                self._check_tied(self.by_name[owner], self.by_name[name])

    def _check_tied(self, owner: Layer, layer: Layer) -> None:
        """Layers that share weights must have one kind and shape."""
        alike = [(type(sharer), sharer.owns_weights == (sharer is owner), sharer.weights,
                  sharer.weight_shape(x), sharer.bias_shape(x))
                 for sharer in (owner, layer) for x in (self.input_shape(sharer),)]
        if alike[0] != alike[1] or not alike[0][1]:
            raise InputError(f"layer '{layer.name}' cannot use the weights of '{owner.name}': only "
                             "layers of one kind, with weights of one shape, share weights; give "
                             "each its own")

    def _check_ends(self) -> None:
        ends_fit = (self.layers and isinstance(self.layers[0], Input)
                    and isinstance(self.layers[-1], Loss))
        if not ends_fit:
            raise InputError(
                f"network '{self.name}' must begin with an input layer and end with a loss")
        for layer in self.layers[1:-1]:
            if isinstance(layer, Input | Loss):
                raise InputError(f"network '{self.name}': '{layer.name}' ({layer.kind}) is in the "
                                 "middle; put the only input first and the only loss last")

    @cached_property
    def shapes(self) -> dict[str, Shape]:
        """Shape of one output sample of each layer."""
        shapes: dict[str, Shape] = {}
        for layer in self.layers:
            first, *more = [shapes[name] for name in layer.inputs] or [()]
            shapes[layer.name] = layer.output_shape(first, *more)
            if max(math.prod(shapes[layer.name]), layer.parameters(first)) > LARGEST:
                raise InputError(f"network '{self.name}': layer '{layer.name}' ({layer.kind}) has "
                                 f"more than {LARGEST:g} weights or outputs per sample; give "
                                 "smaller images or fewer channels")
        return shapes

    @cached_property
    def by_name(self) -> dict[str, Layer]:
        """Layers by name."""
        return {layer.name: layer for layer in self.layers}

    @cached_property
    def consumers(self) -> dict[str, tuple[str, ...]]:
        """Names of the layers that read each layer's output, in order of execution."""
        readers: dict[str, list[str]] = {layer.name: [] for layer in self.layers}
        for layer in self.layers:
            for name in layer.inputs:
                readers[name].append(layer.name)
        return {name: tuple(names) for name, names in readers.items()}

    @cached_property
    def is_chain(self) -> bool:
        """True if each layer reads only the layer before it."""
        pairs = zip(self.layers, self.layers[1:], strict=False)
        return all(layer.inputs == (before.name,) for before, layer in pairs)

    def input_shape(self, layer: Layer) -> Shape:
        """Sample shape of the layer's first input, () for the input layer."""
        return self.shapes[layer.inputs[0]] if layer.inputs else ()

    def input_shapes(self, layer: Layer) -> tuple[Shape, ...]:
        """Sample shapes of all inputs of the layer."""
        return tuple(self.shapes[name] for name in layer.inputs)

    @property
    def image_shape(self) -> Shape:
        """Sample shape of the network's input."""
        return self.shapes[self.layers[0].name]

    @property
    def classes(self) -> int:
        """Number of outputs."""
        return self.shapes[self.layers[-1].name][0]

    @property
    def loss(self) -> Loss:
        """The last layer."""
        last = self.layers[-1]
        assert isinstance(last, Loss)
        return last

    @property
    def truth_shape(self) -> Shape:
        """Shape of a sample's ground truth: () for a label or (outputs,) for targets, followed by
        the image's extents if each pixel has its own.
        """
        return self.loss.truth_shape(self.shapes[self.loss.name])

    @property
    def output_extents(self) -> Shape:
        """Extents of the output's image; () if the output is features."""
        return self.shapes[self.loss.name][1:]

    @property
    def labels_pixels(self) -> bool:
        """True if the ground truth is a class for each pixel."""
        return not self.loss.takes_targets and bool(self.truth_shape)

    @cached_property
    def weighted(self) -> tuple[Layer, ...]:
        """Layers with their own parameters in order, normalizations included."""
        return tuple(layer for layer in self.layers if layer.owns_weights)

    @cached_property
    def stateful(self) -> tuple[Layer, ...]:
        """Layers with their own parameters or running statistics in order."""
        return tuple(layer for layer in self.layers
                     if layer.owns_weights or layer.buffers(self.input_shape(layer)))

    @cached_property
    def tied(self) -> dict[str, tuple[str, ...]]:
        """Owner of shared weights -> names of the other layers that use them, in order."""
        users: dict[str, tuple[str, ...]] = {}
        for layer in self.layers:
            if layer.weights_of:
                users[layer.weights_of] = (*users.get(layer.weights_of, ()), layer.name)
        return users

    @cached_property
    def trained(self) -> frozenset[str]:
        """Names of the layers whose output gradient backpropagation needs.

        These layers train weights or depend on a layer that does.
        """
        names: set[str] = set()
        for layer in self.layers:
            if layer.learns or any(name in names for name in layer.inputs):
                names.add(layer.name)
        return frozenset(names)

    @cached_property
    def granules(self) -> dict[str, int]:
        """Number of consecutive channels of each layer's output that stay on one rank.

        Features of a flattened image stay together by channel until a layer mixes features.
        """
        granules: dict[str, int] = {}
        for layer in self.layers:
            x = self.input_shape(layer)
            granule = layer.granule(x) if layer.inputs else 1
            if granule == 1 and layer.inputs and isinstance(layer.relation("c", x), Same):
                granule = granules[layer.inputs[0]]
            granules[layer.name] = granule
        return granules

    @cached_property
    def signatures(self) -> dict[str, int]:
        """A number per layer; layers with the same number compute alike.

        They have equal kinds, options, shapes, granules, and numbers of layers that share their
        weights.
        """
        numbers: dict[Hashable, int] = {}
        signatures = {}
        for layer in self.layers:
            options = tuple(getattr(layer, f.name) for f in fields(layer)
                            if f.name not in ("name", "inputs"))
            granules = tuple(self.granules[name] for name in (layer.name, *layer.inputs))
            shapes = (self.input_shapes(layer), self.shapes[layer.name])
            key = (type(layer), options, shapes, granules, len(self.tied.get(layer.name, ())))
            signatures[layer.name] = numbers.setdefault(key, len(numbers))
        return signatures

    @cached_property
    def matmul_layers(self) -> tuple[Layer, ...]:
        """Convolutions and linear layers in order: layers i = 1..L in the papers."""
        return tuple(layer for layer in self.layers if layer.is_matmul)

    @cached_property
    def parameters(self) -> int:
        """Number of weights and biases."""
        return sum(layer.parameters(self.input_shape(layer)) for layer in self.layers)

    @cached_property
    def forward_flops(self) -> float:
        """Flops of the forward pass of one sample."""
        return sum(layer.forward_flops(self.input_shape(layer)) for layer in self.layers)


def check_inputs(network: str, layer: Layer, seen: Container[str]) -> None:
    """Check a layer's name, and the names, number and distinctness of its inputs."""
    if layer.name in seen:
        raise InputError(
            f"network '{network}' has two layers named '{layer.name}'; names must differ")
    if not layer.name or "/" in layer.name:
        raise InputError(f"layer '{layer.name}' ({layer.kind}): a name must not be empty or "
                         "contain '/', because it names a group in checkpoints")
    for name in layer.inputs:
        if name not in seen:
            raise InputError(f"layer '{layer.name}' reads '{name}', which is not defined before it")
    count = len(layer.inputs)
    if len(set(layer.inputs)) != count:
        raise InputError(f"layer '{layer.name}' ({layer.kind}) reads "
                         f"{' and '.join(map(repr, layer.inputs))}; each input may be read once")
    if layer.merges:
        if count < layer.least_inputs:
            least = ("one", "two")[layer.least_inputs - 1]
            raise InputError(
                f"layer '{layer.name}' ({layer.kind}) reads {count} inputs; name at least {least}")
        return
    expected = 0 if isinstance(layer, Input) else 1
    if count != expected:
        raise InputError(f"layer '{layer.name}' ({layer.kind}) reads {count} inputs, not "
                         f"{expected}; only add, multiply and concat read several")
