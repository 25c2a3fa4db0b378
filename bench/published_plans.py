"""The layer-wise search's plans beside those that OptCNN and DeePa published.

Each plan is found three times: in the whole space; in the papers' space, without cut reductions
(k), redundant compute (x) and a second placement; and there under the papers' own costs. Those have
parameter servers to which r replicas send r times the weights, and transfers whose flows go one
after the other (OptCNN, section 5.1).
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np

from bench.papers import layerwise as published
from bench.papers.equations import optcnn
from hpcpar.machine import files
from hpcpar.network.graph import Network
from hpcpar.plan.config import Config
from hpcpar.plan.strategy import Configs
from hpcpar.prediction.price import price
from hpcpar.search import table_search
from hpcpar.search.edge_elimination import solve
from hpcpar.search.space import FIELDS, Space
from hpcpar.search.table_search import Search
from hpcpar.search.tables import Table, Tables, configured

#: Machines of the published plans: OptCNN's on 4 GPUs, DeePa's on 16.
PRESET = {4: "p100x4x4", 16: "k80x16"}


def groups(net: Network, plans: list[Configs]) -> list[tuple[str, list[str]]]:
    """Runs of layers over which no plan changes, with each plan's configuration."""
    out: list[tuple[str, str, list[str]]] = []
    for layer in net.layers[1:]:
        texts = [brief(plan[layer.name]) for plan in plans]
        if out and out[-1][2] == texts:
            out[-1] = (out[-1][0], layer.name, texts)
        else:
            out.append((layer.name, layer.name, texts))
    return [(a if a == b else f"{a} ... {b}", texts) for a, b, texts in out]


def brief(config: Config) -> str:
    """A configuration in the papers' notation, as in {n=4}; {1} on one rank."""
    return "{1}" if config.ranks == 1 else str(config)


def of_papers(found: Search) -> list[Any]:
    """Masks of the configurations of each unit that are in the papers' space."""
    k, copies = FIELDS.index("k"), FIELDS.index("replicas")
    return [(u.space.degrees[:, k] == 1) & (u.space.degrees[:, copies] == 1) & ~u.space.outer
            for u in found.units]


#: No bytes, no seconds that could be hidden: of all configurations.
NOTHING = np.zeros(())


def degrees(space: Space) -> list[optcnn.Configuration]:
    return [optcnn.Configuration(**{a: int(row[FIELDS.index(a)]) for a in "nchwd"})
            for row in space.degrees]


def papers_costs(found: Search) -> Tables:
    """The papers' tables: tC of the priced schedule; tS and tX in closed form.

    The rate belongs to the innermost level.
    """
    net, machine, batch = found.network, found.machine, found.plan.batch
    rate = 1 / machine.levels[0].beta_s_per_byte
    nodes = []
    for unit, table in zip(found.units, found.tables.nodes, strict=True):
        head = unit.layers[0]
        weights = 4 * head.parameters(net.input_shape(head)) if head.has_weights else 0
        ts = [optcnn.ts_s(weights, c, rate) for c in degrees(unit.space)]
        nodes.append(Table(table.seconds - table.hideable + ts, table.bytes, NOTHING))
    out, known = Tables(found.units, nodes), dict[Any, Table]()
    for a, b, layer, which in found.edges:
        there, here = found.units[a].space, found.units[b].space
        e = optcnn.edge(net, layer, batch, 4, which)
        key = (e.axes, e.extents, tuple(e.reader_extents.items()), e.relations, there, here)
        if not net.by_name[layer.inputs[which]].inputs:  # images are read where they are needed
            out.edges[a, b] = Table(np.zeros((len(there), len(here))), NOTHING, NOTHING)
            continue
        if key not in known:
            known[key] = Table(np.array([[optcnn.tx_s(e, x, y, rate) for y in degrees(here)]
                                         for x in degrees(there)]), NOTHING, NOTHING)
        out.edges[a, b] = known[key]
    return out


def optimum(tables: Tables, allowed: list[Any]) -> list[int]:
    nodes = [np.where(ok, t.seconds, np.inf) for t, ok in zip(tables.nodes, allowed, strict=True)]
    return solve(nodes, {pair: t.seconds for pair, t in tables.edges.items()})[1]


def plan_row(name: str, strategy: str, ranks: int) -> dict[str, Any]:
    """Our plans and the published one without overlap: the sum of all steps (OptCNN, Eq 1)."""
    net, spec, machine = published.network(name), published.spec(name), PRESET[ranks]
    # no pruning: a configuration that one optimum rules out may be part of another
    few, table_search.FULL_TABLES_UP_TO = table_search.FULL_TABLES_UP_TO, sys.maxsize
    try:
        batch = published.IMAGES * ranks
        found = Search(net, spec, ranks, batch, files.load(machine), overlap="none")
    finally:
        table_search.FULL_TABLES_UP_TO = few
    allowed, costs, theirs = (of_papers(found), papers_costs(found),
                              published.configurations(name, strategy, ranks))
    places = {"papers_space": optimum(found.tables, allowed),
              "papers_costs": optimum(costs, allowed)}
    plans = ({"ours": found.best().plan.configs}
             | {key: configured(found.units, at) for key, at in places.items()}
             | {"published": theirs})
    images, reader = net.layers[0].name, plans["papers_costs"][net.layers[1].name]
    # images are read where they are needed
    plans["papers_costs"][images] = replace(reader, c=1, replicas=reader.c)
    out: dict[str, Any] = {"network": name, "plan": strategy, "ranks": ranks, "machine": machine}
    for key, configs in plans.items():
        p = price(net, replace(found.plan, configs=configs), files.load(machine))
        out[key] = {"sum_s": p.compute_s + p.communication_s, "compute_s": p.compute_s,
                    "sent_bytes": p.communication_bytes}
        at = [u.space.find(configs[u.name]) for u in found.units]
        known = key != "ours" and None not in at
        out[key]["papers_s"] = costs.price([int(i) for i in at if i is not None]) if known else None
    out["ratios"] = {key: out[key]["sum_s"] / out["published"]["sum_s"]
                     for key in ("ours", "papers_space")}
    out["ratios"]["papers_costs"] = out["papers_costs"]["papers_s"] / out["published"]["papers_s"]
    out["groups"] = [{"layers": layers, **dict(zip(plans, texts, strict=True))}
                     for layers, texts in groups(net, list(plans.values()))]
    return out
