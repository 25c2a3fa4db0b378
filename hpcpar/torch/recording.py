"""Records a user's training loop."""

from __future__ import annotations

import datetime
import math
import sys
from functools import partial
from time import perf_counter
from types import TracebackType

from hpcpar.comm.cores import fullest_node
from hpcpar.machine import files
from hpcpar.options.output_files import RECORD
from hpcpar.prediction.price import price
from hpcpar.torch.engine import Engine
from hpcpar.train import record_file
from hpcpar.train.collect import Recorder
from hpcpar.train.job import MeasuredRun


class Recording:
    """A context that records an engine's iterations; at the end rank 0 writes the file.

    All ranks enter and leave it together. The time of an iteration covers the forward and the
    backward pass. The time of the loss, the optimizer and the loader is recorded separately.
    """

    def __init__(self, engine: Engine, path: str) -> None:
        self._engine, self._path = engine, path
        self._begin_s, self._busy_s, self._complete = 0.0, 0.0, False

    def __enter__(self) -> Recording:
        engine = self._engine
        engine.world.first(self._check)
        self._run = MeasuredRun(engine.world, engine.executor, engine.schedule)
        plan, machine = engine.plan, engine.plan.machine
        assert machine is not None
        prediction = price(engine.network, plan, machine)
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        device = engine.communicator.backend.name
        self._recorder = Recorder(
            engine.world, self._run, device, fullest_node(engine.world, device),
            {"prediction": prediction.to_json(steps=True), "machine": files.to_dict(machine),
             "started": now, "command": " ".join(sys.argv)})
        engine.recording = self
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self._engine.recording = None
        if kind is not None:
            return
        self._close()
        record = self._recorder.collect() if self._run.step else None
        write = None if record is None else partial(record_file.write, self._path, record)
        self._engine.world.agree(lambda: None if write is None else write())

    def _check(self) -> None:
        """Check that the file, if it exists, is a record."""
        RECORD.check(self._path)
        RECORD.check_content(self._path)

    def begin(self) -> None:
        """Start an iteration."""
        self._close()
        self._begin_s, self._busy_s, self._complete = perf_counter(), 0.0, False

    def ran(self, began_s: float, complete: bool) -> None:
        """Add a pass that began at `began_s`; `complete` if it ends the iteration."""
        self._busy_s += perf_counter() - began_s
        self._complete = complete

    def _close(self) -> None:
        """Record the last iteration, if it had a backward pass."""
        if self._complete:
            run, engine = self._run, self._engine
            run.stamps.add(run.step, engine.training.times, self._begin_s)
            run.measured.iterations.add(run.step, (self._busy_s, engine.last_loss))
            run.measured.outside.add(run.step, perf_counter() - self._begin_s - self._busy_s)
            run.step += 1
        self._complete, self._engine.last_loss = False, math.nan
