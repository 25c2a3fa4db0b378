"""Pictures of boxes and messages: a grid of ranks, a halo exchange, a ring, a pipeline's cells."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import hpcpar
from docs.drawings.style import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PHASES,
    RANKS,
    RED,
    WIDTH,
    Canvas,
    canvas,
    legend,
)
from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.plan.boxes import Interval
from hpcpar.plan.layout import owned, parameters
from hpcpar.schedule.algorithms.base import Collective, Round
from hpcpar.schedule.algorithms.registry import ALGORITHMS
from hpcpar.schedule.exchange import Piece
from hpcpar.schedule.messages import exchange
from hpcpar.schedule.steps import Comm, Kind, Phase, Schedule

#: A part of a matrix: its rows and its columns.
Part = tuple[Interval, Interval]


def comm(schedule: Schedule, layer: str, phase: Phase) -> Comm:
    """The communication step of a layer in a phase."""
    return next(s for s in schedule.comms if (s.layer, s.phase) == (layer, phase))


def grid() -> Canvas:
    """A fully connected layer on 2 x 4 ranks: what each holds, and who talks to whom."""
    result = hpcpar.plan("lenet5", 8, 64, "abci-v100", "grid:2x4")
    network, config = result.best.task.network, result.plan.configs["fc1"]
    layer, ranks = network.by_name["fc1"], range(8)
    out = {r: owned(network, layer, config, 64).box(r) for r in ranks}
    rows = {r: parameters(network, layer, config).box(r)[0] for r in ranks}
    page = canvas(238)
    _matrix(page, (15, 45, 150, 120), "weights, 120 x 784",
            {r: (rows[r], (0, 784)) for r in ranks}, (120, 784))
    page.text(190, 105, "x", size=16)
    _matrix(page, (215, 45, 200, 120), "input, 784 x 64 samples",
            {r: ((0, 784), out[r][0]) for r in ranks}, (784, 64))
    page.text(440, 105, "=", size=16)
    _matrix(page, (465, 45, 220, 120), "output, 120 x 64 samples",
            {r: (out[r][1], out[r][0]) for r in ranks}, (120, 64))
    for y, phase, words in ((190, Phase.FORWARD, "the input, within a column"),
                            (214, Phase.GRADIENT, "the weights' gradients, within a row")):
        step = comm(result.schedule, "fc1", phase)
        groups = sorted({step.group.members(r) for r in ranks if step.group})
        said = " · ".join(" ".join(map(str, members)) for members in groups)
        page.text(15, y, f"{step.kind.value} of {words}: ranks {said}", left=True)
    return page


def _matrix(page: Canvas, at: tuple[float, float, float, float], title: str,
            parts: Mapping[int, Part], size: tuple[int, int]) -> None:
    """A matrix cut in parts, each with the ranks that hold it."""
    x, y, width, height = at
    page.text(x + width / 2, y - 18, title, bold=True)
    holders: dict[Part, list[int]] = defaultdict(list)
    for rank, part in parts.items():
        holders[part].append(rank)
    for (row, column), ranks in holders.items():
        left, top = column[0] / size[1] * width, row[0] / size[0] * height
        color = RANKS[ranks[0]] if len(ranks) < 4 else (BLUE, GREEN)[ranks[0]]
        page.box(x + left + 1, y + top + 1, (column[1] - column[0]) / size[1] * width - 2,
                 (row[1] - row[0]) / size[0] * height - 2,
                 ("rank " if len(ranks) == 1 else "ranks\n") + " ".join(map(str, ranks)), color,
                 faint=len(ranks) > 1)


def halo() -> Canvas:
    """An image on 2 x 2 ranks before a convolution: owned, needed, and the messages to rank 0."""
    result = hpcpar.plan("lenet5", 4, 64, "abci-v100", "spatial", input=(1, 16, 16))
    cut = {name: replace(config, h=2, w=2) if config.h > 1 else config
           for name, config in result.plan.configs.items()}
    schedule = schedule_for(result.best.task.network, replace(result.plan, configs=cut))
    step = comm(schedule, "conv2", Phase.FORWARD)
    extent, cell, x, y = step.source.box(3)[2][1], 28, 20, 40
    page = canvas(286)
    height, width = (stop - start for start, stop in step.destination.box(0)[2:])
    page.text(x, 18, f"an image of {extent} x {extent}, before windows of 5 x 5", left=True,
              bold=True)
    for rank in range(4):
        (top, bottom), (left, right) = step.source.box(rank)[2:]
        for i in range(top, bottom):
            for j in range(left, right):
                page.box(x + j * cell + 1, y + i * cell + 1, cell - 2, cell - 2,
                         color=RANKS[rank], faint=True)
        # the name stands beside what rank 0 needs, which would cross it
        top, left = (max(top, height) if bottom > height else top,
                     max(left, width) if right > width else left)
        page.box(x + (left + right) * cell / 2 - 24, y + (top + bottom) * cell / 2 - 10, 48, 20,
                 f"rank {rank}", RANKS[rank])
    page.box(x - 3, y - 3, width * cell + 6, height * cell + 6, color=RED, filled=False,
             dashed=True)
    _received(page, step, 0, 300)
    return page


def _received(page: Canvas, step: Comm, rank: int, x: float) -> None:
    """What a rank receives, from whom."""
    page.line((x, 46), (x + 60, 46), color=RED, dashed=True)
    page.text(x + 70, 46, f"what rank {rank} needs", RED, left=True)
    page.text(x, 78, f"rank {rank} owns {_size(step.source.box(rank))} and needs "
                     f"{_size(step.destination.box(rank))}", left=True, bold=True)
    found = exchange(step, rank)
    pieces = [p for p in found.unpack if isinstance(p, Piece)]
    senders = [m.peer for m in found.rounds[0].recvs]
    for i, (piece, peer) in enumerate(zip(pieces, senders, strict=True)):
        y = 112 + 34 * i
        page.box(x, y - 11, 60, 22, f"rank {peer}", RANKS[peer])
        page.arrow((x + 64, y), (x + 110, y), RANKS[peer])
        page.text(x + 120, y, f"a margin of {_size(piece.box)}", left=True)
    page.text(x, 230, "Backward, the gradients of the margins\ngo the other way and are added.",
              left=True)


def _size(box: tuple[Interval, ...]) -> str:
    """Rows and columns of a box."""
    return " x ".join(str(stop - start) for start, stop in box[2:])


def ring() -> Canvas:
    """A ring allreduce of four members: how many summands each block holds after each round."""
    together = Collective.of(Kind.ALLREDUCE, 4, 4)
    programs = [ALGORITHMS["ring"].rounds(together, me) for me in range(4)]
    held = [[{me} for _ in range(4)] for me in range(4)]
    page, step, middle = canvas(250), 98, 20 + 98 * 4
    for me in range(4):
        page.text(10, 54 + me * 42, str(me))
    for number, now in enumerate(zip(*programs, strict=True)):
        _blocks(page, 20 + number * step, f"round {number}" if number else "at first", held)
        for me, own in enumerate(now):
            for sent in own.sends:
                x, y = 20 + number * step + sent.start * 19 + 9.5, 68 + me * 42
                page.arrow((x, y), (x, y + 15), ORANGE)
        held = _after(held, now)
    _blocks(page, 20 + len(programs[0]) * step, f"round {len(programs[0])}", held)
    for left, right, words, color in ((20 + step, middle - 22, "reduce-scatter: add", BLUE),
                                       (middle, WIDTH - 20, "allgather: copy", GREEN)):
        page.line((left, 222), (right, 222), color=color)
        page.text((left + right) / 2, 236, f"{words} what comes", color)
    return page


def _after(held: list[list[set[int]]], now: Sequence[Round]) -> list[list[set[int]]]:
    """Whose summands the blocks hold after a round."""
    out = [list(blocks) for blocks in held]
    for me, own in enumerate(now):
        for got in own.recvs:
            kept = held[me][got.start] if own.reduce else set()
            out[me][got.start] = held[got.peer][got.start] | kept
    return out


def _blocks(page: Canvas, x: float, title: str, held: list[list[set[int]]]) -> None:
    """The blocks of all members, a row each, with their numbers of summands."""
    page.text(x + 38, 22, title, bold=True)
    colors = (INK, "#5f86a8", BLUE, GREEN)
    for me, blocks in enumerate(held):
        for b, summands in enumerate(blocks):
            count = len(summands)
            page.box(x + b * 19 + 1, 42 + me * 42, 17, 24, str(count), colors[count - 1],
                     faint=count == 1)


def pipeline() -> Canvas:
    """The cells of a pipeline of four stages in both orders, in simulated time."""
    page = canvas(330)
    for y, order in ((52, "gpipe"), (200, "1f1b")):
        _cells(page, y, order)
    legend(page, 60, 318, {"forward": BLUE, "backward": GREEN}, 90)
    return page


def _cells(page: Canvas, y: float, order: str) -> None:
    """The cells of an order: from the first to the last step of a micro-batch in a stage."""
    found = hpcpar.plan("vgg16", 4, 256, "p100x4x4", "pipeline:4x1", microbatches=6, order=order)
    ends: dict[tuple[int, str, int], list[float]] = defaultdict(list)
    for step in found.prediction.steps:
        if not step.is_comm and step.phase in ("forward", "backward"):
            ends[step.stage, step.phase, step.part] += [step.start_s, step.end_s]
    total_s = found.prediction.total_s
    scale = (WIDTH - 80) / total_s
    memory = found.prediction.memory_bytes / 1e9
    page.text(60, y - 20, f"{order}: {1e3 * total_s:.0f} ms, {memory:.1f} GB on the largest "
                          "rank", left=True, bold=True)
    for stage in range(4):
        page.text(30, y + 12 + 26 * stage, f"stage {stage}", size=8)
    for (stage, phase, part), times in ends.items():
        width = (max(times) - min(times)) * scale - 1.5
        page.box(60 + min(times) * scale, y + 26 * stage, width, 22, str(part), PHASES[phase],
                 size=8)
