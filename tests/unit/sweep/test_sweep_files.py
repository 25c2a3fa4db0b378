"""The files of a sweep's folder: what damages them is named on one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import hpcpar
from hpcpar.api.sweep import sweep_report
from hpcpar.errors import InputError
from hpcpar.network.builder import Graph
from hpcpar.network.graph import Network
from hpcpar.network.layers import Conv2d, GlobalAvgPool, Linear, SoftmaxCrossEntropy
from hpcpar.sweep import folder, study

CASE = "data-p2-b8"


def own(channels: int = 4) -> Network:
    """A network that is not built in."""
    net = Graph("own", (1, 8, 8))
    net.add(Conv2d, "conv", out_channels=channels, kernel=3)
    net.add(GlobalAvgPool, "pool")
    net.add(Linear, "fc", out_features=3)
    net.add(SoftmaxCrossEntropy, "loss")
    return net.build()


def planned(out: Path, network: Network | None = None) -> None:
    """A sweep that is only planned."""
    hpcpar.sweep("strong", network or own(), [1, 2], 8, str(out), strategy="data", dry_run=True)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sweep") / "out"
    planned(out)
    return out


@pytest.fixture
def out(first: Path, tmp_path: Path) -> Path:
    """The folder of a planned sweep."""
    return Path(shutil.copytree(first, tmp_path / "out"))


def test_a_network_object_can_be_swept(out: Path) -> None:
    assert study.load(str(out)).spec.build() == own()
    assert {case.name for case in sweep_report(str(out)).states} == {"data-p1-b8", CASE}
    status = folder.read_status(str(out / "cases" / CASE))
    assert status and status.request["network"].startswith("own (")
    path = out / "cases" / CASE / folder.STATUS
    path.write_text(path.read_text().replace('"planned"', '"done"'))
    with pytest.raises(InputError, match=r"was run with network own .*, now it is own"):
        planned(out, own(5))


@pytest.mark.parametrize(("file", "path", "value", "message"), [
    ("study.json", ["ranks"], None, "'ranks': expected a list, found null"),
    ("study.json", ["ranks", 1], 10**12, "'ranks', entry 2: expected a whole number of at most"),
    ("study.json", ["ranks", 1], 3, "'nodes' and 'ranks' differ"),
    ("study.json", ["spec", "name"], None, "'spec', 'name': expected a text, found null"),
    ("study.json", ["spec", "layers", 1, "out_channels"], -4, "'own', layer 2, 'out_channels'"),
    ("study.json", ["spec", "layers", 1, "type"], "Covn2d", "did you mean 'Conv2d'"),
    ("study.json", ["spec"], {"name": "os:getcwd", "shape": [1, 8, 8], "classes": 3},
     "unknown network 'os:getcwd'"),
    ("study.json", ["machine", "device", "memory_bytes"], -1, "'memory_bytes': expected a whole"),
    ("study.json", ["batch"], "1e999999999", "'batch': expected a number as text"),
    ("study.json", ["batch"], 8, "'batch': expected a number as text"),
    ("study.json", ["planning", "overlap"], "al", "expected one of none, gradient, full"),
    ("study.json", ["planning"], {}, "'planning': 'gather' is missing"),
    ("study.json", ["kind"], "string", "expected one of strong, weak"),
    ("study.json", ["nodes"], {"1": 1, "2": "x"}, "'nodes', '2': expected a whole number"),
    ("cases/CASE/status.json", [], None, "expected a table of names and values, found null"),
    ("cases/CASE/status.json", ["state"], "odd", "expected one of planned, skipped"),
    ("cases/CASE/status.json", ["reason"], None, "'reason': expected a text, found null"),
    ("cases/CASE/status.json", ["job"], "7;rm", "'job': expected the number of a job"),
    ("cases/CASE/status.json", ["requset"], {}, "did you mean 'request'"),
    ("cases/CASE/status.json", ["same_as"], "other",
     "names 'other' as its equal, which is not a case"),
    ("cases/CASE/prediction.json", ["iteration_s"], None, "'iteration_s': expected a number"),
    ("cases/CASE/prediction.json", ["phases"], [], "'phases': expected a table"),
    ("cases/CASE/prediction.json", ["phases"], {}, "'phases' lacks 'gradient'"),
    ("cases/CASE/prediction.json", ["layers"], 1, "'layers': expected a list"),
    ("cases/CASE/plan.json", ["ranks"], None, "'ranks': expected a whole number, found null"),
    ("cases/CASE/plan.json", ["configs"], [], "'configs': expected a table"),
])
def test_faults_are_named_on_one_line(out: Path, file: str, path: list[Any], value: object,
                                      message: str) -> None:
    at = out / file.replace("CASE", CASE)
    data = json.loads(at.read_text())
    if path == ["same_as"]:
        data["state"] = "same"
    *outer, last = ["all", *path]
    whole = part = {"all": data}
    for step in outer:
        part = part[step]
    part[last] = value
    at.write_text(json.dumps(whole["all"]))
    with pytest.raises(InputError) as err:
        sweep_report(str(out)).study.spec.build()
    assert message in str(err.value) and "\n" not in str(err.value)


@pytest.mark.parametrize("text", [b"", b"\xff", b"[" * 10**6, b"NaN", b"{}"])
def test_other_files_are_refused_as_state(out: Path, text: bytes) -> None:
    for file in ("study.json", f"cases/{CASE}/status.json", f"cases/{CASE}/prediction.json"):
        kept = (out / file).read_bytes()
        (out / file).write_bytes(text)
        with pytest.raises(InputError):
            sweep_report(str(out))
        (out / file).write_bytes(kept)
    assert sweep_report(str(out)).points


@pytest.mark.parametrize("name", [
    "study.json", ".study.json.hpcpar-lock", "report.json", "report.html", "time.svg", "data.h5",
    f"cases/{CASE}", f"cases/{CASE}/status.json", f"cases/{CASE}/log", "jobs"])
def test_links_in_the_folder_are_refused(out: Path, tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    link = out / name
    if link.is_dir():
        shutil.rmtree(link)
    link.unlink(missing_ok=True)
    link.symlink_to(victim)
    for command in (planned, lambda folder: sweep_report(str(folder))):
        with pytest.raises(InputError, match=r"is a symbolic link, .* remove it") as caught:
            command(out)
        assert str(caught.value).startswith(str(link))
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("name", ["report.html", "report.json", "time.png"])
def test_a_report_of_something_else_is_not_replaced(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("precious")
    with pytest.raises(InputError, match=rf"{name} exists, but .* is not the folder of a sweep"):
        planned(tmp_path)
    assert (tmp_path / name).read_text() == "precious"
