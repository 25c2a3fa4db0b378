"""PyTorch modules as exported programs (``torch.export``)."""

from __future__ import annotations

import io
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils.checkpoint import CheckpointFunction

from hpcpar.errors import InputError, one_line
from hpcpar.network.layers.base import Shape
from hpcpar.network.read.own_gradients import differing, recorded
from hpcpar.network.read.traceable import traceable
from hpcpar.network.read.traced_calls import SAMPLES

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Graph, GraphModule, Node
    from torch.nn import Module

_aten = torch.ops.aten


def exported(module: Module, shape: Shape, training: bool
             ) -> tuple[ExportedProgram, tuple[str, ...]]:
    """The program of a module in one mode, and the functions that define other gradients.

    Raises
    ------
    InputError
        PyTorch cannot trace the module, or a trace does not show what it computes.
    """
    name = type(module).__name__
    for part_name, part in module.named_modules():
        keeps = getattr(part, "running_mean", None) is not None
        if keeps and getattr(part, "momentum", 0) is None:
            raise InputError(f"module '{name}': '{part_name}' averages its statistics over all "
                             "batches (momentum=None), which cannot be read; give it a number, as "
                             "in momentum=0.1")
    modes = [(part, part.training) for part in module.modules()]
    first = next(iter(module.parameters()), torch.zeros(1))
    with FakeTensorMode(allow_non_fake_inputs=True):  # without memory
        images = torch.empty(SAMPLES, *shape, dtype=first.dtype, device=first.device)
    for part in module.modules():  # train() may keep some in evaluation mode
        part.training = training
    try:
        with traceable(), recorded() as uses, warnings.catch_warnings(), _quiet():
            warnings.simplefilter("ignore")  # of attributes that the export assigns
            program = torch.export.export(module, (images,), strict=False)
    except GuardOnDataDependentSymNode as err:
        raise InputError(f"module '{name}': a branch or a size in its forward pass depends on "
                         f"values of tensors ({_place(err)}), which a trace cannot follow; use "
                         "torch.where, or numbers that are known beforehand") from err
    except Exception as err:  # tracing runs the user's code
        text = one_line(err).partition(" The error above occurred when calling")[0]
        raise InputError(f"module '{name}': torch.export cannot trace it on samples {shape} "
                         f"({text}; {_place(err)}); see whether it takes such samples in "
                         "PyTorch") from err
    finally:
        for part, before in modes:
            part.training = before
    if any(use.function is CheckpointFunction for use in uses):
        raise InputError(f"module '{name}': checkpoint(..., use_reentrant=True) hides its "
                         "gradients; call checkpoint with use_reentrant=False")
    _inline_no_grad(program.graph_module, name, enabled=True)
    _copy_outs(program.graph_module.graph, name)
    _drop_assertions(program.graph_module.graph)
    return program, tuple(differing(uses, SAMPLES))


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what PyTorch prints and logs of a failed trace, up to thousands of lines."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    printed = io.StringIO()
    try:
        with redirect_stderr(printed):
            yield
        sys.stderr.write(printed.getvalue())
    finally:
        logging.disable(level)


def _place(err: Exception) -> str:
    """The last line of the user's code, or of a library of networks, that led to an error."""
    folders = Path(torch.__file__).parent, Path(__file__).parents[2]
    others = (*(f"{folder}{os.sep}" for folder in folders), "<")
    frames = [frame for frame in traceback.extract_tb(err.__traceback__)
              if not frame.filename.startswith(others)]
    if not frames:
        return "in an operator of PyTorch"
    return f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}: {frames[-1].line}"


def _inline_no_grad(program: GraphModule, module: str, enabled: bool) -> None:
    """Put the operators that run under torch.no_grad among the others, their results detached.

    `enabled` tells whether gradients are computed around the program.
    """
    graph = program.graph
    for node in list(graph.nodes):
        if str(node.target) != "wrap_with_set_grad_enabled":
            continue
        inside, part, *inputs = node.args
        if inside and not enabled:
            raise InputError(f"module '{module}': torch.enable_grad within torch.no_grad cannot be "
                             "read; leave torch.no_grad out")
        inner = getattr(program, part.target)
        _inline_no_grad(inner, module, inside)
        places = (each for each in inner.graph.nodes if each.op == "placeholder")
        known: dict[Node, Any] = dict(zip(places, inputs, strict=True))
        with graph.inserting_before(node):
            results = graph.graph_copy(inner.graph, known)
            for user in list(node.users):
                result = results[user.args[1]]
                if not inside:
                    result = graph.call_function(_aten.detach.default, (result,))
                    result.meta = {**user.meta}
                user.replace_all_uses_with(result)
                graph.erase_node(user)
        graph.erase_node(node)
        graph.erase_node(part)


def _copy_outs(graph: Graph, module: str) -> None:
    """Write results into given tensors (``out=``) as copies."""
    for node in list(graph.nodes):
        if "out" not in node.kwargs:
            continue
        packet = node.target.overloadpacket
        wanted = [(a.name, str(a.type)) for a in node.target._schema.arguments if not a.is_out]
        plain = next((each for each in map(partial(getattr, packet), packet.overloads())
                      if [(a.name, str(a.type)) for a in each._schema.arguments] == wanted), None)
        if plain is None:
            raise InputError(f"module '{module}': '{node.name}' writes into a given tensor (out=); "
                             "use its result instead")
        with graph.inserting_before(node):
            result = graph.call_function(plain, node.args, {
                name: value for name, value in node.kwargs.items() if name != "out"})
            copied = graph.call_function(_aten.copy_.default, (node.kwargs["out"], result))
        result.meta, copied.meta = {**node.meta}, {**node.meta}
        node.replace_all_uses_with(copied)
        graph.erase_node(node)


def _drop_assertions(graph: Graph) -> None:
    """Erase checks of sizes that depend on values, as of x[mask], and numbers for them alone."""
    for node in reversed(list(graph.nodes)):
        is_check = str(node.target) == "aten._assert_scalar.default"
        is_number = isinstance(node.meta.get("val"), torch.SymInt | torch.SymBool)
        if is_check or (is_number and not node.users):
            graph.erase_node(node)
