"""A job in which one rank fails ends and says which rank and why; so does a test
run.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.jobs.conftest import clean_environment
from tests.limits import LIMIT_S

MPI_TESTS = Path(__file__).resolve().parents[1] / "mpi"


def run(command: list[str], **variables: str) -> tuple[int, str]:
    """(exit status, all text); a job that outlives the limit fails the test."""
    done = subprocess.run(command, env=clean_environment(**variables), capture_output=True,
                          text=True, timeout=LIMIT_S, check=False)
    return done.returncode, done.stdout + done.stderr


def script(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return str(path)


def test_one_rank_that_raises_ends_the_job(mpiexec: str, tmp_path: Path) -> None:
    path = script(tmp_path, "job.py", """
        from hpcpar.comm.world import world
        w = world()
        with w.guard():
            if w.rank == 1:
                raise ValueError("row 17 has no label")
            w.barrier()  # the others wait for rank 1
        print("went on")
    """)
    status, text = run([mpiexec, "-n", "3", sys.executable, path])
    assert status != 0
    assert "rank 1 on" in text and "ValueError: row 17 has no label" in text
    assert "Traceback" in text  # a bug keeps its traceback
    assert "went on" not in text


def test_an_error_of_the_user_on_one_rank_is_raised_on_all(mpiexec: str, tmp_path: Path) -> None:
    path = script(tmp_path, "job.py", """
        import sys
        from hpcpar.comm.world import world
        from hpcpar.errors import InputError
        w = world()
        def read():
            if w.rank == 2:
                raise InputError("no such file on this node")
        try:
            with w.guard():
                w.agree(read)
        except InputError as err:
            sys.stdout.write(f"rank {w.rank}: {err}\\n")
    """)
    status, text = run([mpiexec, "-n", "3", sys.executable, path])
    assert status == 0, text
    assert sorted(line for line in text.splitlines()
                  if line) == [f"rank {r}: no such file on this node" for r in range(3)]


@pytest.mark.parametrize(("variables", "title", "ranks"), [
    ({"PMI_SIZE": "4", "PMI_RANK": "0"}, "a launcher with PMI", 4),
    ({"OMPI_COMM_WORLD_SIZE": "2"}, "mpiexec of Open MPI", 2)])
def test_a_launcher_of_another_library_is_refused(mpiexec: str, variables: dict[str, str],
                                                  title: str, ranks: int) -> None:
    """Each process would train alone, P times the same."""
    # set only once MPI runs: a real launcher of another library leaves this library none of what it
    # needs
    code = (
        f"from mpi4py import MPI; import os; os.environ.update({variables})\n"
        "from hpcpar.comm.world import world\nfrom hpcpar.errors import InputError\n"
        "try:\n    world()\nexcept InputError as err:\n    print('refused:', err)"
    )
    status, text = run([sys.executable, "-c", code])
    assert status == 0, text
    assert f"refused: {title} started {ranks} processes but MPI sees separate worlds of 1" in text
    assert "use the mpiexec of the library that mpi4py uses" in text


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A folder with the harness of tests/mpi and a few tests that fail."""
    folder = tmp_path / "tests" / "mpi"
    folder.mkdir(parents=True)
    for name in ("conftest.py", "sharing.py"):
        shutil.copy(MPI_TESTS / name, folder)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -q -p no:cacheprovider\n")
    script(folder, "test_some.py", """
        import pytest
        from hpcpar.comm.world import world

        def test_fails_on_the_last_rank():
            assert world().rank != world().size - 1, "this one is different"

        @pytest.fixture
        def broken():
            if world().rank == 1:
                raise RuntimeError("no set-up here")

        def test_fails_in_set_up(broken):
            world().barrier()

        def test_passes(ranks):
            ranks.barrier()

        def test_waits_for_a_rank_that_failed():
            assert world().rank != 1, "left the others"
            world().barrier()

        def test_waits_for_ever():
            if world().rank == 0:
                world().barrier()
    """)
    return folder


def start(mpiexec: str, folder: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    command = [mpiexec, "-n", "3", sys.executable, "-m", "pytest", "--rootdir",
               str(folder.parents[1]), str(folder), *arguments]
    return run(command, **variables)


def test_harness_shares_a_failure(mpiexec: str, suite: Path) -> None:
    status, text = start(mpiexec, suite, "-k", "fails or passes")
    assert status != 0
    assert "1 failed, 1 passed" in text and "1 error" in text, text
    assert text.count("1 passed") == 1, "rank 0 alone reports"
    assert "rank 2 of 3 failed" in text and "this one is different" in text
    assert "rank 1 of 3 failed" in text and "no set-up here" in text


def test_harness_ends_a_job_whose_ranks_wait_for_one_that_failed(mpiexec: str, suite: Path) -> None:
    status, text = start(mpiexec, suite, "-k", "waits_for_a_rank", HPCPAR_TEST_GRACE_S="2")
    assert status != 0
    assert "left the others" in text
    assert "test_waits_for_a_rank_that_failed failed here" in text


def test_harness_ends_a_job_that_is_stuck(mpiexec: str, suite: Path) -> None:
    status, text = start(mpiexec, suite, "-k", "waits_for_ever", HPCPAR_TEST_LIMIT_S="4")
    assert status != 0
    assert "test_waits_for_ever still runs after 4 s" in text
