"""Figures 6 to 10 of the integrated paper (Gholami et al., SPAA 2018): published and closed forms.

    python bench/papers/integrated.py [--bars] [--json FILE] [--plot FILE]

AlexNet (two towers) on 1.2 million images, preset `cori-knl` (2 us, 6 GB/s). An epoch is compute
and communication. The paper's compute is a measurement (Fig 4, one KNL, by batch size) that it
prints as a curve only; ours is from the preset's rates, the same for every grid of P ranks and
batch B: forward and backward flops of B / P images, and an update of all weights in each iteration.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.papers.common import Claim, Panel, Report, Section, listed, main
from hpcpar.machine import files
from hpcpar.network import builtin
from hpcpar.network.graph import Network
from hpcpar.network.layers import Conv, Conv2d, Linear
from hpcpar.papers import gholami as eq
from hpcpar.papers.gholami import CostTerm, HockneyLink, total_s
from hpcpar.papers.gholami_choice import choose

SAMPLES = 1_200_000
BATCH = 2048
RANKS = (8, 32, 128, 512)
#: Images per rank in weak scaling, as for P = 512 in strong scaling; the text has no sizes.
WEAK_IMAGES = 4
#: Scaling beyond the batch: B, and numbers of ranks P; P / B ranks share an image.
SMALL_BATCH, MANY_RANKS = 512, (512, 1024, 2048, 4096)
ITEM_BYTES = 4
#: Memory accesses per weight of an update: read weight, velocity and gradient, write weight and
#: velocity.
UPDATE_TRAFFIC = 5

MACHINE = files.load("cori-knl")
LINK = HockneyLink(MACHINE.levels[-1].alpha_s, ITEM_BYTES * MACHINE.levels[-1].beta_s_per_byte)
ALEXNET = builtin.network("alexnet")
ONE_TOWER = Network("alexnet-one-tower",
                    tuple(replace(x, groups=1) if isinstance(x, Conv2d) else x
                          for x in ALEXNET.layers))

#: Terms of an iteration, by network, grid (Pr, Pc) and batch.
Terms = Callable[[Network, int, int, int], list[CostTerm]]
Grid = tuple[int, int]


@dataclass(frozen=True)
class Epoch:
    """Times of an epoch in seconds."""

    compute_s: float
    gradient_s: float
    other_s: float

    @property
    def communication_s(self) -> float:
        return self.gradient_s + self.other_s

    @property
    def total_s(self) -> float:
        return self.compute_s + self.communication_s

    def over(self, ours: Epoch) -> tuple[float, float]:
        """Speedups of `ours` over this: total and communication."""
        return self.total_s / ours.total_s, self.communication_s / ours.communication_s

    def overlapped(self) -> Epoch:
        """Fig 8: seconds with overlap.

        Two thirds of the communication hide behind backpropagation, which is two thirds of the
        compute time.
        """
        hidden_s = min(self.communication_s, self.compute_s) * 2 / 3
        left = 1 - hidden_s / self.communication_s
        return Epoch(self.compute_s, self.gradient_s * left, self.other_s * left)


def compute_s(ranks: int, batch: int) -> float:
    """Compute time of an epoch on `ranks` ranks, in seconds."""
    first = ALEXNET.matmul_layers[0]  # its input gradient is not needed
    flops = 3 * ALEXNET.forward_flops - first.forward_flops(ALEXNET.input_shape(first))
    update_s = (
        UPDATE_TRAFFIC * ITEM_BYTES * ALEXNET.parameters / MACHINE.device.bandwidth_bytes_per_s)
    return SAMPLES / ranks * flops / MACHINE.device.flops_per_s + SAMPLES / batch * update_s


def one_grid(network: Network, pr: int, pc: int, batch: int) -> list[CostTerm]:
    """Fig 6: Eq 8 for all layers, with activations gathered after pooling."""
    return eq.eq8_model_batch(network, pr, pc, batch, LINK, pooled=True)


def one_grid_unpooled(network: Network, pr: int, pc: int, batch: int) -> list[CostTerm]:
    """Eq 8 as printed: d_i is the output of the layer, before pooling."""
    return eq.eq8_model_batch(network, pr, pc, batch, LINK)


def fc_grid(network: Network, pr: int, pc: int, batch: int) -> list[CostTerm]:
    """Fig 7 to 9: Pr = 1 in convolutions, Eq 8 in fully connected layers."""
    return eq.eq8_fc_only(network, pr, pc, batch, LINK)


def domain_and_fc_grid(network: Network, pr: int, pc: int, batch: int) -> list[CostTerm]:
    """Fig 10: images in P / B parts (terms of Eq 9 for L_D), any grid for the other layers."""
    fully_connected = {layer.name for layer in network.matmul_layers if isinstance(layer, Linear)}
    domain = eq.eq9_integrated(network, pr * pc // batch, batch, batch, LINK)
    model = eq.eq8_fc_only(network, pr, pc, batch, LINK)
    return [t for t in domain if t.layer not in fully_connected] + [
        t for t in model if t.layer in fully_connected]


def counted_once(terms: Terms) -> Terms:
    """Eq 8 with activations counted once, instead of an allgather and a double allreduce."""

    def third(network: Network, pr: int, pc: int, batch: int) -> list[CostTerm]:
        return [t if t.phase == "gradient" else replace(
            t, latency_s=t.latency_s / 3, bandwidth_s=t.bandwidth_s / 3)
                for t in terms(network, pr, pc, batch)]

    return third


def epochs(terms: Terms, ranks: int, batch: int, network: Network = ALEXNET) -> dict[Grid, Epoch]:
    """Epoch times on all grids Pr x Pc = P of powers of two with Pc <= B."""
    out = {}
    for pr in (1 << i for i in range(ranks.bit_length())):
        if ranks // pr <= batch:
            found = terms(network, pr, ranks // pr, batch)
            gradient_s = total_s(found, "gradient")
            scale = SAMPLES / batch
            out[pr, ranks // pr] = Epoch(compute_s(ranks, batch), scale * gradient_s,
                                         scale * (total_s(found) - gradient_s))
    return out


def name(grid: Grid) -> str:
    return f"{grid[0]}x{grid[1]}"


def fastest(found: dict[Grid, Epoch]) -> Grid:
    return min(found, key=lambda grid: found[grid].total_s)


def panel(figure: str, title: str, found: dict[Grid, Epoch]) -> Panel:
    """A panel with one bar per grid.

    The fastest bar is marked with its speedups over the first one: pure batch, or the smallest
    possible Pr.
    """
    bars = {
        name(grid): {"compute": e.compute_s, "batch-parallel communication": e.gradient_s,
                     "other communication": e.other_s}
        for grid, e in found.items()
    }
    best = fastest(found)
    total, communication = next(iter(found.values())).over(found[best])
    return Panel(figure, title, bars, "s per epoch",
                 {name(best): f"{total:.1f}x ({communication:.1f}x)"})


def panels() -> list[Panel]:
    """The panels of all five figures."""
    out = []
    for figure, terms in (("Fig 6", one_grid), ("Fig 7", fc_grid)):
        out += [panel(figure, f"P = {p}, B = {BATCH}", epochs(terms, p, BATCH)) for p in RANKS]
    for p in RANKS:
        hidden = {grid: e.overlapped() for grid, e in epochs(fc_grid, p, BATCH).items()}
        out.append(panel("Fig 8", f"P = {p}, B = {BATCH}, overlap", hidden))
    out += [panel("Fig 9", f"P = {p}, B = {WEAK_IMAGES * p}", epochs(one_grid, p, WEAK_IMAGES * p))
            for p in RANKS]
    for p in MANY_RANKS:
        parts = f"{p // SMALL_BATCH} part{'s' if p > SMALL_BATCH else ''} per image"
        title = f"P = {p}, B = {SMALL_BATCH}, {parts}"
        out.append(panel("Fig 10", title, epochs(domain_and_fc_grid, p, SMALL_BATCH)))
    return out


def _speedups(terms: Terms, grid: Grid | None = None,
              network: Network = ALEXNET) -> tuple[Grid, float, float]:
    """The given or fastest grid of P = 512, and its speedups over pure batch."""
    found = epochs(terms, 512, BATCH, network)
    grid = fastest(found) if grid is None else grid
    return grid, *found[1, 512].over(found[grid])


def claims_of_fig_6() -> list[Claim]:
    """Fig 6: P = 512, B = 2048, one grid for all layers."""
    best, total, communication = _speedups(one_grid)
    _, named_total, named = _speedups(one_grid, (16, 32))
    _, _, once = _speedups(counted_once(one_grid), (16, 32))
    unpooled, _, before_pooling = _speedups(one_grid_unpooled)
    tower, _, one_tower = _speedups(one_grid, network=ONE_TOWER)
    return [
        Claim("best grid", "16x32", name(best), note="Eq 8 as printed prefers a smaller Pr"),
        Claim("communication, best grid", 5.0, communication, "x"),
        Claim("total, best grid", 2.1, total, "x"),
        Claim("communication, 16x32", 5.0, named, "x"),
        Claim("total, 16x32", 2.1, named_total, "x"),
        Claim("... 16x32, activations counted once", 5.0, once, "x",
              "not Eq 8: an allgather and an allreduce are three times as much"),
        Claim(f"... best ({name(unpooled)}), outputs before pooling", 5.0, before_pooling, "x",
              "Eq 8 to the letter"),
        Claim(f"... best ({name(tower)}), one tower", 5.0, one_tower, "x"),
        Claim("P = 8: best grid", "no gain", name(fastest(epochs(one_grid, 8, BATCH))),
              note="1x8 is pure batch", judged="reproduced"),
    ]


def claims_of_fig_7_and_8() -> list[Claim]:
    """Fig 7 and 8: P = 512, B = 2048, Pr = 1 in convolutions."""
    best, total, communication = _speedups(fc_grid)
    tower, _, one_tower = _speedups(fc_grid, network=ONE_TOWER)
    _, _, once = _speedups(counted_once(fc_grid), (16, 32))
    once_best, _, most_once = _speedups(counted_once(fc_grid))
    found = epochs(fc_grid, 512, BATCH)
    data = found[1, 512]
    hidden = {grid: e.overlapped() for grid, e in found.items()}
    overlap = hidden[1, 512].total_s / hidden[fastest(hidden)].total_s
    most = max(data.compute_s, data.communication_s) / min(max(e.compute_s, e.communication_s)
                                                           for e in found.values())
    best_once = f"as the 5.0x above; the best would be {most_once:.1f}x at {name(once_best)}"
    return [
        Claim(f"Fig 7: communication, best grid ({name(best)})", 9.7, communication, "x"),
        Claim("Fig 7: total", 2.5, total, "x"),
        Claim("... 16x32, activations counted once", 9.7, once, "x", best_once),
        Claim(f"... best ({name(tower)}), one tower", 9.7, one_tower, "x"),
        Claim("Fig 8: total with overlap", 2.0, overlap, "x",
              "two thirds hidden, as far as backpropagation lasts"),
        Claim("... everything hidden that computing covers", 2.0, most, "x",
              "max(compute, communication)"),
    ]


def claims_of_batches() -> list[Claim]:
    """Compute time by batch (Fig 4), Eq 4's epoch by batch, and Eq 5's limit."""
    alone = {b: compute_s(1, b) for b in (1 << i for i in range(12))}
    pure = {b: epochs(one_grid, 512, b)[1, 512].total_s for b in (512 << i for i in range(5))}
    conv = next(x for x in ALEXNET.matmul_layers
                if isinstance(x, Conv) and ALEXNET.input_shape(x) == (384, 13, 13))
    ratios = {b: eq.eq5_volume_ratio(ALEXNET, conv, b) for b in range(1, 65)}
    return [
        Claim("Fig 4, one KNL: batch of the fastest epoch, 1 to 2,048", 256,
              min(alone, key=lambda b: alone[b]),
              note="the paper measures, and `hpcpar calibrate` would",
              because="ours has one rate at any batch, and fewer updates the larger it is: nothing "
              "turns the curve"),
        Claim("Fig 4, one KNL: epoch at 4 images per rank", 12_400, 512 * compute_s(512, BATCH),
              " s", "not printed: implied by 2.1x, 2.5x and their communication (12,200 to 12,600)",
              judged="not reproduced because the preset is fitted to it"),
        Claim("Eq 4, P = 512: batch of the fastest epoch, 512 to 8,192", None,
              min(pure, key=lambda b: pure[b]),
              note=f"s per epoch: {listed({str(b): v for b, v in pure.items()})}; what Eq 4 sends "
              "does not depend on B, so the largest B is the fastest: accuracy limits it"),
        Claim("Eq 5, 3x3 on 13x13x384: largest batch for which model parallelism moves less", 12,
              max(b for b, ratio in ratios.items() if ratio > 1),
              note=f"Eq 5 is {listed({f'B = {b}:': ratios[b] for b in (12, 13, 14)}, '.4g')}; its "
              "limit, 13.63, rounded down is 13", judged="not understood"),
    ]


def claims_of_fig_9_and_10() -> list[Claim]:
    """Fig 9 and 10, without published numbers."""
    out = []
    for p in RANKS[1:]:
        each = {}
        for title, terms in (("one grid", one_grid), ("grid for FC layers", fc_grid)):
            found = epochs(terms, p, WEAK_IMAGES * p)
            best = fastest(found)
            total, communication = found[1, p].over(found[best])
            each[title] = f"{total:.2f}x ({communication:.2f}x) at {name(best)}"
        out.append(Claim(f"Fig 9, P = {p}, B = {WEAK_IMAGES * p}: total (communication)", None,
                         each.pop("one grid"), also=each))
    beyond = {p: epochs(domain_and_fc_grid, p, SMALL_BATCH) for p in MANY_RANKS}
    least = {p: found[fastest(found)].total_s for p, found in beyond.items()}
    for p in MANY_RANKS[1:]:
        out.append(Claim(f"Fig 10, P = {p}: over the best of P = {SMALL_BATCH}", None,
                         least[SMALL_BATCH] / least[p], "x", strategy(p, fastest(beyond[p]))))
    return out


def claims_of_the_choice() -> list[Claim]:
    """Eq 9 with the cheaper of model and domain parallelism for every layer."""
    out = []
    for p, batch in ((512, BATCH), (4096, SMALL_BATCH)):
        found = choose(ALEXNET, p, batch, LINK)
        terms = {"pure batch": total_s(eq.eq4_batch(ALEXNET, p, LINK)),
                 "pure model": total_s(eq.eq3_model(ALEXNET, p, batch, LINK))}
        over = {title: s / found.seconds for title, s in terms.items()
                if p <= batch or title == "pure model"}
        out.append(Claim(f"P = {p}, B = {batch}: grid of least communication", None,
                         f"{found.pr}x{found.pc}",
                         note="; ".join(f"{cut}: {', '.join(found.cut_by(cut))}" for cut in
                                        ("domain", "model"))
                         + f"; less than {listed(over, '.3g', 'x')}"))
    return out


REMARKS = (
    "**5.0x is not reproduced.** No reading of Eq 8 that we tried gives it at 16x32 (Fig 6) "
    "together with Fig 7's 9.7x. Both come near where activations are counted once; Eq 8 has an "
    "allgather forward and an allreduce backward, three times as much.",
    "Totals rest on a fitted compute time: they are consistent with the paper rather than a "
    "reproduction of it.",
    "Fig 9's caption says one grid for all layers, its text the choice of Fig 7: both are here. "
    "Its batch sizes (4 P) are ours, as are pooled activations.",
    "Fig 10 cuts images in P / B parts and gives the fully connected layers a grid of their own: "
    "the strategy in the note.",
    "Behind a panel's fastest grid: its speedup (that of communication) over the first grid, pure "
    "batch or, in Fig 10, the least Pr.",
)


def strategy(ranks: int, grid: Grid) -> str:
    """The strategy of Figure 10 on this grid for the fully connected layers."""
    return f"`domain:{ranks // SMALL_BATCH}x{SMALL_BATCH}+{name(grid)}`"


def report() -> Report:
    """All claims and panels."""
    sections = [
        Section("Batch sizes: Fig 4, Eq 4 and Eq 5", claims_of_batches()),
        Section(f"Fig 6, one grid for all layers, speedups over pure batch on P = 512, B = {BATCH}",
                claims_of_fig_6(), "closed form"),
        Section("Fig 7 and 8, grid for fully connected layers only", claims_of_fig_7_and_8(),
                "closed form"),
        Section("Fig 9 and 10, which print no number", claims_of_fig_9_and_10(), "one grid"),
        Section("Eq 9, model or domain parallelism by layer (`--strategy integrated`)",
                claims_of_the_choice(), "choice"),
    ]
    return Report("Integrated model, batch and domain parallelism (SPAA 2018)", sections, panels(),
                  REMARKS, "Fig 7 and 8, from Eq 8 as printed, within 11%",
                  "Fig 6's 5.0x at 16 x 32: no reading of Eq 8 gives it; Fig 4's turn at 256; Eq "
                  "5's limit is 13, printed is 12")


if __name__ == "__main__":
    sys.exit(main(__doc__, report))
