"""Site defaults: the machine is filled in where none is given, and said; mistakes are one line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hpcpar.cli import site
from hpcpar.cli.main import main
from hpcpar.machine import files

LENET = ("--network", "lenet5", "--ranks", "2", "--batch", "8", "--strategy", "data", "--json")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the site defaults are read from, by XDG_CONFIG_HOME."""
    monkeypatch.delenv(site.VARIABLE)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "hpcpar.toml"


def test_tests_read_no_site_defaults() -> None:
    assert os.environ[site.VARIABLE] == "" and site.read() == site.SiteDefaults()


def test_the_path_of_the_site_file_follows_the_environment(config: Path,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    assert site.config_path() == str(config)
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert site.config_path() == "/home/me/.config/hpcpar.toml"
    monkeypatch.setenv(site.VARIABLE, "/etc/hpcpar.toml")
    assert site.config_path() == "/etc/hpcpar.toml"


@pytest.mark.parametrize("command", ["plan", "predict"])
def test_the_sites_machine_is_the_default(command: str, config: Path,
                                          capsys: pytest.CaptureFixture[str]) -> None:
    def machine(*more: str) -> tuple[str, str]:
        assert main([command, *LENET, *more]) == 0
        shown = capsys.readouterr()
        return json.loads(shown.out)["machine"], shown.err

    assert machine() == ("local", "")
    config.write_text('machine = "cori-knl"\n')
    name, said = machine()
    assert name == "cori-knl" and f"note: machine cori-knl, from {config}" in said
    assert machine("--machine", "local") == ("local", "")
    files.save(files.load("k20x8"), str(config.parent / "m.toml"))
    config.write_text('machine = "m.toml"\n[job]\naccount = "m1"\n')  # beside the file
    assert machine()[0] == "k20x8" and site.read().job == {"account": "m1"}


@pytest.mark.parametrize(("text", "message"), [
    ('machin = "local"', "unknown field 'machin'; did you mean 'machine'?"),
    ("machine = 3", "'machine': expected a text of one line, found 3"),
    ('machine = "a\\u0000b.toml"', "'machine': expected a text of one line"),
    ("machine = ", "not TOML"),
    ('job = "x"', "'job': expected a table"),
])
def test_mistakes_in_the_site_file_are_one_line(text: str, message: str, config: Path,
                                                capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(text)
    assert main(["plan", *LENET]) == 2
    said = capsys.readouterr().err
    assert message in said and str(config) in said and said.count("\n") == 1


def test_a_file_that_the_variable_names_must_exist(monkeypatch: pytest.MonkeyPatch,
                                                   capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv(site.VARIABLE, "/nowhere/hpcpar.toml")
    assert main(["plan", *LENET]) == 2
    assert "cannot read site defaults" in capsys.readouterr().err
