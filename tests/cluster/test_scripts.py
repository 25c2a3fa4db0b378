"""The batch scripts of jobs/, edited as a user edits them, under real batch systems."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from hpcpar.train import record_file
from tests.cluster.conftest import OPENMPI
from tests.jobs.test_interrupted import parent
from tests.limits import wait_until

CONF = "PBS_CONF_FILE"
JOBS = Path(__file__).resolve().parents[2] / "jobs"


Meanwhile = Callable[[str], None]

#: By fixture: the script, its submission, and edits for two ranks.
SYSTEMS = {
    "slurm": ("slurm.sbatch", "sbatch --parsable --output=log jobs/slurm.sbatch",
              {"--nodes=2 --ntasks=8 --ntasks-per-node=4": "--nodes=2 --ntasks-per-node=1",
               "--cpus-per-task=4": "--cpus-per-task=1"}),
    "pbs": ("pbs.pbs", "qsub jobs/pbs.pbs",
            {"select=2:ncpus=16:mpiprocs=4": "select=2:ncpus=1:mpiprocs=1",
             "mpiexec -n 8 -ppn 4": "mpiexec -n 2 -ppn 1", "ranks=8": "ranks=2",
             'cd "$PBS_O_WORKDIR"': "# jobs start there, without this variable"}),
    "openpbs": ("pbs.pbs", "qsub jobs/pbs.pbs",
                {"select=2:ncpus=16:mpiprocs=4": "select=1:ncpus=2:mpiprocs=2",
                 "mpiexec -n 8 -ppn 4": "mpiexec -n 2 -ppn 2", "ranks=8": "ranks=2"}),
    "flux": ("flux.sh", "flux batch jobs/flux.sh",
             {"--nodes=2 --nslots=8": "--nodes=2 --nslots=2",
              "--cores-per-slot=4": "--cores-per-slot=1",
              "--ntasks=8 --cores-per-task=4": "--ntasks=2 --cores-per-task=1",
              "ranks=8": "ranks=2"}),
    "sge": ("sge.sh", "qsub -terse jobs/sge.sh", {"-pe mpi 8": "-pe mpi 2"}),
}


def submit(folder: Path, system: str, data: Path, env: dict[str, str],
           edits: dict[str, str] | None = None, options: str = "", epochs: int = 3,
           python: str = sys.executable, meanwhile: Meanwhile = lambda job: None) -> str:
    """Edit a script for a small network and two ranks, submit it and wait; returns what it wrote.

    Parameters
    ----------
    edits : dict
        Further ones of the script, new text by old.
    options : str
        Further words of the submission.
    meanwhile : callable
        Called with the job's number once it is submitted.
    """
    name, command, usual = SYSTEMS[system]
    (folder / "jobs").mkdir()
    train = (JOBS / "train.sh").read_text()
    assert "--checkpoint-every 10min" in train
    (folder / "jobs/train.sh").write_text(train.replace("-every 10min", "-every 2s"))
    text = (JOBS / name).read_text()
    for old, new in {
        **usual, **(edits or {}),
        "network=(--network alexnet --batch 512)":
            "network=(--network lenet5 --strategy data --batch 16)",
        "data=images.h5": f"data={data}", "epochs=90": f"epochs={epochs}",
        # PBS does not pass the environment on; another system may have a qsub, too
        "source .venv/bin/activate": f"export PATH={Path(python).parent}:{env['PATH']} PYTHONPATH="
                                     f"{env['PYTHONPATH']} PBS_CONF_FILE={env.get(CONF, '')} #",
        "set -euo pipefail": "set -euo pipefail; trap 'echo $? >ended' EXIT",
    }.items():
        assert old in text, f"{name} has no {old}"
        text = text.replace(old, new)
    (folder / "jobs" / name).write_text(text)
    first, *rest = command.split()
    job = subprocess.run([first, *options.split(), *rest], capture_output=True, text=True,
                         cwd=folder, env=env, check=True)
    meanwhile(job.stdout.split()[-1])
    ended = folder / "ended"
    # 0 without a picture: a script that was stopped; 75, 99: it starts again
    waits = ("", "0\n", "75\n", "99\n")
    wait_until(lambda: (folder / "compare.png").exists()
             or (ended.exists() and ended.read_text() not in waits))
    wait_until(lambda: "lenet5 on " in logs(folder))  # PBS brings it after the end
    assert (folder / "compare.png").exists(), logs(folder)
    return logs(folder)


def logs(folder: Path) -> str:
    """The output of all parts of a job."""
    names = (p for p in folder.iterdir() if re.search(r"log|\.o\d", p.name))
    return "".join(p.read_text() for p in sorted(names))


@pytest.mark.parametrize("system", SYSTEMS)
def test_ready_scripts_train(system: str, request: pytest.FixtureRequest, data: Path,
                             tmp_path: Path) -> None:
    log = submit(tmp_path, system, data, request.getfixturevalue(system))
    assert "lenet5 on 2 ranks" in log and (tmp_path / "compare.png").exists()


@pytest.mark.parametrize("system", ["openpbs", "flux", "sge"])
def test_a_job_stops_before_its_limit_and_starts_again(
        system: str, request: pytest.FixtureRequest, data: Path, tmp_path: Path) -> None:
    planned(tmp_path)
    short = {"limit=58min": "limit=$([ -e weights.h5 ] || echo 20s)"}
    submit(tmp_path, system, data, request.getfixturevalue(system), short, epochs=LONG)
    wait_until(lambda: logs(tmp_path).count("lenet5 on 2 ranks (data)") == 2)
    assert "stopped by its time limit" in logs(tmp_path)
    check_whole(tmp_path)


def test_the_script_runs_with_pmix(slurm: dict[str, str], data: Path, tmp_path: Path) -> None:
    python = os.environ.get(OPENMPI)
    if not python:
        pytest.skip(f"{OPENMPI} names no Python with Open MPI's wheel")
    log = submit(tmp_path, "slurm", data, slurm, {"--mpi=pmi2": "--mpi=pmix"}, python=python)
    assert "lenet5 on 2 ranks" in log and "Open MPI" in log


def test_the_gpu_script_runs(slurm: dict[str, str], data: Path, tmp_path: Path) -> None:
    """The nodes only say that they have GPUs: asking for them, and binding, are tested; ranks
    compute on the CPU.
    """
    bind = "srun --mpi=pmi2 --cpu-bind=cores --gpu-bind=none"
    tells = ('"${launch[@]}" --label sh -c \'echo "GPUs of $SLURMD_NODENAME: $SLURM_GPUS_ON_NODE, '
             '${CUDA_VISIBLE_DEVICES-not bound}"\'')
    edits = {"##SBATCH --gpus-per-task=1": "#SBATCH --gpus-per-task=1",
             "--ntasks-per-node=1": "--ntasks-per-node=2",
             "launch=(srun --mpi=pmi2 --kill-on-bad-exit=1)": f"launch=({bind})\n{tells}"}
    log = submit(tmp_path, "slurm", data, slurm, edits)
    seen = sorted(re.findall(r"(\d): GPUs of (n\d): (\d), (.*)", log))
    assert seen == [(str(rank), f"n{1 + rank // 2}", "2", "not bound") for rank in range(4)]
    assert "lenet5 on 4 ranks" in log


#: Epochs that take 8 s at least.
LONG = 900


def planned(folder: Path) -> None:
    """Leave a plan: signals then come while the job trains, not while it calibrates."""
    (folder / "machine.toml").touch()
    subprocess.run([sys.executable, "-m", "hpcpar", "plan", "--network", "lenet5", "--strategy",
                    "data", "--batch", "16", "--ranks", "2", "-o", "plan.json"], cwd=folder,
                   check=True, capture_output=True)


def check_whole(folder: Path) -> None:
    """The record has every iteration of the training, the interrupted part as well."""
    whole = record_file.read(str(folder / "run.h5"))
    assert whole.iterations_done is not None
    per_epoch = whole.samples // 16
    assert whole.iterations_done.tolist() == [*range(LONG * per_epoch)]
    assert whole.loss[-per_epoch:].mean() < whole.loss[:per_epoch].mean()


def test_a_requeued_job_resumes(slurm: dict[str, str], data: Path, tmp_path: Path) -> None:
    def requeue(job: str) -> None:
        wait_until((tmp_path / "weights.h5").exists)
        subprocess.run(["scontrol", "requeue", job], env=slurm, check=True)

    log = submit(tmp_path, "slurm", data, slurm, epochs=LONG, meanwhile=requeue)
    assert "stopped by SIGTERM" in log and log.count("lenet5 on 2 ranks (data)") == 2
    check_whole(tmp_path)


def test_a_preempted_job_resumes(slurm: dict[str, str], data: Path, tmp_path: Path) -> None:
    def preempt(job: str) -> None:
        wait_until((tmp_path / "weights.h5").exists)
        subprocess.run(["sbatch", "--partition=urgent", "--nodes=2", "--exclusive",
                        "--output=urgent", "--wrap", "sleep 2"],
                       env=slurm, cwd=tmp_path, check=True)

    log = submit(tmp_path, "slurm", data, slurm, epochs=LONG,
                 options="--partition=low --exclusive", meanwhile=preempt)
    assert "stopped by SIG" in log and log.count("lenet5 on 2 ranks (data)") == 2
    check_whole(tmp_path)


def test_a_job_stops_before_its_limit_and_requeues_itself(
        slurm: dict[str, str], data: Path, tmp_path: Path) -> None:
    planned(tmp_path)

    def prolong(job: str) -> None:
        """The second part gets all the time that it needs."""
        wait_until(lambda: (tmp_path / "log").exists()
                 and "stopped by" in (tmp_path / "log").read_text())
        subprocess.run(["scontrol", "update", f"JobId={job}", "TimeLimit=10"], env=slurm,
                       check=True)

    log = submit(tmp_path, "slurm", data, slurm, epochs=LONG,
                 options="--time=1 --signal=USR1@55", meanwhile=prolong)
    assert "stopped by SIGUSR1" in log or "stopped by its time limit" in log
    check_whole(tmp_path)


@pytest.mark.parametrize("how", ["--full", "--batch", ""])
def test_a_job_that_is_asked_to_stop_starts_again(how: str, slurm: dict[str, str], data: Path,
                                                  tmp_path: Path) -> None:
    """Whether Slurm tells its shell, its ranks or both."""
    planned(tmp_path)

    def ask(job: str) -> None:
        wait_until((tmp_path / "weights.h5").exists)
        subprocess.run(["scancel", *how.split(), "--signal=USR1", job], env=slurm, check=True)
        again = re.compile(r"JobState=PENDING .* Restarts=1")
        shown = ["scontrol", "show", "job", "--oneliner", job]
        wait_until(lambda: again.search(subprocess.run(
            shown, env=slurm, check=True, capture_output=True, text=True).stdout))

    log = submit(tmp_path, "slurm", data, slurm, epochs=LONG, meanwhile=ask)
    assert "stopped by SIGUSR1" in log and log.count("lenet5 on 2 ranks (data)") == 2
    check_whole(tmp_path)


def test_a_job_that_is_canceled_saves_and_stays_away(slurm: dict[str, str], data: Path,
                                                     tmp_path: Path) -> None:
    planned(tmp_path)
    shown: list[str] = []

    def cancel(job: str) -> None:
        wait_until((tmp_path / "weights.h5").exists)
        subprocess.run(["scancel", job], env=slurm, check=True)
        wait_until((tmp_path / "ended").exists)
        (tmp_path / "compare.png").touch()  # `submit` waits for it
        shown.append(subprocess.run(["scontrol", "show", "job", "--oneliner", job], env=slurm,
                                    check=True, capture_output=True, text=True).stdout)

    log = submit(tmp_path, "slurm", data, slurm, epochs=LONG, meanwhile=cancel)
    assert "stopped by SIGTERM" in log and (tmp_path / "ended").read_text() == "75\n"
    assert "JobState=CANCELLED" in shown[0] and "Restarts=0" in shown[0]


def a_rank(folder: Path) -> int:
    """A process that runs a rank of the job in this folder, not its watcher."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"weights.h5" in words and b"srun" not in words and (
                    entry / "cwd").resolve() == folder.resolve():
                found.append(int(entry.name))
    return next(pid for pid in found if parent(pid) in found)


def test_a_rank_that_dies_ends_the_job(slurm: dict[str, str], data: Path, tmp_path: Path) -> None:
    planned(tmp_path)

    def kill(job: str) -> None:
        wait_until((tmp_path / "weights.h5").exists)
        os.kill(a_rank(tmp_path), signal.SIGKILL)
        wait_until((tmp_path / "ended").exists)
        (tmp_path / "compare.png").touch()

    log = submit(tmp_path, "slurm", data, slurm, epochs=LONG, meanwhile=kill)
    assert "was killed by SIGKILL" in log and (tmp_path / "ended").read_text() != "0\n"
