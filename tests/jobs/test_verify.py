"""``hpcpar verify``: equal plans pass, a rank that computes something else is found, and so is one
that is stuck.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.jobs.conftest import Run, clean_environment
from tests.limits import LIMIT_S

Make = Callable[..., Path]
NETWORK = "tests.jobs.networks:residual"

#: A job in which rank 1 does something to its executor before an iteration.
SCRIPT = """
import signal, sys
import hpcpar.runtime.executor as executor
from hpcpar.cli.main import main
honest = executor.Executor.begin
def iterate(self, *args):
    if self.communicator.world.rank == 1:
        {what}
    return honest(self, *args)
executor.Executor.begin = iterate
sys.exit(main(sys.argv[1:]))
"""


def job(mpiexec: str, what: str, ranks: int, *words: object,
        **env: str) -> subprocess.CompletedProcess[str]:
    command = [mpiexec, "-n", str(ranks), sys.executable, "-c", SCRIPT.format(what=what),
               *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S,
                          env=clean_environment(**env))


@pytest.mark.parametrize(("ranks", "strategy"), [(2, "data"), (3, "spatial")])
def test_dropout_inside_of_a_whole_part_depends_on_the_sample(ranks: int, strategy: str,
                                                              hpcpar: Run, plan: Make) -> None:
    path = plan(ranks, strategy, network="tests.jobs.networks:attention")
    done = hpcpar(ranks, "verify", "--plan", path, "--steps", 2, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert 0 < found["largest_difference"] <= found["tolerance"] and found["trace_equals_schedule"]


@pytest.mark.parametrize(
    ("ranks", "strategy", "options"),
    [(4, "pipeline:2x2", {"microbatches": 2}),
     (3, "spatial", {"batch_norm": "local", "synchronization": "server"}),
     (2, "channel", {"optimizer": "adam"})],
)
def test_plans_train_as_one_rank_does(ranks: int, strategy: str, options: dict[str, object],
                                      hpcpar: Run, plan: Make) -> None:
    path = plan(ranks, strategy, network=NETWORK,
                **{k.replace("_", "-"): v for k, v in options.items()})
    done = hpcpar(ranks, "verify", "--plan", path, "--steps", 2, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    layers = {layer["name"]: layer for layer in found["layers"]}
    assert 0 < found["largest_difference"] <= found["tolerance"] and found["trace_equals_schedule"]
    assert all(layers["b.bn2"][q] is not None for q in ("weight", "running_statistics"))
    # also of layers whose output another overwrites in place
    assert all(layers[name][q] is not None for name in ("fc1", "b.bn2")
               for q in ("output", "gradient"))
    assert (layers["fc2"]["weight_gradient"] is None) == ("synchronization" in options)
    assert ("by design" in done.stderr) == ("batch_norm" in options)


def test_several_passes_are_verified_on_real_data(hpcpar: Run, plan: Make, digits: Path) -> None:
    for strategy in ("owt-b", "owt-c"):
        done = hpcpar(2, "verify", "--plan", plan(2, strategy), "--data", digits, "--steps", 2)
        assert done.returncode == 0, done.stderr


def test_a_rank_with_other_weights_is_found(mpiexec: str, plan: Make) -> None:
    done = job(mpiexec, "self.parameters['fc2'].flat[:] *= 1.01", 2, "verify", "--plan",
               plan(2, "data"), "--steps", 1)
    lines = [line for line in done.stderr.splitlines() if line.startswith("hpcpar: ")]
    assert done.returncode == 1 and len(lines) == 1, done.stderr
    assert "does not train as one rank does" in lines[0] and "of layer '" in lines[0]
    assert any(line.startswith("fc2") and "!" in line for line in done.stdout.splitlines())


def test_a_stuck_rank_ends_the_job(mpiexec: str, plan: Make, digits: Path) -> None:
    words = ("run", "--plan", plan(3, "filter"), "--data", digits, "--steps", 2)
    done = job(mpiexec, "signal.pause()", 3, *words, HPCPAR_STALL_S="1")
    assert done.returncode != 0
    assert ("nothing has arrived for 1 s from rank" in done.stderr
            and "layer '" in done.stderr
            and "step " in done.stderr)


def test_a_stall_time_that_is_not_a_number_is_refused(mpiexec: str, plan: Make,
                                                      digits: Path) -> None:
    done = job(mpiexec, "pass", 2, "run", "--plan", plan(2, "data"), "--data", digits,
               HPCPAR_STALL_S="soon")
    assert done.returncode != 0 and "HPCPAR_STALL_S=soon" in done.stderr


def test_verify_starts_its_ranks(hpcpar: Run, plan: Make) -> None:
    """Without a launcher; the ranks' exit status is passed on."""
    given = plan(2, "data")
    done = hpcpar(0, "verify", "-n", 2, "--plan", given, "--steps", 1)
    assert done.returncode == 0, done.stderr
    wrong = hpcpar(0, "verify", "-n", 3, "--plan", given, "--steps", 1)
    assert wrong.returncode == 2 and "the plan is for 2 ranks" in wrong.stderr
