"""Networks, machines, plans and records, by name, by file or as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcpar.api.checks import image, optional, positive
from hpcpar.errors import InputError
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.network.builtin import NETWORKS, defaults
from hpcpar.network.builtin import network as builtin
from hpcpar.network.graph import Network
from hpcpar.network.layers import Shape
from hpcpar.plan import plan as plans
from hpcpar.plan.plan import NetworkSpec, ObjectSpec, Plan

if TYPE_CHECKING:
    from hpcpar.train.record import RunRecord

    #: A name, ``module:function``, a path, or a network.
    NetworkLike = str | Network
    #: A preset's name, a path, or a machine.
    MachineLike = str | Machine


def networks() -> list[str]:
    """Names of the built-in networks."""
    return list(NETWORKS)


def machines() -> list[str]:
    """Names of the machines that come with the package."""
    return files.presets()


def load_network(name: str, input: Shape | str | None = None,
                 classes: int | None = None) -> Network:
    """The network of a name, ``module:function`` or ONNX file."""
    return network_of(name, input, classes)[1]


def load_machine(name: str) -> Machine:
    """The machine of a preset's name or a machine file."""
    return files.load(name)


def load_plan(path: str) -> Plan:
    """The plan of a plan file."""
    return plans.load(path)


def load_record(path: str) -> RunRecord:
    """The record that a run wrote."""
    from hpcpar.train.record import read  # loads h5py

    return read(path)


def network_of(network: NetworkLike, input: Shape | str | None,
               classes: int | None) -> tuple[NetworkSpec, Network]:
    """A network and what names it; shape and classes default to its usual ones.

    Raises
    ------
    InputError
        The network cannot be loaded, or is given with a shape that is not its own.
    """
    shape, classes = optional("input", image, input), optional("classes", positive, classes)
    if isinstance(network, str):
        usual_shape, usual_classes = defaults(network)
        spec = NetworkSpec(network, shape or usual_shape, classes or usual_classes)
        return spec, spec.build()
    if not isinstance(network, Network):
        raise InputError(f"network is a {type(network).__name__}; give a name, a file or a Network")
    shape, classes = shape or network.image_shape, classes or network.classes
    if (shape, classes) != (network.image_shape, network.classes):
        raise InputError(f"network '{network.name}' has its shape and classes; leave input and "
                         "classes out")
    if network.name in NETWORKS and builtin(network.name, shape, classes) == network:
        return NetworkSpec(network.name, shape, classes), network
    return ObjectSpec(network.name, shape, classes, network), network


def machine_of(machine: MachineLike) -> Machine:
    """A machine by name, by file, or as it is."""
    return machine if isinstance(machine, Machine) else files.load(machine)


def machine_of_plan(plan: Plan, where: str) -> Machine:
    """The machine that a plan was made for; `where` names the plan in messages."""
    return files.from_dict(plan.machine, f"the machine in {where}")
