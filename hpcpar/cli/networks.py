"""``hpcpar networks``: lists the networks, or shows one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from hpcpar.api.options import ModuleOptions, NetworkOptions
from hpcpar.checks import image, path
from hpcpar.cli.options import ResultOptions
from hpcpar.network.base import shape_text
from hpcpar.network.builtin import NETWORKS, network
from hpcpar.network.graph import Network
from hpcpar.option_fields import option
from hpcpar.report.tables import amount, show, show_line


@dataclass(frozen=True, kw_only=True)
class NetworksCommand(ResultOptions, ModuleOptions, NetworkOptions):
    """The options of the command."""

    example = "hpcpar networks vgg16 --input 3x128x128"
    name: str = option("", path, "network to show: a built-in one, module:function, or an .onnx "
                       "file", names=("name",))


def _layers(net: Network) -> list[dict[str, Any]]:
    return [{"name": layer.name, "kind": layer.kind, "inputs": list(layer.inputs),
             "output": list(net.shapes[layer.name]),
             "parameters": layer.parameters(net.input_shape(layer)),
             "forward_flops": layer.forward_flops(net.input_shape(layer))}
            for layer in net.layers]


def _summary(net: Network) -> dict[str, Any]:
    return {"name": net.name, "input": list(net.image_shape), "classes": net.classes,
            "layers": len(net.layers) - 1, "parameters": net.parameters,
            "forward_flops": net.forward_flops}


def _show_layers(net: Network, wide: bool) -> None:
    """Prints one line per layer and the total; inputs only where the network is not a chain."""
    rows = [
        [r["name"], r["kind"], *[", ".join(r["inputs"])] * (not net.is_chain),
         shape_text(r["output"]), math.prod(r["output"]), r["parameters"] or "",
         amount(r["forward_flops"], "flop")]
        for r in _layers(net)
    ]
    columns = ["layer", "kind", *["inputs"] * (not net.is_chain), "output", "items", "weights",
               "forward"]
    blank = [""] * (len(columns) - 3)
    rows.append(["total", *blank, net.parameters, amount(net.forward_flops, "flop")])
    show_line(f"{net.name}: {net.parameters:,} weights, "
              f"{amount(net.forward_flops, 'flop')} forward a sample, images "
              f"{shape_text(net.image_shape)}, {net.classes} classes")
    show("layers, per sample", columns, rows, left=len(columns) - 3, drop=("items", "kind"),
         wide=wide)


def _list(listed: list[dict[str, Any]], wide: bool) -> None:
    show_line(f"{len(listed)} networks are built in; yours: module:function, or an .onnx file")
    show("networks", ("name", "input", "classes", "layers", "weights", "forward/sample"),
         [(s["name"], shape_text(s["input"]), s["classes"], s["layers"], s["parameters"],
           amount(s["forward_flops"], "flop")) for s in listed], left=2,
         drop=("classes", "layers"), wide=wide)


def main(args: NetworksCommand) -> int:
    """Runs the command; returns its exit status."""
    if args.name:
        net = network(args.name, None if args.input is None else image(args.input), args.classes)
        args.show(lambda: _summary(net) | {"layers": _layers(net)}, lambda: _layers(net),
                  lambda: _show_layers(net, args.wide))
    else:
        listed = [_summary(network(name)) for name in NETWORKS]
        args.show(lambda: {"networks": listed}, lambda: listed, lambda: _list(listed, args.wide))
    return 0
