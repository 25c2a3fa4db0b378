"""``hpcpar proposal``: the numbers of ``predict`` and ``sweep`` in three formats."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hpcpar
from hpcpar.cli.main import main
from hpcpar.data.synthetic import synthetic
from hpcpar.errors import InputError
from hpcpar.process import launchers
from hpcpar.report.tables.document import page_format
from tests.unit.balanced_html import Balanced
from tests.unit.sweep.test_sweep import Launcher

NETWORK = ["--network", "lenet5", "--input", "1x8x8", "--machine", "cori-knl", "--samples", "640"]
WORDS = ["proposal", *NETWORK, "--ranks", "1,2,4", "--batch", "64", "--batch-per-rank", "16"]


def document(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_numbers_are_those_of_predict(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shown = document(capsys, *WORDS, "--epochs", "3", "--runs", "5", "--reserve", "0.5",
                     "--production", "4", "-o", str(tmp_path / "page.md"))
    for kind, batch in (("strong", ["--batch", "64"]), ("weak", ["--batch-per-rank", "16"])):
        told = document(capsys, "predict", *NETWORK, "--ranks", "1,2,4", *batch, "--epochs", "3",
                        "--efficiency", "0.01")
        points = shown["scaling"][kind]["points"]
        assert len(points) == 3
        for p, priced, scale in zip(points, told["predictions"], told["scaling"], strict=True):
            ours = p["predicted"]
            for name in ("iteration_s", "epoch_s", "compute_s", "bubble_s", "iteration_low_s",
                         "iteration_high_s", "interval_source"):
                assert ours[name] == priced[name], name
            assert p["memory_bytes"] == priced["memory_bytes"]
            assert ours["gradient_s"] + ours["other_communication_s"] == pytest.approx(
                priced["exposed_communication_s"])
            assert ours["efficiency"] == pytest.approx(scale["efficiency"])
            assert 3 * ours["node_hours"] == pytest.approx(scale["node_hours"])
    runs, four = shown["campaign"], document(
        capsys, "predict", *NETWORK, "--ranks", "4", "--batch", "64", "--epochs", "3",
        "--efficiency", "0.01")["choice"]
    assert runs["run_s"] == pytest.approx(four["run_s"])
    assert runs["node_hours"] == pytest.approx(5 * 1.5 * four["node_hours"])
    assert (tmp_path / "page-scaling.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("rules", "said"), [
    ("hpcpar", "executes it and checks"), ("ddp", "by the rules of ddp, and does not execute it")])
def test_the_page_says_whether_the_plan_is_executed(rules: str, said: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    assert main([*WORDS, "--framework", rules, "-o", str(page)]) == 0
    assert said in page.read_text(encoding="utf-8")


@pytest.fixture
def swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A finished sweep of pretended runs."""
    monkeypatch.setattr(launchers, "run", Launcher())
    synthetic(str(tmp_path / "data.h5"), (1, 8, 8), 10, 640)
    hpcpar.sweep("strong", "lenet5", [1, 2, 4], 64, str(tmp_path / "out"), machine="cori-knl",
                 strategy="data", simulate="8", input="1x8x8", data=str(tmp_path / "data.h5"),
                 mpiexec="pretended")
    return str(tmp_path / "out")


def test_numbers_are_those_of_a_sweep(swept: str, capsys: pytest.CaptureFixture[str],
                                      tmp_path: Path) -> None:
    """But the epoch, which is the request's, and simulated times, which are not measured."""
    told = json.loads((tmp_path / "out/report.json").read_text())["points"]
    result = hpcpar.proposal(sweep=(swept,), samples=640, epochs=10)
    shown = result.to_json()["scaling"]["strong"]["points"]
    assert [p["ranks"] for p in shown] == [1, 2, 4, 8]
    for ours, its in zip(shown[:3], told[:3], strict=True):
        for name in ("measured", "predicted", "memory_bytes", "accuracy", "nodes", "chosen"):
            assert ours[name] == its[name], name
        assert ours["measured"]["efficiency"] == pytest.approx(1)
    assert shown[3]["measured"] is None and told[3]["measured"] is not None
    assert (result.campaign["times"], result.campaign["ranks"]) == ("measured", 4)
    assert result.campaign["run_node_hours"] == pytest.approx(
        10 * told[2]["measured"]["node_hours"])
    result.save(str(tmp_path / "page.html"))
    text = (tmp_path / "page.html").read_text()
    assert "accurate on average" in text and "measured, 10th" in text
    for words in (["--network", "lenet5"], ["--batch", "8"], ["--precision", "fp32"],
                  ["--ranks", "16"], ["--strategy", "filter"]):
        assert main(["proposal", "--sweep", swept, *words, "-o", str(tmp_path / "x.md")]) == 2
        assert f"{words[0]} has no effect with --sweep" in capsys.readouterr().err
    assert main(["proposal", "--sweep", swept, "--sweep", swept, "-o", "x.md"]) == 2
    assert "one sweep of strong and one of weak scaling" in capsys.readouterr().err


def test_pages_hold_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for suffix in ("md", "tex", "html"):
        assert main([*WORDS, "-o", str(tmp_path / f"page.{suffix}")]) == 0
    pages = {p.suffix: p.read_text() for p in tmp_path.glob("page.*")}
    answer = hpcpar.proposal("lenet5", [1, 2, 4], 64, input="1x8x8", machine="cori-knl",
                             batch_per_rank=16, samples=640).answer
    rows = {suffix: len(re.findall(r"100.0\\?%", text)) for suffix, text in pages.items()}
    assert rows == {".md": 2, ".tex": 2, ".html": 2}
    assert f"{answer}." in pages[".md"] and answer.replace("%", r"\%") in pages[".tex"]
    assert answer in pages[".html"] and "<svg" in pages[".html"]
    checked = Balanced()
    checked.feed(pages[".html"])
    assert checked.open == [] and not checked.images
    assert "\\includegraphics[width=\\linewidth]{page-scaling.pdf}" in pages[".tex"]
    assert (tmp_path / "page-scaling.pdf").read_bytes().startswith(b"%PDF")
    if shutil.which("pdflatex"):
        done = subprocess.run(["pdflatex", "-interaction=nonstopmode", "page.tex"], cwd=tmp_path,
                              capture_output=True, text=True, check=False)
        assert done.returncode == 0 and "(1 page," in done.stdout and "Overfull" not in done.stdout


@pytest.mark.parametrize(("suffix", "text"), [
    ("md", "a\\_b \\<i\\> \\| \\[x\\] 5%"), ("html", "a_b &lt;i&gt; | [x] 5%"),
    ("tex", r"a\_b \textless{}i\textgreater{} \textbar{} [x] 5\%")])
def test_names_of_networks_are_text(suffix: str, text: str) -> None:
    assert page_format(f"x.{suffix}").page([("text", "a_b <i> | [x] 5%")]).count(text) == 1


def test_latex_escapes_everything() -> None:
    text = page_format("x.tex").page([("text", "\\~^{}$&#_%\"--")])
    assert (r"\textbackslash{}\textasciitilde{}\textasciicircum{}\{\}\$\&\#\_\%''{-}-"
            in text)


@pytest.mark.parametrize(("words", "said"), [
    ((), "--batch is missing"),
    (("--batch", "64"), "--ranks is missing"),
    (("--batch", "64", "--ranks", "1,2", "--production", "3"), "--production 3 is not a size"),
    (("--batch", "64", "--ranks", "1", "--reserve", "-1"), "'-1' is not a number of at least 0"),
    (("--batch", "64", "--ranks", "1", "--runs", "0"), "'0' is not a whole number"),
    (("--batch", "2", "--ranks", "4,8"), "Strong scaling on 8 ranks cannot run"),
    (("--sweep", "nowhere"), "is not the folder of a sweep"),
])
def test_bad_input_is_refused_in_a_line(words: tuple[str, ...], said: str, tmp_path: Path,
                                        capsys: pytest.CaptureFixture[str]) -> None:
    network = [] if "--sweep" in words else NETWORK
    assert main(["proposal", *network, *words, "-o", str(tmp_path / "page.md")]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1 and not list(tmp_path.iterdir())


def test_a_page_is_never_replaced(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    assert main([*WORDS, "-o", str(page)]) == 0
    before = page.read_text()
    assert main([*WORDS, "-o", str(page)]) == 2
    assert "is not replaced; choose another name" in capsys.readouterr().err
    assert page.read_text() == before
    assert main([*WORDS, "-o", str(tmp_path / "page.doc")]) == 2
    assert "unknown suffix of a page '.doc'" in capsys.readouterr().err
    (tmp_path / "other-scaling.png").write_text("mine")
    with pytest.raises(InputError, match="not a picture: it is not replaced"):
        hpcpar.proposal("lenet5", [1], 64).save(str(tmp_path / "other.md"))
    assert not (tmp_path / "other.md").exists()


def test_several_strategies_are_one_line_of_the_choice(
        capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    result = hpcpar.proposal("lenet5", [2, 8], 16, "cori-knl", "filter,auto,grid:*", production=8)
    priced = hpcpar.predict("lenet5", [2, 8], 16, "cori-knl", "filter,auto,grid:*")
    for p in result.series["strong"]:
        assert p.predicted is not None
        assert p.predicted.iteration_s == priced.choices[p.ranks].iteration_s
        fastest_s = min(q.iteration_s for q in priced.predictions if q.ranks == p.ranks)
        assert 0.9 * p.predicted.iteration_s <= fastest_s
    chosen = result.series["strong"][1]
    assert chosen.predicted and chosen.predicted.iteration_s == result.chosen.iteration_s


def test_sizes_that_cannot_run_are_named() -> None:
    result = hpcpar.proposal("resnet50", [4, 16], 4096, "juwels-booster")
    assert [p.ranks for p in result.series["strong"]] == [16]
    (note,) = result.notes
    assert re.fullmatch(r"Strong scaling on 4 ranks cannot run: needs [\d.]+ GB of 40 GB of "
                        r"memory\.", note)


def test_without_matplotlib_the_picture_is_left_out(
        capsys: pytest.CaptureFixture[str], tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main([*WORDS, "-o", str(tmp_path / "page.md")]) == 0
    assert "note: No picture: plots need matplotlib" in capsys.readouterr().err
    assert "No picture" in (tmp_path / "page.md").read_text()
    assert [p.name for p in tmp_path.iterdir()] == ["page.md"]
