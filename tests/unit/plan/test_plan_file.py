"""Plan files: their faults are named on one line, and reading them runs no code."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcpar.cli.main import main
from hpcpar.errors import InputError
from hpcpar.network.builtin import network
from hpcpar.plan import plan as plans
from hpcpar.plan.plan import NetworkSpec, Plan, Synchronization, make_plan
from hpcpar.train import record_file
from tests.unit.played import lenet, play


def own() -> Plan:
    """A plan whose network is stored by its layers."""
    built = replace(network("lenet5", (1, 8, 8)), name="own")
    return make_plan(NetworkSpec.of(built), "pipeline:2x2", 4, 16, microbatches=2)


@pytest.mark.parametrize("plan", [lenet("data", 2), own()], ids=["built in", "own"])
def test_a_plan_is_equal_when_read_again(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plans.save(plan, str(path))
    again = plans.load(str(path))
    assert again == plan and again.network.build() == plan.network.build()
    assert json.loads(json.dumps(plans.to_json(again))) == json.loads(path.read_text())
    assert ("layers" in json.loads(path.read_text())["network"]) == (plan.network.name == "own")


CASES: list[tuple[list[Any], object, str]] = [
    ([], [], "is not a plan file"),
    ([], None, "is not a plan file"),
    (["hpcpar_plan"], 2, "is a plan of version 2, but this hpcpar reads version 1"),
    (["hpcpar_plan"], None, "is a plan of version None"),
    (["configs"], [], "'configs': expected a table of names and values, found a list of 0"),
    (["configs", "conv1"], None, "'configs', 'conv1': expected a table"),
    (["configs", "conv1", "n"], 0, "'conv1', 'n': expected a whole number of at least 1, found 0"),
    (["configs", "conv1", "n"], 1.5, "'conv1', 'n': expected a whole number, found 1.5"),
    (["configs", "conv1", "n"], True, "'conv1', 'n': expected a whole number, found true"),
    (["configs", "conv1", "first"], -1, "'first': expected a whole number of at least 0"),
    (["configs", "conv1", "placement"], "odd", "'configs', 'conv1': placement 'odd': use one of"),
    (["configs", "conv1", "nn"], 1, "'configs', 'conv1': unknown field 'nn'; did you mean 'n'?"),
    (["configs", "conv9"], {}, "layers of the plan and of network 'own' differ: conv9"),
    (["network"], "lenet5", "'network': expected a table of names and values, found 'lenet5'"),
    (["network", "shape", 1], "8", "'shape', entry 2: expected a whole number, found '8'"),
    (["network", "shape"], "1x8x8", "'network', 'shape': expected a list, found '1x8x8'"),
    (["network", "classes"], 10**12, "'network', 'classes': expected a whole number of at most"),
    (["network", "layers"], {}, "'network', 'layers': expected a list, found a table"),
    (["network", "layers", 1], None, "'layers', entry 2: expected a table of names and values"),
    (["network", "layers", 1, "type"], "os.system", "layer 2: unknown type 'os.system'"),
    (["network", "layers", 1, "out_channels"], "6", "layer 2, 'out_channels': expected a whole"),
    (["network", "layers", 1, "kernel"], [5, -5], "layer 2, 'kernel', entry 2: expected a whole"),
    (["network"], {"name": "os:getcwd", "shape": [1, 8, 8], "classes": 10},
     "unknown network 'os:getcwd'"),
    (["ranks"], 10**12, "'ranks': expected a whole number of at most 1e+09, found 1000000000000"),
    (["ranks"], 0, "'ranks': expected a whole number of at least 1, found 0"),
    (["microbatches"], 4097, "'microbatches': 4097 is more than the maximum of 4096"),
    (["fc_passes"], 10**6, "'fc_passes': 1000000 is more than the maximum of 4096"),
    (["batch"], None, "'batch': expected a whole number, found null"),
    (["bucket_bytes"], -1, "'bucket_bytes': expected a whole number of at least 0, found -1"),
    (["overlap"], "al", "'overlap': expected one of none, gradient, full, found 'al'"),
    (["precision"], "fp8", "unknown precision 'fp8'; did you mean 'fp64'?"),
    (["strategy"], True, "'strategy': expected a text, found true"),
    (["machine"], 3, "'machine': expected a table of names and values or nothing, found 3"),
    (["machine"], {"name": "m"}, "'machine': 'device' is missing"),
    (["machine"], {"x": math.nan}, "not JSON"),
    (["rank"], 3, "unknown field 'rank'; did you mean 'ranks'?"),
]


@pytest.mark.parametrize(("path", "value", "message"), CASES)
def test_faults_are_named_on_one_line(path: list[Any], value: object, message: str,
                                      tmp_path: Path) -> None:
    whole: Any = {"all": json.loads(json.dumps(plans.to_json(own())))}
    part, steps = whole, ["all", *path]
    for step in steps[:-1]:
        part = part[step]
    part[steps[-1]] = value
    file = tmp_path / "p.json"
    file.write_text(json.dumps(whole["all"]))
    with pytest.raises(InputError) as err:
        plans.load(str(file))
    assert message in str(err.value) and "p.json" in str(err.value) and "\n" not in str(err.value)


def test_a_former_name_of_a_field_is_read(tmp_path: Path) -> None:
    plan = replace(lenet("data", 2), synchronization=Synchronization.SERVER)
    path = tmp_path / "plan.json"
    plans.save(plan, str(path))
    path.write_text(path.read_text().replace("synchronization", "synchronisation"))
    assert "synchronization" not in path.read_text() and plans.load(str(path)) == plan


def test_a_missing_entry_and_invalid_json_are_refused(tmp_path: Path) -> None:
    data = plans.to_json(own())
    del data["ranks"]
    with pytest.raises(InputError, match="x: 'ranks' is missing; write it again with: hpcpar plan"):
        plans.from_json(data, "x")
    for text in (b"", b"\xff", b'{"hpcpar_plan":' * 10**5):
        (tmp_path / "p.json").write_bytes(text)
        with pytest.raises(InputError, match=r"plan file .*p\.json: not JSON"):
            plans.load(str(tmp_path / "p.json"))


@pytest.fixture
def bait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that importing the module ``bait``, or calling its function ``net``, writes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "bait.py").write_text(
        "from pathlib import Path\nPath('caught').touch()\ndef net(): Path('caught').touch()\n")
    yield tmp_path / "caught"
    sys.modules.pop("bait", None)


@pytest.mark.parametrize("name", ["bait:net", "bait.py:net", "bait.onnx"])
def test_the_network_of_a_stranger_s_file_is_never_imported(
        name: str, bait: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = bait.parent
    played = play(lenet("data", 2), lambda rank, iteration, step: 1e-3).record
    hostile = played.plan | {"network": {"name": name, "shape": [1, 8, 8], "classes": 10}}
    (folder / "p.json").write_text(json.dumps(hostile))
    record_file.write(str(folder / "r.h5"), replace(played, plan=hostile))
    for words in (["predict", "--plan", "p.json"], ["trace", "r.h5"], ["trace", "p.json"],
                  ["compare", "r.h5"]):
        status = main(words)
        said = capsys.readouterr().err
        assert not bait.exists() and "bait" not in sys.modules, words
        if words[0] != "compare":  # which leaves out what only the network tells
            assert status == 2 and said.count("\n") == 1, (words, said)
    (folder / "bait.onnx").write_bytes(b"no")
    assert main(["plan", "--network", name, "--ranks", "2", "--batch", "8"]) == 2
    assert bait.exists() == (not name.endswith(".onnx"))
