"""Times of a level's halo exchanges and redistributions, relative to the alpha-beta model."""

from __future__ import annotations

from hpcpar.calibrate.link_probe import ITEM, MAX_RING_BYTES, MakeTimer, Steps
from hpcpar.calibrate.timer import Timer
from hpcpar.cost.network.contention import NetworkModel
from hpcpar.cost.network.halo import halo_of, halo_s, neighbors
from hpcpar.cost.network.redistribution import redistribution_s, spread
from hpcpar.cost.network.volumes import volumes
from hpcpar.machine.measured import Factors
from hpcpar.machine.model import Machine
from hpcpar.network.receptive_field import Window
from hpcpar.plan.axis import Axis
from hpcpar.plan.config import Config
from hpcpar.plan.layout import Layout
from hpcpar.schedule.steps import Kind

#: Bytes of one message.
MESSAGES = (512, 4096, 32 * 1024, 256 * 1024)
#: Rows that a rank owns of the image in a halo exchange.
_ROWS = 3


class P2pProbe:
    """The timers of a level's direct messages.

    Parameters
    ----------
    axis : str
        ``c`` for the ranks of a node, ``n`` for nodes.
    nodes, local : int
        Nodes, and ranks per node.
    """

    def __init__(self, steps: Steps, axis: str, name: str, nodes: int, local: int,
                 timer: MakeTimer) -> None:
        self.name, self._ranks = name, steps.communicator.world.size
        # A rank's partners differ from it in one coordinate only, and no two ranks own the same
        # data.
        if axis == "c":
            p, other, cut, across, target = local, nodes, "c", "n", "h"
            before, after = Config(n=nodes, c=local), Config(n=nodes, h=local)
        else:
            p, other, cut, across, target = nodes, local, "n", "h", "c"
            before, after = Config(n=nodes, h=local), Config(c=nodes, h=local)
        #: By kind: layouts of source and destination, and the timer, for every size.
        self.moved: dict[Kind, list[tuple[Layout, Layout, Timer]]] = {
            Kind.HALO: [], Kind.REDISTRIBUTE: [],
        }
        uncut, rows = Axis(across, other, other), p * _ROWS
        for piece in MESSAGES:
            if p * piece > MAX_RING_BYTES:
                continue
            width = Axis("w", piece // ITEM, piece // ITEM)
            with_halo = Axis(cut, rows, rows, relation=Window(3, padding=1))
            axes = (uncut, Axis(cut, p, p), Axis(target, p, p), width)
            layouts = {
                Kind.HALO: (Layout(before, (uncut, Axis(cut, rows, rows), width)),
                            Layout(before, (uncut, with_halo, width))),
                Kind.REDISTRIBUTE: (Layout(before, axes), Layout(after, axes)),
            }
            for kind, (source, destination) in layouts.items():
                action = steps.blocking(steps.direct(kind, source, destination))
                self.moved[kind].append((source, destination, timer(action)))

    @property
    def timers(self) -> list[Timer]:
        return [timer for moved in self.moved.values() for *_, timer in moved]

    def factors(self, machine: Machine) -> list[Factors]:
        """Measured times, as multiples of the alpha-beta model's times."""
        network_model, ranks = NetworkModel(machine), self._ranks
        factors = []
        for kind, moved in self.moved.items():
            sizes, times = [], []
            for source, destination, timer in moved:
                if kind is Kind.HALO:
                    received, sent, level = neighbors(halo_of(source, destination), ITEM,
                                                       network_model, ranks)
                    model_s = halo_s(received, sent, level, ITEM, network_model, False)
                    items = float(max(received.items, sent.items))
                else:
                    moved_items = volumes(source, destination, ranks)
                    links = spread(moved_items.span, ranks, network_model, ranks)
                    model_s = redistribution_s(moved_items, links, links, ITEM,
                                               machine.copy_s_per_byte, network_model)
                    items = float(max(moved_items.sent, moved_items.received))
                sizes.append(items * ITEM)
                times.append(timer.seconds / float(model_s))
            factors.append(Factors(self.name, kind.value, "direct", tuple(sizes), tuple(times)))
        return factors
