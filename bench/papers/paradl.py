"""ParaDL (Kahira et al., HPDC 2021), Table 3 and section 5: published, closed forms and priced.

    python bench/papers/paradl.py [--bars] [--json FILE] [--plot FILE]

ResNet-50, ResNet-152, VGG-16 (224 x 224) and CosmoFlow (4 x 256^3) on up to 1024 V100 (preset
``abci-v100``); ``paradl_settings.py`` has the settings. FW, BW and WU come from one GPU's priced
schedule, where the paper has measurements. Its figures are drawings: the numbers are the text's.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.papers.common import Claim, Panel, Report, main
from bench.papers.paradl_settings import (
    IMAGENET,
    ITEM_BYTES,
    MACHINE,
    MODELS,
    NODE,
    PHI,
    SEGMENTS,
    STRONG_BATCH,
    Model,
    batch_of,
    formula_ms,
    link,
    network,
    schedule,
    schedule_ms,
    table3,
)
from hpcpar.cost.price_plan import price
from hpcpar.machine import files
from hpcpar.machine.model import Level, Machine
from hpcpar.papers import paradl
from hpcpar.papers.gholami import HockneyLink
from hpcpar.papers.paradl_values import Table3Layer, TrainingRun
from hpcpar.plan.plan import NetworkSpec, make_plan

SCALES = (16, 64, 256, 1024)
STRONG_SCALES = (("filter", (4, 16, 64)), ("channel", (4, 16, 64)), ("pipeline", (2, 4)))
#: Section 5.2, percent.
ACCURACY = {
    "data": 96.10,
    "filter": 85.56,
    "channel": 73.67,
    "df": 91.43,
    "ds": 83.46,
    "pipeline": 90.22,
    "all": 86.74,
    "best (VGG-16, data)": 97.57,
    "CosmoFlow": 74.14,
}


def claims_of_the_public_tool() -> list[Claim]:
    """Communication of an epoch, data parallelism on 16 GPUs: closed forms, and VGG-16's schedule
    on a flat machine.
    """
    out = []
    for title, weights, images, alpha_s, published_s in (
        ("VGG-16, 32 a GPU, 30.31 us", 169_801_408, 32, 30.31e-6, 256.98),
        ("ResNet-50, 64 a GPU, 30.31 us", 22_734_016, 64, 30.31e-6, 18.19),
        ("ResNet-50, 64 a GPU, 40.31 us", 22_734_016, 64, 40.31e-6, 18.56),
    ):
        row = paradl.table3_data([Table3Layer("all", w=weights)],
                                 TrainingRun(IMAGENET, 16 * images), 16,
                                 HockneyLink(alpha_s, ITEM_BYTES * 8e-11))
        out.append(Claim(f"Public tool, {title}", published_s, row.communication_s, " s",
                         "closed form, the tool's number of weights"))
    flat = Machine("flat", MACHINE.device, (Level("flat", 0, 30.31e-6, 8e-11),))
    # leaves 8 x 8 x 512 in front of fc6, as pooling 226 x 226 rounding up does
    spec = NetworkSpec("vgg16", (3, 256, 256), 1000)
    plan = make_plan(spec, "data", 16, 512, overlap="none", collectives="ring",
                     machine=files.to_dict(flat))
    found_s = price(spec.build(), plan, flat).phases["gradient"]["communication_s"] * IMAGENET / 512
    latency_s = 15 * 30 * 30.31e-6 * IMAGENET / 512
    note = f"16 allreduces, one a layer, in place of one: {latency_s:.0f} s more latency"
    return [*out, Claim("... VGG-16 of 169.8 M weights, priced schedule", 256.98, found_s, " s",
                        note)]


def claims_of_models(models: Sequence[Model]) -> list[Claim]:
    """Table 5, and single GPUs."""
    notes = {
        "vgg16": "with 8 x 8 x 512 in front of fc6 (pooling that rounds up) 169.8 M",
        "cosmoflow": "20 layers, which is not said",
    }
    out = []
    for m in models:
        ours = network(m).parameters / 1e6
        out.append(Claim(f"Table 5, {m.title}: parameters", m.parameters / 1e6, ours, " M",
                         notes.get(m.name, "")))
    for m in models:
        if m.name in ("resnet50", "vgg16"):
            limit = float(table3(m, "filter", NODE).limit)
            out.append(Claim(f"Section 5.3.4, {m.title}: most GPUs of filter parallelism", 64.0,
                             limit))
        if m.name == "resnet50":
            hours = 90 * IMAGENET / 64 * schedule(m, "data", 1, 64).iteration_s / 3600
            out.append(
                Claim(
                    "Section 3, ResNet-50 on one V100",
                    29.0,
                    hours,
                    " h",
                    "90 epochs assumed, float32; 29 h are 1,100 images/s, which takes mixed "
                    "precision",
                )
            )
    return out


def claims_of_update(model: Model) -> list[Claim]:
    """Section 5.3.3, VGG-16."""

    def percent(images: int) -> float:
        one = schedule(model, "data", 1, images)
        return 100 * one.phases["update"]["compute_s"] / one.compute_s

    note = ("ours is one pass at full memory bandwidth, not a kernel for each operation; "
            f"{percent(4):.1f}% with 4 images")
    return [Claim("Section 5.3.3, VGG-16, 32 images: weight update, of computing", 15.0,
                  percent(32), "%", note)]


def claims_of_cosmoflow(model: Model) -> list[Claim]:
    """Sections 5.1, 5.3.2, and Fig 5: 4 x 512^3."""
    large = replace(model, shape=(4, 512, 512, 512))
    first = ITEM_BYTES * math.prod(network(large).shapes["conv1"]) / 1e9
    alone, split, small = (schedule(large, "data", 1, 1), schedule(large, "ds", NODE, 1),
                           schedule(model, "data", 1, 1))
    times_s = [table3(large, "ds", p).epoch_s for p in (16, 1024)]
    room = f"{MACHINE.device.memory_bytes / 1e9:.0f} GB"
    return [
        Claim("Section 5.3.2, CosmoFlow, 4 x 512^3: output of conv1", 10.0, first, " GB",
              "with its input 10.7 GB"),
        Claim("... a sample on one GPU", f"> {room}", alone.memory_bytes / 1e9, " GB",
              "without reuse (gamma = 1)"),
        Claim("... a sample on a node's 4 (ds)", f"< {room}", split.memory_bytes / 1e9, " GB"),
        Claim("... at 4 x 256^3: a sample on one GPU", None, small.memory_bytes / 1e9, " GB",
              "Table 5 has 256^3; section 5.1 runs 512^3"),
        Claim("Fig 5, CosmoFlow, 4 x 512^3, ds: 1024 GPUs over 16", 64.0, times_s[0] / times_s[1],
              "x", "'perfect' in the text; Table 3"),
    ]


def claims_of_exchanges(models: Sequence[Model]) -> list[Claim]:
    """Section 5.3.1."""
    out = [Claim("Section 5.2, df: contention of its allreduces", 2.0, PHI, "x",
                 "4 on a node's 2 adapters")]
    for m in models:
        if m.images < 1:
            continue
        data, ds = table3(m, "data", 128), table3(m, "ds", 128)
        if m.name == "resnet50":
            plan = schedule(m, "ds", 128, batch_of(m, "ds", 128))
            halos_ms = 1e3 * sum(s.seconds for s in plan.steps if s.label.endswith(".halo"))
            note = f"Table 3, NVLink; the paper's halos go through MPI. Schedule: {halos_ms:.1f} ms"
            percent = 100 * ds.halo_s / data.gradient_s
            out.append(Claim(f"Section 5.3.1, {m.title}, 128 GPUs: ds' halos, of data's allreduce",
                             60.0, percent, "%", note))
        alike = table3(m, "ds", 128, inner=link(128)).gradient_s / data.gradient_s
        ratio = ds.gradient_s / data.gradient_s
        out.append(
            Claim(f"Section 5.3.1, {m.title}, 128 GPUs: ds with leaders over data's allreduce",
                  "> 2x", ratio, "x",
                  f"Table 3; {alike:.2f}x if links in a node were those between nodes")
        )
        filters, same = table3(m, "filter", 64), table3(m, "data", 64, STRONG_BATCH)
        out.append(
            Claim(
                f"Section 5.3.1, {m.title}, 64 GPUs, {STRONG_BATCH} samples: communication, filter "
                "over data",
                "> 1x",
                filters.communication_s / same.communication_s,
                "x",
                "Table 3",
            )
        )
    return out


def claims_of_ranking(models: Sequence[Model]) -> list[Claim]:
    """Fig 3 and section 5.4.1: time of a sample; Table 3 (published) and the schedule (ours)."""
    out = []
    for m in models:
        if m.images < 1:
            continue
        for p in (SCALES[0], SCALES[-1]):
            formula = {s: sum(formula_ms(m, s, p).values()) / batch_of(m, s, p) for s in m.weak}
            priced = {s: sum(schedule_ms(m, s, p).values()) / batch_of(m, s, p) for s in m.weak}
            orders = [" < ".join(sorted(times, key=times.__getitem__))
                      for times in (formula, priced)]
            behind = [times["df"] / times["data"] for times in (formula, priced)]
            note = (f"df takes {behind[0]:.1f} times as long as data by Table 3, "
                    f"{behind[1]:.1f} by the schedule")
            out.append(Claim(f"Time of a sample, {m.title}, {p} GPUs", orders[0], orders[1],
                             note=note))
        ratio = table3(m, "data", NODE, STRONG_BATCH).epoch_s / table3(m, "pipeline", NODE).epoch_s
        note = ("Table 3; in the text faster in some scenarios. "
                f"{STRONG_BATCH} samples, {SEGMENTS} micro-batches")
        out.append(Claim(f"Section 5.4.1, {m.title}, 4 GPUs: pipeline over data", None, ratio, "x",
                         note))
    return out


def claims_of_table_3(models: Sequence[Model], ranks: int) -> list[Claim]:
    """Table 3's communication of an iteration (published), and the schedule's (ours)."""
    out = []
    for m in models:
        for s in m.weak:
            formula, priced = formula_ms(m, s, ranks), schedule_ms(m, s, ranks)
            for part in ("gradients", *{"ds": ("halos",), "df": ("layer-wise",)}.get(s, ())):
                out.append(Claim(f"Table 3, {m.title}, {s}, {ranks} GPUs: {part}", formula[part],
                                 priced[part], " ms"))
    return out


def claims_of_accuracy() -> list[Claim]:
    """Section 5.2: accuracy, for reference."""
    note = "projected against measured there; ours needs measurements on such a machine"
    return [Claim(f"Section 5.2, accuracy: {what}", value, None, "%",
                  note if what == "data" else "") for what, value in ACCURACY.items()]


def panels(models: Sequence[Model], scales: Sequence[int]) -> list[Panel]:
    """Iteration time by Table 3 and by the schedule, in weak and strong scaling (from 4 GPUs)."""
    out = []
    for figure, terms_ms in (("Table 3", formula_ms), ("schedule", schedule_ms)):
        for m in models:
            out.append(Panel(figure, m.title,
                             {f"{s} {p}": terms_ms(m, s, p) for p in scales for s in m.weak}, "ms"))
    for figure, terms_ms in (("Table 3, strong", formula_ms), ("schedule, strong", schedule_ms)):
        for m in models:
            if m.images >= 1:
                bars = {f"{s} {p}": terms_ms(m, s, p) for s, counts in STRONG_SCALES
                        for p in counts}
                out.append(Panel(figure, f"{m.title}, {STRONG_BATCH} samples", bars, "ms"))
    return out


REMARKS = (
    "Rows of Table 3 and of the time of a sample: published is the paper's formula with our FW, "
    "BW, WU and the preset's links, ours the",
    "schedule. Formulas send all gradients at once around one ring; the schedule sends every "
    "layer's by itself, by the cheaper of ring and",
    "recursive doubling. Not reproduced: df faster than data at large scale. Its collectives of "
    "activations cost more in every case here.",
)


def report(models: Sequence[Model] = MODELS, scales: Sequence[int] = SCALES) -> Report:
    """All claims and panels."""
    claims = claims_of_the_public_tool() + claims_of_models(models)
    for m in models:
        claims += claims_of_update(m) if m.name == "vgg16" else claims_of_cosmoflow(
            m) if m.name == "cosmoflow" else []
    claims += (
        claims_of_exchanges(models)
        + claims_of_ranking(models)
        + claims_of_table_3(models, 64)
        + claims_of_accuracy()
    )
    return Report("ParaDL (HPDC 2021): strategies on 4 to 1024 V100 of ABCI", claims,
                  panels(models, scales), REMARKS)


if __name__ == "__main__":
    sys.exit(main(__doc__, report))
