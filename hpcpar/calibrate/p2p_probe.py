"""Times of a level's halos and redistributions over those that alpha and beta give."""

from __future__ import annotations

from hpcpar.calibrate.link_probe import ITEM, MOST_BYTES, MakeTimer, Steps
from hpcpar.calibrate.timer import Timer
from hpcpar.cost.network.contention import NetworkModel
from hpcpar.cost.network.halo import halo_of, halo_s, neighbours
from hpcpar.cost.network.redistribution import redistribution_s, spread
from hpcpar.cost.network.volumes import volumes
from hpcpar.machine.model import Factors, Machine
from hpcpar.network.receptive_field import Window
from hpcpar.plan.axis import Axis
from hpcpar.plan.config import Config
from hpcpar.plan.layout import Layout
from hpcpar.schedule.steps import Kind

#: Bytes of one message.
MESSAGES = (512, 4096, 32 * 1024, 256 * 1024)
#: Rows of a halo's image that a rank owns.
_ROWS = 3


class P2pProbe:
    """The timers of the direct movements of a level.

    Parameters
    ----------
    axis : str
        ``c`` for the ranks of a node, ``n`` for nodes.
    nodes, local : int
        Nodes, and ranks of each.
    """

    def __init__(self, steps: Steps, axis: str, name: str, nodes: int, local: int,
                 timer: MakeTimer) -> None:
        self.name, self._ranks = name, steps.communicator.world.size
        # the other ranks that a rank moves something to differ from it in one coordinate: nobody
        # holds the same
        if axis == "c":
            p, other, cut, across, to = local, nodes, "c", "n", "h"
            own, turned = Config(n=nodes, c=local), Config(n=nodes, h=local)
        else:
            p, other, cut, across, to = nodes, local, "n", "h", "c"
            own, turned = Config(n=nodes, h=local), Config(c=nodes, h=local)
        #: By kind: for every size the layouts of source and destination, and the timer.
        self.moved: dict[Kind, list[tuple[Layout, Layout, Timer]]] = {
            Kind.HALO: [], Kind.REDISTRIBUTE: [],
        }
        aside, rows = Axis(across, other, other), p * _ROWS
        for piece in MESSAGES:
            if p * piece > MOST_BYTES:
                continue
            width = Axis("w", piece // ITEM, piece // ITEM)
            wider = Axis(cut, rows, rows, relation=Window(3, padding=1))
            axes = (aside, Axis(cut, p, p), Axis(to, p, p), width)
            layouts = {
                Kind.HALO: (Layout(own, (aside, Axis(cut, rows, rows), width)),
                            Layout(own, (aside, wider, width))),
                Kind.REDISTRIBUTE: (Layout(own, axes), Layout(turned, axes)),
            }
            for kind, (source, destination) in layouts.items():
                action = steps.whole(steps.direct(kind, source, destination))
                self.moved[kind].append((source, destination, timer(action)))

    @property
    def timers(self) -> list[Timer]:
        return [timer for moved in self.moved.values() for *_, timer in moved]

    def factors(self, machine: Machine) -> list[Factors]:
        """Measured times over those that alpha and beta give."""
        network_model, ranks = NetworkModel(machine), self._ranks
        out = []
        for kind, moved in self.moved.items():
            sizes, times = [], []
            for source, destination, timer in moved:
                if kind is Kind.HALO:
                    came, went, level = neighbours(halo_of(source, destination), ITEM,
                                                   network_model, ranks)
                    model_s = halo_s(came, went, level, ITEM, network_model, False)
                    items = float(max(came.items, went.items))
                else:
                    found = volumes(source, destination, ranks)
                    links = spread(found.span, ranks, network_model, ranks)
                    model_s = redistribution_s(found, links, links, ITEM, machine.copy_s_per_byte,
                                               network_model)
                    items = float(max(found.sent, found.received))
                sizes.append(items * ITEM)
                times.append(timer.seconds / float(model_s))
            out.append(Factors(self.name, kind.value, "direct", tuple(sizes),
                               tuple(times)))
        return out
