"""Slips on the command line get an answer that names the remedy, before anything is computed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import pytest

from hpcpar.cli.main import COMMANDS, main
from hpcpar.options import other_names, output_files
from tests.unit.cli.output import document

#: Runs a command line; returns its one line of error.
Refused = Callable[[str], str]

PLAN = "plan --network lenet5 --ranks 2 --batch 8"
SOURCE = """raise RuntimeError("this file is only read")
def make(): ...
class Tiny: ...
def _helper(): ...
"""


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
            capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs a command line in an empty folder; returns its one line of error."""
    monkeypatch.chdir(tmp_path)

    def run(line: str) -> str:
        assert main(line.split()) == 2
        said = capsys.readouterr()
        assert said.out == "" and said.err.count("\n") == 1
        return said.err

    return run


# -- names of other tools --------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "answer"), [
    *((name, "write amp: bfloat16, with weights and sums in float32")
      for name in ("bf16", "BFloat16", "mixed", "bf16-mixed", "autocast")),
    *((name, "write amp-fp16: float16 with a loss scale, weights and sums in float32")
      for name in ("fp16", "float16", "half", "fp_16", "16-mixed"))])
def test_16_bit_formats_lead_to_amp(name: str, answer: str, refused: Refused) -> None:
    assert answer in refused(f"{PLAN} --precision {name}")
    assert answer in refused(f"verify --plan p.json --precision {name}")
    assert answer in refused(f"calibrate -o m.toml --precision {name}")


@pytest.mark.parametrize(("name", "answer"), [
    ("float32", "write fp32"), ("single", "write fp32"), ("FP32", "did you mean 'fp32'?"),
    ("AMP", "did you mean 'amp'?"), ("Fp64", "did you mean 'fp64'?")])
def test_other_formats_lead_to_ours(name: str, answer: str, refused: Refused) -> None:
    assert answer in refused(f"{PLAN} --precision {name}")


@pytest.mark.parametrize(("option", "answer"), [
    ("--precision float32", "write fp32"), ("--precision double", "write fp64"),
    ("--precision fp8", "the smallest format is amp"), ("--precision fp23", "did you mean 'fp32'"),
    ("--strategy ddp", "write data"), ("--strategy tensor_parallel", "write filter"),
    ("--strategy fsdp", "--synchronization sharded"), ("--loss mse", "write mean_squared_error"),
    ("--loss cross_entropy", "write softmax_cross_entropy"),
])
def test_names_of_other_tools_are_answered(
        option: str, answer: str, refused: Refused) -> None:
    assert answer in refused(f"{PLAN} {option}")


def test_a_device_and_a_launcher_of_other_tools_are_answered(
        refused: Refused) -> None:
    assert "write gpu" in refused("run --plan p.json --data d.h5 --device cuda")
    sweep = "sweep strong --network lenet5 --ranks 2 --batch 8 -o s"
    assert "write slurm" in refused(f"{sweep} --launcher sbatch")


def test_answers_name_things_that_exist() -> None:
    """Each answer on commands names one, and no answer hides a name of hpcpar."""
    from hpcpar.network.layers.loss import LOSSES
    from hpcpar.plan.precision import PRECISIONS
    from hpcpar.plan.strategy import STRATEGIES

    for name, answer in other_names.COMMANDS.items():
        words = answer.replace(",", "").split()
        found = [after for word, after in pairwise(words) if word == "hpcpar"]
        assert found and {*found} <= {*COMMANDS, "--help", "--version", "COMMAND"}, name
    for names, known in ((other_names.COMMANDS, COMMANDS), (other_names.FORMATS, PRECISIONS),
                         (other_names.STRATEGIES, STRATEGIES), (other_names.LOSSES, LOSSES)):
        assert not {*names} & {*known}


@pytest.mark.parametrize(("name", "ways"), [
    ("why-slow", ("hpcpar compare", "hpcpar trace")), ("train", ("hpcpar run",)),
    ("profile", ("hpcpar compare",)), ("benchmark", ("hpcpar calibrate", "hpcpar sweep")),
    ("scale", ("hpcpar sweep",)), ("estimate", ("hpcpar predict",)),
    ("how_many_gpus", ("hpcpar predict --efficiency",)), ("help", ("hpcpar --help",)),
])
def test_other_words_for_commands_lead_to_the_command(
        name: str, ways: tuple[str, ...], refused: Refused) -> None:
    said = refused(name)
    assert f"unknown command '{name}': " in said and all(way in said for way in ways)
    assert "did you mean" not in said


# -- names and files -------------------------------------------------------------------------------
def test_a_source_file_without_a_name_lists_what_it_defines(
        tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "net.py").write_text(SOURCE)
    for name in ("net.py", "net.py:", "net.py:make()"):
        said = refused(f"networks {name}")
        assert "as in net.py:make (known: make, Tiny)" in said
    (tmp_path / "empty.py").write_text("not python")
    assert "as in empty.py:make\n" in refused("networks empty.py")


def test_a_misspelled_function_is_corrected(
        tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "own.py").write_text(SOURCE.partition("\n")[2])
    assert refused("networks own.py:mke") == (
        "hpcpar: unknown function in own.py: 'mke'; did you mean 'make'? (known: Tiny, make)\n")


@pytest.mark.parametrize("name", ["no.py", "no.py:make", "./unet", "unet.pt", "no.tar.gz"])
def test_a_network_that_looks_like_a_file_is_looked_for_as_one(
        name: str, refused: Refused) -> None:
    assert "no such file" in refused(f"networks {name}")


def test_a_file_that_holds_no_network_is_named(
        tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "weights.pt").write_text("")
    assert "it is not a network file; give a .onnx file" in refused("networks weights.pt")


@pytest.mark.parametrize("name", ["mine.tml", "mine.toml", "mine.json", "no/mine"])
def test_a_machine_that_looks_like_a_file_is_looked_for_as_one(
        name: str, refused: Refused) -> None:
    said = refused(f"machines {name}")
    assert f"cannot read machine file {name}: No such file" in said and "perlmutter" not in said


def test_a_misspelled_machine_is_no_file(refused: Refused) -> None:
    assert "unknown machine 'p2.9xlarge'; did you mean 'p2.8xlarge'?" in refused(
        "machines p2.9xlarge")


def test_a_machine_file_may_have_any_suffix(
        tmp_path: Path, refused: Refused, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["machines", "--new", "mine.tml"]) == 0
    capsys.readouterr()
    assert document(capsys, "machines", "mine.tml")
    (tmp_path / "mine").write_text((tmp_path / "mine.tml").read_text())
    assert "unknown machine 'mine': for the file of this name, write ./mine" in refused(
        "machines mine")


@pytest.mark.parametrize("name", ["no.py", "folder/no"])
def test_a_missing_module_of_layers_is_no_such_file(
        name: str, refused: Refused) -> None:
    assert f"--layers {name}: no such file" in refused(f"{PLAN} --layers {name}")


# -- shapes ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("given", "right"), [
    ("32x32x1", "1x32x32"), ("224x224x3", "3x224x224"), ("64x64x64x1", "1x64x64x64"),
])
def test_channels_last_are_turned(
        given: str, right: str, refused: Refused) -> None:
    for line in (f"{PLAN} --input {given}", f"data synthetic d.h5 --input {given}"):
        assert f"'{given}' has its channels last; write them first, {right}" in refused(line)


@pytest.mark.parametrize("shape", ["1x32x32", "3x32x1", "1x400x3", "6x3", "16x1x8"])
def test_channels_first_are_taken(
        shape: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "synthetic", str(tmp_path / "d.h5"), "--input", shape, "--samples", "2",
                 "--classes", "2"]) == 0


# -- output files ----------------------------------------------------------------------------------
PREDICT = "predict --network lenet5 --ranks 2 --batch 8"
OUTPUTS = [f"{PLAN} -o", f"{PREDICT} --plot", f"{PREDICT} --timeline", f"{PREDICT} --timeline-plot",
           "simulate --plan p.json -o", "simulate --plan p.json --plot", "compare r.h5 --plot",
           "trace r.h5 -o", "export --plan p.json --format goal -o", "networks lenet5 -o",
           "calibrate -o", "run -n 2 --plan p.json --data d.h5 --checkpoint", "data digits",
           "run --plan p.json --data d.h5 -o", "run --plan p.json --data d.h5 --metrics",
           "weights to-torch c.h5", "proposal --network lenet5 --ranks 2 --batch 8 -o"]


@pytest.mark.parametrize("line", OUTPUTS)
def test_a_folder_that_is_missing_is_found_before_anything_is_computed(
        line: str, refused: Refused) -> None:
    """No input exists, so that any work would fail in another way."""
    suffix = ".png" if "plot" in line else ".json" if line.startswith("networks") else ".html"
    more = " --network lenet5" if line.startswith("weights") else ""
    said = refused(f"{line} nowhere/out{suffix}{more}")
    assert f"nowhere/out{suffix}: its folder does not exist" in said


def test_a_folder_in_place_of_a_file_is_refused(
        tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "out.json").mkdir()
    assert "cannot write plan file out.json: it is a folder" in refused(f"{PLAN} -o out.json")


@pytest.mark.parametrize(("line", "answer"), [
    (f"{PREDICT} --plot x.xyz", "use one that ends in .png, .pdf"),
    ("compare r.h5 --plot x.txt", "use one that ends in .png, .pdf"),
    ("networks lenet5 -o net.txt", "use one that ends in .json"),
])
def test_a_suffix_that_cannot_be_written_is_refused_at_once(
        line: str, answer: str, refused: Refused) -> None:
    assert answer in refused(line)


def test_pictures_without_matplotlib_are_refused_at_once(
        refused: Refused) -> None:
    with patch.object(output_files, "find_spec", lambda name: None):
        assert "pip install 'hpcpar[plot]'" in refused(f"{PREDICT} --plot x.png")


def test_a_job_leaves_folders_to_the_rank_that_writes(
        monkeypatch: pytest.MonkeyPatch) -> None:
    """Other nodes need not have them."""
    from hpcpar.cli.plan import PlanCommand

    options = PlanCommand("lenet5", 2, 8, out="nowhere/p.json")
    with patch.object(output_files, "launcher", lambda: object()):
        output_files.check_outputs(options)
    with pytest.raises(ValueError, match="its folder does not exist"):
        output_files.check_places(options)
