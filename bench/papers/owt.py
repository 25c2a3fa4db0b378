"""Table 1 of One Weird Trick (Krizhevsky, 2014), 90 epochs on 1 to 8 K20: published and priced.

    python bench/papers/owt.py [--bars] [--json FILE] [--plot FILE]

The one-tower AlexNet, 128 images per GPU, preset `k20x8`, whose rate is fitted to the one-GPU row.
Table 1 uses scheme (b). `owt-b` updates the fully connected layers after every pass: batch size
(128 K, 128). For (128 K, 128 K) its K - 1 further updates are taken off. The inputs of a pass
travel beside computing, as section 4 has it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.papers.common import Claim, Panel, Report, Section, main
from bench.papers.equations import owt
from hpcpar.machine import files
from hpcpar.network import builtin
from hpcpar.plan.plan import NetworkSpec, Overlap, make_plan
from hpcpar.plan.strategy import sections
from hpcpar.prediction.prediction import Prediction
from hpcpar.prediction.price import price

MACHINE = files.load("k20x8")
NETWORK = builtin.network("alexnet-owt")
SPEC = NetworkSpec("alexnet-owt", NETWORK.image_shape, NETWORK.classes)
IMAGES, EPOCHS, SAMPLES = 128, 90, 1_280_000
#: Table 1: hours and speedups with batch sizes (128 K, 128 K) and (128 K, 128), by K.
TABLE_1 = {1: (98.05, 1.0, 98.05, 1.0), 2: (50.24, 1.95, 50.90, 1.93),
           4: (26.20, 3.74, 26.78, 3.66), 8: (15.68, 6.25, 15.91, 6.16)}


@cache
def predict(strategy: str, ranks: int, overlap: Overlap = Overlap.FULL) -> Prediction:
    # as in the paper, a GPU sends what it has to each of the others, without a tree
    plan = make_plan(SPEC, strategy, ranks, IMAGES * ranks, overlap=overlap, collectives="mpi",
                     machine=MACHINE)
    return price(NETWORK, plan, MACHINE)


def hours(iteration_s: float, ranks: int) -> float:
    """Hours of 90 epochs."""
    return EPOCHS * SAMPLES / (IMAGES * ranks) * iteration_s / 3600


def variable_s(ranks: int, strategy: str = "owt-b") -> float:
    """Iteration time with batch sizes (128 K, 128)."""
    return predict(strategy, ranks).iteration_s


def fixed_s(ranks: int, strategy: str = "owt-b") -> float:
    """Iteration time with batch sizes (128 K, 128 K): one FC update instead of K."""
    names = {layer.name for layer in sections(NETWORK)[1]}
    updates_s = sum(s.seconds for s in predict(strategy, ranks).steps if s.phase == "update"
                    and not s.is_comm and s.layer in names)
    return variable_s(ranks, strategy) - updates_s * (ranks - 1) / ranks


def claims_of_table_1(ranks: Sequence[int]) -> list[Claim]:
    """Hours and speedups of scheme (b)."""
    out = []
    for k in ranks:
        one = variable_s(1)
        found = (fixed_s(k), variable_s(k))
        for i, (batches, iteration_s) in enumerate(zip((f"({128 * k}, {128 * k})",
                                                        f"({128 * k}, 128)"), found, strict=True)):
            if k == 1 and i:
                continue
            published_h, published_x = TABLE_1[k][2 * i: 2 * i + 2]
            fitted = "not reproduced because the preset is fitted to this row" if k == 1 else ""
            out.append(Claim(f"Table 1, {k} GPU{'s' * (k > 1)} {batches}: 90 epochs", published_h,
                             hours(iteration_s, k), " h", judged=fitted))
            if k > 1:
                out.append(Claim(f"Table 1, {k} GPUs {batches}: speedup", published_x,
                                 k * one / iteration_s, "x"))
    return out


def claims_of_others(ranks: int) -> list[Claim]:
    """The other schemes and data parallelism, which the paper does not measure."""
    one, b = variable_s(1), variable_s(ranks)
    whole = {s: predict(s, ranks).iteration_s for s in ("owt", "owt-c", "data")}
    plain = predict("data", ranks, Overlap.NONE).iteration_s
    compute_s, receive_s = owt.footnote4_fc_sample_s(4096, 4096, 8, 2e12, 6e9)
    return [
        Claim(f"{ranks} GPUs: scheme (a), speedup", None, ranks * one / whole["owt"], "x"),
        Claim(f"{ranks} GPUs: scheme (c), speedup", None, ranks * one / whole["owt-c"], "x",
              f'section 5.1: "should be better" than (b), which has {ranks * one / b:.2f}x'),
        Claim(
            f"{ranks} GPUs: data parallelism, speedup",
            None,
            ranks * one / plain,
            "x",
            f"no overlap, as in 2014; {ranks * one / whole['data']:.2f}x with gradients behind "
            "the backward pass",
        ),
        Claim("Footnote 4: a sample through 4096 x 4096 on 8 GPUs, computing", 2.09,
              1e6 * compute_s, " us", "closed form"),
        Claim("Footnote 4: receiving", 2.73, 1e6 * receive_s, " us", "closed form"),
    ]


def panels(ranks: Sequence[int]) -> list[Panel]:
    """A panel with the hours of each scheme."""
    schemes = {"(a)": "owt", "(b)": "owt-b", "(c)": "owt-c", "data": "data"}
    out = []
    for k in ranks:
        bars = {}
        for title, strategy in schemes.items():
            found = predict(strategy, k)
            bars[title] = {"computing": hours(found.compute_s, k),
                           "exposed communication": hours(found.iteration_s - found.compute_s, k)}
        out.append(Panel("90 epochs", f"{k} GPU{'s' * (k > 1)}", bars, "h"))
    return out


REMARKS = (
    "Ours is a few percent faster on every row. The paper names three losses (section 5.1), of "
    "which ours has the links' and the broadcasts', and not that of small matrices: the preset has "
    "one rate, fitted to the first row.",
    "(m, m) is scheme (b) less its K - 1 further updates of linear layers.",
    "The hybrid of (b) and (c) that section 5.1 and the conclusion name is not built: the paper "
    "does not say which workers send together, and (c) is already its end that uses all of them.",
    "That pure data parallelism with overlap would be fastest here holds for 128 images per GPU; "
    "the paper does not time it.",
)


def report(ranks: Sequence[int] = (1, 2, 4, 8)) -> Report:
    """All claims and panels."""
    sections = [Section("Table 1, scheme (b)", claims_of_table_1(ranks)),
                Section("Other schemes, and footnote 4", claims_of_others(ranks[-1]))]
    return Report("One weird trick (2014)", sections, panels(ranks), REMARKS,
                  "Table 1's times, footnote 4, that (c) is better than (b)",
                  "error rates on ImageNet (on digits: `bench/papers/owt_learning.py`)")


if __name__ == "__main__":
    sys.exit(main(__doc__, report))
