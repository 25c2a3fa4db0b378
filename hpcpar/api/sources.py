"""Networks and machines, by name, by file or as they are."""

from __future__ import annotations

from typing import TypeAlias

from hpcpar.api.checks import image, optional, positive
from hpcpar.errors import InputError
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.network.builtin import NETWORKS, defaults
from hpcpar.network.builtin import network as builtin
from hpcpar.network.graph import Network
from hpcpar.network.layers import Shape
from hpcpar.plan.plan import NetworkSpec, ObjectSpec, Plan

#: A name, ``module:function``, the path of a file, or a network.
NetworkLike: TypeAlias = "str | Network"
#: A preset's name, the path of a file, or a machine.
MachineLike: TypeAlias = "str | Machine"


def network_of(network: NetworkLike, input: Shape | str | None = None,
               classes: int | None = None) -> tuple[NetworkSpec, Network]:
    """A network and what names it; shape and classes default to its usual ones.

    Raises
    ------
    InputError
        The network cannot be loaded, or is an object of another shape.
    """
    shape, classes = optional("input", image, input), optional("classes", positive, classes)
    if isinstance(network, str):
        usual_shape, usual_classes = defaults(network)
        spec = NetworkSpec(network, shape or usual_shape, classes or usual_classes)
        return spec, spec.build()
    if not isinstance(network, Network):
        raise InputError(f"network is a {type(network).__name__}; give a name, a file or a Network")
    own = network.image_shape, network.classes
    if (shape or own[0], classes or own[1]) != own:
        raise InputError(f"network '{network.name}' has its shape and classes; leave input and "
                         "classes out")
    if network.name in NETWORKS and builtin(network.name, *own) == network:
        return NetworkSpec(network.name, *own), network
    return ObjectSpec(network.name, *own, network), network


def machine_of(machine: MachineLike) -> Machine:
    """A machine by name, by file, or as it is."""
    return machine if isinstance(machine, Machine) else files.load(machine)


def machine_of_plan(plan: Plan, where: str) -> Machine:
    """The machine that a plan was made for; `where` names the plan in messages."""
    return files.from_dict(plan.machine, f"the machine in {where}")
