"""Names of imported layers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from hpcpar.network.builder import Graph
from hpcpar.network.read.operations import Node, Operations


class LayerNames:
    """Names layers after the modules and nodes of their source."""

    def __init__(self, operations: Operations, graph: Graph) -> None:
        self._graph = graph
        #: Names of modules with weights; other layers must not take them.
        self._modules = {name.rpartition(".")[0] for name in operations.constants
                         if name.endswith(".weight")}
        #: The next numbers of layers by their common path.
        self._numbers: dict[str, Iterator[int]] = {}

    def name_of(self, node: Node, suffix: str) -> str:
        """PyTorch's module name if it is free, from the weight's name or the node's path.

        The node ``/a/a.0/conv/Conv`` belongs to the module ``a.0.conv``.
        """
        weight = node.inputs[1].replace("/", ".") if len(node.inputs) > 1 else ""
        module, _, field = weight.rpartition(".")
        weighted = module if field == "weight" else ""
        parts = _path(node.name)
        path = ".".join(parts) or node.op.lower()
        # the numbers of a path go on, so that many nodes of one name take linear time
        numbers = self._numbers.setdefault(path + suffix, itertools.count(2))
        candidates = itertools.chain(
            (name + suffix for name in (weighted, ".".join(parts[:-1]), path) if name),
            (f"{path}_{i}{suffix}" for i in numbers))
        return next(name for name in candidates
                    if name not in self._graph.shapes and name != "loss"
                    and (name == weighted or name not in self._modules))


def _path(name: str) -> list[str]:
    """The modules of a node's name, each without its parents."""
    parts: list[str] = []
    for part in filter(None, name.removeprefix("node_").split("/")):
        if parts and part.startswith(parts[-1] + "."):
            parts.pop()
        parts.append(part)
    return parts
