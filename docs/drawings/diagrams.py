"""Pictures of ideas: the rooms of the code, the way of a plan and of a run, an elimination, the
check of a plan, a file from a stranger.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

import hpcpar
from docs.drawings.style import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    RANKS,
    RED,
    TEAL,
    Canvas,
    canvas,
)
from hpcpar.machine import files
from hpcpar.network.builder import Graph
from hpcpar.network.layers import Add, Conv2d, Flatten, SoftmaxCrossEntropy
from hpcpar.plan.layout import owned
from hpcpar.search.edge_elimination import count_eliminations
from hpcpar.search.space import Spaces

#: The rooms from top to bottom, with their subject; a room imports from those above it.
ROOMS = {
    "process": "signals, launchers", "io": "files", "options": "options, checks",
    "network": "what is trained", "machine": "where it runs", "plan": "how it is split",
    "schedule": "steps and messages", "papers": "closed forms", "cost": "what a step costs",
    "simulation": "all ranks in time", "prediction": "a plan's price",
    "search": "the best plan", "data": "data sets",
    "kernels": "the arithmetic", "comm": "MPI and NCCL", "runtime": "one rank's program",
    "train": "loop, checkpoints", "calibrate": "measuring", "diagnose": "what can run here",
    "report": "tables, pictures", "sweep": "many runs", "api": "import hpcpar",
    "torch": "PyTorch loops", "cli": "the commands",
}
_ROOT = Path(hpcpar.__file__).parent


def _imported(room: str) -> set[str]:
    """The rooms that files of a room import from."""
    found = set()
    for path in (_ROOT / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                found |= {name.split(".")[1] for name in names if name.startswith("hpcpar.")}
    return found & set(ROOMS) - {room}


def rooms() -> Canvas:
    """The rooms in a column; beside each a dot for every room above that it imports."""
    page, row, left, column = canvas(40 + 23 * len(ROOMS)), 23, 252, 18
    colors = dict.fromkeys(ROOMS, INK)
    for group, color in ((("network", "machine", "plan", "schedule"), BLUE),
                          (("papers", "cost", "simulation", "prediction", "search"), ORANGE),
                          (("data", "kernels", "comm", "runtime", "train"), GREEN),
                          (("calibrate", "diagnose", "report"), PURPLE),
                          (("sweep", "api", "torch", "cli"), TEAL)):
        colors |= dict.fromkeys(group, color)
    for i, (room, subject) in enumerate(ROOMS.items()):
        y = 20 + i * row
        page.line((left + i * column, y + 17), (left + i * column, 20 + len(ROOMS) * row),
                  color=colors[room], width=0.4)
        page.box(10, y, 88, row - 4, room, colors[room])
        page.text(106, y + 9, subject, left=True)
        x = left + i * column
        page.line((x, y + 9), (left - 12, y + 9), color=colors[room], width=0.4)
        for other in sorted(_imported(room)):
            at = left + list(ROOMS).index(other) * column
            page.axes.plot(at, y + 9, "o", color=colors[other], markersize=6)
        page.text(x, y + 9, room, colors[room], size=8, left=True)
    return page


def _node(page: Canvas, at: tuple[float, float], title: str, room: str, color: str = BLUE,
          width: float = 136) -> None:
    """A box with what happens, and the room in which it does."""
    x, y = at
    page.box(x, y, width, 50, color=color, faint=True, round_px=6)
    page.text(x + width / 2, y + 17, title, size=8.5, bold=True)
    page.text(x + width / 2, y + 36, room, color, size=8)


def way_of_a_plan() -> Canvas:
    """From a network, a machine and a number of ranks to a plan and its price."""
    page = canvas(250)
    for y, title, room in ((15, "network", "network/"), (85, "ranks, batch", "api/ or cli/"),
                           (155, "machine", "machine/")):
        _node(page, (4, y), title, room, INK)
    _node(page, (186, 50), "strategy", "plan/")
    _node(page, (186, 120), "search", "search/", ORANGE)
    _node(page, (370, 85), "list of steps", "schedule/")
    _node(page, (552, 15), "memory of a rank", "schedule/")
    _node(page, (552, 85), "time", "cost/, simulation/", ORANGE)
    _node(page, (552, 155), "answer, pictures", "report/", PURPLE)
    for start, end in ((40, 70), (106, 80), (114, 140), (180, 150)):
        page.arrow((140, start), (184, end))
    page.arrow((322, 75), (368, 102))
    page.arrow((322, 145), (368, 118))
    page.text(352, 78, "plan", size=8)
    page.arrow((506, 102), (550, 45))
    page.arrow((506, 110), (550, 110))
    page.arrow((620, 135), (620, 153))
    page.line((688, 110), (696, 110), (696, 222), (254, 222), color=ORANGE)
    page.arrow((254, 222), (254, 172), ORANGE)
    page.text(470, 236, "the next candidate, until none can be faster and fit", ORANGE)
    return page


def way_of_a_run() -> Canvas:
    """From a plan file to trained weights and a record, on every rank."""
    page = canvas(262)
    _node(page, (4, 20), "plan.json", "plan/", INK)
    _node(page, (186, 20), "the same steps", "schedule/")
    _node(page, (370, 20), "do ranks agree?", "comm/", GREEN)
    _node(page, (552, 20), "memory, operators", "runtime/", GREEN)
    page.box(178, 100, 518, 92, color=GREEN, filled=False, dashed=True, round_px=8)
    page.text(437, 179, "every iteration, on every rank", GREEN, size=8)
    _node(page, (552, 115), "images", "data/", GREEN)
    _node(page, (370, 115), "compute, messages", "kernels/, comm/", GREEN)
    _node(page, (186, 115), "sent = planned?", "comm/, first iteration", GREEN)
    _node(page, (4, 115), "checkpoint, record", "train/", GREEN)
    _node(page, (4, 205), "comparison", "report/", PURPLE)
    for x in (140, 322, 506):
        page.arrow((x, 45), (x + 44, 45))
        page.arrow((x + 46, 140), (x + 2, 140))
    page.arrow((620, 70), (620, 113))
    page.arrow((72, 165), (72, 203))
    return page


#: The layers of a residual block, and its edges.
_BLOCK = ("stem", "conv1", "conv2", "sum")
_EDGES = [(0, 1), (1, 2), (2, 3), (0, 3)]


def _configurations() -> list[int]:
    """Configurations of each layer of the block on four ranks."""
    net = Graph("block", (16, 32, 32))
    for name in _BLOCK[:3]:
        net.add(Conv2d, name, out_channels=16, kernel=3, padding=1)
    net.add(Add, "sum", after=("conv2", "stem"))
    net.add(Flatten, "flatten")
    net.add(SoftmaxCrossEntropy, "loss")
    network = net.build()
    spaces = Spaces(network, 4, 64, files.load("p100x4x4"))
    return [len(spaces.of(network.by_name[name])) for name in _BLOCK]


def elimination() -> Canvas:
    """A residual block shrinks to two layers: twice a layer goes, once two edges become one."""
    sizes, done = _configurations(), count_eliminations(len(_BLOCK), _EDGES)
    assert (done.nodes, done.edges, done.kept) == (2, 1, 2)
    page = canvas(312)
    panels: list[tuple[str, str, tuple[int, ...], list[tuple[int, int]]]] = [
        ("the block", "a table for each layer\nand each edge", (0, 1, 2, 3), _EDGES),
        ("conv1 goes", "for each pair of its\nneighbors: its best entry", (0, 2, 3),
         [(0, 2), (2, 3), (0, 3)]),
        ("conv2 goes", "now two edges join\nthe same layers", (0, 3), [(0, 3), (0, 3)]),
        ("edges are added", "two layers are left:\ntake the best pair", (0, 3), [(0, 3)])]
    for i, (title, words, nodes, edges) in enumerate(panels):
        _graph(page, 12 + 174 * i, title, words, nodes, edges, sizes)
        if i:
            page.arrow((174 * i - 24, 57), (174 * i + 8, 57))
    return page


def _graph(page: Canvas, x: float, title: str, words: str, nodes: Sequence[int],
           edges: Sequence[tuple[int, int]], sizes: Sequence[int]) -> None:
    """One state of the elimination."""
    page.text(x + 70, 16, title, bold=True)
    for number, (a, b) in enumerate(edges):
        top, bottom = 72 + 58 * a, 42 + 58 * b
        aside = (a, b) == (0, 3) and number == len(edges) - 1 and len(edges) > 1
        at = x + (112 if aside else 52)
        page.arrow((at, top), (at, bottom), ORANGE)
        table = f"{sizes[a]} x {sizes[b]}"
        page.text(at + 5, (top + bottom) / 2, table, ORANGE, size=8, left=True)
    for node in range(len(_BLOCK)):
        there = node in nodes
        wide = 130 if node in (0, 3) else 80
        if there:
            page.box(x + 5, 42 + 58 * node, wide, 30, f"{_BLOCK[node]}: {sizes[node]}", BLUE)
    page.text(x + 70, 290, words, size=8)


def check() -> Canvas:
    """How a plan is verified: three training runs from the same weights, and two differences."""
    result = hpcpar.plan("lenet5", 4, 64, "local", "grid:2x2")
    network, config = result.best.task.network, result.plan.configs["fc2"]
    layout = owned(network, network.by_name["fc2"], config, 64)
    samples, features = map(int, layout.shape)
    page = canvas(260)
    _node(page, (10, 105), "same weights", "and the same samples", INK, 150)
    for y, name, words, color in ((20, "the plan", "on 4 ranks", BLUE),
                                   (105, "one rank", "the serial run", GREEN),
                                   (190, "one rank, disturbed", "values off by rounding", ORANGE)):
        _node(page, (215, y), name, words, color, 150)
        page.arrow((160, 130), (213, y + 25))
        page.arrow((365, y + 25), (398, y + 25))
        page.box(402, y - 5, 96, 60, color=color, faint=True)
    for rank in range(4):
        (top, bottom), (left, right) = layout.box(rank)
        page.box(402 + left / features * 96 + 1, 15 + top / samples * 60 + 1,
                 (right - left) / features * 96 - 2, (bottom - top) / samples * 60 - 2,
                 f"rank {rank}", RANKS[rank], size=7.5)
    page.text(450, 130, "a tensor\nof a layer", size=8)
    page.text(450, 215, "the same tensor", size=8)
    page.arrow((512, 50), (512, 120), RED, both=True)
    page.arrow((512, 142), (512, 212), RED, both=True)
    page.text(522, 85, "difference", RED, left=True, bold=True)
    page.text(522, 175, "x 4 = tolerance", RED, left=True, bold=True)
    page.text(522, 130, "at most?", left=True)
    return page


def stranger() -> Canvas:
    """What passes from a file of somebody else, and what does not."""
    page = canvas(290)
    page.text(75, 18, "files", bold=True)
    page.text(340, 18, "checks before use", bold=True)
    page.text(605, 18, "what arrives", bold=True)
    rows = (("plan, record", "names of layers that are\nbuilt in, or that you imported",
             "a network and its split"),
            ("machine file", "types, finite numbers, bounds", "rates and latencies"),
            ("HDF5 data", "a process of its own reads the\nstructure, at most 20 s",
             "arrays of a checked size"),
            ("ONNX", "operators by name", "layers and weights"))
    for i, (name, checked, arrives) in enumerate(rows):
        y = 36 + 46 * i
        page.box(10, y, 130, 36, name, ORANGE)
        page.box(215, y, 250, 36, checked, BLUE, faint=True)
        page.box(540, y, 150, 36, arrives, GREEN, size=8)
        page.arrow((143, y + 18), (212, y + 18))
        page.arrow((468, y + 18), (537, y + 18))
    page.text(10, 238, "what does not pass", RED, left=True, bold=True)
    for i, words in enumerate(("code", "links to other files", "control characters",
                               "sizes nobody wrote")):
        page.box(10 + 173 * i, 252, 160, 28, words, RED, filled=False)
    return page



def graphs() -> Canvas:
    """What a launch does in an iteration with NCCL, and with messages that the host drives."""
    page = canvas(185)
    step, message = ("steps", GREEN), ("messages", ORANGE)
    rows = {"nccl": [("labels", INK), [step, message, step, message, step], ("loss", INK)],
            "staged": [("labels", INK), [step], ("start", ORANGE), [step], ("wait", ORANGE), [step],
                       ("loss", INK)]}
    for y, (transport, parts) in zip((20, 95), rows.items(), strict=True):
        page.text(4, y + 25, transport, left=True, bold=True)
        x = 70.0
        for part in parts:
            inside = part if isinstance(part, list) else [part]
            if isinstance(part, list):
                page.box(x - 4, y, 84 * len(inside), 50, color=RED, faint=True, round_px=6)
            for name, color in inside:
                page.box(x, y + 8, 76, 34, name, color, filled=isinstance(part, list))
                x += 84
            x += 4
    page.text(70, 168, "red: a graph, one launch. Outlines: calls of the host, in every iteration",
              left=True)
    return page
