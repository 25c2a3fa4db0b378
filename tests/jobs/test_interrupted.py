"""Training runs that are stopped, killed or resumed from damaged files lose an iteration,
not an epoch.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpcpar.process.signals import STATUS
from hpcpar.train import checkpoint, record_file
from tests.jobs.conftest import Run, clean_environment, summary
from tests.limits import LIMIT_S, wait_until

Make = Callable[..., Path]
WORDS = ("--rate", 0.04, "--seed", 3, "--schedule", "constant", "--json")


@pytest.fixture
def job(mpiexec: str, digits: Path, plan: Make,
        tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A training run of two ranks that would take for ever, past its first checkpoints."""
    words = ["--plan", plan(2, "data", precision="fp64"), "--data", digits, "--epochs", 10**6,
             "--checkpoint", tmp_path / "c.h5", "--checkpoint-every", "20steps", "--out",
             tmp_path / "run.h5", *WORDS]
    command = [mpiexec, "-n", "2", sys.executable, "-m", "hpcpar", "run", *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=clean_environment()) as started:
        wait_until((tmp_path / "c.h5").exists, started)
        yield started
        started.kill()


def ranks(path: Path) -> list[int]:
    """Processes that run ranks of the job whose files are in this folder, in no order."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"run" in words and str(path / "c.h5").encode() in words and b"-n" not in words:
            found.append(int(entry.name))
    return sorted(found)


def has_begun(pid: int) -> bool:
    """True once a process notes requests to stop."""
    with suppress(OSError):
        caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
        return caught is not None and bool(int(caught[1], 16) >> (signal.SIGUSR1 - 1) & 1)
    return False


@pytest.mark.parametrize("whom", ["one", "all", "launcher"])
def test_a_signal_while_ranks_start_ends_the_job_cleanly(whom: str, mpiexec: str, digits: Path,
                                                         plan: Make, tmp_path: Path) -> None:
    """At a seeded moment after the first lines of all processes, mostly before MPI is up."""
    words = ["--plan", plan(2, "data"), "--data", digits, "--epochs", 10**6, "--checkpoint",
             tmp_path / "c.h5"]
    command = [mpiexec, "-n", "2", sys.executable, "-m", "hpcpar", "run", *map(str, words)]
    draw = random.Random(whom)
    name = draw.choice(["SIGTERM", "SIGUSR1", "SIGINT"])
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                          env=clean_environment()) as job:
        try:
            wait_until(lambda: len([*filter(has_begun, ranks(tmp_path))]) >= 2, job)
            begun = [*filter(has_begun, ranks(tmp_path))]
            time.sleep(draw.uniform(0, 0.3))
            for pid in {"one": begun[-1:], "all": ranks(tmp_path), "launcher": [job.pid]}[whom]:
                os.kill(pid, getattr(signal, name))
            _, err = job.communicate(timeout=LIMIT_S)
        finally:
            job.kill()
    assert job.returncode == STATUS, err
    assert err.count("stopped by") == 1 and f"stopped by {name} on rank" in err
    assert "Traceback" not in err and (tmp_path / "c.h5").exists()


def curve(hpcpar: Run, plan: Make, digits: Path, steps: int) -> list[float]:
    """Losses of a training run on one rank that nobody disturbs."""
    done = hpcpar(1, "run", "--plan", plan(1, "data", precision="fp64"), "--data", digits,
                  "--steps", steps, *WORDS)
    losses: list[float] = summary(done)["losses"]
    return losses


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGINT"])
def test_a_signal_to_a_rank_ends_the_job_cleanly(name: str, job: subprocess.Popen[str], hpcpar: Run,
                                                 plan: Make, digits: Path, tmp_path: Path) -> None:
    """All ranks write a checkpoint and the record; what goes on from them is one training run."""
    os.kill(ranks(tmp_path)[-1], getattr(signal, name))
    out, err = job.communicate(timeout=LIMIT_S)
    assert job.returncode == STATUS, err
    assert f"stopped by {name} on rank" in err and "--resume" in err and "Traceback" not in err
    done = json.loads(out)["steps"]
    with h5py.File(tmp_path / "c.h5") as f:
        assert f["state"].attrs["step"] == done
    if name != "SIGTERM":
        return
    rest = hpcpar(2, "run", "--plan", plan(2, "data", precision="fp64"), "--data", digits,
                  "--steps", done + 15, "--resume", tmp_path / "c.h5", "--out",
                  tmp_path / "run.h5", *WORDS)
    assert len(summary(rest)["losses"]) == 15
    whole = record_file.read(str(tmp_path / "run.h5"))
    assert whole.iterations_done is not None
    assert whole.iterations_done.tolist() == [*range(done + 15)]
    assert (whole.missing, whole.done) == (0, done + 15)
    np.testing.assert_allclose(whole.loss, curve(hpcpar, plan, digits, done + 15), rtol=1e-9)


def test_a_killed_job_leaves_a_record_and_resumes_elsewhere(job: subprocess.Popen[str], hpcpar: Run,
                                                            plan: Make, digits: Path,
                                                            tmp_path: Path) -> None:
    for rank in ranks(tmp_path):
        os.kill(rank, signal.SIGKILL)
    job.communicate(timeout=LIMIT_S)
    assert job.returncode not in (0, STATUS)
    left = record_file.read(str(tmp_path / "run.h5"))
    assert left.done >= left.iterations >= 1
    with h5py.File(tmp_path / "c.h5") as f:
        done = int(f["state"].attrs["step"])
    assert done % 20 == 0
    rest = hpcpar(3, "run", "--plan", plan(3, "spatial", precision="fp64"), "--data", digits,
                  "--steps", done + 10, "--resume", tmp_path / "c.h5", "--out",
                  tmp_path / "run.h5", *WORDS)
    np.testing.assert_allclose(summary(rest)["losses"],
                               curve(hpcpar, plan, digits, done + 10)[done:], rtol=1e-9)
    # the moved record belongs to another plan
    assert record_file.read(str(tmp_path / "run.1.h5")).iterations == left.iterations


def test_a_time_limit_ends_the_job_early(hpcpar: Run, plan: Make, digits: Path,
                                         tmp_path: Path) -> None:
    """Ten seconds before the limit, or after the first step."""
    done = hpcpar(2, "run", "--plan", plan(2, "data"), "--data", digits, "--epochs", 10**6,
                  "--checkpoint", tmp_path / "c.h5", "--time-limit", "11s")
    assert done.returncode == STATUS, done.stderr
    assert "stopped by its time limit after step" in done.stderr and (tmp_path / "c.h5").exists()


def test_damaged_checkpoints_are_named_and_can_be_taken_in_part(
        hpcpar: Run, plan: Make, digits: Path, tmp_path: Path) -> None:
    path = tmp_path / "c.h5"
    words: tuple[Any, ...] = ("run", "--plan", plan(2, "filter"), "--data", digits)
    made = hpcpar(2, *words, "--steps", 3, "--checkpoint", path)
    assert made.returncode == 0, made.stderr
    again = hpcpar(2, *words, "--steps", 3, "--resume", path, "--checkpoint", path)
    assert again.returncode == 0 and again.stderr.count("\n") == 1, "there is nothing left to do"
    assert f"{path} is already at step 3 of 3" in again.stderr
    with h5py.File(path) as f:
        place = f["params/fc1/weight"].id.get_chunk_info(0).byte_offset
    content = bytearray(path.read_bytes())
    content[place + 1000] ^= 4
    path.write_bytes(content)
    with h5py.File(path, "a") as f:
        del f["optimizer/conv2"]
    resume = ("--resume", path, "--steps", 5, "--json")
    refused = hpcpar(2, *words, *resume)
    assert refused.returncode == 2 and refused.stderr.count("hpcpar: ") == 1
    assert "no weight of layer 'conv2' (optimizer/conv2/weight)" in refused.stderr
    taken = hpcpar(2, *words, *resume, "--partial")
    assert len(summary(taken)["losses"]) == 2
    assert "not restored" in taken.stderr and "damaged at params/fc1/weight" in taken.stderr
    found = checkpoint.resume_rows(str(path), "fc2", 0, 84, "f4", ["params/weight"])
    assert np.isfinite(found["params/weight"]).all()


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV"])
def test_a_rank_that_dies_is_named_with_its_host_and_signal(
        name: str, job: subprocess.Popen[str], tmp_path: Path) -> None:
    """And nobody else is blamed."""
    watched = {parent(pid): pid for pid in ranks(tmp_path)}
    child = next(pid for watcher, pid in watched.items() if watcher in watched.values())
    os.kill(child, getattr(signal, name))
    _, err = job.communicate(timeout=LIMIT_S)
    assert job.returncode not in (0, STATUS)
    lines = [line for line in err.splitlines() if line.startswith("hpcpar: ")]
    assert len(lines) == 1 and "Traceback" not in err, err
    assert re.match(rf"hpcpar: rank [01] on {socket.gethostname()} was killed by {name}", lines[0])
    assert not ranks(tmp_path)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
