"""Requests to stop a batch job: what the shell of a batch script does with real signals. Launcher,
hpcpar and the commands of batch systems are stand-ins.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpcpar.sweep import scripts
from hpcpar.sweep.batch_options import BatchOptions
from tests.limits import LIMIT_S, wait_until
from tests.unit.sweep.test_sweep_scripts import JOBS, READY, SLURM, SMALL, STUDY, replace

#: Writes its words into `said`. A run or a calibration goes on until the file `end`, which holds
#: its status, is there, or until a USR1, at which a run saves and stops. As with srun, nothing is
#: saved at a TERM.
STAND_IN = """#!/bin/bash
trap 'echo "$work got USR1" >>said; [ "$work" != run ] || touch weights.h5; exit 75' USR1
trap 'echo "$work got TERM" >>said; exit 143' TERM
echo "${0##*/} $*" >>said
case "$* " in
  *"hpcpar run "* | *" run --plan"*) work=run ;;
  *"hpcpar calibrate "*) work=calibrate ;;
  "plan "*) touch plan.json; exit ;;
  *) exit ;;
esac
touch "$work-runs"
while [ ! -e end ]; do sleep 0.02; done
exit "$(cat end)"
"""
#: The command by which each batch script starts its job again; Grid Engine only needs a status.
AGAIN = {"slurm": "scontrol requeue 7", "pbs": "qsub jobs/pbs.pbs", "lsf": "brequeue 7",
         "flux": "flux --parent batch jobs/flux.sh", "sge": ""}
Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """``start(system)``: a ready script of `jobs/` as a batch system starts it, which has its
    machine, so that it plans and trains.
    """
    shutil.copytree(JOBS, tmp_path / "jobs")
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/activate").touch()
    for name in ("hpcpar", "srun", "mpiexec", "flux", "scontrol", "qsub", "brequeue"):
        (tmp_path / name).write_text(STAND_IN)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "machine.toml").touch()
    env = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "7",
        "PBS_O_WORKDIR": str(tmp_path), "LSB_JOBID": "7", "NSLOTS": "2"}
    begun = []

    def begin(script: str) -> subprocess.Popen[str]:
        # tests in the background of a shell ignore SIGINT; a batch system's job does not
        begun.append(subprocess.Popen(
            ["bash", script], cwd=tmp_path, env=env, text=True, stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)))
        return begun[-1]

    yield begin
    for job in begun:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
        job.communicate()


def said(folder: Path) -> list[str]:
    return (folder / "said").read_text().splitlines()


@pytest.mark.parametrize("system", AGAIN)
@pytest.mark.parametrize("whom", ["shell", "all", "ranks"])
def test_a_request_lets_the_ranks_save_and_starts_the_job_again(
        whom: str, system: str, start: Start, tmp_path: Path) -> None:
    job = start(f"jobs/{READY[system]}")
    wait_until((tmp_path / "run-runs").exists, job)
    if whom == "ranks":  # they got it from the batch system, or their time is over
        (tmp_path / "weights.h5").touch()
        (tmp_path / "end").write_text("75")
    elif whom == "shell":
        job.send_signal(signal.SIGUSR1)
    else:
        os.killpg(job.pid, signal.SIGUSR1)
    assert job.wait(LIMIT_S) == (99 if system == "sge" else 75)
    assert ("run got USR1" in said(tmp_path)) == (whom != "ranks")
    assert AGAIN[system] in ["", said(tmp_path)[-1]]


def test_a_job_that_comes_back_resumes_and_ends(start: Start, tmp_path: Path) -> None:
    for name, text in (("weights.h5", ""), ("plan.json", ""), ("end", "0")):
        (tmp_path / name).write_text(text)
    assert start("jobs/slurm.sbatch").wait(LIMIT_S) == 0
    train, compare = said(tmp_path)
    assert "--resume weights.h5" in train and compare.startswith("hpcpar compare run.h5")


@pytest.mark.parametrize("name", ["TERM", "INT"])
def test_a_canceled_job_saves_and_stays_away(name: str, start: Start, tmp_path: Path) -> None:
    """Batch systems cancel with these signals. The launcher gets a USR1: after a TERM, srun would
    kill the ranks.
    """
    job = start("jobs/pbs.pbs")
    wait_until((tmp_path / "run-runs").exists, job)
    job.send_signal(getattr(signal, f"SIG{name}"))
    assert job.wait(LIMIT_S) == 75
    assert said(tmp_path)[-1] == "run got USR1" and (tmp_path / "weights.h5").exists()


def test_a_request_before_the_training_does_not_start_the_job_again(start: Start,
                                                                    tmp_path: Path) -> None:
    """It would calibrate again and again where the job's time is too short for that."""
    (tmp_path / "machine.toml").unlink()
    job = start("jobs/pbs.pbs")
    wait_until((tmp_path / "calibrate-runs").exists, job)
    job.send_signal(signal.SIGUSR1)
    assert job.wait(LIMIT_S) == 75 and said(tmp_path)[-1] == "calibrate got USR1"


@pytest.mark.parametrize("status", [0, 1, 2, 137])
def test_signals_do_not_change_the_status_of_ranks_that_go_on(status: int, start: Start,
                                                              tmp_path: Path) -> None:
    """Each signal ends the shell's wait, but not the launcher, which here is deaf to them."""
    deaf = STAND_IN.replace("exit 75' USR1", "' USR1")
    (tmp_path / "mpiexec").write_text(deaf)
    job = start("jobs/lsf.lsf")
    wait_until((tmp_path / "run-runs").exists, job)
    for count in range(1, 4):
        job.send_signal(signal.SIGUSR1)
        wait_until(lambda n=count: said(tmp_path).count("run got USR1") == n)
    assert job.poll() is None
    (tmp_path / "end").write_text(f"{status}")
    # 137: the batch system has killed ranks that did not save in time
    assert job.wait(LIMIT_S) == (75 if status == 137 else status)


@pytest.mark.parametrize("whom", ["shell", "all"])
def test_a_sweep_leaves_stopped_cases_open(whom: str, start: Start, tmp_path: Path) -> None:
    """A job that starts again then runs them; the next case does not begin."""
    study = replace(STUDY, out=str(tmp_path))
    for case in SMALL:
        (tmp_path / "cases" / case.name).mkdir(parents=True)
    (tmp_path / "sweep").write_text(scripts.script(
        study, SLURM, BatchOptions(), scripts.jobs(SMALL, True)[0], str(tmp_path)))
    job = start("sweep")
    wait_until((tmp_path / "run-runs").exists, job)
    (os.killpg if whom == "all" else os.kill)(job.pid, signal.SIGUSR1)
    assert job.wait(LIMIT_S) == 75 and said(tmp_path)[-1] == "run got USR1"
    assert not list(tmp_path.glob("cases/*/exit"))
    (tmp_path / "end").write_text("0")
    assert start("sweep").wait(LIMIT_S) == 0
    assert [p.read_text() for p in tmp_path.glob("cases/*/exit")] == ["0\n", "0\n"]
