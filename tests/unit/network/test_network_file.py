"""Network files: written once, they replace the source of a network; other files are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import hpcpar
from hpcpar.cli.main import main
from hpcpar.errors import InputError
from hpcpar.network import network_file
from hpcpar.network.builtin import network
from hpcpar.network.source import load_module
from tests.mpi.networks import FIXED, MORE, by_name

PLAN = ["--machine", "local", "--ranks", "2", "--batch", "16", "--strategy", "data"]


@pytest.mark.parametrize("name", (*FIXED, *MORE))
def test_a_network_is_equal_when_read_again(name: str, tmp_path: Path) -> None:
    built, file = replace(by_name(name)[0], name="mine"), str(tmp_path / "net.json")
    network_file.save(built, file)
    assert hpcpar.load_network(file) == built
    assert hpcpar.load_network(file, built.image_shape, built.classes) == built


def test_commands_take_network_files_and_plans(tmp_path: Path,
                                               capsys: pytest.CaptureFixture[str]) -> None:
    file, plan, again = (str(tmp_path / name) for name in ("n.json", "plan.json", "again.json"))
    assert main(["networks", "lenet5", "--input", "1x12x12", "-o", file]) == 0
    assert main(["plan", "--network", file, *PLAN, "-o", plan]) == 0
    assert main(["networks", plan, "-o", again]) == 0
    assert Path(again).read_text() == Path(file).read_text()
    capsys.readouterr()
    found = []
    for source in (file, plan):
        assert main(["predict", "--network", source, *PLAN, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1] and found[0]["network"] == "lenet5"


def test_other_files_are_refused_in_one_line(tmp_path: Path,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "net.json"
    layers = [{"type": "Nothing", "name": "a"}]
    good = {"name": "n", "shape": [1, 8, 8], "classes": 2}
    for text, words in (("[1]", "is neither a network file nor a plan file"), ("{", "not JSON"),
                        ('{"hpcpar_network": 2, "network": {}}', "at most 1, found 2"),
                        ('{"hpcpar_plan": 1}', "'network'"),
                        (json.dumps({"hpcpar_network": 1, "network": good}), "unknown network 'n'"),
                        (json.dumps({"hpcpar_network": 1, "network": good | {"layers": layers}}),
                         "unknown type 'Nothing'")):
        file.write_text(text)
        assert main(["predict", "--network", str(file), *PLAN]) == 2
        error = capsys.readouterr().err
        assert words in error and str(file) in error and error.count("\n") == 1
        assert main(["networks", "lenet5", "-o", str(file)]) == (0 if "_network" in text else 2)
        capsys.readouterr()


def test_another_shape_and_weights_need_the_source(tmp_path: Path) -> None:
    file = str(tmp_path / "net.json")
    network_file.save(network("lenet5"), file)
    for other in ({"shape": (1, 32, 32)}, {"classes": 3}):
        with pytest.raises(InputError, match="--classes, or write the file again with them"):
            hpcpar.load_network(file, **other)
    with pytest.raises(InputError, match=r"names of the module's tensors; give .* file.py:func"):
        load_module(file)
