"""Iterations as graphs: runs of steps that a GPU does again by one launch.

The first iterations run step by step. A later one is captured: between the steps that need the host
(messages by MPI, loads of images, and everything that the device refuses to capture), each run of
steps becomes a graph, and is launched at once. Later iterations launch the graphs and do what lies
between them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

from hpcpar.comm.trace import Trace
from hpcpar.runtime.actions import Actions
from hpcpar.runtime.program import Program
from hpcpar.schedule.steps import Phase

Call = Callable[[], None]
#: Iterations before the capture: they build engines, tables and workspaces.
WARM_UP = 2


class _Part(NamedTuple):
    """A part of a step: its function, and whether the device does all of it."""

    step: int
    run: Call
    on_device: bool


class Replays:
    """Runs a program, by graphs as soon as possible.

    Attributes
    ----------
    replayed : int
        Iterations that graphs did.
    graphs : int
        Number of graphs of an iteration.
    refused : dict
        Why the device did not capture a step, by its number.
    """

    def __init__(self, program: Program, actions: Actions) -> None:
        self._program, self._actions = program, actions
        self._communicator = program.communicator
        self._calls: list[Call] = []
        self._key: Hashable = None
        self._warm = 0
        self.replayed, self.graphs, self.refused = 0, 0, dict[int, str]()

    @property
    def cautions(self) -> list[str]:
        """A line if graphs leave steps out."""
        if not self.refused:
            return []
        names = sorted({self._program.schedule.steps[i].layer for i in self.refused})
        shown = f"{', '.join(names[:3])}{' and others' if len(names) > 3 else ''}"
        first = next(iter(self.refused.values()))
        return [f"graphs leave out {len(self.refused)} steps of the layers {shown}: {first}"]

    def run(self, key: Hashable, noted: bool) -> None:
        """Run the program once; a `noted` iteration step by step. With an equal `key`, kernels get
        the same values as arguments.
        """
        if self._calls and key == self._key and not noted and self._program.watch is None:
            for call in self._calls:
                call()
            self.replayed += 1
        elif self._calls or noted or self._program.watch is not None or self._warm < WARM_UP:
            self._program.run(noted=noted)
            self._warm += 1
        else:
            self._key = key
            self._actions.numbers.recording = True
            try:
                self._capture()
            finally:
                self._actions.numbers.recording = False

    def _parts(self) -> list[_Part]:
        """The program, part by part."""
        p, communicator, out = self._program, self._communicator, list[_Part]()
        by_device = communicator.host_runs_ahead
        for i, waits in p.order:
            out += [_Part(w, _call(communicator.wait, p.transfers[w]), by_device) for w in waits]
            if i in p.loads:
                out.append(_Part(i, p.loads[i], False))
            if i in p.before:
                out.append(_Part(i, p.before[i], True))
            out += [_Part(i, _call(array.fill, 0), True) for array in p.clears.get(i, ())]
            if i in p.transfers:
                out.append(_Part(i, _call(communicator.start, p.transfers[i]), by_device))
            elif i in p.actions:
                replays = self._replays(i)
                if not replays:
                    self.refused[i] = "the operator does not say that it replays"
                out.append(_Part(i, p.joint.get(i, p.actions[i]), replays))
        return out

    def _replays(self, i: int) -> bool:
        """Whether a compute step's kernels may be launched without calling its operator."""
        step = self._program.schedule.steps[i]
        op = self._actions.passes.find(step.layer, step.part).ops.get(step.layer)
        return op is None or step.phase is Phase.UPDATE or op.replays

    def _capture(self) -> None:
        """Run the program once, and keep its graphs and the calls between them."""
        run: list[_Part] = []
        for part in self._parts():
            if part.on_device:
                run.append(part)
                continue
            self._add(run)
            run = []
            self._add_call(part)
        self._add(run)

    def _add(self, parts: list[_Part]) -> None:
        """Capture parts and launch their graph. A part that is refused runs between two graphs."""
        if not parts:
            return
        done, trace, restore = 0, self._communicator.trace, _saved(self._actions)
        before = Trace(dict(trace.messages), dict(trace.sent_bytes))

        def work() -> None:
            nonlocal done
            for part in parts:
                part.run()
                done += 1

        try:
            launch = self._communicator.backend.captured(work)
        except Exception as err:  # it comes again below, unless it is about the capture
            restore()
            trace.messages, trace.sent_bytes = before.messages, before.sent_bytes
            self._add_around(parts, done, f"{type(err).__name__}: {err}")
            return
        self.graphs += 1
        launch()
        self._calls.append(launch)
        sent = [(step, count - before.messages.get(step, 0),
                 trace.sent_bytes[step] - before.sent_bytes.get(step, 0))
                for step, count in trace.messages.items() if step in {p.step for p in parts}]
        self._calls += [_call(trace.add, *each) for each in sent]

    def _add_around(self, parts: list[_Part], refused: int, reason: str) -> None:
        """Add parts of which one is refused; all if that is none of them."""
        if refused < len(parts):
            self._add(parts[:refused])
        for part in parts[refused:refused + 1] or parts:
            self.refused[part.step] = reason
            self._add_call(part)
        self._add(parts[refused + 1:])

    def _add_call(self, part: _Part) -> None:
        """Do a part that no graph does, now and in later iterations."""
        numbers = self._actions.numbers
        numbers.recording = False
        part.run()
        numbers.recording = True
        # graphs do not note when they update weights
        self._calls += [self._actions.copied.clear, part.run]


def _call(function: Callable[..., object], *args: object) -> Call:
    def call() -> None:
        function(*args)

    return call


def _saved(actions: Actions) -> Call:
    """A function that takes back what later actions change on the host."""
    unfinished, copied = dict(actions.unfinished), set(actions.copied)
    plain = [(op, {name: value for name, value in vars(op).items()
                   if isinstance(value, bool | int | float)}) for op in actions.passes.ops]

    def restore() -> None:
        actions.unfinished, actions.copied = dict(unfinished), set(copied)
        for op, values in plain:
            vars(op).update(values)

    return restore
