"""The list of layers for tests covers every layer of the package."""

from __future__ import annotations

from hpcpar.network.layers import Input, Outputs
from hpcpar.network.spec import layer_types
from tests.layer_cases import cases


def test_every_layer_of_the_package_has_a_case() -> None:
    """But the ends of networks: their input, and outputs whose loss is the caller's."""
    known = {layer for name, layer in layer_types().items() if "." not in name}
    assert {case.layer for case in cases(2).values()} == known - {Input, Outputs}
