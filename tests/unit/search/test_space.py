"""The space of the layer-wise search: its contents, and the named strategies as its points."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from hpcpar.errors import InputError
from hpcpar.machine import files
from hpcpar.machine.model import Level
from hpcpar.network import builtin
from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer, SoftmaxCrossEntropy
from hpcpar.plan.config import Config
from hpcpar.plan.strategies import fill, parse, placement_of
from hpcpar.search.space import ALL_SHAPES, FIELDS, Spaces, chain, divisors, factors, totals
from hpcpar.search.tables import units
from tests.strategies import named

LOCAL = files.load("local")


@cache
def network(name: str) -> Network:
    return builtin.network(name)


def extents(net: Network, layer: Layer) -> dict[str, int]:
    """Most parts along each axis of a layer's output: channels that were flattened together stay
    together.
    """
    shape = net.shapes[layer.name]
    whole = isinstance(layer, SoftmaxCrossEntropy) or not layer.inputs
    return {"c": 1 if whole else shape[0] // net.granules[layer.name],
            **dict(zip("dhw"[4 - len(shape):], shape[1:], strict=True))}


# -- numbers ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("total", "limits"),
    [(1, (1,)), (12, (12, 3, 4)), (16, (2, 2, 2)), (16, (16, 16, 16, 1)), (30, (4, 6, 5)),
     (7, (6, 6))],
)
def test_factors_are_all_products(total: int, limits: tuple[int, ...]) -> None:
    every = [way for way in itertools.product(*(range(1, n + 1) for n in limits))
             if math.prod(way) == total]
    assert sorted(factors(total, limits)) == every


def test_totals_do_not_straddle_units() -> None:
    levels = (Level("node", 4, 1e-6, 1e-9), Level("rack", 12, 1e-6, 1e-9),
              Level("all", 0, 1e-6, 1e-9))
    machine = replace(LOCAL, levels=levels)
    assert totals(24, machine) == [1, 2, 4, 12, 24]  # 3 would straddle nodes, 8 racks
    assert totals(6, machine) == [1, 2, 3, 6]  # nodes of 4 do not tile 6 ranks
    assert totals(24, LOCAL) == [1, 2, 3, 4, 6, 8, 12, 24]
    assert totals(1, machine) == [1]


# -- contents --------------------------------------------------------------------------------------
@pytest.mark.parametrize("reductions", [False, True])
@pytest.mark.parametrize(("name", "ranks", "batch"),
                         [("lenet5", 4, 3), ("alexnet", 12, 24), ("inception_v3", 8, 16),
                          ("cosmoflow", 8, 4)])
def test_contents(name: str, ranks: int, batch: int, reductions: bool) -> None:
    """Every configuration is valid and there once; without cut reductions and replicas, all that
    are possible are there.
    """
    net, machine = network(name), files.load("p100x4x4")
    spaces = Spaces(net, ranks, batch, machine, reductions)
    allowed = totals(ranks, machine)
    for unit in {id(u.space): u for u in units(net, spaces)}.values():
        layer, space = unit.layers[0], unit.space
        inner, outer = ([tuple(map(int, row)) for row in space.degrees[space.outer == flag]]
                        for flag in (False, True))
        degrees = set(inner)
        assert len(degrees) == len(inner)
        # both placements where ranks of several nodes do two kinds of parts
        assert sorted(outer) == sorted(row for row in degrees if ranks > 4
                                       and 1 < row[0] < ranks == math.prod(row))
        most = {"n": batch, "d": 1, "h": 1, "w": 1} | extents(net, layer)
        for n, c, h, w, replicas, d, k in degrees:
            assert n * c * h * w * replicas * d * k in ([ranks] if replicas > 1 else allowed)
            assert all(got <= most[axis] for axis,
                       got in {"n": n, "c": c, "d": d, "h": h, "w": w}.items())
            if k > 1:
                source = layer.inputs[0]
                assert reductions and layer.is_matmul and layer is not net.matmul_layers[
                    0] and getattr(
                    layer, "groups", 1) == 1
                assert k <= most["c"] and k <= net.input_shape(layer)[0] // net.granules[source]
                assert c * h * w * replicas * d == 1
        every = {
            (n, c, h, w, 1, d, 1)
            for n, c, d, h, w in itertools.product(
                *([x for x in range(1, ranks + 1) if ranks % x == 0 and x <= most[axis]]
                  for axis in "ncdhw")
            )
            if n * c * d * h * w in allowed
        }
        assert {row for row in degrees if row[4] == row[6] == 1} == every


def test_one_and_find_agree() -> None:
    net = network("lenet5")
    spaces = Spaces(net, 8, 16, files.load("p100x4x4"))
    space = spaces.of(net.by_name["conv2"])
    family, behind = space.config(), space.config(behind=True)
    assert (space.degrees[:, FIELDS.index("k")] > 1).any() and 0 < space.outer.sum() < len(space)
    for i in range(len(space)):
        assert space.find(space.one(i)) == i
        assert all(int(getattr(family, a)[i]) == getattr(space.one(i), a) for a in FIELDS)
        # behind a layer whose sums are scattered over channels, those channels are cut
        assert space.one(i, behind=True) == replace(space.one(i), c=space.one(i).c * space.one(i).k,
                                                    k=1)
        assert all(int(getattr(behind, a)[i]) == getattr(space.one(i, behind=True), a)
                   for a in FIELDS)
        for whole, one in ((family, space.one(i)), (behind, space.one(i, behind=True))):
            assert {a: (int(d.stride[i]), int(d.size[i])) for a, d in whole.mesh_axes.items()} == {
                a: (d.stride, d.size) for a, d in one.mesh_axes.items()}
    assert space.find(Config(n=8)) == space.find(Config(n=8, placement="outer")) is not None
    assert Spaces(net, 4, 16,
                  LOCAL).of(net.by_name["conv2"]).find(Config(n=2, c=2, placement="outer")) is None
    assert space.find(Config(n=3)) is None and space.find(Config(n=32)) is None
    assert space.config(np.array([2, 0])).n.shape == (2,)


@pytest.mark.parametrize(("options", "said"), [
    ({"n": 0}, "configuration degree n=0"), ({"c": 2.0}, "configuration degree c=2.0"),
    ({"placement": "sideways"}, "placement 'sideways': use one of inner, outer"),
    ({"placement": 1}, "placement '1': use one of inner, outer"),
])
def test_impossible_configurations_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Config(**options)


def test_a_family_of_configurations() -> None:
    """Case by case what each is alone; numbers and names that are the same in all stay plain."""
    each = [Config(n=2, c=3), Config(n=6, placement="outer"),
            Config(n=2, k=3, placement="outer", scatter=False)]
    both = Config.family(each)
    assert (both.first, both.scatter, both.reduces, both.cuts_channels) == (0, False, True, True)
    assert Config.family(each[1:2]).placement == "outer" and not Config.family(
        each[1:2]).cuts_channels
    for i, one in enumerate(each):
        found = {a: (int(d.stride[i]), int(d.size[i])) for a, d in both.mesh_axes.items()}
        assert found == {a: (d.stride, d.size) for a, d in one.mesh_axes.items()}
    assert [str(c) for c in each] == ["{n=2, c=3}", "{n=6}", "{n=2, k=3, outer}"]


def test_equal_layers_share_a_space() -> None:
    net = network("vgg16")
    spaces = Spaces(net, 4, 8, LOCAL)
    assert len({id(spaces.of(layer)) for layer in net.layers}) < 8
    assert spaces.of(net.by_name["conv3_2"]) is spaces.of(net.by_name["conv3_3"])


def test_many_ranks_leave_few_shapes() -> None:
    """Beyond `ALL_SHAPES` ranks images are cut in rows or the squarest way, and layers that leave
    ranks idle by samples and channels.
    """
    net = network("vgg16")
    ranks = 4 * ALL_SHAPES
    space = Spaces(net, ranks, 2 * ranks, LOCAL).of(net.by_name["conv1_1"])
    n, c, h, w, replicas, _, k = space.degrees.T
    assert len(space) < 150
    used = n * c * h * w * replicas * k
    assert (h * w)[used < ranks].max() == 1 and used[used < ranks].max() <= ALL_SHAPES
    assert {(16, 1), (4, 4)} == {(int(a), int(b)) for a, b, m in zip(h, w, h * w, strict=True)
                                 if m == 16}
    assert {(8, 1), (4, 2)} == {(int(a), int(b)) for a, b, m in zip(h, w, h * w, strict=True)
                                if m == 8}


# -- named strategies ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        *itertools.product(("lenet5", "alexnet", "vgg16", "cosmoflow"), (2, 4, 6, 8, 16)),
        ("resnet50", 8), ("inception_v3", 6), ("vgg16", 64),
    ],
)
def test_named_strategies_are_in_the_space(name: str, ranks: int) -> None:
    """Every layer of every named strategy, but where it is cut into more parts than it has."""
    net, found = network(name), 0
    made = units(net, Spaces(net, ranks, 2 * ranks, files.load("p100x4x4")))
    for strategy in [f"{s}{end}" for s in named(ranks) if not s.startswith("pipeline")
                     for end in ("", "/outer")]:
        (kind, grid), placement = parse(strategy), placement_of(strategy)[1]
        configs = fill(net, kind, ranks, grid, placement=placement)
        for unit in made:
            config = configs[unit.name]
            head = unit.layers[0]
            limits = extents(net, head)
            limits["k"] = min(limits["c"],
                              net.input_shape(head)[0]
                              // net.granules[head.inputs[0]]) if head.is_matmul else 1
            if any(getattr(config, axis) > limit for axis, limit in limits.items()):
                continue
            if ranks <= 4:  # of one node
                config = replace(config, placement="inner")
            at = unit.space.find(config)
            assert at is not None, (strategy, unit.name, str(config))
            found += 1
            for layer in unit.layers[1:]:
                # a gather before an elementwise layer stands behind it in the space
                mine, behind = configs[layer.name], unit.space.one(at, behind=True)
                gathered = config.replicas == 1 < mine.replicas
                assert gathered or mine == replace(behind, placement=placement), (
                    strategy, layer.name,
                )
                # placements differ in name alone where there is one kind of parts, or one node
                assert behind.placement == (
                    placement if 1 < config.n < ranks and ranks > 4 else "inner"
                )
    assert found > len(made)


def test_many_divisors_are_thinned_out() -> None:
    """Named strategies stay in the space: cuts of two kinds are not thinned out."""
    machine, net = files.load("abci-v100"), builtin.network("resnet50")
    sizes = {ranks: len(Spaces(net, ranks, 32 * ranks, machine).of(net.layers[1]))
             for ranks in (1000, 1024, 1200, 5040)}
    assert sizes[1200] < 1.5 * sizes[1024] and sizes[5040] < 2.5 * sizes[1024]
    assert chain(1200) == [1, 2, 4, 8, 16, 48, 240, 1200]
    space = Spaces(net, 1200, 1200, machine).of(net.layers[1])
    for ranks in divisors(1200):
        if ranks <= 64:
            assert space.find(Config(n=1200 // ranks, c=ranks)) is not None
