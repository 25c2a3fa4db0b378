"""Findings of the doctor in given environments."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from hpcpar.diagnose import environment as facts
from hpcpar.diagnose.doctor import OK, PROBLEM, WARNING, Finding, diagnose
from hpcpar.diagnose.environment import JobEnvironment, RankEnvironment
from tests.limits import LIMIT_S

NO_GPU = {"driver": False}
GPU = {"driver": True, "cupy": "14", "devices": ["H100"] * 4, "nccl": "22304", "direct": True,
       "fault": ""}


def rank(host: str = "a", cores: tuple[int, ...] = (0, 1), **change: Any) -> RankEnvironment:
    known: dict[str, Any] = {"host": host, "versions": {"NumPy": "2"}, "cores": cores, "threads": 1,
                             "free_bytes": 8 * 10**9, "folder": "ext4", "locks": "", "sees": True,
                             "gpu": NO_GPU}
    return RankEnvironment(**(known | change))


def job(ranks: list[RankEnvironment], **change: Any) -> JobEnvironment:
    return replace(
        JobEnvironment(ranks, "MPICH 4", "4.1", "", "", "none", {}, "openblas", "2.0", False),
        **change,
    )


def findings(*ranks: RankEnvironment, **change: Any) -> dict[str, Finding]:
    return {f.subject: f for f in diagnose(job(list(ranks), **change))}


def test_a_healthy_job_has_no_findings() -> None:
    assert {f.status for f in findings(rank(), rank()).values()} == {OK}


def test_every_finding_has_a_remedy() -> None:
    nfs = rank("b", folder="nfs4", locks="No locks available", threads=3, free_bytes=10**8,
               versions={"NumPy": "1"}, gpu={"driver": True})
    found = diagnose(job([nfs, rank()]))
    assert sum(f.status != OK for f in found) >= 5
    assert all(bool(f.remedy) == (f.status != OK) for f in found)


@pytest.mark.parametrize(
    ("ranks", "subject", "status", "text"),
    [
        ([rank(threads=2), rank(threads=2)], "threads", WARNING, "OMP_NUM_THREADS=1"),
        ([rank(), rank(), rank()], "threads", WARNING, "fewer ranks"),
        ([rank(cores=(0,)), rank(cores=(1,))], "threads", OK, ""),
        ([rank(cores=(0,)), rank(cores=(1,))], "binding", OK, "1 core(s) of its own"),
        ([rank(cores=(0,)), rank(cores=(0,))], "threads", WARNING,
         "2 rank(s) x 1 thread on 1 core(s)"),
        ([rank(), rank(kernels="OPENBLAS_CORETYPE=Haswell forces kernels without AVX-512")], "BLAS",
         WARNING, "a: OPENBLAS_CORETYPE=Haswell forces"),
        ([rank(), rank("b", running=9, node_cores=8)], "load", WARNING,
         "b: 8 other processes run on the 8 cores"),
        ([rank(running=2, node_cores=2), rank(running=2, node_cores=2)], "load", OK, ""),
        ([rank(), rank("b", versions={"NumPy": "1"})], "software", WARNING, "b has NumPy 1"),
        ([rank(), rank("b"), rank()], "placement", WARNING, "2 on a, 1 on b"),
        ([rank(), rank("b"), rank(), rank("b")], "placement", WARNING, "block order"),
        ([rank(), rank("b", sees=False)], "folder", PROBLEM, "b does not see"),
        ([rank(locks="No locks available", folder="nfs")], "folder", WARNING,
         "HDF5_USE_FILE_LOCKING=FALSE"),
        ([rank(free_bytes=10**8)], "memory", WARNING, "0.1 GB"),
        ([rank(gpu=GPU)], "GPUs", OK, "4 x H100 on a, CuPy 14, NCCL 22304"),
        ([rank(gpu=GPU)], "GPU buffers", OK, "try run --transport direct"),
        ([rank(gpu=GPU | {"direct": False, "fault": "exit status -11"})], "GPU buffers", OK,
         "exit status -11): messages are staged"),
        ([rank(gpu=GPU | {"devices": ["H100"]}), rank()], "GPU sharing", WARNING,
         "2 ranks of a node share 1"),
        ([rank(gpu=GPU | {"devices": [], "fault": "no answer in 60 s"})], "GPUs", WARNING,
         "no answer in 60 s"),
        ([rank(gpu={"driver": True})], "GPUs", WARNING, "hpcpar[gpu]"),
    ],
)
def test_finding(ranks: list[RankEnvironment], subject: str, status: str, text: str) -> None:
    found = findings(*ranks)[subject]
    assert found.status == status and text in f"{found.what} {found.remedy}"


def test_a_missing_mpi_is_a_problem() -> None:
    found = findings(
        rank(),
        no_mpi="no usable MPI (No module named mpi4py); install it with: pip install 'hpcpar[mpi]'",
        mpi="",
    )
    assert (found["MPI"].status == PROBLEM
            and found["MPI"].remedy == "install it with: pip install 'hpcpar[mpi]'")
    assert "launcher" not in found


def test_separate_worlds_are_a_problem() -> None:
    fault = "srun started 4 processes but MPI sees separate worlds of 1: x; use srun --mpi=pmi2"
    found = findings(rank(), separate=fault)["launcher"]
    assert found.status == PROBLEM and found.remedy == "use srun --mpi=pmi2"
    assert "separate worlds" in found.what


def test_a_path_has_the_filesystem_of_its_mount() -> None:
    mounts = ("/dev/a / ext4 rw 0 0\nserver:/x /home nfs4 rw 0 0\n"
              "fast /home/me/scra\\040tch lustre rw 0 0\n")
    kinds = [
        facts.filesystem(p, mounts) for p in ("/tmp", "/home/you", "/homes", "/home/me/scra tch/1")
    ]
    assert kinds == ["ext4", "nfs4", "ext4", "lustre"]


def test_a_child_that_dies_or_hangs_is_reported(monkeypatch: pytest.MonkeyPatch,
                                                tmp_path: Any) -> None:
    """The lines printed before its end count."""
    from hpcpar.diagnose import gpu_probe

    python = tmp_path / "python"
    said = '{"cupy": "14", "devices": ["X"], "nccl": ""}'
    monkeypatch.setattr("sys.executable", str(python))
    for end, least_s, fault in (("kill -SEGV $$", LIMIT_S, "exit status -11"),
                                ("exec sleep infinity", 0.5, "no answer in ")):
        python.write_text(f"#!/bin/sh\necho '{said}'\n{end}\n")
        python.chmod(0o755)
        # on a busy machine, the child takes longer to print its line
        found = next(found for n in count()
                     if (found := gpu_probe.probe(least_s * 2**n))["devices"])
        assert found["devices"] == ["X"] and not found["direct"] and found["fault"].startswith(
            fault)
