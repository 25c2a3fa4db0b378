"""Networks as plain data: read again they are equal, and reading imports nothing."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from hpcpar.errors import InputError
from hpcpar.network.builtin import NETWORKS, network
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    Clip,
    Input,
    Layer,
    Linear,
    ReLU,
    SoftmaxCrossEntropy,
)
from hpcpar.network.spec import NetworkSpec, layer_types
from tests.layer_cases import cases
from tests.mpi.networks import FIXED, MORE, by_name

#: Small networks.
ZOO = (*FIXED, *MORE, *(f"{kind}-{seed}" for kind in ("random", "graph", "unet")
                        for seed in range(25)))


def again(spec: NetworkSpec) -> Network:
    """The network of a spec that was written and read."""
    data = json.loads(json.dumps(spec.layers, allow_nan=False))
    return replace(spec, layers=data).build()


def require_equal(one: Network, other: Network) -> None:
    assert one == other and one.shapes == other.shapes
    assert one.forward_flops == other.forward_flops and one.parameters == other.parameters


@pytest.mark.parametrize("name", NETWORKS)
def test_built_in_networks_are_stored_by_name_and_changed_ones_by_layers(name: str) -> None:
    built = network(name)
    spec = NetworkSpec.of(built)
    assert spec == NetworkSpec(name, built.image_shape, built.classes) and spec.title == name
    require_equal(again(spec), built)
    changed = replace(built, name="other")
    assert NetworkSpec.of(changed).layers
    require_equal(again(NetworkSpec.of(changed)), changed)
    last = built.layers[-1]
    renamed = replace(built, layers=(*built.layers[:-1], replace(last, name="the loss")))
    assert NetworkSpec.of(renamed).name == name and NetworkSpec.of(renamed).title != name
    require_equal(again(NetworkSpec.of(renamed)), renamed)


@pytest.mark.parametrize("name", ZOO)
def test_networks_are_equal_when_read_again(name: str) -> None:
    built, _ = by_name(name)
    require_equal(again(NetworkSpec.of(built)), built)


@pytest.mark.parametrize("name", cases(2))
def test_layers_of_all_kinds_are_equal_when_read_again(name: str) -> None:
    built = cases(2)[name].network()
    require_equal(again(NetworkSpec.of(built)), built)


def subclasses(cls: type[Layer]) -> set[type[Layer]]:
    return {cls}.union(*map(subclasses, cls.__subclasses__()))


def test_every_layer_of_the_package_can_be_stored() -> None:
    kinds = {cls for cls in subclasses(Layer)
             if cls.kind and cls.__module__.startswith("hpcpar.")}
    named = {cls for name, cls in layer_types().items() if "." not in name}
    assert kinds == named and len({cls.kind for cls in kinds}) == len(kinds)


def chain(*layers: Layer) -> Network:
    """A network that ends in two classes."""
    return Network("own", (Input("input", shape=(3,)), *layers,
                           Linear("fc", (layers[-1].name,), out_features=2),
                           SoftmaxCrossEntropy("loss", ("fc",))))


def test_numpy_numbers_and_infinite_bounds_can_be_stored() -> None:
    built = chain(Clip("clip", ("input",), low=-math.inf, high=3),
                  Linear("wide", ("clip",), out_features=np.int64(5)))  # type: ignore[arg-type]
    require_equal(again(NetworkSpec.of(built)), built)


@dataclass(frozen=True)
class Mine(ReLU):
    """A layer of a user."""


def test_a_layer_of_the_user_is_stored_by_module_and_name() -> None:
    built = chain(Mine("a", ("input",)))
    stored = NetworkSpec.of(built)
    assert stored.layers[1]["type"] == f"{__name__}.Mine"
    require_equal(again(stored), built)


@dataclass(frozen=True)
class Nameless(Layer):
    """A layer of a user, without a word for tables."""


def test_a_layer_without_kind_is_refused() -> None:
    with pytest.raises(InputError, match="layer 'a': its class Nameless has no kind; add kind: Cl"):
        NetworkSpec.of(chain(Nameless("a", ("input",))))


def spec(**change: object) -> NetworkSpec:
    """A spec with a changed second layer."""
    stored = NetworkSpec.of(chain(Linear("a", ("input",), out_features=4)))
    layers = [*stored.layers]
    layers[1] = layers[1] | change
    return replace(stored, layers=layers)


@pytest.mark.parametrize(("given", "message"), [
    (spec(type="Lineer"), "network 'own', layer 2: unknown type 'Lineer'; did you mean 'Linear'?"),
    (spec(type="Layer"), "layer 2: unknown type 'Layer'"),
    (spec(type="mine.Softmin"), "layer 2: unknown type 'mine.Softmin'; name the module of your "
     "layer with --layers"),
    (spec(type=["Linear"]), "layer 2: unknown type"),
    (spec(type=None), "layer 2: unknown type 'None'"),
    (spec(out_features=10**12), "layer 2, 'out_features': expected a whole number of at most"),
    (spec(out_features=math.nan), "layer 2, 'out_features': expected a finite number, found nan"),
    (spec(bias=1), "layer 2, 'bias': expected true or false, found 1"),
    (spec(inputs=["b"]), "layer 'a' reads 'b', which is not defined before it"),
    (spec(inputs="input"), "layer 2, 'inputs': expected a list, found 'input'"),
    (spec(bais=True), "layer 2: unknown field 'bais'; did you mean 'bias'?"),
    (spec(type="Dropout"), "layer 2: unknown field 'out_features'"),
    (replace(spec(), classes=3), "its layers take inputs (3,)"),
    (replace(spec(), shape=(4,)), "its layers take inputs (3,)"),
    (NetworkSpec("lenet5", (1, 0, 28), 10), "give positive numbers"),
    (NetworkSpec("os:getcwd", (1, 28, 28), 10), "unknown network 'os:getcwd'"),
    (NetworkSpec("/tmp/x.onnx", (1, 28, 28), 10), "unknown network '/tmp/x.onnx'"),
    (NetworkSpec("/tmp/x.py:build", (1, 28, 28), 10), "unknown network '/tmp/x.py:build'"),
])
def test_specs_that_make_no_network_are_refused(given: NetworkSpec, message: str) -> None:
    with pytest.raises(InputError) as err:
        given.build()
    assert message in str(err.value) and "\n" not in str(err.value)


def test_networks_of_an_impossible_size_are_refused() -> None:
    with pytest.raises(InputError, match=r"layer 'input' .* has more than 1e"):
        network("alexnet", (3, 10**9, 10**9))
    with pytest.raises(InputError, match=r"layer 'wide' .* has more than 1e"):
        chain(Linear("tall", ("input",), out_features=10**6),
              Linear("wide", ("tall",), out_features=10**7))
