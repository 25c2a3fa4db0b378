"""Joins connected elementwise layers around a formula into one formula."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from hpcpar.network.builder import Graph
from hpcpar.network.layers import Layer, Pointwise
from hpcpar.network.layers.formula import Argument, StepList, Steps, reads


def joined(graph: Graph, ends: Collection[str],
           origins: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Replace each largest group of elementwise layers that has a formula, and of whose results
    only the last is read elsewhere, by one formula with the last layer's name.

    Parameters
    ----------
    ends : collection of str
        Layers whose outputs are read outside of the graph.

    Returns
    -------
    dict
        `origins` of the new layers.
    """
    groups = _groups(graph, ends)
    renamed: dict[str, str] = {}
    for last, members in groups.items():
        if len(members) > 1 and any(isinstance(layer, Pointwise) for layer in members):
            made = _one(last, members)
            if made is not None:
                gone = {layer.name for layer in members}
                renamed |= {layer.name: last for layer in members if layer.has_weights}
                graph.layers = [made if layer.name == last else layer for layer in graph.layers
                                if layer.name == last or layer.name not in gone]
    return {renamed.get(name, name): stored for name, stored in origins.items()}


def _groups(graph: Graph, ends: Collection[str]) -> dict[str, list[Layer]]:
    """Elementwise layers in order, by the last layer of the group that they belong to."""
    readers: dict[str, list[str]] = {layer.name: [] for layer in graph.layers}
    tied = {layer.weights_of for layer in graph.layers}
    for layer in graph.layers:
        for name in layer.inputs:
            readers[name].append(layer.name)
    last: dict[str, str] = {}
    groups: dict[str, list[Layer]] = {}
    for layer in reversed(graph.layers):
        shapes = {graph.shapes[name] for name in (layer.name, *layer.inputs)}
        if not layer.formula or len(shapes) > 1 or layer.weights_of or layer.name in tied:
            continue
        found = {last.get(name, "") for name in readers[layer.name]}
        end = found.pop() if len(found) == 1 and layer.name not in ends else ""
        if layer.has_weights and any(other.has_weights for other in groups.get(end, ())):
            end = ""
        last[layer.name] = end or layer.name
        groups.setdefault(last[layer.name], []).insert(0, layer)
    return groups


def _one(last: str, members: list[Layer]) -> Pointwise | None:
    """The formula of a group; None if it does not read all inputs of the group."""
    program, values = StepList(), dict[str, Argument]()
    inputs: list[str] = []
    for layer in members:
        for name in layer.inputs:
            if name not in values:
                values[name] = f"x{len(inputs)}"
                inputs.append(name)
        names: dict[str, Argument] = {f"x{i}": values[n] for i, n in enumerate(layer.inputs)}
        values[layer.name] = program.inline(layer.formula, names | {"w": "w"})
    steps, (result,) = program.only([values[last]])
    if result != f"t{len(steps) - 1}" or not _reads_all(steps, len(inputs)):
        return None
    made = Pointwise(last, tuple(inputs), steps)
    weighted = [layer for layer in members if isinstance(layer, Pointwise) and layer.has_weights]
    return made if not weighted else replace(
        weighted[0], name=last, inputs=tuple(inputs), steps=steps)


def _reads_all(steps: Steps, inputs: int) -> bool:
    return all(reads(steps, f"x{i}") for i in range(inputs))
