"""No file that a command writes is another of its files, by whatever name."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcpar.cli.main import COMMANDS, main, parsers
from hpcpar.cli.output_files import OutputFile

RUN = ("run", "--plan", "p.json")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("d.h5").write_text("data")
    Path("p.json").write_text("plan")
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
    (("compare", "d.h5", "p.json", "--plot", "p.json"), "records and plot"),
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
def test_what_is_no_fault_passes(words: tuple[str, ...],
                                 capsys: pytest.CaptureFixture[str]) -> None:
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
               if key[1] in names and key[0] != "sweep" and action.type is not OutputFile]
    assert not missing
