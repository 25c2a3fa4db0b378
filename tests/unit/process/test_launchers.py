"""Facts from the launcher of a process: variables as each launcher sets them."""

from __future__ import annotations

import os

import pytest

from hpcpar.comm.world import separate_worlds
from hpcpar.diagnose.environment import started_by
from hpcpar.process.launchers import batch_job, launcher

#: Rank 5 of 8 on 2 nodes. Open MPI, MPICH, Slurm, Flux and Grid Engine: as seen; others as their
#: documentation says.
RANKS = {
    "mpiexec of Open MPI": "OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_RANK=5 "
                           "OMPI_COMM_WORLD_LOCAL_SIZE=4 PMIX_RANK=5",
    "mpiexec of MPICH": "PMI_SIZE=8 PMI_RANK=5 MPI_LOCALNRANKS=4 MPI_LOCALRANKID=1",
    "srun": "SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=8 SLURM_PROCID=5 PMI_SIZE=8 PMI_RANK=5 "
            "SLURM_STEP_TASKS_PER_NODE=4(x2) SLURM_JOB_ID=7 SLURM_NTASKS=16",
    "flux run": "FLUX_JOB_SIZE=8 FLUX_TASK_RANK=5 FLUX_TASK_LOCAL_ID=1 FLUX_JOB_NNODES=2 "
                "PMI_SIZE=8 PMI_RANK=5 PALS_RANKID=5",
    "mpiexec of PALS": "PALS_RANKID=5 PALS_LOCAL_RANKID=1 PMI_SIZE=8 PMI_RANK=5 PMI_LOCAL_SIZE=4",
    "jsrun": "JSM_NAMESPACE_SIZE=8 JSM_NAMESPACE_RANK=5 JSM_NAMESPACE_LOCAL_SIZE=4 "
             "OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_RANK=5 PMIX_RANK=5",
    "a launcher with PMI": "PMI_SIZE=8 PMI_RANK=5",
}
#: Launchers that are run by another one, or in a job of another one.
NESTED = {
    "mpiexec of MPICH": RANKS["mpiexec of MPICH"] + " SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 "
                        "SLURM_PROCID=1 SLURM_STEP_TASKS_PER_NODE=1(x2)",
    "mpiexec of Open MPI": RANKS["mpiexec of Open MPI"] + " SLURM_STEP_ID=0 "
                           "SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=1",
    "flux run": RANKS["flux run"] + " SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1",
}
CASES = [*RANKS.items(), *NESTED.items()]


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("PMI", "MPI_", "OMPI_", "SLURM_", "FLUX_", "PALS_", "JSM_", "PBS_",
                            "LSB_", "JOB_ID", "NSLOTS")):
            monkeypatch.delenv(name)


def settings(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    for word in words.split():
        monkeypatch.setenv(*word.split("="))


@pytest.mark.parametrize(("title", "words"), CASES)
def test_ranks_of_every_launcher(title: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings(monkeypatch, words)
    found = launcher()
    assert found is not None and (found.title, found.ranks, found.rank_here) == (title, 8, 5)
    assert found.local_ranks == (1 if title == "a launcher with PMI" else 4)
    assert started_by().startswith(f"{title}, 8 ranks")


@pytest.mark.parametrize(("title", "words"), CASES)
@pytest.mark.parametrize("library", ["MPICH Version: 5", "Open MPI v5.0.8, package: x"])
def test_a_world_that_is_too_small_is_refused(title: str, words: str, library: str,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    settings(monkeypatch, words)
    assert separate_worlds(8, library) is None
    assert "MPI sees worlds of 4" in str(separate_worlds(4, library))
    fault = separate_worlds(1, library)
    assert fault is not None and "\n" not in fault
    assert f"{title} started 8 processes but MPI sees separate worlds of 1" in fault
    pmi = "pmix" if library.startswith("Open") else "pmi2"
    remedy = {"srun": f"use srun --mpi={pmi}", "flux run": "-o pmi=pmix",
              "mpiexec of PALS": "--no-binary=mpi4py", "jsrun": "--no-binary=mpi4py"}
    assert remedy.get(title, "use the mpiexec of the library") in fault


def test_ranks_that_know_only_their_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """PALS with PMIx does not tell the number of all ranks."""
    settings(monkeypatch, "PALS_RANKID=5 PALS_LOCAL_SIZE=4 PMIX_RANK=5")
    assert "started 4 processes" in str(separate_worlds(1, "MPICH"))
    assert started_by() == "mpiexec of PALS"


@pytest.mark.parametrize(("job", "words"), [
    ("Slurm job 7 of 8 slots", "SLURM_JOB_ID=7 SLURM_NTASKS=8 SLURM_PROCID=0"),
    ("PBS job 7.pbs of 8 slots", "PBS_JOBID=7.pbs PBS_NP=8 PBS_NODEFILE=/x NCPUS=1"),
    ("LSF job 7 of 8 slots", "LSB_JOBID=7 LSB_DJOB_NUMPROC=8"),
    ("Flux job ƒ2VdM33d", "FLUX_ENCLOSING_ID=ƒ2VdM33d FLUX_URI=local:///x"),
    ("Grid Engine job 7 of 8 slots", "JOB_ID=7 NSLOTS=8 PE_HOSTFILE=/x"),
])
def test_a_batch_script_is_no_rank(job: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings(monkeypatch, words)
    assert launcher() is None and separate_worlds(1, "MPICH") is None
    assert batch_job() == job and started_by() == f"none, within {job}"
