"""The Python interface: the answers, words and defaults of the command line."""

from __future__ import annotations

import doctest
import inspect
import json
import subprocess
import sys
from dataclasses import MISSING
from pathlib import Path
from typing import Any

import pytest

import hpcpar
from hpcpar.cli.main import parsers
from hpcpar.data.synthetic import synthetic
from hpcpar.errors import InputError
from hpcpar.network.graph import Network
from hpcpar.network.layers import Conv2d, Flatten, Input, Linear, SoftmaxCrossEntropy
from hpcpar.options.fields import options_of, section_of
from tests.limits import LIMIT_S
from tests.unit.cli.output import document

ROOT = Path(hpcpar.__file__).parents[1]
WORDS = ["--network", "lenet5", "--ranks", "4", "--batch", "64"]


@pytest.fixture
def own() -> Network:
    """A network that is not built in."""
    return Network("own", (
        Input(name="input", shape=(1, 8, 8)),
        Conv2d(name="conv", inputs=("input",), out_channels=4, kernel=(3, 3), padding=(1, 1)),
        Flatten(name="flat", inputs=("conv",)),
        Linear(name="fc", inputs=("flat",), out_features=10),
        SoftmaxCrossEntropy(name="loss", inputs=("fc",))))


def plain(data: Any) -> Any:
    """The document as JSON has it, without the time of the search."""
    data = json.loads(json.dumps(data))
    data.pop("search_s", None)
    for name in ("table_s", "search_s"):
        data.get("search", {}).pop(name, None)
    return data


@pytest.mark.parametrize(("words", "given"), [
    ([], {}),
    (["--strategy", "layerwise"], {"strategy": "layerwise"}),
    (["--strategy", "grid:2x2", "--machine", "cori-knl", "--accounting", "paper", "--show-schedule",
      "--samples", "640"],
     {"strategy": "grid:2x2", "machine": "cori-knl", "accounting": "paper", "samples": 640}),
    (["--strategy", "data", "--input", "1x32x32", "--classes", "7", "--bucket", "0", "--overlap",
      "none", "--gather", "lazy", "--optimizer", "adam"],
     {"strategy": "data", "input": (1, 32, 32), "classes": 7, "bucket": 0, "overlap": "none",
      "gather": "lazy", "optimizer": "adam"}),
], ids=["auto", "layerwise", "paper", "options"])
def test_plan_answers_as_the_command(words: list[str], given: dict[str, Any],
                                     capsys: pytest.CaptureFixture[str]) -> None:
    result = hpcpar.plan("lenet5", 4, 64, **given)
    told = result.to_json(schedule="--show-schedule" in words)
    assert plain(told) == plain(document(capsys, "plan", *WORDS, *words))


@pytest.mark.parametrize(("words", "given"), [
    (["--ranks", "2,4", "--batch", "16", "--strategy", "data,grid:*,auto"],
     {"ranks": [2, 4], "batch": 16, "strategy": ["data", "grid:*", "auto"]}),
    (["--ranks", "2", "--batch", "16", "--forward-only", "--explain"],
     {"ranks": 2, "batch": 16, "forward_only": True, "explain": True}),
    (["--batch-per-rank", "16", "--efficiency", "0.2", "--ranks", "1,4", "--epochs", "3",
      "--deadline", "2"],
     {"ranks": "1,4", "batch_per_rank": 16, "efficiency": 0.2, "epochs": 3, "deadline": 2}),
    (["--ranks", "8", "--batch", "4", "--strategy", "data,filter"],
     {"ranks": 8, "batch": 4, "strategy": "data,filter"}),
], ids=["strategies", "explain", "scaling", "skipped"])
def test_predict_answers_as_the_command(words: list[str], given: dict[str, Any],
                                        capsys: pytest.CaptureFixture[str]) -> None:
    result = hpcpar.predict("lenet5", **given)
    assert plain(result.to_json()) == document(capsys, "predict", "--network", "lenet5", *words)


def test_a_saved_plan_has_the_price_of_its_result(capsys: pytest.CaptureFixture[str],
                                                  tmp_path: Path) -> None:
    result = hpcpar.plan("lenet5", 4, 64, machine="cori-knl")
    path = str(tmp_path / "plan.json")
    result.save(path)
    assert hpcpar.load_plan(path) == result.plan
    told = document(capsys, "predict", "--plan", path)
    assert plain(hpcpar.predict(plan=path).to_json()) == told
    assert plain(hpcpar.predict(plan=result).to_json()) == told
    assert plain(hpcpar.predict(plan=result.plan).to_json()) == told


@pytest.mark.parametrize("launcher", ["local", "slurm", "flux"])
def test_a_dry_sweep_answers_as_the_command(launcher: str, capsys: pytest.CaptureFixture[str],
                                            tmp_path: Path) -> None:
    data = str(tmp_path / "data.h5")
    synthetic(data, (1, 8, 8), 10, 640)
    words = ["sweep", "strong", "--network", "lenet5", "--input", "1x8x8", "--ranks", "1,2",
             "--batch", "64", "--strategy", "data", "--data", data, "--dry-run",
             "--out", str(tmp_path / "out"), "--launcher", launcher]
    told = document(capsys, *words)
    result = hpcpar.sweep("strong", "lenet5", [1, 2], 64, str(tmp_path / "out"), input="1x8x8",
                          strategy=["data"], data=data, dry_run=True, launcher=launcher)
    assert plain(result.to_json()) == told
    assert {p.state for p in result.points} == {"planned"} and len(result.to_frame()) == 2
    assert "Fastest, as predicted" in repr(result)
    with pytest.raises(InputError, match="did you mean 'efficiency'"):
        result.plot(name="eficiency")


def test_a_former_keyword_still_works(tmp_path: Path) -> None:
    result = hpcpar.sweep("strong", "lenet5", [2], 64, str(tmp_path), strategies="filter",
                          machine="cori-knl", dry_run=True)  # type: ignore[call-arg]
    assert {p.strategy for p in result.points} == {"filter"}


def test_the_signature_shows_every_option_of_the_command() -> None:
    """But those that name output files and the form of results, which results offer as methods,
    modules, which a program imports itself, and the answer to a question on a terminal.
    """
    for name in ("plan", "predict", "proposal", "simulate", "sweep", "compare"):
        group = next(iter(parsers(name)[1].kinds.values())).get_default("group")
        shown = {f.name for f in options_of(group) if section_of(group, f) != "output"
                 or (f.name == "out" and name == "sweep")}
        shown -= {"layers"} if name != "sweep" else {"yes"}
        parameters = inspect.signature(getattr(hpcpar, name)).parameters
        assert shown <= set(parameters), name
        for f in options_of(group):
            if f.name in parameters and f.default is not MISSING:
                assert parameters[f.name].default is f.default, f.name
                assert parameters[f.name].annotation not in ("", "Any")
        assert not any(p.kind is p.VAR_KEYWORD for p in parameters.values())


@pytest.mark.parametrize(("given", "said"), [
    ({"ranks": 0}, "argument ranks: '0' is not a whole number of at least 1"),
    ({"ranks": 2.5}, "argument ranks: '2.5' is not a whole number"),
    ({"batch": "many"}, "argument batch: 'many' is not a whole number"),
    ({"overlap": "ful"}, "argument overlap: unknown value 'ful'; did you mean 'full'?"),
    ({"precision": "fp8"}, "argument precision: unknown value 'fp8'"),
    ({"gamma": -1}, "argument gamma: '-1' is not a number greater than 0"),
    ({"input": (28, 28, 28, 28, 1)}, "argument input: '28x28x28x28x1' is not an image shape"),
    ({"machine": "locl"}, "did you mean 'local'"),
    ({"network": "lenet"}, "did you mean 'lenet5'"),
    ({"network": 5}, "network is a int; give a name, a file, a Network or a torch.nn.Module"),
    ({"strategy": "dta"}, "did you mean 'data'"),
    ({"bukcet": 0}, "unknown option 'bukcet'; did you mean 'bucket'?"),
])
def test_arguments_are_checked_in_the_words_of_the_command(given: dict[str, Any],
                                                           said: str) -> None:
    with pytest.raises(InputError) as raised:
        hpcpar.plan(**{"network": "lenet5", "ranks": 4, "batch": 64, **given})
    assert said in str(raised.value)


@pytest.mark.parametrize(("given", "said"), [
    ({"network": "lenet5", "batch": 4}, "--ranks is missing"),
    ({"network": "lenet5", "ranks": 4}, "give either --batch (over all ranks) or --batch-per-rank"),
    ({"network": "lenet5", "ranks": [4, 0], "batch": 4}, "'0' is not a whole number"),
    ({"network": "lenet5", "ranks": [], "batch": 4}, "argument ranks: no number is given"),
    ({"network": "lenet5", "ranks": 4, "batch": 4, "strategy": ","}, "--strategy is empty"),
    ({"plan": "x.json", "ranks": 4}, "--ranks has no effect with --plan"),
    ({"plan": "x.json", "efficiency": 0.5}, "--efficiency compares numbers of ranks"),
    ({"network": "lenet5", "ranks": 4, "batch": 4, "efficiency": 2},
     "argument efficiency: '2' is not a parallel efficiency"),
])
def test_predict_checks_its_arguments(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as raised:
        hpcpar.predict(**given)
    assert said in str(raised.value)


def test_results_are_shown_as_one_sentence_a_table_and_a_frame() -> None:
    pandas = pytest.importorskip("pandas")
    result = hpcpar.predict("lenet5", [1, 2, 4], 64, efficiency=0.1)
    assert repr(result).startswith("Use ") and "\n" not in repr(result)
    html = result._repr_html_()
    assert html.count("<tr>") == 4 and "<th>iteration</th>" in html
    assert repr(result) in html and "<td>100.0%</td>" in html
    frame = result.to_frame()
    assert isinstance(frame, pandas.DataFrame) and list(frame["ranks"]) == [1, 2, 4]
    assert list(frame["iteration_s"]) == [p.iteration_s for p in result.predictions]
    nothing = hpcpar.predict("lenet5", 8, 4, strategy=["data", "ds:8x1"])
    assert "skipped" in repr(nothing) and len(nothing.to_frame()) == 0 and nothing._repr_html_()


def test_without_pandas_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="pip install pandas"):
        hpcpar.plan("lenet5", 2, 8, strategy="data").to_frame()


def test_plots_are_figures_and_files(tmp_path: Path) -> None:
    figures = pytest.importorskip("matplotlib.figure")
    result = hpcpar.plan("lenet5", 2, 8)
    assert isinstance(result.plot(), figures.Figure)
    path = tmp_path / "plan.png"
    assert isinstance(result.plot(str(path)), figures.Figure) and path.stat().st_size > 5000
    prices = hpcpar.predict("lenet5", 2, 8)
    assert isinstance(prices.plot_timeline(), figures.Figure)
    with pytest.raises(InputError, match="every strategy was skipped"):
        hpcpar.predict("lenet5", 8, 4, strategy=["data", "ds:8x1"]).plot()


def test_a_network_of_the_program_is_priced_and_saved(own: Network, tmp_path: Path) -> None:
    result = hpcpar.plan(own, 2, 8)
    assert hpcpar.predict(plan=result).predictions[0].iteration_s == result.prediction.iteration_s
    result.save(str(tmp_path / "plan.json"))
    again = hpcpar.load_plan(str(tmp_path / "plan.json"))
    assert again == result.plan and again.network.build() == own
    with pytest.raises(InputError, match="takes images 1x8x8 and has 10 classes"):
        hpcpar.plan(own, 2, 8, input=(1, 9, 9))


def test_a_built_in_network_may_be_given_as_an_object(tmp_path: Path) -> None:
    result = hpcpar.plan(hpcpar.load_network("lenet5"), 2, 8, hpcpar.load_machine("local"))
    result.save(str(tmp_path / "plan.json"))
    assert hpcpar.load_plan(str(tmp_path / "plan.json")) == result.plan
    assert {"lenet5", "resnet50"} <= set(hpcpar.networks()) and "local" in hpcpar.machines()


def test_a_module_of_pytorch_is_priced() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(),
                                 torch.nn.Linear(8 * 6 * 6, 10))
    assert hpcpar.plan(module, 2, 8, input=(3, 8, 8)).prediction.iteration_s > 0
    assert hpcpar.network.from_torch(module, (3, 8, 8)).classes == 10
    with pytest.raises(InputError, match="does not state its input shape"):
        hpcpar.plan(module, 2, 8)


LIGHT = """
import sys
import hpcpar
heavy = {"numpy", "mpi4py", "matplotlib", "h5py", "torch", "pandas", "cupy"} & set(sys.modules)
assert not heavy, heavy
loaded = sorted(m for m in sys.modules if m.startswith("hpcpar."))
assert loaded == ["hpcpar.plan", "hpcpar.sweep", "hpcpar.version"], loaded
assert {"plan", "predict"} <= set(dir(hpcpar))
import hpcpar.plan.plan, hpcpar.sweep.study
hpcpar.plan("lenet5", 2, 8)
heavy = {"mpi4py", "matplotlib", "h5py", "torch", "pandas", "cupy"} & set(sys.modules)
assert not heavy, heavy
assert callable(hpcpar.sweep)
try:
    hpcpar.pln
except AttributeError:
    print("light")
"""


def test_importing_loads_little_and_functions_are_not_hidden_by_packages() -> None:
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True,
                          timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "light\n"


def test_the_examples_of_the_reference_are_right(tmp_path: Path,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = str(ROOT / "docs" / "reference" / "python.md")
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    failed, tried = doctest.testfile(page, module_relative=False, optionflags=flags)
    assert tried > 8 and failed == 0


@pytest.mark.parametrize("name", hpcpar.__all__)
def test_every_name_of_the_interface_loads(name: str) -> None:
    assert callable(getattr(hpcpar, name))
