"""Options of batch jobs, and the scripts that they give under each batch system: compared with
those in golden/ (HPCPAR_GOLDEN=write writes them).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcpar.errors import InputError
from hpcpar.machine import files
from hpcpar.plan.plan import NetworkSpec
from hpcpar.process import child
from hpcpar.sweep import batch_options, schedulers, scripts
from hpcpar.sweep.batch_options import BatchOptions
from hpcpar.sweep.schedulers import SCHEDULERS, Scheduler, scheduler
from hpcpar.sweep.study import Case, Study

GOLDEN = Path(__file__).parent / "golden"
JOBS = Path(__file__).resolve().parents[3] / "jobs"
STUDY = Study("strong", NetworkSpec("lenet5", (1, 28, 28), 10), files.load("local"), (1, 2, 8),
              ("data", "grid:2x4"), 64, {}, "/data/digits.h5", 1438, 30, 1, "cpu",
              "/scratch/my sweep")
SMALL = [Case("data", 1, 64), Case("data", 2, 64)]
LARGE = [Case("data", 8, 64), Case("grid:2x4", 8, 64)]
FULL = """
account = "m1234"
partition = "gpu"
time = "00:30:00"
constraint = "a100"
ranks_per_node = 4
cpus_per_rank = 16
modules = ["cray-python", "cudatoolkit/12"]
directives = ["-x", "--comment='a b'"]
setup = ["source /home/me/hpcpar/.venv/bin/activate"]
launch = ["--distribution=block"]
"""
SYSTEMS: dict[str, Scheduler] = {name: entry for name, entry in SCHEDULERS.items() if entry}
SLURM = SYSTEMS["slurm"]
#: Ready scripts in jobs/.
READY = {"slurm": "slurm.sbatch", "pbs": "pbs.pbs", "lsf": "lsf.lsf", "flux": "flux.sh",
         "sge": "sge.sh"}


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts must not depend on where the tests run."""
    monkeypatch.setattr(child, "command", lambda: ["/venv/bin/python", "child.py"])
    monkeypatch.setattr(scripts, "usual_library", lambda: "MPICH")


def options(tmp_path: Path, text: str, **given: Any) -> BatchOptions:
    path = tmp_path / "job.toml"
    path.write_text(text)
    return batch_options.read(str(path), given)


@pytest.mark.parametrize(("name", "system", "device", "toml", "one"), [
    *((f"{name}-full", name, "gpu", FULL, False) for name in SYSTEMS),
    *((f"{name}-plain", name, "cpu", "", False) for name in SYSTEMS),
    ("slurm-pmix", "slurm", "cpu", 'mpi = "pmix_v4"\nnodes = 1\n', True),
    ("pbs-pals", "pbs", "cpu", 'mpi = "pals"\nnodes = 2\ncpus_per_rank = 8\n', False),
    ("pbs-openmpi", "pbs", "cpu", 'mpi = "openmpi"\nranks_per_node = 4\n', False),
    ("flux-openmpi", "flux", "cpu", 'mpi = "pmix"\nnodes = 2\n', False),
])
def test_scripts_equal_the_recorded_ones(tmp_path: Path, name: str, system: str, device: str,
                                         toml: str, one: bool) -> None:
    gpu = {"transport": "direct", "graphs": "off"} if device == "gpu" else {}
    asked, study = options(tmp_path, toml), replace(STUDY, device=device, **gpu)
    job = scripts.jobs(SMALL + LARGE, one)[-1]
    text = scripts.script(study, SYSTEMS[system], asked, job, "/home/me/project").replace(
        scripts.AWAIT, "await.sh")
    path = GOLDEN / f"{name}.sh"
    if os.environ.get("HPCPAR_GOLDEN") == "write":
        path.write_text(text)
    assert text == path.read_text()
    assert subprocess.run(["bash", "-n", path], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("system", SYSTEMS)
def test_ready_scripts_say_what_the_sweep_s_say(system: str, tmp_path: Path) -> None:
    """Directives, set-up and launch line of jobs/ are what the table of the batch system gives for
    their 8 ranks on 2 nodes.
    """
    known = SYSTEMS[system]
    asked = BatchOptions(ranks_per_node=4, cpus_per_rank=1 if system == "sge" else 4,
                         mpi=known.mpi[0])
    values = asked.values(8) | {"name": "hpcpar", "log": "", "time": "01:00:00", "minutes": 60,
                                "seconds": 3600}
    ready = (JOBS / READY[system]).read_text()
    lines = ready.splitlines()
    assert {*known.directives(values), *known.setup} <= {*lines}
    if system == "slurm":  # its srun knows ranks and nodes from the job
        assert "launch=(srun --mpi=pmi2 --kill-on-bad-exit=1)" in lines
    else:
        words = known.launched(values)
        assert f"launch=({words})" in lines or system == "sge"


def test_a_batch_system_of_one_s_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(schedulers, "SCHEDULERS", {**SCHEDULERS})

    class Mine(Scheduler):
        name, title, directive = "mine", "Mine", "#MINE"
        options = ("-t {time}", "-n {ranks}")
        launch = (("*", "start {ranks}"),)
        mpi = ("any", "any")

    scheduler(Mine)
    (job,) = scripts.jobs(SMALL[1:], True)
    text = scripts.script(STUDY, Mine(), BatchOptions(), job, "/home")
    assert "#MINE -n 2\n" in text and "-t" not in text.partition("set -euo")[0]
    assert "cases/data-p2-b64' start 2\n" in text
    with pytest.raises(InputError, match="scheduler 'local' is already defined in builtins"):
        scheduler(type("Here", (Scheduler,), {"name": "local"}))


def test_an_unknown_kind_of_mpi() -> None:
    with pytest.raises(InputError, match=r"unknown mpi of PBS 'pmi2'.*known: mpich, openmpi, pals"):
        scripts.script(STUDY, SYSTEMS["pbs"], BatchOptions(mpi="pmi2"),
                       scripts.jobs(SMALL, True)[0], "/home")


def test_jobs_by_size_or_one_for_all() -> None:
    assert [(j.name, j.cases) for j in scripts.jobs(SMALL + LARGE, False)] == [
        ("p1", tuple(SMALL[:1])), ("p2", tuple(SMALL[1:])), ("p8", tuple(LARGE))]
    (job,) = scripts.jobs(SMALL + LARGE, True)
    assert job.name == "all" and job.ranks == 8 and job.cases == tuple(SMALL + LARGE)
    assert scripts.jobs([], True) == []


def test_every_case_leaves_its_status_and_runs_once(tmp_path: Path) -> None:
    """The script's function, with a launcher that fails once: the next case runs, both leave their
    status, none runs twice.
    """
    study = replace(STUDY, out=str(tmp_path))
    for case in SMALL:
        (tmp_path / "cases" / case.name).mkdir(parents=True)
    text = scripts.script(study, SLURM, BatchOptions(), scripts.jobs(SMALL, True)[0], str(tmp_path))
    (tmp_path
     / "srun").write_text('#!/bin/bash\necho "$@"\ncase "$*" in *--ntasks=1*) exit 3 ;; esac\n')
    (tmp_path / "srun").chmod(0o755)
    (tmp_path / "job").write_text(text)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    begins = "--mpi=pmi2 --kill-on-bad-exit=1 --ntasks=2 /venv/bin/python child.py run --plan"
    for _ in range(2):
        assert subprocess.run(["bash", tmp_path / "job"], env=env, check=False).returncode == 0
        first, second = (tmp_path / "cases" / case.name for case in SMALL)
        assert ((first / "exit").read_text(), (second / "exit").read_text()) == ("3\n", "0\n")
        assert (second / "log").read_text().startswith(begins)
        (second / "log").write_text(f"{begins}: not written again")
    assert "again" in (second / "log").read_text()


@pytest.mark.parametrize("name", ["a b", "it's", '"', "$(touch bad)", "`touch bad`", "x; touch bad",
                                  "a\\b", "# x", "&", "*"])
def test_names_in_a_script_are_quoted(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    study = replace(STUDY, out=str(folder), data=f"{name}.h5")
    (folder / "cases" / SMALL[0].name).mkdir(parents=True)
    told = BatchOptions(launch=(name,), modules=(name,))
    text = scripts.script(study, SLURM, told, scripts.jobs(SMALL[:1], True)[0], str(folder))
    (tmp_path / "srun").write_text('#!/bin/bash\nprintf "%s\\0" "$@"\n')
    (tmp_path / "srun").chmod(0o755)
    (tmp_path / "job").write_text("module() { :; }\n" + text)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", tmp_path / "job"], env=env, cwd=tmp_path, check=False,
                          capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""
    words = (folder / "cases" / SMALL[0].name / "log").read_text().split("\0")
    assert name in words and f"{name}.h5" in words
    assert str(folder / "cases" / SMALL[0].name / "plan.json") in words
    assert not (tmp_path / "bad").exists()


@pytest.mark.parametrize("change", [{"out": "/a\nb"}, {"data": "x\ny.h5"}, {"data": "x\0y"}])
def test_line_breaks_in_a_script_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="cannot stand in a batch script: it has a line break"):
        scripts.script(replace(STUDY, **change), SLURM, BatchOptions(),
                       scripts.jobs(SMALL, True)[0], "/here")


@pytest.mark.parametrize(("asked", "ranks", "words"), [
    (BatchOptions(), 6, "--ntasks=6"),
    (BatchOptions(ranks_per_node=4), 2, "--nodes=1 --ntasks=2 --ntasks-per-node=2"),
    (BatchOptions(ranks_per_node=4), 6, "--nodes=2 --ntasks=6 --ntasks-per-node=4"),
    (BatchOptions(nodes=4), 6, "--nodes=4 --ntasks=6 --ntasks-per-node=2"),
])
def test_ranks_are_laid_on_nodes(asked: BatchOptions, ranks: int, words: str) -> None:
    launched = SLURM.launched(replace(asked, mpi="x").values(ranks))
    assert launched == f"srun --mpi=x --kill-on-bad-exit=1 {words}"


def test_more_nodes_than_ranks() -> None:
    with pytest.raises(InputError, match=r"4 nodes for 2 ranks.*--ranks-per-node"):
        BatchOptions(nodes=4).values(2)


def test_the_command_line_wins_and_lists_add_up(tmp_path: Path) -> None:
    found = options(tmp_path, FULL, partition="cpu", modules=["mpich"])
    assert (found.partition, found.time, found.account) == ("cpu", "00:30:00", "m1234")
    assert found.modules == ("cray-python", "cudatoolkit/12",
                             "mpich") and found.directives == (
        "-x", "--comment='a b'")


@pytest.mark.parametrize(
    ("toml", "said"),
    [('acount = "m1"', "did you mean 'account'"), ("nodes = 0", "whole number of at least 1"),
     ("nodes = true", "whole number"), ('time = "soon"', "00:30:00"),
     ('modules = "python"', "expected a list, found 'python'"),
     ('partition = "a b"', "without blanks"),
     ("nodes = 2\nranks_per_node = 4", "give one of the two"), ("nodes =", "not TOML"),
     ('setup = ["a\\nb"]', "expected a text of one line")],
)
def test_wrong_options_are_named(tmp_path: Path, toml: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        options(tmp_path, toml)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read batch options .*none\.toml"):
        batch_options.read(str(tmp_path / "none.toml"), {})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5", 300), ("1:30", 90), ("02:00:00", 7200), ("1-0", 86400), ("1-2:30", 95400),
     ("1-00:00:07", 86407), ("0:05:00", 300), ("48:00:07", 172807)],
)
def test_times_are_read(text: str, seconds: float) -> None:
    assert batch_options.seconds(text) == seconds


def test_scripts_are_valid_shell() -> None:
    ready = sorted(JOBS.iterdir())
    assert {"mpirun.sh", "train.sh", *READY.values()} <= {p.name for p in ready}
    for path in ready:
        assert subprocess.run(["bash", "-n", path], capture_output=True,
                              check=False).returncode == 0, path
    if shutil.which("shellcheck"):  # which cannot follow what a user's environment will be
        done = subprocess.run(["shellcheck", "--exclude=SC1091", *ready], capture_output=True,
                              text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_nodes_and_time_follow_from_the_machine(tmp_path: Path) -> None:
    """Four ranks per node; three times the predicted time of every case, and five minutes."""
    machine = replace(files.load("p100x4x4"), compute={"conv2d.forward x=1": 0.5})
    study = replace(STUDY, machine=machine, out=str(tmp_path), steps=600)
    for case in LARGE:
        (tmp_path / "cases" / case.name).mkdir(parents=True)
        (tmp_path / "cases" / case.name / "prediction.json").write_text(
            '{"network": "lenet5", "machine": "p100x4x4", "strategy": "data",'
            ' "iteration_s": 2.0, "compute_s": 1.0, "exposed_communication_s": 1.0,'
            ' "phases": {"gradient": {"exposed_communication_s": 1.0}}}')
    (job,) = scripts.jobs(LARGE, True)
    text = scripts.script(study, SLURM, BatchOptions().on(machine), job, "/home/me")
    assert "#SBATCH --nodes=2 --ntasks=8 --ntasks-per-node=4\n" in text
    assert "#SBATCH --time=02:10:00\n" in text  # 2 x (3 x 20 + 5) minutes
    guess = scripts.script(replace(study, machine=files.load("p100x4x4")), SLURM, BatchOptions(),
                           job, "/home")
    assert "#SBATCH --time=06:50:00\n" in guess  # not calibrated: ten times
    given = scripts.script(study, SLURM, BatchOptions(time="00:30:00"), job, "/home")
    assert "#SBATCH --time=00:30:00\n" in given and "02:10" not in given


def test_options_override_the_machines_nodes() -> None:
    machine = files.load("p100x4x4")
    assert BatchOptions(nodes=3).on(machine) == BatchOptions(nodes=3)
    assert BatchOptions(ranks_per_node=2).on(machine) == BatchOptions(ranks_per_node=2)
    assert BatchOptions().on(files.load("local")) == BatchOptions()


def test_the_sites_options_come_first(tmp_path: Path) -> None:
    site = ("site.toml", {"account": "m1", "partition": "cpu", "ranks_per_node": 4,
                          "modules": ["python"]})
    (tmp_path / "s.toml").write_text('partition = "gpu"\nmodules = ["cuda"]\n')
    found = batch_options.read(str(tmp_path / "s.toml"), {"account": "m2", "nodes": 2}, site)
    assert found == BatchOptions(account="m2", partition="gpu", nodes=2, modules=("python", "cuda"))
    assert batch_options.read("", {}, site).ranks_per_node == 4
    with pytest.raises(InputError, match=r"site\.toml: unknown field 'acount'; did you mean"):
        batch_options.read("", {}, ("site.toml", {"acount": "m1"}))
