"""Networks, machines and plans, given by name, as a file or as an object."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeAlias

from hpcpar.errors import InputError
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.network import network_file
from hpcpar.network.builder import loss_notes, with_loss
from hpcpar.network.builtin import network as builtin
from hpcpar.network.graph import Network
from hpcpar.network.layers import Shape
from hpcpar.network.layers.base import image_of, shape_text
from hpcpar.network.read.torch_module import from_torch
from hpcpar.options.checks import image
from hpcpar.plan import plan as plans
from hpcpar.plan.plan import NetworkSpec, Plan
from hpcpar.report.tables import say

if TYPE_CHECKING:
    import torch

#: A name, ``module:function``, the path of a file, a network, or a PyTorch module.
NetworkLike: TypeAlias = "str | Network | torch.nn.Module"
#: A preset's name, the path of a file, or a machine.
MachineLike: TypeAlias = "str | Machine"


def load_network(name: str, shape: Shape | None = None, classes: int | None = None) -> Network:
    """A network by name, as `hpcpar.network.builtin.network`, or from a network or plan file.

    Raises
    ------
    InputError
        The network cannot be loaded, or has another sample shape or number of classes than given.
    """
    if not name.endswith(".json"):
        return builtin(name, shape, classes)
    net = network_file.load(name)
    if (shape and image_of(shape)) not in (None, net.image_shape) or (
            classes or net.classes) != net.classes:
        raise InputError(f"network '{name}' takes inputs {shape_text(net.image_shape)} and has "
                         f"{net.classes} outputs; drop --input and --classes, or write the file "
                         "again with them")
    return net


def network_of(network: NetworkLike, input: Shape | str | None = None,
               classes: int | None = None, loss: str | None = None,
               label_smoothing: float | None = None) -> tuple[NetworkSpec, Network]:
    """A network with its specification; shape, classes and loss default to the network's own.

    Raises
    ------
    InputError
        The network cannot be loaded, or is an object with another shape.
    """
    shape = None if input is None else image(input)
    if isinstance(network, str):
        net = load_network(network, shape, classes)
        for note in net.notes:
            say(f"note: {note}")
    else:
        net = network if isinstance(network, Network) else _from_module(network, shape)
        own = net.image_shape, net.classes
        if (shape or own[0], classes or own[1]) != own:
            raise InputError(f"network '{net.name}' takes images {shape_text(own[0])} and has "
                             f"{own[1]} classes; drop input and classes")
    net = with_loss(net, loss, label_smoothing)
    for note in loss_notes(net):
        say(f"note: {note}")
    return NetworkSpec.of(net), net


def _from_module(module: torch.nn.Module, shape: Shape | None) -> Network:
    kind, known = type(module).__name__, sys.modules.get("torch")
    if known is None or not isinstance(module, known.nn.Module):
        raise InputError(f"network is a {kind}; give a name, a file, a Network or a "
                         "torch.nn.Module")
    if shape is None:
        raise InputError(f"module '{kind}' does not state its input shape; give it, as in "
                         "input=(3, 224, 224)")
    return from_torch(module, shape)


def machine_of(machine: MachineLike) -> Machine:
    """A machine, given by name, as a file or as an object."""
    return machine if isinstance(machine, Machine) else files.load(machine)


def plan_and_machine(given: str | Plan, machine: MachineLike | None) -> tuple[Plan, Machine]:
    """A plan, given as a file or an object, and a machine (by default the plan's own)."""
    plan = plans.load(given) if isinstance(given, str) else given
    if machine:
        return plan, machine_of(machine)
    if plan.machine is None:
        where = f"plan file {given}" if isinstance(given, str) else "the plan"
        raise InputError(f"{where} names no machine; give one by its name or file")
    return plan, plan.machine
