"""``hpcpar networks``: list the networks, or show one."""

from __future__ import annotations

import argparse
import math
from typing import Any

from hpcpar.cli import options
from hpcpar.network.builtin import NETWORKS
from hpcpar.network.graph import Network
from hpcpar.report.tables import amount, show


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser("networks", help="list the networks, or show one layer by layer", allow_abbrev=False)
    parser.add_argument("name", nargs="?", help="network to show")
    options.add_shape(parser)
    options.add_json(parser)


def _layers(network: Network) -> list[dict[str, Any]]:
    return [
        {
            "name": layer.name,
            "kind": layer.kind,
            "output": list(network.shapes[layer.name]),
            "parameters": layer.parameters(network.input_shape(layer)),
            "forward_flops": layer.forward_flops(network.input_shape(layer)),
        }
        for layer in network.layers
    ]


def _summary(network: Network) -> dict[str, Any]:
    return {
        "name": network.name,
        "input": list(network.image_shape),
        "classes": network.classes,
        "layers": len(network.layers) - 1,
        "parameters": network.parameters,
        "forward_flops": network.forward_flops,
    }


def _shape(extents: list[int]) -> str:
    return "x".join(map(str, extents))


def main(args: argparse.Namespace) -> int:
    names = [args.name] if args.name else list(NETWORKS)
    shape, classes = (args.input, args.classes) if args.name else (None, None)
    networks = [options.network_spec(name, shape, classes).build() for name in names]
    if args.json:
        listed = [_summary(n) | ({"layers": _layers(n)} if args.name else {}) for n in networks]
        options.print_json(listed[0] if args.name else {"networks": listed})
        return 0
    if args.name:
        rows = _layers(networks[0])
        total = _summary(networks[0]) | {"name": "total", "kind": "", "output": []}
        show(
            f"{networks[0].name}, per sample",
            ("layer", "kind", "output", "items", "weights", "forward"),
            [
                (r["name"], r["kind"], _shape(r["output"]), math.prod(r["output"]) if r["output"] else "", r["parameters"] or "",
                 amount(r["forward_flops"], "flop"))
                for r in [*rows, total]
            ],
            left=3,
        )
        return 0
    show(
        "networks",
        ("name", "input", "classes", "layers", "weights", "forward/sample"),
        [(s["name"], _shape(s["input"]), s["classes"], s["layers"], s["parameters"], amount(s["forward_flops"], "flop"))
         for s in map(_summary, networks)],
        left=2,
    )
    return 0
