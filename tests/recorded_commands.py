"""The commands whose predictions are recorded (see `tests.record_predictions`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """A command line for one or more cases.

    Attributes
    ----------
    ranks, strategies : tuple
        ``predict`` takes all of them in one call, ``plan`` only one of each.
    options : str
        Other options, as on the command line.
    quick : bool
        Whether the test runs the command; the script runs all commands.
    """

    network: str
    machine: str
    batch: int
    ranks: tuple[int, ...]
    strategies: tuple[str, ...]
    options: str = ""
    quick: bool = True
    kind: str = "predict"

    @property
    def words(self) -> list[str]:
        """The command line."""
        ranks, strategies = ",".join(map(str, self.ranks)), ",".join(self.strategies)
        line = f"{self.kind} --network {self.network} --machine {self.machine} --ranks {ranks}"
        line += f" --batch {self.batch} --strategy {strategies} {self.options} --json"
        return line.split()

    @property
    def cases(self) -> dict[str, tuple[int, str]]:
        """Ranks and strategy of each case by its key, in the order of the command's output."""
        prefix, plan = f"{self.network} {self.machine}", "plan " * (self.kind == "plan")
        suffix = f" {self.options}".replace("--", "").rstrip()
        return {
            f"{prefix} {ranks} ranks batch {self.batch} {plan}{strategy}{suffix}": (ranks, strategy)
            for ranks in self.ranks
            for strategy in self.strategies
        }


def searches(strategy: str, network: str, machine: str, batch: int, ranks: tuple[int, ...],
             options: str = "", quick: bool = True) -> list[Command]:
    """``plan --strategy layerwise`` (or ``auto``) for each number of ranks."""
    return [Command(network, machine, batch, (p,), (strategy,), options, quick, "plan")
            for p in ranks]


#: Strategies without a grid, which suit every network.
PLAIN = ("data", "filter", "channel", "spatial", "owt")
#: Strategies with a grid, for 4 and 16 ranks.
FOUR = ("grid:2x2", "grid-fc:2x2", "domain:2x2", "df:2x2", "ds:2x2", "pipeline:2x2")
SIXTEEN = ("grid:4x4", "grid-fc:4x4", "domain:4x4", "df:4x4", "ds:4x4", "pipeline:4x4")
OUTER = ("grid:4x4/outer", "grid-fc:4x4/outer", "domain:4x4/outer", "df:4x4/outer", "ds:4x4/outer")

# fmt: off
COMMANDS: list[Command] = [
    # all networks and kinds of strategies
    Command("lenet5", "local", 64, (1,), ("data",)),
    Command("lenet5", "local", 64, (4,), (*PLAIN, "owt-b", "owt-c", *FOUR, "pipeline")),
    Command("lenet5", "h100x8", 64, (16,), (*PLAIN, *SIXTEEN)),
    Command("lenet5", "abci-v100", 64, (3, 5, 6, 7, 12), ("data", "spatial", "filter", "pipeline")),
    Command("mlp", "local", 64, (1, 3, 4, 6), ("data", "filter", "channel", "owt-b")),
    Command("mlp", "cori-knl", 256, (16,), ("data", "grid:4x4", "grid-fc:2x8", "df:4x4")),
    Command("alexnet", "p100x4x4", 128, (4,), (*PLAIN, "owt-b", "owt-c", *FOUR, "pipeline")),
    Command("alexnet", "p100x4x4", 256, (16,), (*PLAIN, "owt-b", "owt-c", *SIXTEEN, *OUTER)),
    Command("alexnet", "k20x8", 128, (2, 8), (*PLAIN, "owt-b", "owt-c")),
    Command("alexnet-owt", "k20x8", 128, (4, 8), ("data", "owt", "owt-b", "owt-c")),
    Command("alexnet-owt", "k80x16", 512, (16,), (*PLAIN, "owt-b", "owt-c", *SIXTEEN)),
    Command("vgg16", "p100x4x4", 128, (16,), (*PLAIN, "owt-b", "owt-c", *SIXTEEN, *OUTER)),
    Command(
        "vgg16", "k80x16", 256, (3, 6, 12), ("data", "spatial", "filter", "owt", "pipeline"),
        quick=False,
    ),
    Command("resnet50", "abci-v100", 512, (16,), (*PLAIN, *SIXTEEN), quick=False),
    Command("resnet50", "h100x8", 256, (8,), ("data", "df:2x4", "pipeline:2x4")),
    Command("resnet50", "abci-v100", 420, (3, 5, 6, 7, 12), ("data", "filter"), quick=False),
    Command("resnet152", "abci-v100", 256, (8,), ("data", "pipeline:4x2", "ds:2x4"), quick=False),
    Command("resnet152", "p100x4x4", 128, (16,), ("filter", "df:4x4", "grid:4x4"), quick=False),
    Command(
        "inception_v3", "abci-v100", 256, (8,), ("data", "pipeline:4x2", "ds:2x4", "df:2x4"),
        quick=False,
    ),
    Command(
        "inception_v3", "k80x16", 128, (16,), ("filter", "channel", "domain:4x4", "grid:4x4"),
        quick=False,
    ),
    Command("cosmoflow", "abci-v100", 64, (4, 16), PLAIN),
    Command("cosmoflow", "abci-v100", 64, (16,), SIXTEEN),
    Command("cosmoflow", "h100x8", 60, (3, 5, 6, 12), ("data", "spatial", "pipeline")),
    # uneven numbers of ranks
    Command(
        "alexnet", "p100x4x4", 128, (3, 5, 6, 7, 12), ("data", "filter", "spatial", "owt", "owt-c",
        "pipeline"), quick=False,
    ),
    Command(
        "alexnet", "abci-v100", 100, (6,), ("grid:3x2", "grid-fc:3x2", "domain:3x2", "df:2x3",
        "ds:2x3", "pipeline:3x2"),
    ),
    Command(
        "alexnet", "h100x8", 96, (12,), ("grid:3x4/outer", "domain:3x4/outer", "df:4x3/outer",
        "pipeline:3x4"),
    ),
    # large numbers of ranks
    Command("alexnet", "cori-knl", 2048, (64, 512), ("data", "filter", "spatial", "owt")),
    Command(
        "alexnet", "cori-knl", 2048, (512,), ("grid:16x32", "grid-fc:16x32", "domain:2x256",
        "df:64x8", "ds:128x4"),
    ),
    Command(
        "alexnet", "cori-knl", 4096, (4096,), ("data", "grid:64x64", "grid-fc:64x64",
        "domain:4x1024", "ds:1024x4"),
    ),
    Command("alexnet", "cori-knl", 512, (2048, 4096), ("data", "filter"), "--accounting paper"),
    Command(
        "vgg16", "abci-v100", 4096, (64, 256, 1024), ("data", "owt", "spatial"),
        "--collectives tree",
    ),
    Command("resnet50", "abci-v100", 8192, (64, 256, 1024), ("data",), quick=False),
    Command(
        "resnet50", "abci-v100", 2048, (1024,), ("df:256x4/outer", "ds:256x4", "pipeline:4x256"),
        quick=False,
    ),
    Command(
        "cosmoflow", "abci-v100", 256, (512,), ("ds:128x4", "ds:64x8/outer", "df:128x4", "data"),
    ),
    # the formulas of Gholami et al.
    Command("alexnet", "cori-knl", 2048, (32, 128), PLAIN, "--accounting paper"),
    Command(
        "alexnet", "cori-knl", 2048, (32,), ("grid:4x8", "grid-fc:4x8", "domain:4x8"),
        "--accounting paper",
    ),
    # orders of a pipeline, micro-batches
    Command(
        "alexnet", "p100x4x4", 128, (16,), ("pipeline:4x4", "pipeline:2x8", "pipeline:8x2"),
        "--order 1f1b",
    ),
    Command(
        "vgg16", "p100x4x4", 128, (16,), ("pipeline:4x4", "pipeline:2x8", "pipeline"),
        "--order 1f1b", quick=False,
    ),
    Command(
        "vgg16", "p100x4x4", 128, (16,), ("pipeline:4x4", "pipeline:4x4/outer"),
        "--order 1f1b --microbatches 8",
    ),
    Command("resnet50", "abci-v100", 512, (16,), ("pipeline:4x4", "pipeline:2x8"), "--order 1f1b",
        quick=False,
    ),
    Command(
        "cosmoflow", "abci-v100", 64, (4,), ("pipeline", "pipeline:2x2"),
        "--order 1f1b --microbatches 8",
    ),
    Command(
        "alexnet", "p100x4x4", 128, (4,), ("data", "grid:2x2", "domain:2x2", "owt", "pipeline:2x2"),
        "--microbatches 4",
    ),
    Command(
        "lenet5", "local", 64, (3, 4), ("data", "spatial", "pipeline"),
        "--microbatches 3 --order 1f1b",
    ),
    Command("alexnet", "p100x4x4", 128, (16,), ("pipeline:4x4",), "--order 1f1b --overlap none"),
    Command(
        "alexnet", "p100x4x4", 128, (16,), ("pipeline:4x4",), "--order 1f1b --overlap gradient",
    ),
    # kinds of overlap
    Command(
        "alexnet", "p100x4x4", 256, (16,), (*PLAIN, "owt-b", "owt-c", *SIXTEEN), "--overlap none",
        quick=False,
    ),
    Command(
        "alexnet", "p100x4x4", 256, (16,), (*PLAIN, "owt-b", "owt-c", *SIXTEEN),
        "--overlap gradient", quick=False,
    ),
    Command(
        "vgg16", "h100x8", 256, (16,), ("data", "spatial", "df:4x4", "domain:4x4"),
        "--overlap none",
    ),
    Command(
        "vgg16", "h100x8", 256, (16,), ("data", "spatial", "df:4x4", "domain:4x4"),
        "--overlap gradient",
    ),
    Command(
        "inception_v3", "abci-v100", 256, (8,), ("data", "spatial"), "--overlap gradient",
        quick=False,
    ),
    # synchronization, collectives, buckets, optimizers, precisions
    Command(
        "alexnet", "p100x4x4", 256, (16,), ("data", "grid:4x4", "owt", "pipeline:4x4"),
        "--synchronization sharded",
    ),
    Command(
        "alexnet", "p100x4x4", 256, (16,), ("data", "grid:4x4", "owt", "pipeline:4x4"),
        "--synchronization server",
    ),
    Command(
        "lenet5", "local", 64, (3, 6), ("data", "spatial"),
        "--synchronization sharded --optimizer adam",
    ),
    Command(
        "lenet5", "local", 64, (3, 6), ("data", "spatial"),
        "--synchronization server --overlap none",
    ),
    Command(
        "resnet50", "abci-v100", 512, (16,), ("data",),
        "--synchronization sharded --optimizer adam",
    ),
    Command("alexnet", "k80x16", 256, (6, 16), ("data", "filter", "owt"), "--collectives ring"),
    Command("alexnet", "k80x16", 256, (6, 16), ("data", "filter", "owt"), "--collectives tree"),
    Command("alexnet", "k80x16", 256, (6, 16), ("data", "filter", "owt"), "--collectives mpi"),
    Command("resnet50", "abci-v100", 512, (16,), ("data", "df:4x4"), "--bucket 0"),
    Command(
        "resnet50", "abci-v100", 512, (16,), ("data", "df:4x4"), "--bucket 4194304", quick=False,
    ),
    Command("alexnet", "p100x4x4", 256, (16,), ("data", "grid-fc:4x4"), "--bucket 26214400"),
    Command(
        "alexnet", "p100x4x4", 256, (16,), ("data", "grid-fc:4x4"),
        "--bucket 0 --synchronization sharded",
    ),
    Command(
        "alexnet", "p100x4x4", 256, (4,), ("data", "domain:2x2"),
        "--precision fp64 --optimizer sgd",
    ),
    Command(
        "alexnet", "p100x4x4", 256, (4,), ("data", "channel"),
        "--optimizer adam --io 1e8 --io-item-bytes 4",
    ),
    Command("alexnet", "p100x4x4", 256, (16,), ("data", "filter"), "--contention 2 --gamma 0.5"),
    # gather, recompute, batch norm, inference
    Command(
        "alexnet", "p100x4x4", 256, (16,), ("filter", "channel", "grid:4x4", "grid-fc:4x4",
        "domain:4x4", "df:4x4"), "--gather eager",
    ),
    Command(
        "inception_v3", "abci-v100", 256, (4,), ("filter", "channel"), "--gather eager",
        quick=False,
    ),
    Command("resnet50", "k80x16", 128, (4,), ("data", "spatial", "pipeline:2x2"), "--recompute 8"),
    Command("vgg16", "p100x4x4", 512, (4,), ("data", "domain:2x2", "owt"), "--recompute 4"),
    Command(
        "resnet50", "k80x16", 256, (4,), ("pipeline", "pipeline:2x2"), "--recompute 4 --order 1f1b",
        quick=False,
    ),
    Command(
        "cosmoflow", "abci-v100", 64, (4,), ("data", "spatial"), "--recompute 3 --microbatches 2",
    ),
    Command("resnet50", "abci-v100", 512, (16,), ("data", "spatial"), "--batch-norm local"),
    Command(
        "resnet50", "abci-v100", 512, (16,), ("pipeline:4x4", "ds:4x4"),
        "--batch-norm local --overlap none", quick=False,
    ),
    Command("inception_v3", "h100x8", 256, (8,), ("data",), "--batch-norm local"),
    Command(
        "alexnet", "p100x4x4", 128, (4,), ("data", "filter", "spatial", "pipeline"),
        "--forward-only",
    ),
    Command("resnet50", "abci-v100", 128, (4,), ("data", "spatial"), "--forward-only"),
    # searches
    *searches("layerwise", "lenet5", "local", 64, (3,)),
    *searches("layerwise", "lenet5", "local", 64, (2, 4), quick=False),
    *searches("auto", "lenet5", "local", 64, (4, 6)),
    *searches("auto", "lenet5", "local", 64, (2,), quick=False),
    *searches("layerwise", "mlp", "cori-knl", 64, (4, 16)),
    *searches("layerwise", "alexnet", "p100x4x4", 128, (4,)),
    *searches("layerwise", "alexnet", "p100x4x4", 128, (2, 16), quick=False),
    *searches("layerwise", "alexnet", "p100x4x4", 128, (5, 6, 12), quick=False),
    *searches("layerwise", "alexnet", "p100x4x4", 128, (4,), "--overlap none", quick=False),
    *searches("layerwise", "alexnet", "k20x8", 128, (8,), "--overlap gradient", quick=False),
    *searches(
        "layerwise", "alexnet", "k80x16", 128, (8,), "--synchronization sharded", quick=False
    ),
    *searches("auto", "alexnet", "p100x4x4", 128, (4,)),
    *searches("auto", "alexnet", "p100x4x4", 128, (7, 16, 64), quick=False),
    *searches("auto", "alexnet", "cori-knl", 2048, (64,), quick=False),
    *searches("auto", "alexnet-owt", "k20x8", 128, (8,), quick=False),
    *searches("layerwise", "alexnet-owt", "k80x16", 512, (16,), quick=False),
    *searches("layerwise", "vgg16", "p100x4x4", 128, (4, 16), quick=False),
    *searches("layerwise", "vgg16", "abci-v100", 512, (64,), quick=False),
    *searches("auto", "vgg16", "p100x4x4", 128, (8,), "--order 1f1b", quick=False),
    *searches("auto", "vgg16", "p100x4x4", 512, (16,), "--microbatches 4", quick=False),
    *searches("layerwise", "resnet50", "abci-v100", 128, (4,), quick=False),
    *searches("layerwise", "resnet50", "abci-v100", 512, (16,), "--overlap none", quick=False),
    *searches("auto", "resnet50", "abci-v100", 256, (8,), quick=False),
    *searches("layerwise", "inception_v3", "abci-v100", 128, (4,), quick=False),
    *searches("layerwise", "resnet152", "abci-v100", 64, (2,), quick=False),
    *searches("layerwise", "cosmoflow", "abci-v100", 64, (4,)),
    *searches("layerwise", "cosmoflow", "abci-v100", 64, (16,), quick=False),
    *searches("auto", "cosmoflow", "abci-v100", 64, (8,), quick=False),
    *searches("auto", "cosmoflow", "h100x8", 16, (32,), quick=False),
    # plans near the memory limit, and plans that do not fit
    Command("vgg16", "k20x8", 512, (4, 8), ("data", "spatial", "filter", "owt")),
    Command("resnet50", "k80x16", 2048, (4, 16), ("data",)),
    *searches("layerwise", "vgg16", "k20x8", 512, (8,), quick=False),
    *searches("layerwise", "vgg16", "k20x8", 384, (8,), quick=False),
    *searches("layerwise", "alexnet", "k20x8", 4096, (8,), quick=False),
    *searches("layerwise", "resnet50", "k80x16", 1024, (8,), quick=False),
    *searches("auto", "vgg16", "k80x16", 2048, (16,), quick=False),
    *searches("auto", "cosmoflow", "k20x8", 128, (8,), quick=False),
]
# fmt: on
