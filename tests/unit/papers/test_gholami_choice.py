"""Gholami's choice of grid and parallelism per layer against exhaustive search."""

from __future__ import annotations

import itertools
import math

import pytest

from hpcpar.network import builtin
from hpcpar.network.builder import Chain
from hpcpar.network.builtin.alexnet import alexnet
from hpcpar.network.graph import Network
from hpcpar.network.layers import Conv2d, Flatten, Linear, MaxPool2d, SoftmaxCrossEntropy
from hpcpar.papers.gholami import HockneyLink, eq8_model_batch, eq9_integrated, total_s
from hpcpar.papers.gholami_choice import choose, on_grid

#: Cori's network: 2 us, 6 GB/s, float32.
CORI = HockneyLink(2e-6, 4 / 6e9)
LINKS = {"cori": CORI, "latency": HockneyLink(1e-3, 1e-12), "bandwidth": HockneyLink(0.0, 1e-8)}


def small() -> Network:
    """A network with a convolution without halo, early large images and late large weights."""
    net = Chain("small", (4, 32, 24))
    net.add(Conv2d, "conv1", out_channels=16, kernel=(5, 3), padding=(2, 1)).add(MaxPool2d, "pool1")
    net.add(Conv2d, "conv2", out_channels=64, kernel=(1, 1)).add(
        MaxPool2d, "pool2", kernel=(4, 4), stride=(4, 4))
    net.add(Conv2d, "conv3", out_channels=512, kernel=(3, 3), padding=(1, 1)).add(
        Flatten, "flatten")
    return net.add(Linear, "fc", out_features=10).add(SoftmaxCrossEntropy, "loss").build()


def eq9_s(net: Network, domain: frozenset[str], pr: int, pc: int, batch: int,
          link: HockneyLink) -> float:
    """Eq 9 written out for any split of the layers in L_D and L_M, in seconds."""

    def gathered(p: int, items: float) -> float:
        return link.alpha_s * math.ceil(math.log2(p)) + link.beta_s * (p - 1) / p * items

    total = 0.0
    for i, layer in enumerate(net.matmul_layers):
        x, y = net.input_shape(layer), net.shapes[layer.name]
        weights = layer.parameters(x)
        if layer.name in domain:
            assert isinstance(layer, Conv2d)
            for (channels, _, width), k in ((x, layer.kernel[0]), (y, layer.kernel[1])):
                if pr > 1 and k > 1:
                    total += link.alpha_s + link.beta_s * batch / pc * width * channels * (k // 2)
            total += 2 * gathered(pr * pc, weights)
        else:
            total += gathered(pr, batch / pc * math.prod(y)) + 2 * gathered(pc, weights / pr)
            if i > 0:
                total += 2 * gathered(pr, batch / pc * math.prod(x))
    return total


def every(net: Network, ranks: int, batch: int, link: HockneyLink,
          pr: int | None = None) -> dict[tuple[int, int, frozenset[str]], float]:
    """All grids and assignments with their seconds."""
    convolutions = [layer.name for layer in net.matmul_layers if isinstance(layer, Conv2d)]
    out = {}
    for rows in range(1, ranks + 1):
        if ranks % rows or ranks // rows > batch or pr not in (None, rows):
            continue
        for chosen in itertools.product((False, True), repeat=len(convolutions)):
            domain = frozenset(itertools.compress(convolutions, chosen))
            out[rows, ranks // rows, domain] = eq9_s(net, domain, rows, ranks // rows, batch, link)
    return out


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize(("ranks", "batch"), [(1, 4), (6, 4), (8, 8), (16, 256), (60, 64)])
def test_the_choice_is_the_best_of_all_splits(ranks: int, batch: int, link: str) -> None:
    net = small()
    for pr in (None,
               *(rows for rows in range(1, ranks + 1) if ranks % rows == 0
                 and ranks // rows <= batch)):
        all_s = every(net, ranks, batch, LINKS[link], pr)
        found = choose(net, ranks, batch, LINKS[link]) if pr is None else on_grid(
            net, pr, ranks // pr, batch, LINKS[link])
        assert found.seconds == pytest.approx(min(all_s.values()), rel=1e-12)
        domain = frozenset(found.cut_by("domain"))
        assert found.seconds == pytest.approx(all_s[found.pr, found.pc, domain], rel=1e-12)
        assert {layer.layer: layer.cut in ("model", "domain") for layer in found.layers} == {
            layer.name: True for layer in net.matmul_layers}
        assert pr in (None, found.pr) and found.pr * found.pc == ranks and found.pc <= batch


def test_splits_differ() -> None:
    """The choice for the small network mixes early domain and late model parallelism."""
    found = on_grid(small(), 8, 1, 8, CORI)
    assert "conv1" in found.cut_by("domain") and "conv3" in found.cut_by("model")


def test_alexnet_on_512_ranks() -> None:
    """The paper's case: 16 x 32, convolutions domain and linear layers model parallel."""
    net = builtin.network("alexnet")
    found = choose(net, 512, 2048, CORI)
    assert (found.pr, found.pc) == (16, 32)
    assert found.cut_by("domain") == ("conv1", "conv2", "conv3", "conv4", "conv5")
    assert found.cut_by("model") == ("fc6", "fc7", "fc8")
    assert found.seconds == pytest.approx(min(every(net, 512, 2048, CORI).values()), rel=1e-12)
    assert found.seconds == pytest.approx(total_s(eq9_integrated(net, 16, 32, 2048, CORI)),
                                          rel=1e-12)
    assert found.seconds < min(total_s(eq8_model_batch(net, pr, 512 // pr, 2048, CORI))
                               for pr in (1, 2, 4, 8, 16, 32))


def test_more_ranks_than_samples() -> None:
    """Batch 64 on 512 ranks: ranks beyond the samples get parts of images."""
    net = alexnet((3, 227, 227), 1000)
    found = choose(net, 512, 64, CORI)
    assert found.pc <= 64 and {"conv1", "conv2"} <= set(found.cut_by("domain"))
    assert found.seconds < min(total_s(eq8_model_batch(net, 512 // pc, pc, 64, CORI))
                               for pc in (1, 2, 4, 8, 16, 32, 64))
