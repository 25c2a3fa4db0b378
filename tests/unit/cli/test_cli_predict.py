"""``hpcpar predict``: pricing options, scaling questions, explanations and errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hpcpar
from hpcpar.cli.main import main
from hpcpar.cost.published_runs import published
from hpcpar.search import outside_model
from tests.unit.cli import output

LENET = ["--network", "lenet5", "--ranks", "4", "--batch", "64"]
P100 = [*LENET, "--machine", "p100x4x4"]
RESIDUAL = ["--network", "tests.unit.search.test_tables:residual", "--ranks", "4", "--batch", "8"]


def document(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    """The one JSON document of a prediction."""
    return output.document(capsys, "predict", *argv)


def text(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The visible output of a prediction."""
    return output.text(capsys, "predict", *argv)


# -- options of pricing ----------------------------------------------------------------------------
def test_inference(capsys: pytest.CaptureFixture[str]) -> None:
    whole, forward = document(capsys, *LENET), document(capsys, *LENET, "--forward-only")
    assert (forward["iteration_s"] < whole["iteration_s"]
            and forward["memory_bytes"] < whole["memory_bytes"])
    assert forward["phases"]["forward"] == whole["phases"]["forward"]
    assert all(
        sum(forward["phases"][phase].values()) == 0 for phase in ("backward", "gradient", "update")
    )
    assert forward["memory"]["optimizer_bytes"] == forward["memory"]["gradients_bytes"] == 0


def test_when_activations_are_gathered(capsys: pytest.CaptureFixture[str]) -> None:
    lazy, eager = (document(capsys, *P100, "--strategy", "filter", "--gather", name)
                   for name in ("lazy", "eager"))
    assert lazy != eager


def test_reading_images(capsys: pytest.CaptureFixture[str]) -> None:
    """16 images of 784 bytes per rank, read beside the iteration before; only the rest counts."""
    without = document(capsys, *LENET)
    assert without["io_s"] == 0
    quick = document(capsys, *LENET, "--io", "1e9")
    assert quick["io_s"] == pytest.approx(16 * 784
                                          / 1e9) and quick["iteration_s"] == without["iteration_s"]
    slow = document(capsys, *LENET, "--io", "1e5")
    assert slow["iteration_s"] == slow["io_s"] == pytest.approx(16 * 784 / 1e5)
    assert document(capsys, *LENET, "--io", "1e5", "--io-item-bytes",
                    "4")["io_s"] == pytest.approx(4 * slow["io_s"])
    # all of the images
    assert document(capsys, *LENET, "--io", "1e5", "--strategy",
                    "filter")["io_s"] == pytest.approx(4 * slow["io_s"])


def test_memory_reuse(capsys: pytest.CaptureFixture[str]) -> None:
    whole, half = (document(capsys, *LENET)["memory"],
                   document(capsys, *LENET, "--gamma", "0.5")["memory"])
    for name in ("activations_bytes", "gradients_bytes", "kept_bytes"):
        assert half[name] == pytest.approx(whole[name] / 2, abs=1)
    for name in ("weights_bytes", "optimizer_bytes", "wire_bytes"):
        assert half[name] == whole[name]


def test_memory_of_layers_and_of_the_process(capsys: pytest.CaptureFixture[str]) -> None:
    """The column of the layers adds up to the total; what a process holds beside is said."""
    found = document(capsys, *P100, "--strategy", "filter")
    assert sum(layer["memory_bytes"] for layer in found["layers"]) == found["memory_bytes"]
    assert found["process_bytes"] == sum(found["process"].values()) > found["process"]["mpi_bytes"]
    told = text(capsys, *P100, "--strategy", "filter")
    assert "memory at peak" in told and "besides these arrays, each process holds" in told


def test_contention(capsys: pytest.CaptureFixture[str]) -> None:
    """Flows share links between nodes, not inside."""
    two_nodes = ["--network", "lenet5", "--ranks", "8", "--batch", "64", "--machine", "p100x4x4",
                 "--collectives", "ring"]
    times = [document(capsys, *two_nodes, "--contention", phi)["communication_s"]
             for phi in ("1", "2", "8")]
    assert times == sorted(times) and times[0] < times[2]
    one_node = [document(capsys, *P100, "--contention", phi)["communication_s"]
                for phi in ("1", "8")]
    assert one_node[0] == one_node[1]


def test_synchronization_and_optimizer(capsys: pytest.CaptureFixture[str]) -> None:
    allreduce, sharded, server = (document(capsys, *LENET, "--synchronization", s)
                                  for s in ("allreduce", "sharded", "server"))
    assert (allreduce["phases"]["update"]["communication_s"]
            == 0
            < sharded["phases"]["update"]["communication_s"])
    assert sharded["phases"]["update"]["compute_s"] < allreduce["phases"]["update"]["compute_s"]
    assert server["communication_s"] > allreduce["communication_s"]
    held = {o: document(capsys, *LENET, "--optimizer", o)["memory"]
            for o in ("sgd", "momentum", "adam")}
    assert [held[o]["optimizer_bytes"] for o in held] == [
        0, held["sgd"]["weights_bytes"] / 2, held["sgd"]["weights_bytes"],
    ]
    assert sharded["memory"]["optimizer_bytes"] * 4 == pytest.approx(
        held["momentum"]["optimizer_bytes"], rel=0.01)


def test_batch_normalization(capsys: pytest.CaptureFixture[str]) -> None:
    whole, local = document(capsys, *RESIDUAL), document(capsys, *RESIDUAL, "--batch-norm", "local")
    assert (local["communication_s"] < whole["communication_s"]
            and local["compute_s"] <= whole["compute_s"])
    assert (document(capsys, *LENET, "--batch-norm", "local")["iteration_s"]
            == document(capsys, *LENET)["iteration_s"])


def test_microbatches(capsys: pytest.CaptureFixture[str]) -> None:
    """Gradients of four micro-batches are exchanged once."""
    same = [*LENET, "--bucket", "1000000"]
    one, four = document(capsys, *same), document(capsys, *same, "--microbatches", "4")
    assert (four["phases"]["gradient"]["communication_s"]
            == one["phases"]["gradient"]["communication_s"])
    assert four["phases"]["forward"]["compute_s"] > one["phases"]["forward"]["compute_s"]
    large = ["--network", "lenet5", "--ranks", "4", "--batch", "1024"]
    whole, parts = (document(capsys, *large, "--strategy", "pipeline:2x2", "--microbatches", m)
                    for m in ("1", "8"))  # each is cut where that is fastest
    assert parts["iteration_s"] < whole["iteration_s"]
    assert parts["bubble_s"] / parts["iteration_s"] < whole["bubble_s"] / whole["iteration_s"]


def test_placements(capsys: pytest.CaptureFixture[str]) -> None:
    """Model groups across nodes and sample groups inside, or the other way round: on one level the
    same.
    """
    sixteen = ["--network", "lenet5", "--ranks", "16", "--batch", "64"]
    for machine, same in (("local", True), ("p100x4x4", False)):
        args = [*sixteen, "--machine", machine, "--strategy", "df:4x4,df:4x4/inner,df:4x4/outer"]
        plain, inner, outer = document(capsys, *args)["predictions"]
        assert plain["iteration_s"] == inner["iteration_s"] and outer["strategy"] == "df:4x4/outer"
        assert (outer["iteration_s"] == plain["iteration_s"]) is same
    assert "df:2x2/outer" in text(capsys, *P100, "--strategy", "df:2x2/outer")


def test_pipelines(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, *LENET, "--strategy", "pipeline:*")
    assert [p["strategy"] for p in found["predictions"]] == [
        "pipeline:1x4", "pipeline:2x2", "pipeline:4x1",
    ]
    assert {layer["ranks"] for layer in found["predictions"][1]["layers"]} == {2}
    many = document(capsys, "--network", "lenet5", "--ranks", "16", "--batch", "64", "--strategy",
                    "pipeline:16x1,data")
    assert [s["strategy"] for s in many["skipped"]] == ["pipeline:16x1"] and "stages" in many[
        "skipped"
    ][0]["reason"]


# -- networks of the user --------------------------------------------------------------------------
def test_a_function_builds_the_network(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, *RESIDUAL, "--strategy", "ds:2x2")
    assert found["network"] == "residual"
    assert {"stem", "a.sum", "b.2.norm"} <= {x["name"] for x in found["layers"]}


def test_an_onnx_file_is_predicted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    weights = [helper.make_tensor("w", floats, (4, 1, 3, 3), [0.1] * 36),
               helper.make_tensor("v", floats, (10, 256), [0.1] * 2560)]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="conv", kernel_shape=[3, 3],
                         pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("Flatten", ["b"], ["c"], name="flatten"),
        helper.make_node("Gemm", ["c", "v"], ["y"], name="fc", transB=1),
    ]
    inputs = [helper.make_tensor_value_info("x", floats, (1, 1, 8, 8))]
    graph = helper.make_graph(nodes, "net", inputs,
                              [helper.make_tensor_value_info("y", floats, (1, 10))], weights)
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph), str(path))
    found = document(capsys, "--network", str(path), "--ranks", "2", "--batch", "8", "--strategy",
                     "spatial")
    assert [layer["name"] for layer in found["layers"]][:4] == ["conv", "relu", "flatten", "fc"]
    assert found["layers"][0]["config"]["h"] == 2 and found["communication_s"] > 0


# -- how many ranks --------------------------------------------------------------------------------
def test_questions_about_scaling_are_answered(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--network", "lenet5", "--ranks", "1,2,4,8", "--batch", "64", "--epochs", "3",
            "--machine", "p100x4x4"]
    every = document(capsys, *args, "--efficiency", "0.8")
    scales = every["scaling"]
    assert (
        [s["ranks"] for s in scales] == [1, 2, 4, 8] == [p["ranks"] for p in every["predictions"]]
    )
    assert scales[0]["efficiency"] == pytest.approx(1.0)
    for s in scales:
        assert s["efficiency"] == pytest.approx(
            scales[0]["iteration_s"] / (s["ranks"] * s["iteration_s"])
        )
        assert s["run_s"] == pytest.approx(3 * 60_000 / 64 * s["iteration_s"])
        assert s["node_hours"] == pytest.approx((2 if s["ranks"] == 8 else 1) * s["run_s"] / 3600)
    assert every["choice"] == max((s for s in scales if s["efficiency"] >= 0.8),
                                  key=lambda s: s["ranks"])
    deadline = document(capsys, *args, "--deadline",
                        str(scales[1]["run_s"] / 3600 * 1.0001))["choice"]
    assert deadline == min((s for s in scales if s["run_s"] <= scales[1]["run_s"] * 1.0001),
                           key=lambda s: s["node_hours"])
    budget = document(capsys, *args, "--node-hours",
                      str(scales[2]["node_hours"] * 1.0001))["choice"]
    assert budget == min((s for s in scales if s["node_hours"] <= scales[2]["node_hours"] * 1.0001),
                         key=lambda s: s["run_s"])
    assert document(capsys, *args, "--deadline", "1e-9")["choice"] is None
    shown = text(capsys, *args, "--efficiency", "0.8")
    assert f"Use {every['choice']['ranks']} GPU, data parallel: 3 epochs of 60,000" in shown
    assert "None of these meets the condition" in text(capsys, *args, "--deadline", "1e-9")


def test_usual_ranks_and_weak_scaling(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "--network", "lenet5", "--batch-per-rank", "16", "--efficiency", "0.5",
                     "--machine", "p100x4x4")
    assert [(s["ranks"], s["batch"]) for s in found["scaling"]] == [
        (2**i, 16 * 2**i) for i in range(11)
    ]
    assert (found["scaling"][0]["efficiency"] == pytest.approx(1.0)
            and found["choice"]["efficiency"] >= 0.5)
    many = document(capsys, "--network", "lenet5", "--batch-per-rank", "8", "--ranks", "2,4")
    assert [p["batch"] for p in many["predictions"]] == [16, 32]
    assert "batch 8 per rank" in text(capsys, "--network", "lenet5", "--batch-per-rank", "8",
                                    "--ranks", "2,4")


# -- explanations and timelines --------------------------------------------------------------------
def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, *P100, "--strategy", "grid:2x2", "--explain")["explain"]
    assert [t["name"] for t in found["terms"]] == [
        "reading images", "gradient exchange", "layer-wise communication", "p2p communication",
        "network congestion", "memory redundancy", "memory stalling", "weight update",
        "workload balancing", "computation redundancy", "number of PEs",
    ]
    assert found["changes"] and all(set(c) == {"what", "iteration_s", "gain", "fits"}
                                    for c in found["changes"])
    assert found["bottleneck"] in {"computing", *(t["name"] for t in found["terms"])}
    shown = text(capsys, *LENET, "--strategy", "data,owt", "--forward-only", "--explain")
    assert shown.count("is bound by") == 2 and shown.count("what would help") == 2


def test_a_prediction_without_any_plan_is_a_document_and_a_sentence(
        capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--network", "lenet5", "--batch", "2", "--ranks", "64,128"]
    found = document(capsys, *words)
    assert found["predictions"] == [] and [s["ranks"] for s in found["skipped"]] == [64, 128]
    result = hpcpar.predict("lenet5", [64, 128], 2)
    assert result.best is None and result.ratios == () and "skipped" in result.answer


@pytest.mark.parametrize("strategy", ["layerwise", "auto"])
def test_explaining_a_layer_wise_plan(strategy: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, *P100, "--overlap", "none", "--strategy", strategy, "--explain")
    assert found["strategy"] == "layerwise" and found["explain"]["terms"]


@pytest.mark.parametrize("strategy", ["grid:2x2", "pipeline", "layerwise"])
def test_a_plan_file_is_explained_as_its_strategy_is(
        strategy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "plan.json")
    words = [*P100, "--strategy", strategy, "--microbatches", "2", "--bucket", "0"]
    assert main(["plan", *words, "-o", path]) == 0
    capsys.readouterr()
    given = document(capsys, "--plan", path, "--explain")["explain"]
    named = document(capsys, *words, "--explain")["explain"]
    assert given["terms"] == named["terms"] and given["bottleneck"] == named["bottleneck"]
    assert {c["what"] for c in given["changes"]} >= {
        c["what"] for c in named["changes"] if not c["what"].startswith(("strategy", "micro"))}
    assert text(capsys, "--plan", path, "--explain").count("is bound by") == 1


# -- errors ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([*LENET, "--efficiency", "1.5"],
         "argument --efficiency: '1.5' is not a parallel efficiency between 0 and 1"),
        ([*LENET, "--efficiency", "0"], "between 0 and 1"),
        ([*LENET, "--efficiency", "nan"], "between 0 and 1"),
        ([*LENET, "--efficiency", "high"],
         "argument --efficiency: 'high' is not a parallel efficiency"),
        ([*LENET, "--deadline", "soon"], "argument --deadline: 'soon' is not a number"),
        ([*LENET, "--node-hours", "few"], "argument --node-hours: 'few' is not a number"),
        ([*LENET, "--batch-per-rank", "4"],
         "give either --batch (over all ranks) or --batch-per-rank"),
        (LENET[:4], "give either --batch (over all ranks) or --batch-per-rank"),
        ([*LENET[:4], "--batch-per-rank", "0"], "'0' is not a number of samples"),
        (["--network", "lenet5", "--ranks", "4,0", "--batch", "8"],
         "'0' is not a whole number of at least 1"),
        ([*LENET, "--contention", "0.5"],
         "contention 0.5: phi is the number of flows that share a link, at least 1"),
        ([*LENET, "--contention", "much"],
         "argument --contention: 'much' is not a number greater than 0"),
        ([*LENET, "--gamma", "0"], "argument --gamma: '0' is not a number greater than 0"),
        ([*LENET, "--gamma", "nan"], "argument --gamma: 'nan' is not a number greater than 0"),
        ([*LENET, "--io", "-1"], "argument --io: '-1' is not a number greater than 0"),
        ([*LENET, "--io", "inf"], "argument --io: 'inf' is not a number greater than 0"),
        ([*LENET, "--io-item-bytes", "0"],
         "argument --io-item-bytes: '0' is not a number greater than 0"),
        ([*LENET, "--synchronization", "servr"],
         "argument --synchronization: unknown value 'servr'; did you mean 'server'?"),
        ([*LENET, "--synchronization", "server-host", "--machine", "aurora"],
         "machine aurora has no [host], which prices --synchronization server-host"),
        ([*LENET, "--batch-norm", "locl"],
         "argument --batch-norm: unknown value 'locl'; did you mean 'local'?"),
        ([*LENET, "--optimizer", "adm"],
         "argument --optimizer: unknown value 'adm'; did you mean 'adam'?"),
        ([*LENET, "--microbatches", "0"], "'0' is not a whole number of at least 1"),
        ([*LENET, "--strategy", "df:2x2/outr"], "unknown placement 'outr'; did you mean 'outer'?"),
        ([*LENET, "--strategy", "df:2x4/outer"], "is for 8 ranks, not 4"),
        ([*LENET, "--strategy", "df/outer"], "'df' needs a grid of whole numbers"),
        ([*LENET, "--strategy", "pipeline:2x4"],
         "is for 8 ranks, not 4; use one of pipeline:1x4, pipeline:2x2, pipeline:4x1"),
        ([*LENET, "--strategy", "layerwize"], "unknown strategy 'layerwize'"),
        (["--network", "none.onnx", "--ranks", "2", "--batch", "4"], "cannot read 'none.onnx'"),
        (["--network", "tests.unit.none:net", "--ranks", "2", "--batch", "4"],
         "cannot import 'tests.unit.none'"),
        (["--network", "tests.unit.search.test_tables:residul", "--ranks", "2", "--batch", "4"],
         "did you mean 'residual'?"),
        ([*LENET, "--explian"], "unknown option --explian; did you mean '--explain'?"),
        (["--plan", "x.json", "--efficiency", "0.5"], "--efficiency compares numbers of ranks"),
        (["--plan", "x.json", "--strategy", "filter"], "--strategy has no effect with --plan"),
        (["--plan", "x.json", "--recompute", "2"], "--recompute has no effect with --plan"),
        (["--plan", "x.json", "--batch-per-rank", "5"],
         "--batch-per-rank has no effect with --plan"),
    ],
)
def test_errors_are_one_line(argv: list[str], message: str,
                             capsys: pytest.CaptureFixture[str]) -> None:
    one_line(capsys, argv, message)


@pytest.mark.parametrize(
    ("option", "value"),
    [("--deadline", "-1"), ("--deadline", "0"), ("--deadline", "nan"), ("--node-hours", "-1"),
     ("--node-hours", "nan"), ("--epochs", "-3"), ("--epochs", "0"), ("--epochs", "nan"),
     ("--contention", "nan"), ("--contention", "inf")],
)
def test_meaningless_numbers_are_refused(option: str, value: str,
                                         capsys: pytest.CaptureFixture[str]) -> None:
    one_line(capsys, [*LENET, *(["--deadline", "1"] if option == "--epochs" else []), option,
                      value], option.strip("-"))


def one_line(capsys: pytest.CaptureFixture[str], argv: list[str], message: str) -> None:
    """Status 2, and one line that names the fault."""
    assert main(["predict", *argv]) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert message in out.err
    assert out.err.startswith("hpcpar: ") and out.err.count("\n") == 1


@pytest.mark.parametrize(("option", "message"),
                         [("--timeline", "cannot write timeline"),
                          ("--timeline-plot", "cannot write picture")])
def test_unwritable_files_are_refused(option: str, message: str,
                                      capsys: pytest.CaptureFixture[str]) -> None:
    if option == "--timeline-plot":
        pytest.importorskip("matplotlib")
    assert main(["predict", *LENET, option, "/nonexistent/file.png"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"hpcpar: {message} /nonexistent/file.png")


# -- how far to trust a prediction ----------------------------------------------------------------
def test_the_first_line_names_the_source_of_the_prediction(
        capsys: pytest.CaptureFixture[str]) -> None:
    first = text(capsys, *P100).splitlines()[0]
    assert first.startswith("4 GPUs of p100x4x4, data parallel: about ")
    assert (": one rate fitted to VGG-16 and AlexNet, not calibrated; hpcpar calibrate on one node "
            "narrows it), an epoch of ") in first
    found = document(capsys, *P100)
    assert found["iteration_low_s"] < found["iteration_s"] < found["iteration_high_s"]
    assert found["interval_basis"] == "rate"


def test_explain_names_everything_left_out_of_the_prediction(
        capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def outside(*argv: str) -> list[str]:
        told: list[str] = document(capsys, *argv, "--explain")["explain"]["not_in_prediction"]
        return told

    one = ["--network", "lenet5", "--ranks", "1", "--batch", "64", "--machine", "dgx-h100"]
    several = ["--network", "mobilenet_v2", "--ranks", "128", "--batch", "128", "--machine",
               "dgx-h100", "--strategy", "spatial", "--synchronization", "server"]
    lines = outside(*one)
    assert [line.split()[0] for line in lines] == ["reading", "start-up,", "host", "layers",
                                                   "clocks"]
    assert "reading" not in " ".join(outside(*one, "--io", "1e-9", "--forward-only"))
    more = " ".join(outside(*several))
    for words in ("other jobs", "slower than others", "parameter servers", "data parallelism",
                  "more than 80 ranks"):
        assert words in more, words
    few = replace(published(), kinds={"images": 3})
    with monkeypatch.context() as known:
        known.setattr(outside_model, "published", lambda: few)
        assert "networks with images: 3 published runs" in " ".join(outside(*one))
    shown = text(capsys, *one, "--explain")
    assert "not in this prediction:\n  reading and decoding images" in shown


def test_a_peak_rate_gets_one_warning(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = str(tmp_path / "mine.toml")
    assert main(["machines", "--new", path]) == 0
    lines = Path(path).read_text().splitlines()
    sheet = ("multiprocessors", "lanes", "name = \"my card\"")
    Path(path).write_text("\n".join(line for line in lines if not line.startswith(sheet)))
    plan = str(tmp_path / "plan.json")
    assert main(["plan", *LENET, "--machine", path, "--strategy", "data", "-o", plan]) == 0
    warning = "warning: the rate of my-cluster, 19.5 Tflop/s, is the peak of a data sheet"
    assert capsys.readouterr().err.count(warning) == 1
    assert text(capsys, *LENET, "--machine", path).count(warning) == 1
    for argv in ["simulate", "--plan", plan], ["machines", path]:
        assert main(argv) == 0
        assert capsys.readouterr().err.count(warning) == 1
    assert "warning" not in text(capsys, *P100)
