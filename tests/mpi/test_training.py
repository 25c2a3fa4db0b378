"""Training under every strategy equals the serial run: losses, outputs, gradients, five steps of
SGD.
"""

from __future__ import annotations

import itertools
import zlib

import numpy as np
import pytest

from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import world
from hpcpar.network.graph import Network
from hpcpar.network.layers import SoftmaxCrossEntropy
from hpcpar.plan.config import PLACEMENTS, Config
from hpcpar.plan.plan import NetworkSpec, Overlap, Plan
from hpcpar.plan.strategies import GATHERS, configurations
from hpcpar.plan.strategy import Configs
from tests.mpi.comparison import CHOOSERS, Run, check, facts
from tests.mpi.networks import FIXED
from tests.strategies import one_pass

P = world().size
#: Everything that a strategy may be combined with.
VARIANTS = list(itertools.product(GATHERS, Overlap, CHOOSERS))
#: Random networks per rank count (others on every count), and variants of each strategy on each
#: network.
RANDOM, TAKEN = {1: (12, 3), 2: (10, 4), 3: (8, 3), 4: (6, 2), 6: (3, 1)}.get(P, (2, 1))
#: Random choices of configurations on each of them.
CUSTOM = {2: 6, 3: 4, 4: 4}.get(P, 3)
FACTORS = {2: (2,), 3: (3,), 4: (2, 2), 5: (5,), 6: (2, 3), 7: (7,), 8: (2, 2, 2)}
SEEDS = range(100 * P, 100 * P + RANDOM)
NETWORKS = [*FIXED, *(f"random-{seed}" for seed in SEEDS)]


def run(name: str, configs: Configs, overlap: str, collectives: str, communicator: Communicator,
        what: str) -> Run:
    """Compare a plan of these configurations with the serial training."""
    network, batch = facts(name).network, facts(name).batch
    spec = NetworkSpec(network.name, network.image_shape, network.classes)
    plan = Plan(spec, P, batch, "data", configs, overlap=overlap, precision="fp64")
    return check(name, plan, collectives, communicator, what)


def variants(network: str, strategy: str) -> list[tuple[str, str, str]]:
    """`TAKEN` variants, spread evenly from a place that depends on network, strategy and rank
    count.
    """
    first = zlib.crc32(f"{network} {strategy} {P}".encode())
    # 7 and 24 have no common factor
    return [VARIANTS[(first + k * 7) % len(VARIANTS)] for k in range(TAKEN)]


@pytest.mark.parametrize("network", NETWORKS)
def test_named_strategies_train_as_one_rank(network: str, communicator: Communicator) -> None:
    # many ranks share few cores: the second AlexNet has half of the strategies there
    for strategy in one_pass(P)[:: 2 if P > 4 and network == FIXED[-1] else 1]:
        for gather, overlap, collectives in variants(network, strategy):
            configs = configurations(facts(network).network, strategy, P, gather)
            run(network, configs, overlap, collectives, communicator,
                f"{strategy}, gather {gather}")


def random_configs(network: Network, rng: np.random.Generator) -> Configs:
    """Any configuration for every layer: each prime factor of P cuts an axis that the layer has,
    ranks lie in any order.
    """
    out: Configs = {}
    for layer in network.layers:
        axes = ["n", "c", "h", "w",
                "replicas"] if len(network.shapes[layer.name]) == 3 else ["n", "c", "replicas"]
        if isinstance(layer, SoftmaxCrossEntropy):
            axes.remove("c")
        degrees = dict.fromkeys(axes, 1)
        for prime in FACTORS[P]:
            degrees[str(rng.choice(axes))] *= prime
        out[layer.name] = Config(**degrees, placement=str(rng.choice(list(PLACEMENTS))))
    return out


@pytest.mark.skipif(P == 1, reason="one rank has one configuration")
@pytest.mark.parametrize("network", ["lenet5", *(f"random-{seed}" for seed in SEEDS)])
def test_random_configurations_train_as_one_rank(network: str, communicator: Communicator) -> None:
    """A configuration of its own for every layer: redistribution from any to any."""
    rng = np.random.default_rng(zlib.crc32(f"{network} {P}".encode()))
    for k in range(CUSTOM):
        _, overlap, collectives = VARIANTS[int(rng.integers(len(VARIANTS)))]
        run(network, random_configs(facts(network).network, rng), overlap, collectives,
            communicator, f"random configurations {k}")


#: Configurations that once failed, as found among thousands of random ones. P -> network, layers'
#: degrees (r: replicas), overlap.
HARD: dict[int, list[tuple[str, str, str]]] = {
    4: [
        # a gradient's box and the owned box stick out of each other along different axes
        ("random-1081",
         "input h2 r2, conv0 c2 w2, conv1 w2 r2, pool1 n2 r2, flatten c4, fc n2 c2, drop-fc c4, "
                        "last c4, loss n2 c2", "none"),
        ("random-1046",
         "input n2 h2, conv0 c4, drop0 n2 c2, relu0 r4, conv1 c2 h2, pool1 h2 r2, relu1 c2 w2, "
         "norm1 h4, flatten n4, "
                        "last n2 r2, loss n2 r2", "full"),
    ],
    6: [
        # a rank without columns whose empty box lies outside of what it needs
        ("random-1021",
         "input h3 r2, conv0 n2 r3, relu0 h3 w2, drop0 c6, conv1 w6, relu1 w3 r2, pool1 c2 w3, "
         "flatten n3 c2, fc n2 c3, "
                        "drop-fc n3 r2, last n2 r3, loss n3 r2", "full"),
    ],
}


@pytest.mark.parametrize(("network", "degrees", "overlap"), HARD.get(P, []),
                         ids=[case[0] for case in HARD.get(P, [])])
def test_hard_configurations_train_as_one_rank(network: str, degrees: str, overlap: str,
                                               communicator: Communicator) -> None:
    configs: Configs = {}
    for layer in degrees.split(", "):
        name, *cuts = layer.split()
        configs[name] = Config(**{"replicas" if cut[0] == "r" else cut[0]: int(cut[1:])
                                  for cut in cuts})
    run(network, configs, overlap, "ring", communicator, "hard configurations")


@pytest.mark.parametrize("network", FIXED[:2])
def test_two_runs_are_bitwise_equal(network: str, communicator: Communicator) -> None:
    strategies = one_pass(P)
    for strategy, (gather, overlap, collectives) in zip(strategies[:: -(-len(strategies) // 3)],
                                                        VARIANTS[1::9], strict=False):
        configs = configurations(facts(network).network, strategy, P, gather)
        first, second = (run(network, configs, overlap, collectives, communicator,
                             f"{strategy}, run {i}") for i in (1, 2))
        assert first.losses == second.losses
        for name, weights in first.weights.items():
            assert weights.tobytes() == second.weights[
                name].tobytes(), f"{strategy}: weights of {name} differ between two runs"
