"""Help in sections, hints for misspelled options, completion by a shell."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpcpar.cli.main import COMMANDS, main, parsers
from hpcpar.cli.parser import SHORT
from tests.limits import LIMIT_S


def shown_help(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit):
        main([*words, *(["--help"] if words[-1:] != ("--help-all",) else [])])
    return capsys.readouterr().out


def test_the_help_of_plan_has_sections(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown_help(capsys, "plan", "--help-all")
    titles = re.findall(r"^(\S.*):$", text, re.MULTILINE)
    assert titles == ["options", "network and data", "machine", "plan", "prediction", "output",
                      "example"]
    output = text[text.index("\noutput:"):]
    assert all(name in output for name in ("--json", "--csv", "--wide", "--out"))
    before = text[:text.index("\nnetwork and data:")]
    assert re.findall(r"^  -", before, re.MULTILINE) == ["  -"] * 2


def every_kind() -> list[tuple[str, ...]]:
    """The words of every command, and of every kind of a command."""
    return [(command, kind) if kind else (command,)
            for command in COMMANDS for kind in parsers(command)[1].kinds]


@pytest.mark.parametrize("words", [(), *((name,) for name in COMMANDS), *every_kind()],
                         ids=" ".join)
def test_help_fits_80_columns_and_is_short(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch,
                                           capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = shown_help(capsys, *words)
    assert max(map(len, text.splitlines())) <= 80
    assert len(re.findall("^  -", text, re.MULTILINE)) <= SHORT + 2  # and --help, --help-all
    more = re.search(r"^(\d+) more options: (.*) --help-all$", text, re.MULTILINE)
    if more is None:
        return
    assert more[2] == f"hpcpar {' '.join(words)}"
    whole = shown_help(capsys, *words, "--help-all")
    assert max(map(len, whole.splitlines())) <= 80
    count = [len(re.findall("^  -", shown, re.MULTILINE)) for shown in (text, whole)]
    assert count[1] - count[0] == int(more[1])


def test_the_short_help_of_plan_has_what_a_first_plan_needs(
        capsys: pytest.CaptureFixture[str]) -> None:
    text, whole = shown_help(capsys, "plan"), shown_help(capsys, "plan", "--help-all")
    for name in ("network", "machine", "ranks", "batch", "strategy", "input", "out", "explain"):
        assert f"--{name}" in text
    assert "--recompute" not in text and "--recompute" in whole
    assert "Krizhevsky" not in text and "Krizhevsky" in whole


def test_an_error_of_a_command_with_many_options_points_to_all_of_them(
        capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--gamma", "0"]) == 2
    assert "(see: hpcpar plan --help-all)" in capsys.readouterr().err
    assert main(["trace", "--iterations", "0"]) == 2
    assert "(see: hpcpar trace --help)" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_hints_know_every_option(command: str) -> None:
    """The hints read the help: no option is taken as misspelled."""
    _, parser = parsers(command)
    parser.check_options(["--help"], lambda option: "")
    usage = re.findall(r"(?<=[\[ |])--[\w-]+", parser.format_usage())
    assert set(usage) <= set(parser.options())


@pytest.mark.parametrize(("words", "hint"), [
    (["sweep", "strong", "--rnaks", "2"], "'--ranks'"), (["data", "digits", "--jsn"], "'--json'"),
    (["plan", "--batch-nrom", "local"], "'--batch-norm'"), (["plan", "--oputput"], "'--out'"),
    (["sweep", "weak", "--stratgies", "data"], "'--strategy'"),
])
def test_hints_work_in_subcommands(words: list[str], hint: str,
                                   capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert f"did you mean {hint}?" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "name", "value"), [
    ("plan --network lenet5 --ranks 2 --batch 8 --output p.json", "out", "p.json"),
    ("networks lenet5 --output n.json", "out", "n.json"),
    ("simulate --plan p.json --output s.h5", "out", "s.h5"),
    ("export --plan p.json --format goal --output=p.goal --force", "overwrite", True),
    ("sweep weak --network lenet5 --ranks 2 --batch 8 --output w --strategies data", "strategy",
     "data"),
    ("plan --network lenet5 --ranks 2 --batch 8 --synchronisation server", "synchronization",
     "server"),
])
def test_former_names_still_work_but_are_not_shown(
        words: str, name: str, value: object, capsys: pytest.CaptureFixture[str]) -> None:
    command = words.split()
    _, parser = parsers(command[0])
    parser.check_options(command[1:], lambda option: "")
    assert vars(parsers(command[0])[0].parse_args(command))[name] == value
    kind = command[:2] if command[0] == "sweep" else command[:1]
    text = shown_help(capsys, *kind) + shown_help(capsys, *kind, *["--help-all"] * (
        kind[0] in ("plan", "sweep")))
    assert not any(f"--{former}" in text for former in (
        "output", "force", "strategies", "synchronisation")
                   if (command[0], former) != ("plan", "force"))


def test_the_result_has_one_name_in_all_commands() -> None:
    for command in COMMANDS:
        for parser in parsers(command)[1].kinds.values():
            names = [action.option_strings for action in parser._actions if action.dest == "out"]
            assert names in ([], [["-o", "--out"]], [[]])  # sweep report has a positional folder


def test_a_misspelled_kind_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "digts", "d.h5"]) == 2
    assert "unknown kind 'digts'; did you mean 'digits'?" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "way"), [
    ("run --optimizer adam", "hpcpar plan --optimizer"), ("plan --rate 0.1", "hpcpar run --rate"),
    ("predict --momentum 0", "hpcpar run --momentum"), ("run --bucket=0", "hpcpar plan --bucket"),
    ("simulate --retry", "hpcpar sweep strong --retry"),
])
def test_an_option_of_another_command_names_that_command(
        words: str, way: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    said = capsys.readouterr().err
    assert f"it belongs to another command: {way} " in said and said.count("\n") == 1


def test_optimizer_and_rate_name_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    for command, way in (("run", "hpcpar plan --optimizer"), ("plan", "hpcpar run --rate")):
        assert way in " ".join(shown_help(capsys, command, "--help-all").split())


def examples() -> dict[str, str]:
    """The example at the end of each help, by command and kind."""
    return {f"{command} {kind}".strip():
            str(parser.epilog).removeprefix("example:\n  ").replace("\\\n", "")
            for command in COMMANDS for kind, parser in parsers(command)[1].kinds.items()}


@pytest.mark.parametrize("command", examples())
def test_every_example_can_be_parsed(command: str) -> None:
    """Its options make the options of its own command."""
    words = examples()[command].split()
    words = words[words.index("hpcpar") + 1:]
    assert words[:len(command.split())] == command.split()
    given = vars(parsers(words[0])[0].parse_args(words))
    for name in ("command", "kind", "print_completion"):
        given.pop(name, None)
    group = given.pop("group")
    assert group(**given)


def test_examples_without_ranks_run_one_after_the_other(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    shown = examples()
    for command in ("data digits", "data info", "data synthetic", "plan", "predict", "simulate",
                    "export", "networks", "machines", "sweep strong", "sweep weak", "sweep report"):
        assert main(shown[command].split()[1:]) == 0, command


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("shtab")
    path = tmp_path_factory.mktemp("completion") / "hpcpar.bash"
    done = subprocess.run([sys.executable, "-m", "hpcpar", "--print-completion", "bash"],
                          capture_output=True, text=True, timeout=LIMIT_S, check=True)
    path.write_text(done.stdout)
    return path


@pytest.mark.parametrize(("words", "found"), [
    ("hpcpar pred", ["predict"]), ("hpcpar plan --batch-n", ["--batch-norm"]),
    ("hpcpar data digi", ["digits"]), ("hpcpar predict --plan pla", ["plan.json"]),
])
def test_bash_completes_commands_and_options(words: str, found: list[str], script: Path,
                                             tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}")
    lines = f"""source {script}
        COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        _shtab_hpcpar hpcpar "${{COMP_WORDS[-1]}}" "${{COMP_WORDS[-2]}}"
        printf '%s\\n' "${{COMPREPLY[@]}}" """
    done = subprocess.run(["bash", "-c", lines], capture_output=True, text=True, timeout=LIMIT_S,
                          cwd=tmp_path, check=False)
    assert done.stdout.split() == found, done.stderr


@pytest.mark.parametrize("words", ["networks", "machines local", "networks lenet5 --json",
                                   "predict --network lenet5 --ranks 2 --batch 16 --csv"])
def test_a_full_device_is_one_line(words: str) -> None:
    """And nothing is said at the end of the program."""
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "hpcpar", *words.split()], stdout=full,
                              stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "hpcpar: cannot write the results: No space left on device\n"


@pytest.mark.parametrize(("words", "message"), [
    (("--forward-only", "--epochs", "1"), "--epochs has no effect with --forward-only"),
    (("--forward-only", "--rate", "0.01"), "--rate has no effect with --forward-only"),
    (("--scaling", "linear"), "--scaling needs --base-batch: add --base-batch N"),
    (("--keep", "1"), "--keep needs --checkpoint: add --checkpoint FILE.h5"),
])
def test_options_are_checked_together_at_their_defaults_too(
        words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--plan", "p.json", "--data", "d.h5", *words]) == 2
    assert message in capsys.readouterr().err
