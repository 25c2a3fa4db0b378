"""No file that a command writes is another of its files, by whatever name; and none replaces a
file of another kind, or another training run's.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpcpar.cli.main import COMMANDS, main, parsers
from hpcpar.cli.run_options import RunCommand, check_training
from hpcpar.errors import InputError
from hpcpar.options.output_files import CHECKPOINT, PICTURE, RECORD, OutputKind
from hpcpar.train import checkpoint, record_file
from tests.unit.train.test_record import sample

RUN = ("run", "--plan", "p.json")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("d.h5").write_text("data")
    Path("p.json").write_text("plan")
    Path("p.png").write_text("picture")
    os.link("d.h5", "hard.h5")
    Path("soft.h5").symlink_to("d.h5")
    Path("future.h5").symlink_to("c.h5")


@pytest.mark.parametrize(("words", "names"), [
    ((*RUN, "--data", "d.h5", "--checkpoint", "d.h5"), "checkpoint and data"),
    ((*RUN, "--data", "d.h5", "--out", "hard.h5"), "data and out"),
    ((*RUN, "--data", "d.h5", "--out", "soft.h5"), "data and out"),
    ((*RUN, "--data", "d.h5", "--out", "./p.json"), "plan and out"),
    ((*RUN, "--data", "d.h5", "--out", "c.h5", "--checkpoint", "future.h5"), "out and checkpoint"),
    ((*RUN, "--data", "d.h5", "--resume", "p.json", "--out", "p.json"), "plan and out"),
    (("predict", "--plan", "p.json", "--timeline", "p.json"), "plan and timeline"),
    (("compare", "d.h5", "p.png", "--plot", "p.png"), "records and plot"),
    (("data", "numpy", "p.json", "d.h5", "p.json"), "file and truth"),
], ids=lambda value: value if isinstance(value, str) else "")
def test_one_file_for_two_options_is_refused_before_anything_is_read(
        words: tuple[str, ...], names: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = {p.name: p.read_bytes() for p in Path().iterdir() if p.is_file()}
    assert main(words) == 2
    err = capsys.readouterr().err
    one, other = names.split(" and ")
    assert err.startswith("hpcpar: ") and err.count("\n") == 1 and "are one file" in err
    assert one in err and other in err
    assert {p.name: p.read_bytes() for p in Path().iterdir() if p.is_file()} == before


@pytest.mark.parametrize("words", [
    (*RUN, "--data", "d.h5", "--resume", "c.h5", "--checkpoint", "c.h5"),
    (*RUN, "--data", "d.h5", "--out", os.devnull, "--checkpoint", os.devnull),
    ("plan", "--network", "lenet5", "--strategy", "data", "--ranks", "1", "-o", "data"),
])
def test_valid_outputs_pass(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    main(words)
    assert "are one file" not in capsys.readouterr().err


def actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from actions(sub)


def test_options_that_name_outputs_have_their_type() -> None:
    found = {(command, action.dest): action for command in COMMANDS
             for action in actions(parsers(command)[1])}
    names = {"out", "output", "checkpoint", "plot", "timeline", "timeline_plot", "new"}
    missing = [key for key, action in found.items()
               if key[1] in names and key[0] != "sweep" and not isinstance(action.type, OutputKind)]
    assert not missing


#: Commands that write a file, without its name.
WRITE = ["plan --network mlp --strategy data --ranks 1 --batch 8 -o",
         "predict --plan p.json --plot", "predict --plan p.json --timeline",
         "predict --plan p.json --timeline-plot",
         "simulate --plan p.json --plot", "simulate --plan p.json -o", "trace --plan p.json -o",
         "export --plan p.json --format goal --overwrite -o", "calibrate -o", "data digits",
         "proposal --network mlp --ranks 1 --batch 8 -o", "compare run.h5 --plot",
         "run --plan p.json --data d.h5 --out",
         "run --plan p.json --data d.h5 --checkpoint"]
WRITES = [words.split() for words in WRITE]


@pytest.mark.parametrize("words", WRITES, ids=" ".join)
@pytest.mark.parametrize("more", [(), ("--overwrite",)])
def test_a_file_of_another_kind_is_never_replaced(
        words: list[str], more: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    if more and words[0] != "run":
        return
    name = "thesis.svg" if "plot" in words[-1] else "thesis.tex"
    Path(name).write_text("\\documentclass")
    assert main([*words, name, *more]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"hpcpar: {name} exists and is not a ") and err.count("\n") == 1
    assert Path(name).read_text() == "\\documentclass"


def test_files_that_the_command_wrote_before_are_replaced() -> None:
    network = ["--network", "mlp", "--input", "1x8x8", "--ranks", "2", "--batch", "8"]
    for _ in range(2):
        assert main(["plan", *network, "--strategy", "data", "-o", "mine.json"]) == 0
        for end in ("png", "svg", "pdf"):
            assert main(["predict", "--plan", "mine.json", "--plot", f"a.{end}"]) == 0
        for words in ("predict --plan mine.json --timeline t.json",
                      "trace --plan mine.json -o t2.json", "simulate --plan mine.json -o sim.h5",
                      "data digits digits.h5",
                      "export --plan mine.json --format goal --overwrite -o a.goal"):
            assert main(words.split()) == 0
    assert main(["trace", "--plan", "mine.json", "-o", "mine.json"]) == 2
    assert main(["data", "digits", "sim.h5"]) == 2
    assert main(["simulate", "--plan", "mine.json", "-o", "digits.h5"]) == 2
    Path("empty").touch()
    PICTURE.check("empty")
    PICTURE.check("none")


def training(**changes: Any) -> RunCommand:
    return RunCommand(**{
        "plan": "p.json", "data": "d.h5", "checkpoint": CHECKPOINT("c.h5"),
        "out": RECORD("run.h5"), **changes})


def test_another_trainings_files_are_replaced_only_on_request(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/bin/hpcpar", "run", "--plan", "p.json"])
    state = checkpoint.CheckpointState(700, 1, 2, 0, "mlp", (1, 8, 8), 10)
    check_training(training())
    for name in ("c.h5", "old.h5"):
        checkpoint.write(name, checkpoint.image([("fc/weight", np.ones((2, 2)))], [], state))
    for resume in ("", "old.h5"):
        with pytest.raises(InputError, match=r"^checkpoint c.h5 exists; resume from it with "
                           r"--resume c.h5, replace it with --overwrite, or choose another name$"):
            check_training(training(resume=resume))
    check_training(training(resume="c.h5"))
    check_training(training(overwrite=True))
    for command, refused in (("hpcpar run --plan q.json", True), ("", False),
                             ("/other/hpcpar run --plan p.json", False)):
        record_file.write("run.h5", replace(sample(), command=command))
        others = training(checkpoint="")
        if refused:
            with pytest.raises(InputError, match=r"run record run.h5 comes from another command"):
                check_training(others)
            with pytest.raises(InputError, match="another command"):  # nothing goes on
                check_training(training(checkpoint="", resume="c.h5", forward_only=True))
            check_training(training(resume="c.h5"))
            check_training(training(overwrite=True))
        else:
            check_training(others)


def test_a_simulation_replaces_no_record_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--network", "lenet5", "--ranks", "1", "--batch", "4", "--machine",
                 "local", "-o", "plan.json"]) == 0
    for command, status in (("hpcpar run --plan p.json", 2), ("", 0)):
        record_file.write("run.h5", replace(sample(), command=command))
        before = Path("run.h5").read_bytes()
        assert main(["simulate", "--plan", "plan.json", "--out", "run.h5"]) == status
        assert ("run.h5 is the record of a run" in capsys.readouterr().err) == bool(status)
        assert (Path("run.h5").read_bytes() == before) == bool(status)


@pytest.mark.parametrize("options", [("out", RECORD("c.h5")), ("checkpoint", CHECKPOINT("run.h5")),
                                     ("out", RECORD("other.h5"))])
def test_hdf5_files_of_another_kind_are_never_replaced(options: tuple[str, str]) -> None:
    state = checkpoint.CheckpointState(7, 1, 2, 0, "mlp", (1, 8, 8), 10)
    checkpoint.write("c.h5", checkpoint.image([("fc/weight", np.ones((2, 2)))], [], state))
    record_file.write("run.h5", sample())
    with h5py.File("other.h5", "w") as f:
        f["x"] = 1
    name, path = options
    words: dict[str, Any] = {"out": "", "checkpoint": "", "overwrite": True, name: path}
    with pytest.raises(InputError, match=f"^{path} exists and is not a .*: it is not replaced"):
        check_training(training(**words))
