"""pytest under mpiexec: every rank runs the same tests in lockstep.

    mpiexec -n 4 python -m pytest tests/mpi

After each phase of each test the ranks share their outcomes, so a failure on one rank fails the
test on all of them with that rank's message. A rank that is stuck, or whose peers are stuck because
it failed half-way, ends the whole job in time. Rank 0 alone writes the report.
"""

from __future__ import annotations

import os

# several ranks share the cores: one thread each, set before NumPy loads its BLAS
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import faulthandler  # noqa: E402
import sys  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
import zlib  # noqa: E402
from collections.abc import Generator  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import pytest  # noqa: E402

from hpcpar.comm.communicator import Communicator  # noqa: E402
from hpcpar.comm.world import World, world  # noqa: E402
from hpcpar.kernels import backend  # noqa: E402
from hpcpar.runtime import parameters  # noqa: E402
from tests import limits  # noqa: E402
from tests.mpi.sharing import NAP_S, Patient  # noqa: E402

#: A test that takes longer is stuck. Below pytest-timeout's limit, which would end the test on one
#: rank only.
LIMIT_S = float(os.environ.get("HPCPAR_TEST_LIMIT_S", 0.9 * limits.LIMIT_S))
#: How long a rank that failed waits for the others before it concludes that they wait for it.
GRACE_S = float(os.environ.get("HPCPAR_TEST_GRACE_S", 0.2 * limits.LIMIT_S))


class Lockstep:
    """The plugin: shares outcomes over a communicator of its own and watches the time."""

    def __init__(self, stderr: Any) -> None:
        self.world: World = world()
        self.world.comm = Patient(self.world.comm)
        self.comm: Any = self.world.comm.Dup()
        #: For the tests' own messages; after a failure a fresh one, lest messages left behind reach
        #: the next test.
        self.communicator: Communicator | None = None
        self.stderr = stderr
        self.collect_errors: list[str] = []
        self.running = ""
        self.deadline = float("inf")
        threading.Thread(target=self._watch, daemon=True).start()

    # -- time --------------------------------------------------------------------------------------
    def _watch(self) -> None:
        while True:
            time.sleep(0.2)
            # one rank after the other: the first ends the job, and its message is not mixed with
            # others
            if time.monotonic() > self.deadline + self.world.rank:
                faulthandler.dump_traceback(self.stderr, all_threads=True)
                self.abort(f"{self.running} still runs after {LIMIT_S:g} s")

    def abort(self, message: str) -> None:
        """End the job; pytest has sys.stderr captured, so the message goes to the real one."""
        sys.stderr = self.stderr
        self.world.abort(message)

    # -- sharing -----------------------------------------------------------------------------------
    def share(self, outcome: str, text: str) -> list[tuple[str, str]]:
        """Every rank's (outcome, text)."""
        started = time.monotonic()
        mine = np.array([zlib.crc32(f"{outcome} {text}".encode())], np.int64)
        everyone = np.empty(self.world.size, np.int64)
        request = self.comm.Iallgather(mine, everyone)
        while not request.Test():
            time.sleep(NAP_S)
            if outcome == "failed" and time.monotonic() - started > GRACE_S:
                print(text, file=self.stderr, flush=True)
                self.abort(
                    f"{self.running} failed here (see above) and other ranks still wait for this "
                    f"one")
        if (everyone == mine[0]).all() and outcome != "failed":
            return [(outcome, text)] * self.world.size
        return list(self.comm.allgather((outcome, text)))

    # -- hooks -------------------------------------------------------------------------------------
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.collect_errors.append(report.longreprtext)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        own = "\n".join(self.collect_errors)
        tests = "\n".join(item.nodeid for item in session.items)
        found = self.share(own, tests)
        if any(value != found[0] for value in found):
            if own and self.world.rank:
                print(f"rank {self.world.rank}: {own}", file=self.stderr, flush=True)
            pytest.exit("ranks collected different tests", returncode=1)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.running, self.deadline = item.nodeid, time.monotonic() + LIMIT_S
        try:
            return (yield)
        finally:
            self.deadline = float("inf")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self,
                                  item: pytest.Item) -> Generator[
                                      None, pytest.TestReport, pytest.TestReport]:
        report = yield
        found = self.share(report.outcome, report.longreprtext if report.failed else "")
        if any(outcome == "failed" for outcome, _ in found):
            self.communicator = None
        failed = [(rank, text) for rank, (outcome, text) in enumerate(found) if outcome == "failed"]
        if failed and not report.failed:
            report.outcome = "failed"
            report.longrepr = f"rank {failed[0][0]} of {self.world.size} failed:\n{failed[0][1]}"
            failed = failed[1:]
        elif not failed and len({outcome for outcome, _ in found}) > 1:
            report.outcome = "failed"
            report.longrepr = f"ranks disagree: {[outcome for outcome, _ in found]}"
        for rank, text in failed:
            # the same message (of a check that all ranks made together) once is enough
            if rank != self.world.rank and text != report.longreprtext:
                report.sections.append((f"rank {rank} of {self.world.size}", text))
        return report


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    # capture is suspended while pytest configures: this is the real stderr
    lockstep = Lockstep(os.fdopen(os.dup(2), "w"))
    config.pluginmanager.register(lockstep, "lockstep")
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if lockstep.world.rank and reporter is not None:
        reporter._tw._file = open(os.devnull, "w")  # noqa: SIM115 - open until the process ends


@pytest.fixture(scope="session")
def ranks() -> World:
    return world()


@pytest.fixture
def communicator(request: pytest.FixtureRequest) -> Communicator:
    lockstep: Any = request.config.pluginmanager.getplugin("lockstep")
    if lockstep.communicator is None:
        lockstep.communicator = Communicator(world(), backend("cpu"))
    return lockstep.communicator


@pytest.fixture(autouse=True)
def every_branch_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Normalizations that start at 0 would leave residual branches without gradients at first."""
    monkeypatch.setattr(parameters, "initial_scale", lambda network, layer: 1.0)
