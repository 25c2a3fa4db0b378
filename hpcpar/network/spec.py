"""The network of a plan, as its file holds it: a built-in network's name, or all layers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace

import numpy as np

from hpcpar.errors import InputError, unknown
from hpcpar.network import layers
from hpcpar.network.builtin import built_in
from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer, Shape
from hpcpar.schema import Extent, convert


def layer_types(base: type[Layer] = Layer) -> dict[str, type[Layer]]:
    """Layers that a file may hold, by name: the package's own, and those of imported modules."""
    found = {type_name(base): base} if base.kind else {}
    for each in base.__subclasses__():
        found |= layer_types(each)
    return found


def type_name(kind: type[Layer]) -> str:
    """A layer class in a file: the name alone for the package's own, else with its module."""
    own = vars(layers).get(kind.__name__) is kind
    return kind.__name__ if own else f"{kind.__module__}.{kind.__qualname__}"


@dataclass(frozen=True)
class NetworkSpec:
    """A network as plain data.

    Attributes
    ----------
    name : str
        That of a built-in network, or the name of a network whose `layers` are here.
    shape : tuple of int
        Shape of a sample.
    classes : int
        Number of outputs.
    layers : list of dict
        Of a network that is not built in: the ``type`` of every layer, and the fields that differ
        from its defaults.
    """

    name: str
    shape: Shape
    classes: Extent
    layers: list[dict[str, object]] = field(default_factory=list, repr=False, hash=False)

    @classmethod
    def of(cls, network: Network) -> NetworkSpec:
        """The spec of a network.

        Raises
        ------
        InputError
            A layer's class states no kind.
        """
        named = cls(network.name, network.image_shape, network.classes)
        with suppress(InputError):  # the name, but not its kind of images
            if named.build() == network:
                return named
        return replace(named, layers=[_stored(layer) for layer in network.layers])

    def build(self) -> Network:
        """The network; nothing is imported for it.

        Raises
        ------
        InputError
            No built-in network has this name, or the layers do not make a network.
        """
        if not self.layers:
            return built_in(self.name, self.shape, self.classes)
        known = layer_types()
        network = Network(self.name, tuple(
            _layer(data, known, f"network '{self.name}', layer {number}")
            for number, data in enumerate(self.layers, 1)))
        if (network.image_shape, network.classes) != (self.shape, self.classes):
            raise InputError(f"network '{self.name}' has inputs {network.image_shape} and "
                             f"{network.classes} classes, its layers do not fit {self.shape} and "
                             f"{self.classes}")
        return network

    @property
    def title(self) -> str:
        """The name; of a network that is not built in with a checksum of its layers."""
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
    plain = kind(layer.name)
    values = {f.name: getattr(layer, f.name) for f in fields(layer)}
    return {"type": type_name(kind), "name": layer.name} | {
        name: _plain(value) for name, value in values.items() if value != getattr(plain, name)}


def _plain(value: object) -> object:
    """A value for JSON, which knows neither tuples nor NumPy's numbers."""
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value.item() if isinstance(value, np.generic) else value


def _layer(data: Mapping[str, object], known: Mapping[str, type[Layer]], where: str) -> Layer:
    """A layer from JSON data."""
    kind = str(data.get("type"))
    if kind not in known:
        if "." in kind:
            raise InputError(f"{where}: unknown type '{kind}'; a layer of your own needs --layers "
                             "with its module, or in Python its import")
        raise InputError(f"{where}: {unknown('type', kind, known)}")
    values = {name: value for name, value in data.items() if name != "type"}
    return convert(values, known[kind], where,
                   "docs/reference/networks.md has the layers and their options")
