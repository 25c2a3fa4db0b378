"""Models and settings of ParaDL (Kahira et al., HPDC 2021, section 5.1), by Table 3 and priced.

df and ds keep filters and image parts in a node of 4 (section 4.5.1); no overlap, local batch
normalization, activations gathered after every layer. Images a GPU come from the paper's public
tool (64 for ResNet-50, 32 else); a node has as many for df, where each GPU holds all activations of
its node, and filter, channel and pipeline have 32 in all (strong scaling): the text has no numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from bench.papers.common import on_data_sheet
from bench.papers.equations import paradl
from bench.papers.equations.paradl_values import Table3Layer, Table3Row, TrainingRun, layer_values
from hpcpar.api.options import PlanningOptions
from hpcpar.machine import files
from hpcpar.network.graph import Network
from hpcpar.network.layers import Shape
from hpcpar.papers.gholami import HockneyLink
from hpcpar.plan.plan import NetworkSpec, Overlap, make_plan
from hpcpar.plan.stages import stages
from hpcpar.prediction.prediction import Prediction
from hpcpar.prediction.price import price
from hpcpar.search import auto

MACHINE = files.load("abci-v100")
#: One V100 by its data sheet.
SHEET = on_data_sheet(MACHINE, "V100-SXM2-16GB", 2020)
NODE = 4
ITEM_BYTES = 4
IMAGENET, COSMOFLOW = 1_280_000, 1584
#: Samples of an iteration in strong scaling, and micro-batches of a pipeline.
STRONG_BATCH, SEGMENTS = 32, 8
STRONG = ("filter", "channel", "pipeline")
#: Contention of df: a node's 4 allreduces on its 2 adapters (section 5.2 counts 2).
PHI = NODE / MACHINE.levels[1].links
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
PARTS = ("FW and BW", "WU", "gradients", "halos", "layer-wise", "stage to stage")


@dataclass(frozen=True)
class Model:
    """One of Table 5's models.

    Attributes
    ----------
    images : float
        Samples of a GPU; a quarter is one sample on a node's 4.
    samples : int
        Of an epoch.
    parameters : float
        As printed.
    """

    title: str
    name: str
    shape: Shape
    images: float
    samples: int
    parameters: float

    @property
    def spec(self) -> NetworkSpec:
        return NetworkSpec(self.name, self.shape, 4 if self.name == "cosmoflow" else 1000)

    @property
    def weak(self) -> tuple[str, ...]:
        """Strategies of weak scaling: CosmoFlow's samples are split (section 5.2)."""
        return ("ds",) if self.images < 1 else ("data", "df", "ds")


MODELS = (
    Model("ResNet-50", "resnet50", (3, 224, 224), 64, IMAGENET, 25e6),
    Model("ResNet-152", "resnet152", (3, 224, 224), 32, IMAGENET, 58e6),
    Model("VGG-16", "vgg16", (3, 224, 224), 32, IMAGENET, 169e6),
    Model("CosmoFlow", "cosmoflow", (4, 256, 256, 256), 0.25, COSMOFLOW, 2e6),
)


@cache
def network(model: Model) -> Network:
    return model.spec.build()


def batch_of(model: Model, strategy: str, ranks: int) -> int:
    """Number of samples per iteration."""
    if strategy in STRONG:
        return STRONG_BATCH
    return max(1, int(model.images * ranks / (NODE if strategy == "df" else 1)))


def full_name(strategy: str, ranks: int) -> str:
    """The strategy with its grid."""
    return f"{strategy}:{ranks // NODE}x{NODE}" if strategy in ("df", "ds") else strategy


@cache
def by_default(model: Model, strategy: str, ranks: int, batch: int) -> Prediction:
    """The prediction with the options that `hpcpar predict` has by default."""
    return auto.price_named(network(model), model.spec, full_name(strategy, ranks), ranks, batch,
                            MACHINE, **PlanningOptions().planning(network(model))).prediction


@cache
def schedule(model: Model, strategy: str, ranks: int, batch: int,
             load: tuple[tuple[str, float], ...] = ()) -> Prediction:
    """The priced schedule, with the paper's options; `load` is what others take of levels."""
    machine = MACHINE.loaded(dict(load))
    plan = make_plan(
        model.spec,
        full_name(strategy, ranks),
        ranks,
        batch,
        gather="eager",
        overlap=Overlap.NONE,
        batch_norm="local",
        machine=machine,
        microbatches=SEGMENTS if strategy == "pipeline" else 1,
    )
    return price(network(model), plan, machine)


@cache
def layers(model: Model) -> tuple[Table3Layer, ...]:
    """FW and BW in s per sample and WU in s per layer, from the schedule of one GPU."""
    batch = max(1, int(model.images))
    found: dict[str, list[float]] = {layer.name: [0.0, 0.0, 0.0] for layer in network(model).layers}
    for step in schedule(model, "data", 1, batch).steps:
        place = {"forward": 0, "backward": 1, "update": 2}.get(step.phase)
        if place is not None:
            found[step.layer][place] += step.seconds / (1 if place == 2 else batch)
    seconds = {name: (fw, bw, wu) for name, (fw, bw, wu) in found.items()}
    return tuple(layer_values(network(model), seconds=seconds))


def one_v100(model: Model, images: int, precision: str) -> Prediction:
    """A step on one V100 by its data sheet and the model of kernels."""
    plan = make_plan(model.spec, "data", 1, images, overlap=Overlap.NONE, batch_norm="local",
                     machine=SHEET, precision=precision)
    return price(network(model), plan, SHEET)


def link(ranks: int, flows: float = 1.0) -> HockneyLink:
    """Link of `ranks` neighbors, beta in s per item; `flows` flows share it (phi)."""
    level = MACHINE.levels[MACHINE.level_index_for(ranks, ranks)]
    return paradl.contended(HockneyLink(level.alpha_s, ITEM_BYTES * level.beta_s_per_byte), flows)


def table3(model: Model, strategy: str, ranks: int, batch: int | None = None,
           inner: HockneyLink | None = None) -> Table3Row:
    """Row of Table 3 per epoch: df with phi, ds with leaders, as in the paper."""
    cost, job = (
        layers(model),
        TrainingRun(model.samples, batch_of(model, strategy, ranks) if batch is None else batch))
    groups, far = ranks // NODE, link(ranks)
    if strategy == "data":
        return paradl.table3_data(cost, job, ranks, far)
    if strategy == "df":
        return paradl.table3_df(cost, job, groups, NODE, link(ranks, PHI), link(NODE))
    if strategy == "ds":
        parts = (NODE,) + (1,) * (len(model.shape) - 2)
        return paradl.table3_ds(cost, job, groups, parts, far, inner or link(NODE),
                                exchange="leaders")
    if strategy == "pipeline":
        of = stages(network(model), ranks)
        counts = [sum(of[layer.name] == stage for layer in cost) for stage in range(ranks)]
        return paradl.table3_pipeline(cost, job, counts, SEGMENTS, far)
    return (paradl.table3_filter if strategy == "filter" else paradl.table3_channel)(
        cost, job, ranks, far)


def formula_ms(model: Model, strategy: str, ranks: int) -> dict[str, float]:
    """Terms of Table 3 per iteration."""
    row = table3(model, strategy, ranks)
    values = (row.compute_s, row.update_s, row.gradient_s, row.halo_s, row.layerwise_s, row.p2p_s)
    scale = 1e3 * batch_of(model, strategy, ranks) / model.samples
    return {part: scale * value for part, value in zip(PARTS, values, strict=True)}


def schedule_ms(model: Model, strategy: str, ranks: int,
                priced: Callable[[Model, str, int, int], Prediction] = schedule
                ) -> dict[str, float]:
    """The same from the schedule, whose pipeline stages overlap."""
    found = priced(model, strategy, ranks, batch_of(model, strategy, ranks))
    out = dict.fromkeys(PARTS, 0.0)
    if strategy == "pipeline":
        out["FW and BW"] = found.iteration_s
    else:
        phases = found.phases
        out["WU"], out["gradients"] = phases["update"]["compute_s"], phases["gradient"][
            "communication_s"]
        inner = phases["forward"]["communication_s"] + phases["backward"]["communication_s"]
        out["halos" if strategy == "ds" else "layer-wise"] = inner
        out["FW and BW"] = found.compute_s - out["WU"]
    return {part: 1e3 * value for part, value in out.items()}
