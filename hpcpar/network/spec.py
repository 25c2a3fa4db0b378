"""A network in a plan file: the name of a built-in network, or all layers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace

from hpcpar.errors import InputError, unknown
from hpcpar.io.schema import Extent, convert, plain
from hpcpar.network import layers
from hpcpar.network.builtin import built_in
from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer, Shape


def layer_types(base: type[Layer] = Layer) -> dict[str, type[Layer]]:
    """Layer classes that a file may name: the package's layers and layers from imported modules."""
    types = {type_name(base): base} if base.kind else {}
    for subclass in base.__subclasses__():
        types |= layer_types(subclass)
    return types


def type_name(kind: type[Layer]) -> str:
    """Name of a layer class in a file; classes from other modules have their module's prefix."""
    ours = vars(layers).get(kind.__name__) is kind
    return kind.__name__ if ours else f"{kind.__module__}.{kind.__qualname__}"


@dataclass(frozen=True)
class NetworkSpec:
    """A network as plain data.

    Attributes
    ----------
    name : str
        Name of the network; without `layers` it is a built-in one.
    shape : tuple of int
        Shape of a sample.
    classes : int
        Number of outputs.
    layers : list of dict
        ``type`` of every layer and its fields that differ from the defaults; empty for built-in
        networks.
    """

    name: str
    shape: Shape
    classes: Extent
    layers: list[dict[str, object]] = field(default_factory=list, repr=False, hash=False)

    @classmethod
    def of(cls, network: Network) -> NetworkSpec:
        """The spec of a network."""
        named = cls(network.name, network.image_shape, network.classes)
        with suppress(InputError):  # a built-in name, but images with other axes
            if named.build() == network:
                return named
        return replace(named, layers=[_stored(layer) for layer in network.layers])

    def build(self) -> Network:
        """The network; its layers' modules must be imported already.

        Raises
        ------
        InputError
            No built-in network has this name, or the layers do not form a network.
        """
        if not self.layers:
            return built_in(self.name, self.shape, self.classes)
        known = layer_types()
        network = Network(self.name, tuple(
            _layer(data, known, f"network '{self.name}', layer {number}")
            for number, data in enumerate(self.layers, 1)))
        if (network.image_shape, network.classes) != (self.shape, self.classes):
            raise InputError(f"network '{self.name}': its layers take inputs {network.image_shape} "
                             f"and give {network.classes} classes, but the file says {self.shape} "
                             f"and {self.classes}; write the file again")
        return network

    def to_json(self) -> dict[str, object]:
        """The spec as JSON data."""
        return {name: value for name, value in plain(self).items() if name != "layers" or value}

    @property
    def title(self) -> str:
        """The name, followed by a checksum of the layers unless the network is built in."""
        if not self.layers:
            return self.name
        text = json.dumps(self.layers, sort_keys=True)
        return f"{self.name} ({hashlib.sha256(text.encode()).hexdigest()[:16]})"


def _stored(layer: Layer) -> dict[str, object]:
    """A layer as JSON data."""
    kind = type(layer)
    if not kind.kind:
        raise InputError(f"layer '{layer.name}': its class {kind.__name__} has no kind; add "
                         f"kind: ClassVar[str] = \"{kind.__name__.lower()}\"")
    default = kind(layer.name)
    values = {f.name: getattr(layer, f.name) for f in fields(layer)}
    return {"type": type_name(kind), "name": layer.name} | {
        name: plain(value) for name, value in values.items() if value != getattr(default, name)}


def _layer(data: Mapping[str, object], known: Mapping[str, type[Layer]], where: str) -> Layer:
    """A layer from JSON data."""
    kind = str(data.get("type"))
    if kind not in known:
        if "." in kind:
            raise InputError(f"{where}: unknown type '{kind}'; name the module of your layer with "
                             "--layers, or import it in Python")
        raise InputError(f"{where}: {unknown('type', kind, known)}")
    values = {name: value for name, value in data.items() if name != "type"}
    return convert(values, known[kind], where,
                   "docs/reference/networks.md lists the layers and their options")
