"""The output of a command, for tests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hpcpar.cli.main import main


def document(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    """The one JSON document on stdout."""
    assert main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def text(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The visible output: results on stdout, then notes on stderr."""
    assert main([*argv]) == 0
    out = capsys.readouterr()
    return out.out + out.err
