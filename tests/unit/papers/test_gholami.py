"""The priced schedule against the closed forms of Gholami et al. (SPAA 2018), by term."""

from __future__ import annotations

import pytest

from hpcpar.cost.price_family import price_steps
from hpcpar.machine import files
from hpcpar.network import builtin
from hpcpar.network.builtin.alexnet import towers
from hpcpar.network.graph import Network
from hpcpar.network.layers import Conv2d, SoftmaxCrossEntropy
from hpcpar.papers import gholami as eq
from hpcpar.papers.gholami import HockneyLink, total_s
from hpcpar.plan.plan import NetworkSpec, Plan
from hpcpar.plan.strategies import configurations
from hpcpar.plan.strategy import grid_sizes
from hpcpar.schedule.steps import Comm, Kind, Phase

MACHINE = files.load("cori-knl")
LINK = HockneyLink(MACHINE.levels[-1].alpha_s, 4 * MACHINE.levels[-1].beta_s_per_byte)
RANKS = [2**i for i in range(13)] + [7, 12, 96]
B = 2048
OWT = NetworkSpec("alexnet-owt", (3, 224, 224), 1000)
TWO = NetworkSpec("alexnet", (3, 227, 227), 1000)
VGG = NetworkSpec("vgg16", (3, 224, 224), 1000)
ONE_TOWER = towers("alexnet", (3, 227, 227), 1000, (96, 256, 384, 384, 256), 1, SoftmaxCrossEntropy)


def grids(ranks: int) -> list[tuple[int, int]]:
    """All grids of few ranks; of many, every third and both ends."""
    every = grid_sizes(ranks)
    return every if ranks <= 32 else sorted({*every[::3], every[-1]})


Terms = dict[tuple[str, str], float]


def priced(spec: NetworkSpec, strategy: str, ranks: int, batch: int = B,
           network: Network | None = None) -> tuple[Terms, Terms]:
    """Priced communication by (layer, phase), and the steps of no matmul layer."""
    network = spec.build() if network is None else network
    configs = configurations(network, strategy, ranks, "eager")
    plan = Plan(spec, ranks, batch, strategy, configs, overlap="none",
                machine=MACHINE)
    result = price_steps(network, plan, MACHINE, accounting="paper")
    own: Terms = {}
    rest: Terms = {}
    weighted = {layer.name for layer in network.weighted}
    for step, cost in result.pairs:
        if not isinstance(step, Comm):
            continue
        name = step.layer
        producer = network.by_name[name].inputs[0]
        if step.phase is Phase.FORWARD and step.kind is Kind.ALLGATHER and producer in weighted:
            name = producer  # gathered after the layer that produces it
        into = own if name in weighted and (step.phase is not Phase.FORWARD
                                            or step.kind is Kind.HALO or name == producer) else rest
        key = name, step.phase.value
        assert key not in into or step.kind is Kind.ALLGATHER  # of sums within groups
        into[key] = into.get(key, 0.0) + float(cost.seconds)
    return own, rest


def terms_of(terms: list[eq.CostTerm]) -> Terms:
    return {(t.layer, t.phase): t.seconds for t in terms if t.seconds}


def same(ours: Terms, printed: Terms) -> None:
    assert set(ours) == set(printed)
    for key, seconds in printed.items():
        assert ours[key] == pytest.approx(seconds, rel=1e-12), key


def only_loss(rest: Terms) -> None:
    assert set(rest) <= {("loss", "loss")} and not any(rest.values())


@pytest.mark.parametrize("ranks", RANKS)
def test_eq3_pure_model(ranks: int) -> None:
    own, rest = priced(OWT, "filter", ranks)
    same(own, terms_of(eq.eq3_model(OWT.build(), ranks, B, LINK)))
    only_loss(rest)


@pytest.mark.parametrize("spec", [OWT, TWO], ids=["owt", "two-tower"])
@pytest.mark.parametrize("ranks", RANKS)
def test_eq4_pure_batch(spec: NetworkSpec, ranks: int) -> None:
    own, rest = priced(spec, "data", ranks)
    same(own, terms_of(eq.eq4_batch(spec.build(), ranks, LINK)))
    only_loss(rest)


@pytest.mark.parametrize("batch", [1, 12, 13, 2048])
def test_eq5_volume_ratio(batch: int) -> None:
    """Eq 5 from priced volumes: a 3x3 convolution on 13 x 13 x 384 with equal input and output."""
    network = OWT.build()
    conv = network.by_name["conv4"]
    assert isinstance(conv, Conv2d)
    no_latency = HockneyLink(0.0, LINK.beta_s)
    bias = conv.parameters(network.input_shape(conv)) / (9 * 384 * 256)
    data = next(t.seconds for t in eq.eq4_batch(network, 8, no_latency)
                if t.layer == "conv4") / bias
    model = 3 * no_latency.gather("", "", 8, batch * 13 * 13 * 256).seconds
    assert eq.eq5_volume_ratio(network, conv, batch) == pytest.approx(data / model, rel=1e-12)
    three = builtin.network("alexnet-owt").by_name["conv4"]
    assert isinstance(three, Conv2d)
    # The paper: model parallelism moves less for B <= 12, where 13.6 / B (384 channels) is above 1.
    assert (eq.eq5_volume_ratio(network, three, batch) > 1) == (batch <= 13)


@pytest.mark.parametrize("ranks", RANKS)
def test_eq6_redistribution(ranks: int) -> None:
    """Eq 6: activations are gathered before the first fully connected layer."""
    network = OWT.build()
    _, rest = priced(OWT, "owt", ranks)
    expected = eq.eq6_redistribute(network, network.by_name["fc6"], ranks, B, LINK)
    assert rest.pop(("fc6", "forward"), 0.0) == pytest.approx(expected, rel=1e-12)
    only_loss(rest)


@pytest.mark.parametrize("ranks", RANKS)
def test_eq7_pure_domain(ranks: int) -> None:
    own, rest = priced(OWT, "spatial", ranks)
    printed = terms_of(eq.eq7_domain(OWT.build(), ranks, B, LINK))
    printed.pop(("conv1", "backward"), None)  # the gradient of the images is not needed
    same(own, printed)
    assert {name for name, _ in rest} <= {"pool1", "pool2", "pool5", "flatten", "loss"}
    assert all(seconds == 0 for (name, _), seconds in rest.items() if name != "flatten")


@pytest.mark.parametrize("spec", [OWT, TWO], ids=["owt", "two-tower"])
@pytest.mark.parametrize("ranks", RANKS)
def test_eq8_model_and_batch(spec: NetworkSpec, ranks: int) -> None:
    for pr, pc in grids(ranks):
        own, rest = priced(spec, f"grid:{pr}x{pc}", ranks)
        same(own, terms_of(eq.eq8_model_batch(spec.build(), pr, pc, B, LINK, grouped=True)))
        only_loss(rest)


@pytest.mark.parametrize("spec", [OWT, TWO], ids=["owt", "two-tower"])
@pytest.mark.parametrize("ranks", RANKS)
def test_eq8_in_fully_connected_layers(spec: NetworkSpec, ranks: int) -> None:
    """Batch-parallel convolutions: Eq 6's gather and a reduce-scatter replace terms of Eq 8."""
    network = spec.build()
    for pr, pc in grids(ranks):
        own, rest = priced(spec, f"grid-fc:{pr}x{pc}", ranks)
        printed = terms_of(eq.eq8_fc_only(network, pr, pc, B, LINK))
        if pr > 1:
            half = rest.pop(("fc6", "forward"))
            assert half == pytest.approx(own["fc6", "backward"], rel=1e-12)
            own["fc6", "backward"] += half
        same(own, printed)
        only_loss(rest)


@pytest.mark.parametrize(("pr", "ratio"), [(1, 1), (2, 1 / 2), (7, 1), (8, 5 / 7), (64, 47 / 63)])
def test_grouped_convolutions_move_less_than_eq8(pr: int, ratio: float) -> None:
    """A tower's ranks sum its channels, and then gather the other's. With an odd number of ranks,
    one has channels of both towers, and all sum both.
    """
    no_latency = HockneyLink(0.0, LINK.beta_s)
    printed, ours = (terms_of(eq.eq8_model_batch(TWO.build(), pr, 8, B, no_latency, grouped=tower))
                     for tower in (False, True))
    for key, seconds in printed.items():
        grouped = key in {("conv2", "backward"), ("conv4", "backward"), ("conv5", "backward")}
        assert ours[key] == pytest.approx(seconds * (ratio if grouped else 1), rel=1e-12)


@pytest.mark.parametrize("ranks", [8, 64, 512])
@pytest.mark.parametrize(("spec", "network"), [(TWO, TWO.build()), (TWO, ONE_TOWER),
                                               (VGG, VGG.build())],
                         ids=["two-tower", "one-tower", "vgg16"])
def test_eq3_to_eq9_on_every_grid(spec: NetworkSpec, network: Network, ranks: int) -> None:
    first = network.matmul_layers[0].name

    def check(strategy: str, terms: list[eq.CostTerm]) -> Terms:
        own, rest = priced(spec, strategy, ranks, network=network)
        printed = terms_of(terms)
        if not strategy.startswith(("grid", "filter")):
            printed.pop((first, "backward"), None)  # the gradient of the images is not needed
        if strategy.startswith("grid-fc") and ("fc6", "forward") in rest:  # Eq 6
            own["fc6", "backward"] += rest.pop(("fc6", "forward"))
        same(own, printed)
        return rest

    only_loss(check("data", eq.eq4_batch(network, ranks, LINK)))
    only_loss(check("filter", eq.eq3_model(network, ranks, B, LINK, grouped=True)))
    check("spatial", eq.eq7_domain(network, ranks, B, LINK))
    for pr, pc in grid_sizes(ranks):
        only_loss(check(f"grid:{pr}x{pc}",
                        eq.eq8_model_batch(network, pr, pc, B, LINK, grouped=True)))
        only_loss(check(f"grid-fc:{pr}x{pc}", eq.eq8_fc_only(network, pr, pc, B, LINK)))
        between = check(f"domain:{pr}x{pc}", eq.eq9_integrated(network, pr, pc, B, LINK))
        gather = eq.eq6_redistribute(network, network.by_name["fc6"], pr, B // pc, LINK)
        assert sum(between.values()) == pytest.approx(gather, rel=1e-12)


@pytest.mark.parametrize("ranks", RANKS)
def test_eq9_model_batch_and_domain(ranks: int) -> None:
    for pr, pc in grids(ranks):
        own, rest = priced(OWT, f"domain:{pr}x{pc}", ranks, 512)
        printed = terms_of(eq.eq9_integrated(OWT.build(), pr, pc, 512, LINK))
        printed.pop(("conv1", "backward"), None)
        same(own, printed)
        # Not counted in the paper: halos of pooling, the gather between domain and model parts,
        # the sum of the loss.
        assert {name for name, _ in rest} <= {"pool1", "pool2", "pool5", "flatten", "loss"}
        gathered = rest.get(("flatten", "forward"), 0.0)
        assert sum(rest.values()) == pytest.approx(gathered)
        eq6 = LINK.gather("flatten", "forward", pr, 512 / pc * 9216)
        assert gathered == pytest.approx(eq6.seconds, rel=1e-12)


def best(ratios: dict[int, float]) -> tuple[int, float]:
    return max(ratios.items(), key=lambda item: item[1])


@pytest.mark.parametrize(("network", "claim"), [(TWO.build(), 8.71), (ONE_TOWER, 7.42)],
                         ids=["two-tower", "one-tower"])
def test_published_speedup_of_fully_connected_grids(network: Network, claim: float) -> None:
    """Fig 7, P = 512, B = 2048: communication speedup over pure batch, best at 32 x 16."""
    data = total_s(eq.eq4_batch(network, 512, LINK))
    printed = {pr: data / total_s(eq.eq8_fc_only(network, pr, pc, B, LINK))
               for pr, pc in grid_sizes(512)}
    steps = {pr: data / sum(sum(t.values()) for t in priced(TWO, f"grid-fc:{pr}x{pc}", 512,
                                                            network=network))
             for pr, pc in grid_sizes(512)}
    assert best(printed) == (32, pytest.approx(claim, abs=0.005))
    assert steps == pytest.approx(printed, rel=1e-12)


@pytest.mark.parametrize(("network", "claim"), [(TWO.build(), 3.27), (ONE_TOWER, 3.31)],
                         ids=["two-tower", "one-tower"])
def test_published_speedup_of_one_grid_for_all(network: Network, claim: float) -> None:
    """Fig 6, P = 512, B = 2048: Eq 8 with pooled activations is best at 8 x 64."""
    data = total_s(eq.eq4_batch(network, 512, LINK))
    printed = {pr: data / total_s(eq.eq8_model_batch(network, pr, pc, B, LINK, pooled=True))
               for pr, pc in grid_sizes(512)}
    assert best(printed) == (8, pytest.approx(claim, abs=0.005))
