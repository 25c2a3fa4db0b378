"""Networks, configurations and cost accounting shared by the benches of OptCNN and DeePa.

Both papers come from one group and use the same system and networks. Configurations on 16 GPUs
come from DeePa's Figures 9 to 11, on 4 GPUs from OptCNN's Table 5 and DeePa's Figure 15. Other
numbers of GPUs follow the same pattern. Only the drawings show which parts of Inception-v3 run on
half of the GPUs; here these are modules E1 and E2 with their input concatenation and all later
layers.

There are two models of a step. `predict` prices the schedule, of the published configurations or of
the plan that this project's layer-wise search finds under the same options. `eq1` is Eq 1 of both
papers: each tensor is transferred once, its flows are serialized, and r replicas send r times the
weights, which the servers send back (OptCNN, section 5.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

from bench.papers.equations import optcnn
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.network.builtin.alexnet import towers
from hpcpar.network.graph import Network
from hpcpar.network.layers import Shape, SoftmaxCrossEntropy
from hpcpar.plan.config import Config
from hpcpar.plan.plan import NetworkSpec, Overlap, Plan, Synchronization
from hpcpar.plan.strategies import fill
from hpcpar.plan.strategy import Configs, sections
from hpcpar.prediction.prediction import Prediction
from hpcpar.prediction.price import price
from hpcpar.search import auto

T = TypeVar("T")
TITLES = {"alexnet": "AlexNet", "vgg16": "VGG-16", "inception_v3": "Inception-v3"}
NETWORKS = tuple(TITLES)
#: The plan of this project's search, as a strategy.
SEARCHED = "searched"
#: Images per GPU.
IMAGES = 32
ITEM_BYTES = 4
#: Measured images per second of one GPU at 32 images (TensorFlow's benchmarks, May 2017), for
#: networks on which the preset's roofline is more than 20% off: it has one rate for all
#: convolutions, and the small ones of Inception-v3 reach less than half of it.
MEASURED = {("p100x4x4", "inception_v3"): 128.0, ("k80x16", "inception_v3"): 29.6}


def alexnet(shape: Shape = (3, 224, 224), classes: int = 1000) -> Network:
    """DeePa's AlexNet: one tower, second convolution 64 to 192, fifth 256 to 256 channels (its
    Table 1).
    """
    return towers("alexnet", shape, classes, (64, 192, 384, 256, 256), 1, SoftmaxCrossEntropy)


@cache
def network(name: str, classes: int = 1000) -> Network:
    return spec(name, classes).build()


def spec(name: str, classes: int = 1000) -> NetworkSpec:
    """The papers' network of this name."""
    side = 299 if name == "inception_v3" else 224
    if name == "alexnet":
        return NetworkSpec.of(alexnet((3, side, side), classes))
    return NetworkSpec(name, (3, side, side), classes)


# -- configurations --------------------------------------------------------------------------------
def mixed(net: Network, convolutions: Config, fully_connected: list[Config],
           last: Configs | None = None) -> Configs:
    """Configurations of a network: one for image layers, one per fully connected layer."""
    images, features = sections(net)
    out = dict.fromkeys((layer.name for layer in images), convolutions) | (last or {})
    config, left = Config(n=out[images[-1].name].ranks), list(fully_connected)
    for layer in features:
        config = left.pop(0) if layer.is_matmul else config
        out[layer.name] = config
    return out | {net.layers[-1].name: Config()}


def last_modules(net: Network) -> tuple[str, ...]:
    """Layers of Inception-v3 from the concatenation before module E1 on."""
    names = [layer.name for layer in net.layers]
    return tuple(names[names.index(net.by_name["e1.a.1"].inputs[0]):])


def _inception(net: Network, ranks: int) -> Configs:
    """Configurations with half of the GPUs for `last_modules` (Fig 11 has n = 16 and n = 8).

    With 21,841 classes the linear layer by channels: DeePa then moves only 40 MB more (Fig 16).
    """
    half = Config(n=max(1, ranks // 2))
    out = dict.fromkeys((layer.name for layer in net.layers),
                        Config(n=ranks)) | dict.fromkeys(last_modules(net), half)
    return out | ({"fc": Config(c=min(4, ranks)), "loss": Config()} if net.classes > 1000 else {})


def configurations(name: str, strategy: str, ranks: int, classes: int = 1000) -> Configs:
    """Configurations of `data`, `model`, `owt`, and of the published `layer-wise`; `fc-only` is
    VGG-16's of DeePa's Figure 15.
    """
    net = network(name, classes)
    if strategy in ("data", "owt"):
        return fill(net, strategy, ranks)
    if strategy == "model":
        return fill(net, "filter", ranks)
    two, four = Config(c=min(2, ranks)), Config(c=min(4, ranks))
    if name == "inception_v3":
        return _inception(net, ranks)
    if name == "alexnet":
        return mixed(net, Config(n=ranks), [two, two, four])
    if strategy == "fc-only":
        return mixed(net, Config(n=ranks), [two, two, two])
    last = [layer.name for layer in sections(net)[0] if "5" in layer.name.partition("_")[0]]
    return mixed(net, Config(n=ranks), [four, four, two], dict.fromkeys(last, Config(h=2, w=2))
                  if ranks >= 4 else None)


def variants(name: str) -> tuple[str, ...]:
    """The published layer-wise strategies of a network."""
    return ("layer-wise", "fc-only") if name == "vgg16" else ("layer-wise",)


# -- pricing ---------------------------------------------------------------------------------------
@cache
def machine(preset: str, name: str) -> Machine:
    """The preset; for a network in `MEASURED` slowed down to its measured images per second."""
    out = files.load(preset)
    if (preset, name) not in MEASURED:
        return out
    plan = Plan(spec(name), 1, IMAGES, "data", configurations(name, "data", 1),
                machine=out)
    slower = MEASURED[preset, name] * price(network(name), plan, out).iteration_s / IMAGES
    device = out.device
    rates = {field: slower * getattr(device, field)
             for field in ("flops_per_s", "bandwidth_bytes_per_s")}
    return replace(out, device=replace(device, **rates, launch_s=device.launch_s / slower))


def predict(preset: str, name: str, strategy: str, ranks: int, synchronization: str,
            overlap: Overlap = Overlap.FULL, classes: int = 1000,
            batch: int | None = None) -> Prediction:
    """The priced schedule with local batch normalization, by default with 32 images per GPU."""
    return _predict(preset, name, strategy, ranks, synchronization, overlap, classes,
                    batch or IMAGES * ranks)


@cache
def _predict(preset: str, name: str, strategy: str, ranks: int, synchronization: str,
             overlap: Overlap, classes: int, batch: int) -> Prediction:
    on, net, named = machine(preset, name), network(name, classes), spec(name, classes)
    options: dict[str, Any] = {"overlap": overlap, "batch_norm": "local",
                            "synchronization": Synchronization(synchronization)}
    if synchronization == "server":
        options["collectives"] = "mpi"  # the server talks to every GPU, without a tree
    if strategy == SEARCHED:
        return auto.named_or_layerwise(net, named, ranks, batch, on, bucket_bytes=0,
                                       **options)[0].prediction
    plan = Plan(named, ranks, batch, strategy, configurations(name, strategy, ranks, classes),
                machine=on, **options)
    return price(net, plan, on)


# -- the papers' counting --------------------------------------------------------------------------
def _degrees(config: Config) -> optcnn.Configuration:
    return optcnn.Configuration(*(int(getattr(config, axis)) for axis in "nchwd"))


@cache
def _flows(axes: tuple[str, ...], extents: tuple[int, ...], reader: tuple[tuple[str, int], ...],
           relations: tuple[optcnn.Relation, ...],
           ends: tuple[optcnn.Configuration, optcnn.Configuration]) -> dict[tuple[int, int], int]:
    return optcnn.flows_bytes(optcnn.TensorEdge(axes, extents, dict(reader), relations, ITEM_BYTES),
                              *ends)


def _transfers(name: str, strategy: str, ranks: int,
               classes: int = 1000) -> Iterator[tuple[str, dict[tuple[int, int], int]]]:
    """Readers of all tensors, with the bytes that GPU j needs from GPU i by (i, j)."""
    net, configs = network(name, classes), configurations(name, strategy, ranks, classes)
    for layer in net.layers:
        for which, producer in enumerate(layer.inputs):
            if net.by_name[producer].inputs:  # all GPUs have the images that they need
                e = optcnn.edge(net, layer, IMAGES * ranks, ITEM_BYTES, which)
                ends = _degrees(configs[producer]), _degrees(configs[layer.name])
                yield layer.name, _flows(e.axes, e.extents, tuple(e.reader_extents.items()),
                                         e.relations, ends)


@dataclass(frozen=True)
class Volume:
    """Bytes that all GPUs receive per step: parameters, gradients and tensors between layers."""

    parameters_bytes: float
    tensors_bytes: float

    @property
    def total_bytes(self) -> float:
        return self.parameters_bytes + self.tensors_bytes


@cache
def volume(name: str, strategy: str, ranks: int, classes: int = 1000,
           only: tuple[str, ...] = ()) -> Volume:
    """Volume of a step in the accounting of Figures 8, 15 and 16 of DeePa.

    r replicas send r times the gradients and get as many weights back (VGG-16 on 4 GPUs: 4.4 GB, "4
    GB"); tensors count forward, the part that a GPU lacks.

    Parameters
    ----------
    only : tuple of str
        These layers; none means all.
    """
    net, configs = network(name, classes), configurations(name, strategy, ranks, classes)
    parameters = 0.0
    for layer in net.weighted:
        replicas = _degrees(configs[layer.name]).replicas
        if replicas > 1 and (not only or layer.name in only):
            parameters += 2 * replicas * ITEM_BYTES * layer.parameters(net.input_shape(layer))
    tensors = sum(
        n_bytes
        for reader, flows in _transfers(name, strategy, ranks, classes)
        if not only or reader in only
        for (i, j), n_bytes in flows.items()
        if i != j
    )
    return Volume(parameters, float(tensors))


@dataclass(frozen=True)
class Eq1:
    """Sums of tC, tS and tX over layers and edges in seconds; tC is from the priced schedule."""

    compute_s: float
    update_s: float
    transfer_s: float

    @property
    def printed_s(self) -> float:
        """Eq 1 in seconds, with one way of the parameters."""
        return self.compute_s + self.update_s + self.transfer_s

    @property
    def there_and_back_s(self) -> float:
        """Seconds with gradients to the servers and weights back (OptCNN, section 5.1)."""
        return self.compute_s + 2 * self.update_s + self.transfer_s

    @property
    def hidden_s(self) -> float:
        """Seconds with gradients hidden behind computation (DeePa, section 5)."""
        return max(self.compute_s, self.update_s) + self.transfer_s


@cache
def eq1(preset: str, name: str, strategy: str, ranks: int) -> Eq1:
    """Eq 1 with the preset's links: a flow at the rate of the level between its two GPUs, gradients
    at the rate of the level that they cross.
    """
    net, configs, on = network(name), configurations(name, strategy, ranks), machine(preset, name)
    update_s = 0.0
    for layer in net.weighted:
        config = _degrees(configs[layer.name])
        level = on.levels[on.level_index_for(config.devices, ranks)]
        update_s += optcnn.ts_s(ITEM_BYTES * layer.parameters(net.input_shape(layer)), config,
                                1 / level.beta_s_per_byte)
    transfer_s = sum(
        n_bytes * on.level_between(i, j).beta_s_per_byte
        for _, flows in _transfers(name, strategy, ranks)
        for (i, j), n_bytes in flows.items()
        if i != j
    )
    return Eq1(predict(preset, name, strategy, ranks, "server").compute_s, update_s, transfer_s)


#: Seconds of a step by preset, network, strategy and number of GPUs.
Step = Callable[[str, str, str, int], float]
#: Ways of counting: parameters on one server a layer, spread over the GPUs that hold them, and the
#: papers' own model, as printed, with the servers' way back, and with gradients hidden.
WAYS: dict[str, Step] = {
    "one server": lambda preset, name, strategy, ranks: predict(
        preset, name, strategy, ranks, "server").iteration_s,
    "sharded": lambda preset, name, strategy, ranks: predict(
        preset, name, strategy, ranks, "sharded").iteration_s,
    "Eq 1 as printed": lambda preset, name, strategy, ranks: eq1(
        preset, name, strategy, ranks).printed_s,
    "Eq 1 there and back": lambda preset, name, strategy, ranks: eq1(
        preset, name, strategy, ranks).there_and_back_s,
    "Eq 1 hidden": lambda preset, name, strategy, ranks: eq1(
        preset, name, strategy, ranks).hidden_s,
}


def each_way(name: str, figure: Callable[[Step, Sequence[str]], T]) -> dict[str, T]:
    """A figure of the searched and of the published plans in all `WAYS`; Eq 1 has no search."""
    found = {}
    for way, step in WAYS.items():
        if not way.startswith("Eq 1"):
            found[f"searched, {way}"] = figure(step, (SEARCHED,))
        found[f"published plan, {way}"] = figure(step, variants(name))
    return found


def fastest_s(step: Step, preset: str, name: str, strategies: Sequence[str], ranks: int) -> float:
    """Step time of the fastest of some strategies."""
    return min(step(preset, name, strategy, ranks) for strategy in strategies)
