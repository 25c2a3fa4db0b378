"""``hpcpar networks``: lists the networks, or shows one."""

from __future__ import annotations

import argparse
import math
from typing import Any

from hpcpar.cli import options
from hpcpar.network.base import shape_text
from hpcpar.network.builtin import NETWORKS, network
from hpcpar.network.graph import Network
from hpcpar.report.tables import amount, show


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser("networks", help="list the networks, or show one layer by layer",
                                   allow_abbrev=False)
    parser.add_argument("name", nargs="?",
                        help="network to show: a built-in one, module:function, or an .onnx file")
    options.add_shape(parser)
    options.add_json(parser)


def _layers(net: Network) -> list[dict[str, Any]]:
    return [
        {
            "name": layer.name,
            "kind": layer.kind,
            "inputs": list(layer.inputs),
            "output": list(net.shapes[layer.name]),
            "parameters": layer.parameters(net.input_shape(layer)),
            "forward_flops": layer.forward_flops(net.input_shape(layer)),
        }
        for layer in net.layers
    ]


def _summary(net: Network) -> dict[str, Any]:
    return {
        "name": net.name,
        "input": list(net.image_shape),
        "classes": net.classes,
        "layers": len(net.layers) - 1,
        "parameters": net.parameters,
        "forward_flops": net.forward_flops,
    }


def _show_layers(net: Network) -> None:
    """Prints one line per layer and the total; inputs only where the network is not a chain."""
    rows = [
        [r["name"], r["kind"], ", ".join(r["inputs"]), shape_text(r["output"]),
         math.prod(r["output"]),
         r["parameters"] or "", amount(r["forward_flops"], "flop")]
        for r in _layers(net)
    ]
    rows.append(["total", "", "", "", "", net.parameters, amount(net.forward_flops, "flop")])
    columns = ["layer", "kind", "inputs", "output", "items", "weights", "forward"]
    kept = [i for i, column in enumerate(columns) if column != "inputs" or not net.is_chain]
    show(
        f"{net.name}, per sample",
        [columns[i] for i in kept],
        [[row[i] for i in kept] for row in rows],
        left=len(kept) - 3,
    )


def main(args: argparse.Namespace) -> int:
    if args.name:
        nets = [network(args.name, args.input, args.classes)]
    else:
        nets = [network(name) for name in NETWORKS]
    if args.json:
        listed = [_summary(n) | ({"layers": _layers(n)} if args.name else {}) for n in nets]
        options.print_json(listed[0] if args.name else {"networks": listed})
        return 0
    if args.name:
        _show_layers(nets[0])
        return 0
    show(
        "networks", ("name", "input", "classes", "layers", "weights", "forward/sample"),
        [
            (s["name"], shape_text(s["input"]), s["classes"], s["layers"], s["parameters"],
             amount(s["forward_flops"], "flop"))
            for s in map(_summary, nets)
        ],
        left=2,
    )
    return 0
