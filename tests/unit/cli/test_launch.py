"""``run -n P`` becomes ``mpiexec -n P hpcpar run``: words, environment, status and signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpcpar.cli import launch
from hpcpar.errors import InputError
from hpcpar.process import child
from hpcpar.process.launchers import LAUNCHERS, mpiexec
from hpcpar.process.signals import STATUS
from tests.limits import LIMIT_S

MPIEXEC = """#!/bin/sh
printf '%s ' "$@"
echo "threads=$OPENBLAS_NUM_THREADS"
trap 'echo ended; exit 9' TERM
[ -e wait ] && { echo waiting; while :; do sleep 0.05; done; }
exit 7
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A Python of its own, with a pretended mpiexec beside it; no thread variables, no job."""
    (tmp_path / "mpiexec").write_text(MPIEXEC)
    (tmp_path / "mpiexec").chmod(0o755)
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    drop = {*launch.VARIABLES, *(known.mark for known in LAUNCHERS)}
    return {k: v for k, v in os.environ.items() if k not in drop} | {
        "PYTHONPATH": str(Path(launch.__file__).parents[2])}


def begin(env: dict[str, str], tmp_path: Path, *words: str) -> subprocess.Popen[str]:
    """hpcpar with these words, whose Python is in `tmp_path`."""
    code = (f"import sys; sys.executable = {str(tmp_path / 'python')!r}; "
            "from hpcpar.cli.main import main; sys.exit(main())")
    return subprocess.Popen([sys.executable, "-c", code, *words], env=env, cwd=tmp_path, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.parametrize("words", [
    "run -n 3 --plan p.json --data d.h5 --steps 4", "run --plan p.json --data d.h5 --steps 4 -n3",
    "verify -n 3 --plan p.json", "calibrate -o m.toml -n 3"])
def test_words_and_status_are_passed_on(env: dict[str, str], tmp_path: Path, words: str) -> None:
    """The ranks choose their own number of threads."""
    job = begin(env, tmp_path, *words.split())
    out, err = job.communicate(timeout=LIMIT_S)
    rest = " ".join(w for w in words.replace("-n3", "").replace("-n 3", "").split())
    assert out == f"-n 3 {tmp_path}/python {child.__file__} hpcpar {rest} threads=\n", err
    assert job.returncode == 7


def test_signals_reach_mpiexec(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "wait").touch()
    job = begin(env, tmp_path, "verify", "-n", "2", "--plan", "p.json")
    assert job.stdout is not None
    assert "threads=" in job.stdout.readline() and job.stdout.readline() == "waiting\n"
    job.send_signal(signal.SIGTERM)
    out, _ = job.communicate(timeout=LIMIT_S)
    assert (out, job.returncode) == ("ended\n", 9)


@pytest.mark.parametrize("variable", [known.mark for known in LAUNCHERS])
def test_a_rank_starts_no_job(env: dict[str, str], tmp_path: Path, variable: str) -> None:
    job = begin(env | {variable: "0"}, tmp_path, "verify", "-n", "2", "--plan", "p.json")
    out, err = job.communicate(timeout=LIMIT_S)
    assert (out, job.returncode) == ("", 2) and "drop -n, or drop" in err and err.count("\n") == 1


def test_without_mpiexec_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch,
                                                       tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"no mpiexec .* pip install 'hpcpar\[mpi\]'"):
        mpiexec()


def test_threads_are_limited_before_numpy_is_loaded() -> None:
    """Later it has no effect: two ranks of two cores would compute with four threads."""
    code = "import sys, hpcpar.cli.main; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_little_is_loaded_before_signals_are_noted() -> None:
    """Until then a signal ends the process as Python does."""
    code = ("import sys; sys.path.insert(0, sys.argv[1]); before = {*sys.modules}; "
            "import hpcpar.process.signals; print(*{*sys.modules} - before)")
    done = subprocess.run([sys.executable, "-S", "-c", code, Path(launch.__file__).parents[2]],
                          capture_output=True, text=True, check=True)
    assert "hpcpar.process.signals" in done.stdout.split()
    assert not {"numpy", "mpi4py", "re", "typing"} & {*done.stdout.split()}


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGINT"])
def test_signals_that_are_blocked_at_the_start_are_not_lost(env: dict[str, str], tmp_path: Path,
                                                            name: str) -> None:
    """``env --block-signal`` does this: here a signal comes before Python starts."""
    number = getattr(signal, name)

    def block() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [number])
        os.kill(os.getpid(), number)

    words = ["run", "-n", "2", "--plan", "p.json", "--data", "d.h5", "--steps", "4"]
    done = subprocess.run([sys.executable, "-m", "hpcpar", *words], env=env, cwd=tmp_path,
                          text=True, capture_output=True, preexec_fn=block, check=False)
    assert done.returncode == STATUS, done.stderr
    assert done.stderr == f"hpcpar: stopped by {name} before the job started\n"
