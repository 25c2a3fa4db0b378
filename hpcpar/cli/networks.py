"""``hpcpar networks``: lists the built-in networks, or shows one network."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from hpcpar.api.options import ModuleOptions, NetworkOptions
from hpcpar.api.sources import network_of
from hpcpar.cli.options import ResultOptions
from hpcpar.network.builtin import NETWORKS, built_in
from hpcpar.network.graph import Network
from hpcpar.network.layers.base import shape_text
from hpcpar.network.network_file import save
from hpcpar.options.checks import path
from hpcpar.options.fields import OUT, option
from hpcpar.options.output_files import NETWORK
from hpcpar.report.tables import amount, say, show, show_line


@dataclass(frozen=True, kw_only=True)
class NetworksCommand(ResultOptions, ModuleOptions, NetworkOptions):
    example = "hpcpar networks vgg16 --input 3x128x128 -o net.json"
    name: str = option("", path, "network to show: a built-in name, module:function, or a file "
                       "(.onnx, or .json of a network or plan)", names=("name",))
    out: str = option("", NETWORK, "write its layers to a file for --network; a module is then "
                         "traced only once", "net.json", **OUT, needs="name")


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
    """Prints one line per layer and the total; a chain of layers has no column of inputs."""
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
              f"{amount(net.forward_flops, 'flop')} forward per sample, images "
              f"{shape_text(net.image_shape)}, {net.classes} classes")
    show("layers, per sample", columns, rows, left=len(columns) - 3, drop=("items", "kind"),
         wide=wide)


def _list(listed: list[dict[str, Any]], wide: bool) -> None:
    show_line(f"{len(listed)} built-in networks; for your own, give module:function or a file")
    show("networks", ("name", "input", "classes", "layers", "weights", "forward/sample"),
         [(s["name"], shape_text(s["input"]), s["classes"], s["layers"], s["parameters"],
           amount(s["forward_flops"], "flop")) for s in listed], left=2,
         drop=("classes", "layers"), wide=wide)


def main(args: NetworksCommand) -> int:
    if args.name:
        net = network_of(args.name, args.input, args.classes)[1]
        if args.out:
            save(net, args.out)
            say(f"wrote {args.out}")
        args.show(lambda: _summary(net) | {"layers": _layers(net)}, lambda: _layers(net),
                  lambda: _show_layers(net, args.wide))
    else:
        listed = [_summary(built_in(name)) for name in NETWORKS]
        args.show(lambda: {"networks": listed}, lambda: listed, lambda: _list(listed, args.wide))
    return 0
