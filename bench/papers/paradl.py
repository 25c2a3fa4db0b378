"""ParaDL (Kahira et al., HPDC 2021), Table 3 and section 5: published, closed forms and priced.

    python bench/papers/paradl.py [--bars] [--json FILE] [--plot FILE]

ResNet-50, ResNet-152, VGG-16 (224 x 224) and CosmoFlow (4 x 256^3) on up to 1024 V100 (preset
`abci-v100`). FW, BW and WU of Table 3 come from one GPU's priced schedule, where the paper has
measurements; one GPU's 29 hours and the update's share come from the V100's data sheet and the
model of kernels, where a number format matters. Tables that compare Table 3 with the schedule have
no published figure, and no verdict. The paper's figures are drawings: published numbers are the
text's. Assumed: images per GPU (64 for
ResNet-50, 32 else; a node as many for df), 32 samples for filter, channel and pipeline, d_f and d_s
in a node of 4, no overlap, local batch normalization.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.papers.common import Claim, Panel, Report, Section, Value, listed, main
from bench.papers.equations import paradl
from bench.papers.equations.paradl_values import Table3Layer, TrainingRun
from bench.papers.paradl_settings import (
    ACCURACY,
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
    by_default,
    formula_ms,
    link,
    network,
    one_v100,
    schedule,
    schedule_ms,
    table3,
)
from hpcpar.machine.model import Level, Machine
from hpcpar.papers.gholami import HockneyLink
from hpcpar.plan.plan import NetworkSpec, Overlap, make_plan
from hpcpar.prediction.price import price

#: Share of a level that other jobs take in Fig 6: four times as long for large messages.
LOAD = 0.75
SCALES = (16, 64, 256, 1024)
#: Heading of the paper's formula with our values, which is not published.
FORMULA = "Table 3"
STRONG_SCALES = (("filter", (4, 16, 64)), ("channel", (4, 16, 64)), ("pipeline", (2, 4)))


def claims_of_the_public_tool() -> list[Claim]:
    """Communication of an epoch, data parallelism on 16 GPUs: closed forms, and VGG-16's schedule
    on a flat machine.
    """
    flat = Machine("flat", MACHINE.device, (Level("flat", 0, 30.31e-6, 8e-11),))
    # leaves 8 x 8 x 512 in front of fc6, as pooling 226 x 226 rounding up does
    spec = NetworkSpec("vgg16", (3, 256, 256), 1000)
    plan = make_plan(spec, "data", 16, 512, overlap=Overlap.NONE, collectives="ring",
                     machine=flat)
    found_s = price(spec.build(), plan, flat).phases["gradient"]["communication_s"] * IMAGENET / 512
    latency_s = 15 * 30 * 30.31e-6 * IMAGENET / 512
    out = []
    for title, weights, images, alpha_s, published_s in (
        ("VGG-16, 32 per GPU, 30.31 us", 169_801_408, 32, 30.31e-6, 256.98),
        ("ResNet-50, 64 per GPU, 30.31 us", 22_734_016, 64, 30.31e-6, 18.19),
        ("ResNet-50, 64 per GPU, 40.31 us", 22_734_016, 64, 40.31e-6, 18.56),
    ):
        row = paradl.table3_data([Table3Layer("all", w=weights)],
                                 TrainingRun(IMAGENET, 16 * images), 16,
                                 HockneyLink(alpha_s, ITEM_BYTES * 8e-11))
        vgg = title.startswith("VGG")
        out.append(Claim(title, published_s, row.communication_s, " s", "the tool's number of "
                         "weights" + ("; the schedule has 16 allreduces, one per layer, in place "
                                      f"of one: {latency_s:.0f} s more latency" if vgg else ""),
                         {"priced schedule": found_s} if vgg else {}))
    return out


def claims_of_models(models: Sequence[Model]) -> list[Claim]:
    """Table 5, and single GPUs."""
    notes = {
        "vgg16": "with 8 x 8 x 512 in front of fc6 (pooling that rounds up) 169.8 M",
        "cosmoflow": "20 layers",
    }
    out = []
    for m in models:
        ours = network(m).parameters / 1e6
        out.append(Claim(f"Table 5, {m.title}: parameters", m.parameters / 1e6, ours, " M",
                         notes.get(m.name, ""), because="its layers are not said"))
    for m in models:
        if m.name in ("resnet50", "vgg16"):
            limit = float(table3(m, "filter", NODE).limit)
            out.append(Claim(f"5.3.4, {m.title}: most GPUs of filter parallelism", 64.0,
                             limit))
        if m.name == "resnet50":
            out.append(claim_of_hours(m))
    return out


def claim_of_hours(model: Model) -> Claim:
    """Section 3: ResNet-50 on one V100."""
    hours = 90 * IMAGENET / 64 / 3600
    mixed, single = (one_v100(model, 64, precision) for precision in ("amp", "fp32"))
    low, high = (hours * s for s in mixed.interval_s)
    return Claim("3, ResNet-50 on one V100", 29.0, hours * mixed.iteration_s, " h",
                 "90 epochs assumed, which take 1,100 images/s; mixed precision",
                 {"float32": hours * single.iteration_s},
                 because=f"neither epochs nor number format are said; 29 h lie within ours' 90% "
                 f"interval, {low:.0f} to {high:.0f} h")


def claims_of_update(model: Model) -> list[Claim]:
    """5.3.3, VGG-16."""

    def percent(images: int, precision: str) -> float:
        one = one_v100(model, images, precision)
        return 100 * one.phases["update"]["compute_s"] / one.compute_s

    few = f"with 4 images {percent(4, 'fp32'):.1f}%, in amp {percent(4, 'amp'):.1f}%"
    return [Claim("5.3.3, VGG-16, 32 images: weight update, of computing", "up to 15%",
                  percent(32, "fp32"), "%", few,
                  {"amp": percent(32, "amp")},
                  because="PyTorch's update is several kernels, ours one pass over the weights; "
                  "the images are not said")]


def claims_of_cosmoflow(model: Model) -> list[Claim]:
    """Sections 5.1, 5.3.2, and Fig 5: 4 x 512^3."""
    large = replace(model, shape=(4, 512, 512, 512))
    first = ITEM_BYTES * math.prod(network(large).shapes["conv1"]) / 1e9
    alone, split, small = (schedule(large, "data", 1, 1), schedule(large, "ds", NODE, 1),
                           schedule(model, "data", 1, 1))
    times_s = [table3(large, "ds", p).epoch_s for p in (16, 1024)]
    few, many = (formula_ms(large, "ds", p) for p in (16, 1024))
    note = (f"'perfect' in the text, on a logarithmic axis. By Table 3, an iteration takes "
            f"{sum(few.values()):.0f} ms on 16 GPUs and {sum(many.values()):.0f} on 1024: the "
            f"allreduce takes {few['gradients']:.1f} and {many['gradients']:.1f}")
    room = f"{MACHINE.device.memory_bytes / 1e9:.0f} GB"
    return [
        Claim("5.3.2, CosmoFlow, 4 x 512^3: output of conv1", "> 10 GB", first, " GB",
              because="the output alone is less; with the input, it is 10.7 GB"),
        Claim("... a sample on one GPU", f"> {room}", alone.memory_bytes / 1e9, " GB",
              "without reuse (gamma = 1)"),
        Claim("... a sample on a node's 4 (ds)", f"< {room}", split.memory_bytes / 1e9, " GB"),
        Claim("... at 4 x 256^3: a sample on one GPU", None, small.memory_bytes / 1e9, " GB",
              "Table 5 has 256^3; section 5.1 runs 512^3"),
        Claim("Fig 5, CosmoFlow, 4 x 512^3, ds: 1024 GPUs over 16", 64.0, times_s[0] / times_s[1],
              "x", note),
    ]


def claims_of_exchanges(models: Sequence[Model]) -> list[Claim]:
    """5.3.1."""
    out = [Claim("5.2, df: contention of its allreduces", 2.0, PHI, "x",
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
            out.append(Claim(f"5.3.1, {m.title}, 128 GPUs: ds' halos, of data's allreduce",
                             60.0, percent, "%", note))
        alike = table3(m, "ds", 128, inner=link(128)).gradient_s / data.gradient_s
        ratio = ds.gradient_s / data.gradient_s
        out.append(
            Claim(f"5.3.1, {m.title}, 128 GPUs: ds with leaders over data's allreduce",
                  "> 2x", ratio, "x",
                  f"Table 3; {alike:.2f}x if links in a node were those between nodes")
        )
        filters, same = table3(m, "filter", 64), table3(m, "data", 64, STRONG_BATCH)
        out.append(
            Claim(
                f"5.3.1, {m.title}, 64 GPUs, {STRONG_BATCH} samples: communication, filter "
                "over data",
                "> 1x",
                filters.communication_s / same.communication_s,
                "x",
                "Table 3",
            )
        )
    return out


def sample_us(model: Model, strategy: str, ranks: int, batch: int | None = None
              ) -> dict[str, float]:
    """Time of a sample by Table 3, by the schedule, and with default options."""
    size = batch or batch_of(model, strategy, ranks)
    iteration_s = {
        "Table 3": table3(model, strategy, ranks, size).epoch_s * size / model.samples,
        "schedule": schedule(model, strategy, ranks, size).iteration_s,
        "default options": by_default(model, strategy, ranks, size).iteration_s,
    }
    return {way: 1e6 * s / size for way, s in iteration_s.items()}


def claims_of_ranking(models: Sequence[Model]) -> list[Claim]:
    """Fig 3 and section 5.4.1: time of a sample."""
    out = []
    for m in models:
        if m.images < 1:
            continue
        for p in (SCALES[0], *[32] * (m.name == "vgg16"), SCALES[-1]):
            found = {s: sample_us(m, s, p) for s in m.weak}
            also: dict[str, Value] = {
                way: " < ".join(sorted(m.weak, key=lambda s: found[s][way]))
                for way in found["data"]}
            out.append(Claim(f"{m.title}, {p} GPUs: order", also.pop("Table 3"),
                             also.pop("schedule"), also=also))
    return out


def claims_of_pipelines(models: Sequence[Model]) -> list[Claim]:
    """Section 5.4.1, "scenarios where pipeline outperforms data parallelism"."""
    out = []
    for m in models:
        if m.images < 1:
            continue
        ratio = table3(m, "data", NODE, STRONG_BATCH).epoch_s / table3(m, "pipeline", NODE).epoch_s
        note = f"Table 3. {STRONG_BATCH} samples, {SEGMENTS} micro-batches"
        out.append(Claim(f"5.4.1, {m.title}, 4 GPUs: pipeline over data", "> 1x in some scenarios",
                         ratio, "x", note, because="the scenarios are not said"))
    return out


def claims_of_df(models: Sequence[Model]) -> list[Claim]:
    """Section 5.4.1, "data+filter can outperform data parallelism at large scale"."""
    out = []
    for m in models:
        if m.images < 1:
            continue
        for images in (int(m.images), 8, 2):
            df, data = (sample_us(m, s, SCALES[-1], images * SCALES[-1]) for s in ("df", "data"))
            also: dict[str, Value] = {way: df[way] / data[way] for way in data}
            out.append(Claim(f"{m.title}, {images} images per GPU", also.pop("Table 3"),
                             also.pop("schedule"), "x", also=also))
    return out


def claims_of_table_3(models: Sequence[Model], ranks: int) -> list[Claim]:
    """Table 3's communication of an iteration, and the schedule's."""
    out = []
    for m in models:
        for s in m.weak:
            ways = {"Table 3": formula_ms(m, s, ranks), "schedule": schedule_ms(m, s, ranks),
                    "default options": schedule_ms(m, s, ranks, by_default)}
            parts = ("gradients", *{"ds": ("halos",), "df": ("layer-wise",)}.get(s, ()))
            exposed = by_default(m, s, ranks, batch_of(m, s, ranks)).exposed_communication_s
            for part in parts:
                note = f"{1e3 * exposed:.1f} ms of all exposed" if part == "gradients" else ""
                out.append(Claim(f"{m.title}, {s}: {part}", ways["Table 3"][part],
                                 ways["schedule"][part], " ms", note,
                                 {"default options": ways["default options"][part]}))
    return out


def claims_of_limits(models: Sequence[Model]) -> list[Claim]:
    """Section 4.3's tree, and Figures 6 and 8."""
    out = []
    here = link(64)
    sizes = [1 << i for i in range(28)]
    tree_s = {n: min(paradl.tree_allreduce_s(64, n / ITEM_BYTES, here, 1 << k) for k in range(12))
              for n in sizes}
    out.append(Claim("4.3, footnote: largest allreduce faster by tree than by ring, 64 GPUs",
                     None, max(n for n in sizes if tree_s[n] < paradl.ring_allreduce_s(
                         64, n / ITEM_BYTES, here)) / 2**20, " MiB",
                     "closed forms, powers of two; small messages run in log2 P rounds here"))
    by = {m.name: m for m in models}
    for model, strategy, ranks, phase, level in (
        ("resnet50", "data", 512, "gradient", "system"), ("vgg16", "filter", 64, "forward", "rack"),
    ):
        if model in by:
            m = by[model]
            free = schedule(m, strategy, ranks, batch_of(m, strategy, ranks))
            full = schedule(m, strategy, ranks, batch_of(m, strategy, ranks), ((level, LOAD),))
            free_s, full_s = (p.phases[phase]["communication_s"] for p in (free, full))
            out.append(Claim(f"Fig 6, {m.title}, {strategy}, {ranks} GPUs: communication under "
                             "others' load", "up to 4x", full_s / free_s,
                             "x", f"`--load {level}={LOAD}`",
                             because="load is given, not predicted, here for level "
                             f"{level} alone"))
    if "resnet50" in by:
        m = by["resnet50"]
        alone = schedule(m, "data", 1, STRONG_BATCH).compute_s
        less = {p: alone / schedule(m, "filter", p, STRONG_BATCH).compute_s for p in (4, 16, 64)}
        out.append(Claim(f"Fig 8, {m.title}, filter: computing on p GPUs",
                         "not 1 / p of one GPU's",
                         listed({f"1 / {x:.2g} on": float(p) for p, x in less.items()}),
                         note="layers between products, on whole channels, do not shrink, nor does "
                         "a kernel's launch; the paper's text has no number",
                         judged="reproduced" if all(x < p for p, x in less.items()) else ""))
    return out


def claims_of_accuracy() -> list[Claim]:
    """5.2: accuracy, for reference."""
    return [Claim(f"5.2, accuracy: {what}", value, None, "%",
                  because="it needs measurements on such a machine")
            for what, value in ACCURACY.items()]


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


def remarks(df: Sequence[Claim]) -> list[str]:
    """Why formulas and schedules differ."""
    scale = SCALES[-1]
    ahead = {way: [c.what for c in df if figure(c) < 1] for way, figure in (
        (FORMULA, lambda c: c.published), ("the schedule", lambda c: c.ours),
        ("default options", lambda c: c.also["default options"]))}
    told = "; ".join(f"by {way} {', '.join(cases) or 'nowhere'}" for way, cases in ahead.items())
    return [
        "**Gradients differ** because the formula sends all weights around one ring at once, the "
        "schedule with the paper's options every layer's by itself: latencies add up over "
        "ResNet-50's 107 layers with weights. Default options join small gradients in buckets, and "
        "hide what computing covers; their halos include the sums of batch normalization over all "
        "ranks. ParaDL's ds sends through leaders.",
        f"**\"df can outperform data parallelism at large scale\"**, {scale} GPUs, the same batch "
        f"for both: df is ahead {told}. Its collectives of activations shrink with the images per "
        "GPU, gradients do not; at the paper's images per GPU activations cost more than the "
        "gradients that df saves.",
        "Fig 3 is a drawing: what it measures on each number of GPUs has no row here, and the "
        "orders above are Table 3's with our compute times.",
        "**VGG-16's 169 M** are those of pooling that rounds up (8 x 8 x 512 before fc6); with 256 "
        "x 256 images ours has the public tool's 169,801,408 weights and biases beside.",
        "CosmoFlow's layers are not said; ours splits all of them, the paper's the first two.",
        "Accuracy needs measurements on such a machine; [accuracy](accuracy.md) has ours on the "
        "machines that we have.",
    ]


def report(models: Sequence[Model] = MODELS, scales: Sequence[int] = SCALES) -> Report:
    """All claims and panels."""
    single = [claim for m in models for claim in (
        claims_of_update(m) if m.name == "vgg16" else
        claims_of_cosmoflow(m) if m.name == "cosmoflow" else [])]
    df = claims_of_df(models)
    sections = [
        Section("Public tool: communication of an epoch, data, 16 GPUs",
                claims_of_the_public_tool()),
        Section("Models, limits and memory", claims_of_models(models) + single),
        Section("Communication (section 5.3.1)", claims_of_exchanges(models)),
        Section("Tree, congestion and computing (section 4.3, Fig 6 and 8)",
                claims_of_limits(models)),
        Section("Table 3's communication of an iteration on 64 GPUs, and the schedule's",
                claims_of_table_3(models, 64), "schedule", FORMULA),
        Section("Strategies by the time of a sample", claims_of_ranking(models), "schedule",
                FORMULA),
        Section(f"df over data, time of a sample on {SCALES[-1]} GPUs", df, "schedule", FORMULA),
        Section("Pipelines (section 5.4.1), Table 3", claims_of_pipelines(models)),
        Section("Accuracy of the oracle (section 5.2)", claims_of_accuracy()),
    ]
    every = [claim for section in sections for claim in section.claims]
    led, loaded, piped, perfect = (
        f"{' / '.join(f'{c.ours:.3g}' for c in every if words in c.what)}x"
        for words in ("leaders", "others' load", "pipeline over data", "1024 GPUs over 16"))
    return Report("ParaDL (HPDC 2021)", sections, panels(models, scales), remarks(df),
                  "the public tool to the last digit, limits, halos' share, df's contention",
                  "accuracy (needs measurements); the update's share; one GPU's 29 h; ds with "
                  f"leaders at more than twice data's allreduce ({led}); Fig 5's 64x "
                  f"({perfect}); Fig 6's 4x under load ({loaded}); pipeline ahead of data "
                  f"({piped})")


if __name__ == "__main__":
    sys.exit(main(__doc__, report))
