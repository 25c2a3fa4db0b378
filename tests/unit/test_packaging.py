"""An installed package has all files of the checkout."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hpcpar.cli.main import COMMANDS
from tests.limits import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]


def test_named_pages_exist() -> None:
    named = {(page, path.name) for top in ("hpcpar", "kernels", "jobs", "docs")
             for path in (ROOT / top).rglob("*") if path.is_file()
             for page in re.findall(r"\bdocs/[\w/-]+\.(?:md|ipynb)",
                                    path.read_text(encoding="utf-8", errors="ignore"))}
    assert len(named) > 5
    assert [(page, by) for page, by in named if not (ROOT / page).is_file()] == []


@pytest.mark.parametrize("name", ["tutorial", "tutorial-torch"])
def test_a_tutorial_is_kept_without_outputs(name: str) -> None:
    """The build of the documentation runs it."""
    cells = json.loads((ROOT / f"docs/{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    assert [cell["outputs"] for cell in cells if cell.get("outputs")] == []


def test_wheel_holds_sources_presets_and_jobs(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", "70.1",
                        reason="building a wheel without a network needs setuptools")
    # a copy: building leaves files behind, and would take in what an earlier build left
    source = tmp_path / "source"
    source.mkdir()
    for name in ("hpcpar", "kernels", "jobs"):
        shutil.copytree(ROOT / name, source / name, symlinks=True,
                        ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet",
               "-w", str(tmp_path), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("hpcpar-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = [p.relative_to(ROOT / "kernels") for p in (ROOT / "kernels").glob("*.*")
              if p.suffix in (".py", ".cu", ".cuh")]
    assert any(p.suffix == ".cu" for p in wanted)
    for p in wanted:
        assert f"hpcpar/kernels/{p}" in names
    for p in (ROOT / "hpcpar/machine/presets").glob("*.toml"):
        assert f"hpcpar/machine/presets/{p.name}" in names
    for p in (ROOT / "jobs").iterdir():
        assert f"hpcpar/jobs/{p.name}" in names
    modules = {str(p.relative_to(ROOT)) for p in (ROOT / "hpcpar").rglob("*.py")}
    assert modules | {"hpcpar/py.typed"} <= names
    assert any(name.endswith("LICENSE") for name in names)


def test_readme_commands_exist() -> None:
    text = (ROOT / "README.md").read_text()
    used = {line.split("hpcpar ", 1)[1].split()[0] for line in text.splitlines()
            if line.startswith(("hpcpar ", "mpiexec ", "srun "))}
    assert used <= set(COMMANDS) and {"plan", "predict", "run", "compare", "calibrate",
                                      "data"} <= used
    for path in ("jobs/quickstart.sh", "tests/run.sh", "jobs/slurm.sbatch",
                 "docs/reference/files.md"):
        assert path in text and (ROOT / path).exists()


def needed() -> set[tuple[str, str]]:
    """Names and least versions of what setup.cfg installs."""
    text = (ROOT / "setup.cfg").read_text()
    block = re.findall(r"install_requires =\n((?: +.*\n)+)", text)[0]
    block += "\n".join(re.findall(r"^ +(mpi4py>=.*|matplotlib>=.*)$", text, re.M))
    return set(re.findall(r"^ *([\w-]+)>=([\d.]+)", block, re.M))


def test_recipes_for_package_managers_ask_for_what_the_package_needs() -> None:
    conda = (ROOT / "packaging/environment.yml").read_text()
    found = set(re.findall(r"^ +- ([\w-]+?)(?:-base)? >=([\d.]+)", conda, re.M))
    assert found - {("python", "3.10")} == needed()
    spack = ROOT / "packaging/spack_repo/hpcpar/packages"
    text = (spack / "py_hpcpar/package.py").read_text()
    found = {(name, least) for name, least in re.findall(r'on\("py-([\w-]+)@([\d.]+):', text)
             if name != "setuptools"}
    assert {(name, float(least)) for name, least in found} == {
        (name.replace("_", "-"), float(least)) for name, least in needed()}
    for path in spack.glob("*/package.py"):
        compile(path.read_text(), str(path), "exec")


def test_both_containers_are_made_alike() -> None:
    docker, apptainer = ((ROOT / "packaging" / name).read_text().replace("\\\n", "")
                         for name in ("Dockerfile", "hpcpar.def"))
    commands = [c.strip() for line in re.findall(r"^RUN (.*)$", docker, re.M)
                for c in line.split("&&")]
    assert len(commands) == 5 and all(f"    {c}\n" in apptainer for c in commands)
    assert re.search("^FROM (.*)$", docker, re.M)[1] in apptainer  # type: ignore[index]
