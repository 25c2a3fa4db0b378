"""Tables: their streams, and the columns that a width leaves room for."""

from __future__ import annotations

import csv
import io
import os
import pty
import re
import subprocess
import sys

import pytest

from hpcpar.cli.main import main
from hpcpar.cli.options import print_csv
from hpcpar.errors import visible
from hpcpar.report.progress import ProgressBar
from hpcpar.report.tables import say, show, show_line

COLUMNS = ("name", "time", "size", "rate")
ROWS = [("a" * 12, "76.7 ms", "12 MB", "1 GB/s"), ("b", "3 min 20 s", "4 kB", "[2] GB/s")]
PREDICT = ["predict", "--network", "resnet50", "--machine", "abci-v100", "--batch", "64", "--ranks",
           "8", "--strategy", "data,ds:2x4,domain:2x4/outer"]


def shown(capsys: pytest.CaptureFixture[str], **options: bool) -> list[str]:
    show("a title", COLUMNS, ROWS, drop=("rate", "size"), **options)
    return capsys.readouterr().out.splitlines()


def test_results_go_to_stdout_and_notes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    show_line("a result")
    say("a note")
    assert capsys.readouterr() == ("a result\n", "a note\n")


@pytest.mark.parametrize(("width", "heads"), [
    ("200", "name time size rate"), ("31", "name time size"), ("30", "name time"),
    ("24", "name time")])
def test_columns_drop_out_by_width(width: str, heads: str, capsys: pytest.CaptureFixture[str],
                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", width)
    lines = shown(capsys)
    head = next(line for line in lines if "time" in line)
    assert head.split() == heads.split() and max(map(len, lines)) <= int(width)
    if width == "24":
        assert lines[-2].split() == ["a" * 12, "76.7", "ms"]  # whole, not folded


def test_wide_shows_all(capsys: pytest.CaptureFixture[str],
                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    assert shown(capsys, wide=True)[1].split() == list(COLUMNS)
    monkeypatch.delenv("COLUMNS")
    assert shown(capsys)[1].split() == list(COLUMNS)


def test_long_sentences_are_broken_only_where_the_width_is_known(
        capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    show_line("word " * 60)
    assert len(capsys.readouterr().out.splitlines()) == 1
    monkeypatch.setenv("COLUMNS", "80")
    show_line("word " * 60)
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_predictions_on_a_terminal_of_80_columns() -> None:
    """A real terminal: strategy, iteration, memory and fits stand whole on one line."""
    main_end, other_end = pty.openpty()
    env = {**os.environ, "COLUMNS": "80", "TERM": "xterm"}
    command = [sys.executable, "-m", "hpcpar", *PREDICT]
    with subprocess.Popen(command, stdout=other_end, stderr=subprocess.PIPE, env=env) as child:
        os.close(other_end)
        text = ""
        while True:
            try:
                read = os.read(main_end, 1 << 16)
            except OSError:  # the other end is closed
                break
            text += read.decode()
            if not read:
                break
    os.close(main_end)
    lines = text.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()
    assert child.returncode == 0 and max(map(len, lines)) <= 80
    head = next(line.split() for line in lines if line.startswith(" strategy"))
    assert {"strategy", "iteration", "memory", "fits"} <= set(head) and "compute" not in head
    for strategy in ("data", "ds:2x4", "domain:2x4/outer"):
        row = next(line for line in lines if line.startswith(f" {strategy} "))
        assert row.split()[-1] in ("yes", "no") and " GB" in row


def test_explanations_fit_80_columns(capsys: pytest.CaptureFixture[str],
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers keep their columns; reasons are folded."""
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["predict", "--network", "lenet5", "--machine", "p100x4x4", "--ranks", "4",
                 "--batch", "64", "--explain"]) == 0
    told = capsys.readouterr().out
    assert max(map(len, told.splitlines())) <= 80 and "…" not in told
    row = next(line for line in told.splitlines() if line.startswith("gradient exchange"))
    assert re.match(r"gradient exchange +\d[\d.]* [mu]s +\d[\d.]*% +\d+ steps, at", row)


def test_csv_has_every_number_raw(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PREDICT, "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["strategy"] for row in rows] == ["data", "ds:2x4", "domain:2x4/outer"]
    for row in rows:
        assert float(row["iteration_s"]) > 0 and int(row["memory_bytes"]) > 1_000_000
        assert float(row["phases.gradient.communication_s"]) >= 0 and row["fits"] == "True"
    assert main(["networks", "lenet5", "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert (rows[1]["name"], rows[1]["inputs"], rows[1]["output"]) == ("conv1", "input", "6 28 28")


def test_json_csv_and_wide_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["networks", "--json", "--csv"]) == 2
    assert "not allowed with argument" in capsys.readouterr().err


def test_batch_normalization_is_reported_with_ddps_behavior(
        capsys: pytest.CaptureFixture[str]) -> None:
    assert main(PREDICT) == 0
    told = capsys.readouterr().out
    line = re.match(r"Use 8 .*: about (\S+) ms per .*; batch normalization over the whole batch "
                    r"\((\S+) ms over each rank's part, as in PyTorch DDP\)\n", told)
    assert line is not None and float(line[2]) < float(line[1])
    row = re.search(r"^data +\* +8 +(\S+) ms ", told, re.MULTILINE)
    assert row is not None and f"{float(row[1]):.2g}" == line[1]
    assert "*: the choice\n" in told
    assert "/outer: ranks that share" in told
    assert main([*PREDICT, "--batch-norm", "local"]) == 0
    told = capsys.readouterr().out
    local = re.match(r"Use 8 .*: about (\S+) ms per .*; batch normalization over each rank's part, "
                     r"as in PyTorch DDP \((\S+) ms over the whole batch\)\n", told)
    assert local is not None  # its buckets are chosen for local statistics
    assert [float(local[1]), float(local[2])] == pytest.approx(
        [float(line[2]), float(row[1])], 0.02)
    assert main(["predict", "--network", "resnet50", "--ranks", "1", "--batch", "8"]) == 0
    told = capsys.readouterr().out
    assert "batch normalization over the whole batch" in told and "DDP" not in told
    assert main(["predict", "--network", "lenet5", "--ranks", "2", "--batch", "8"]) == 0
    assert "normalization" not in capsys.readouterr().out


def test_control_characters_of_files_are_shown_as_escapes(
        capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "conv\x1b]0;title\x07\x9b31m\u202e"
    show(hostile, [visible(hostile)], [[hostile]])
    show_line(hostile)
    say(hostile)
    assert main(["networks", hostile]) == 2
    with ProgressBar() as bar:
        bar.say(hostile)
    print_csv([{"layer": hostile}])
    said = "".join(capsys.readouterr())
    assert not set("\x1b\x07\x9b\u202e") & set(said)
    assert said.count(r"conv\x1b]0;title\x07\x9b31m\u202e") == 8
