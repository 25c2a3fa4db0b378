"""Network files: a network that was traced or built once, in the format of plan files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from hpcpar.errors import InputError
from hpcpar.io.files import write_text
from hpcpar.io.schema import convert, decode_json, read_bytes
from hpcpar.network.graph import Network
from hpcpar.network.spec import NetworkSpec

_REMEDY = "give a plan file, or write a network file with: hpcpar networks NAME -o net.json"


@dataclass(frozen=True)
class NetworkFile:
    """The content of a network file.

    Attributes
    ----------
    hpcpar_network : int
        Version of the format.
    """

    hpcpar_network: Annotated[int, Meta(ge=1, le=1)]
    network: NetworkSpec


def save(network: Network, path: str) -> None:
    """Writes the network file atomically."""
    data = {"hpcpar_network": 1, "network": NetworkSpec.of(network).to_json()}
    write_text(path, json.dumps(data, indent=1) + "\n", "network file")


def load(path: str) -> Network:
    """The network in a network file or a plan file.

    Raises
    ------
    InputError
        The file cannot be read, has another type, or its layers do not form a network.
    """
    where = f"network file {path}"
    data = decode_json(read_bytes(path, "network file", _REMEDY), object, where, _REMEDY)
    if not isinstance(data, dict) or not {"hpcpar_network", "hpcpar_plan"} & data.keys():
        raise InputError(f"{where} is neither a network file nor a plan file; {_REMEDY}")
    if "hpcpar_plan" in data:
        data = {"hpcpar_network": 1, "network": data.get("network")}
    spec = convert(data, NetworkFile, where, _REMEDY).network
    try:
        return spec.build()
    except InputError as err:
        raise InputError(f"{where}: {err}") from err
