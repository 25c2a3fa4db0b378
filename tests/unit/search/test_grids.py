"""The answer in the paper's words: Pr x Pc, and model or domain parallelism by layer."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

import hpcpar
from hpcpar.errors import InputError
from hpcpar.machine import files
from hpcpar.network import builtin
from hpcpar.papers.gholami import HockneyLink, eq9_integrated, total_s
from hpcpar.plan.plan import NetworkSpec, Plan, make_plan
from hpcpar.report.tables.grid_tables import in_words, reason
from hpcpar.search import auto
from hpcpar.search.grids import grid_answer, grid_of
from tests.unit.balanced_html import Balanced
from tests.unit.cli.output import document, text

CORI = files.load("cori-knl")
LINK = HockneyLink(2e-6, 4 / 6e9)
ALEXNET = NetworkSpec("alexnet", (3, 224, 224), 1000)
NETWORK = builtin.network("alexnet")
CONVOLUTIONS = ("conv1", "conv2", "conv3", "conv4", "conv5")


def plan_of(strategy: str, ranks: int = 8) -> Plan:
    return make_plan(ALEXNET, strategy, ranks, 64, network=NETWORK, machine=CORI)


@pytest.mark.parametrize(("strategy", "words"), [
    ("domain:4x2", "Pr x Pc = 4 x 2: conv1 ... conv5 by domain (4 x 1 of the image), fc6 ... fc8 "
     "by model (4 parts of the weights)"),
    ("grid:2x4", "Pr x Pc = 2 x 4: conv1 ... fc8 by model (2 parts of the weights)"),
    ("grid-fc:4x2", "Pr x Pc = 4 x 2: conv1 ... conv5 by batch (8 parts of the batch), fc6 ... fc8 "
     "by model (4 parts of the weights)"),
    ("data", ""), ("domain:2x4+8x1", ""), ("channel", ""), ("pipeline:2x4", ""), ("owt-b", ""),
])
def test_plans_on_one_grid_have_words(strategy: str, words: str) -> None:
    assert in_words(NETWORK, plan_of(strategy)) == words


def test_pure_batch_parallelism_is_the_grid_1_x_p() -> None:
    assert grid_of(NETWORK, plan_of("data")) == (
        1, 8, dict.fromkeys([layer.name for layer in NETWORK.matmul_layers], "batch"))


def test_networks_with_many_changes_of_the_cut_have_counts() -> None:
    spec = NetworkSpec("resnet50", (3, 224, 224), 1000)
    net, task = spec.build(), auto.task(spec.build(), spec, 64, 256, CORI)
    plan = auto.price_named(net, spec, "integrated:2x32", 64, 256, CORI).plan
    words = in_words(net, plan)
    counts = [int(n) for n in re.findall(r"(\d+) layers by", words)]
    assert sum(counts) == len(net.matmul_layers) and task.ranks == 64, words


@pytest.fixture(scope="module")
def paper() -> hpcpar.PlanResult:
    """The paper's case: AlexNet, P = 512, B = 2,048."""
    return hpcpar.plan("alexnet", 512, 2048, "cori-knl", "integrated")


def test_the_papers_case_has_its_layers_and_grids(paper: hpcpar.PlanResult) -> None:
    answer = paper.grid
    assert answer is not None and (answer.own.pr, answer.own.pc) == (16, 32)
    assert answer.own.cut_by("domain") == CONVOLUTIONS
    assert answer.by_equation.choice.name == "16x32"
    assert [(row.choice.pr, row.choice.pc) for row in answer.grids] == [
        (1 << i, 512 >> i) for i in range(10)]
    own = {layer.layer: layer for layer in answer.own.layers}
    assert 1e3 * total_s(own["conv1"].terms["model"]) == pytest.approx(11.65, abs=0.005)
    assert 1e3 * total_s(own["conv1"].terms["domain"]) == pytest.approx(1.36, abs=0.005)
    for row in answer.grids[2:]:
        printed = total_s(eq9_integrated(NETWORK, row.choice.pr, row.choice.pc, 2048, LINK))
        assert row.choice.seconds == pytest.approx(printed, rel=1e-12)
    changed = {name: layer.change_s for name, layer in own.items() if layer.change_s}
    assert changed == {"fc6": pytest.approx(2e-6 * 4 + 4 / 6e9 * 64 * 15 / 16 * 9216)}


def test_grids_have_the_prices_of_their_plans(paper: hpcpar.PlanResult) -> None:
    answer = paper.grid
    assert answer is not None
    exact = [row for row in answer.grids if row.candidate.exact_costs]
    assert len(exact) >= 4
    for row in (exact[1], exact[-1]):
        again = hpcpar.plan("alexnet", 512, 2048, "cori-knl", f"integrated:{row.choice.name}")
        assert row.candidate.iteration_s == pytest.approx(again.best.iteration_s, rel=1e-9)
        assert row.memory_bytes == again.prediction.memory_bytes
    for row in answer.grids:
        assert row.memory_bytes >= row.candidate.prediction.memory_bytes, row.choice.name
    best = hpcpar.predict("alexnet", 512, 2048, "cori-knl", "grid:*,grid-fc:*,domain:*").best
    assert best is not None and answer.by_schedule.fastest.strategy == best.strategy
    assert answer.by_schedule.fastest.iteration_s == pytest.approx(best.iteration_s, rel=1e-9)
    communication, iteration = answer.speedups(answer.by_equation)
    assert communication == pytest.approx(81.416 / 13.150, rel=1e-3) and iteration > 1
    assert reason(answer).startswith("integrated:16x32 communicates least by Eq 9 (13.15 ms), but "
                                     f"{best.strategy} is faster by the schedule: ")


def test_the_document_has_the_grid_the_layers_and_all_grids(paper: hpcpar.PlanResult) -> None:
    found = paper.to_json()
    assert (found["grid"]["pr"], found["grid"]["pc"]) == (16, 32)
    layers = {layer["name"]: layer for layer in found["layers"]}
    assert layers["conv1"]["cut"] == "domain" and "model_s" not in layers["pool1"]
    assert layers["conv1"]["model_s"] > layers["conv1"]["domain_s"] > 0
    assert "domain_s" not in layers["fc6"] and layers["fc6"]["change_s"] > 0
    for cut, terms in layers["conv1"]["terms"].items():
        split = [part["latency_s"] + part["bandwidth_s"] for part in terms.values()]
        assert math.fsum(split) == pytest.approx(layers["conv1"][f"{cut}_s"])
    assert [(row["pr"], row["pc"]) for row in found["grids"]][:2] == [(1, 512), (2, 256)]
    assert all(row["latency_s"] + row["bandwidth_s"] == pytest.approx(row["communication_s"])
               for row in found["grids"])


def test_other_strategies_have_no_grids_unless_explained(
        capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--network", "lenet5", "--ranks", "4", "--batch", "8"]
    assert all("grids" not in document(capsys, *words, "--strategy", name)
               for name in ("owt", "auto"))
    explained = document(capsys, *words, "--strategy", "owt", "--explain")
    assert [row["pr"] for row in explained["grids"]] == [1, 2, 4]
    shown = text(capsys, *words, "--strategy", "grid:2x2")
    assert "Pr x Pc = 2 x 2: conv1 ... fc3 by model (2 parts of the weights)" in shown
    assert "how many times as fast as pure batch parallelism" in shown
    assert "as fast as 2 x 2" in text(capsys, *words[:-1], "2", "--strategy", "grid:2x2")


def test_one_rank_has_no_grid() -> None:
    found = hpcpar.plan("lenet5", 1, 8, strategy="data")
    assert grid_answer(found.best) is None and found.grid is None


# -- the limit of batch parallelism ---------------------------------------------------------------
@pytest.mark.parametrize("strategy", ["auto", "layerwise", "integrated"])
def test_a_least_batch_per_rank_limits_the_parts_of_the_samples(strategy: str) -> None:
    found = hpcpar.plan("lenet5", 8, 32, "cori-knl", strategy, min_batch_per_rank=8)
    for candidate in found.candidates:
        assert max(int(c.n) for c in candidate.plan.configs.values()) <= 4, candidate.strategy
    free = hpcpar.plan("lenet5", 8, 32, "cori-knl", strategy)
    assert found.best.iteration_s >= free.best.iteration_s
    if found.grid is not None:
        assert [row.choice.pc for row in found.grid.grids] == [4, 2, 1]


def test_plans_beyond_the_least_batch_per_rank_are_refused(
        capsys: pytest.CaptureFixture[str]) -> None:
    told = ("data cuts a batch of 32 into 8 parts, but --min-batch-per-rank 8 allows 4; name a "
            "strategy that also cuts layers, or auto")
    with pytest.raises(InputError, match=re.escape(told)):
        hpcpar.plan("lenet5", 8, 32, "cori-knl", "data", min_batch_per_rank=8)
    found = hpcpar.predict("lenet5", [4, 8], 32, "cori-knl", "data", min_batch_per_rank=8)
    assert [p.ranks for p in found.predictions] == [4] and found.skipped[0]["reason"] == told


# -- parts of the communication -------------------------------------------------------------------
def test_columns_are_the_parts_of_the_communication() -> None:
    names = ("latency", "bandwidth", "forward", "backward", "gradients")
    found = hpcpar.predict("alexnet", 512, 2048, "cori-knl", "data,grid:16x32", columns=names,
                           accounting="paper")
    for i, p in enumerate(found.predictions):
        parts = {name: found.columns_s[name][i] for name in names}
        assert parts["latency"] + parts["bandwidth"] == pytest.approx(p.communication_s)
        assert sum(parts[name] for name in names[2:]) == pytest.approx(p.communication_s, rel=1e-4)
        assert found.rows()[i]["latency_s"] == parts["latency"]
    assert found.columns_s["latency"][0] == pytest.approx(8 * 2 * 9 * 2e-6)  # Eq 4's alpha
    assert found.columns_s["forward"][0] == 0.0
    with pytest.raises(InputError, match="unknown value 'late'"):
        hpcpar.predict("lenet5", 2, 8, columns="late")


# -- pictures and the page ------------------------------------------------------------------------
def test_the_page_holds_the_answer(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "answer.html"
    words = ["plan", "--network", "lenet5", "--ranks", "4", "--batch", "8", "--html", str(path)]
    shown = text(capsys, *words, "--strategy", "integrated")
    page, checked = path.read_text(), Balanced()
    checked.feed(page)
    assert checked.open == []
    assert page.count("data:image/svg+xml;base64,") == 2 and shown.splitlines()[0] in page
    assert "Pr x Pc = " in page and "2 x 2" in page and "Memory of the largest rank" in page
    assert text(capsys, *words)  # its own page is replaced
    assert path.read_text().count("data:image/svg+xml;base64,") == 1
    assert "The fastest plans" in path.read_text()
    assert text(capsys, *words, "--strategy", "owt", "--explain")
    assert path.read_text().count("data:image/svg+xml;base64,") == 2
    path.write_text("<html>mine</html>")
    assert hpcpar.cli.main.main(words) == 2 and path.read_text() == "<html>mine</html>"


def test_the_picture_of_grids_has_a_bar_for_each(paper: hpcpar.PlanResult) -> None:
    pytest.importorskip("matplotlib")
    axes = paper.plot().axes[0]
    names = [label.get_text() for label in axes.get_xticklabels()]
    assert names[:2] == ["1 x 512", "2 x 256"] and "16 x 32" in names
    answer = paper.grid
    assert answer is not None
    at = names.index("16 x 32")
    heights = sum(bars[at].get_height() for bars in axes.containers)
    exact = next(row for row in answer.grids if row.choice.name == "16x32")
    assert heights == pytest.approx(1e3 * exact.candidate.prediction.communication_s)
