"""Predictions equal the record: every quantity and every layer's configuration."""

from __future__ import annotations

import pytest

from tests.record_predictions import differences, load, record
from tests.recorded_commands import COMMANDS, Command

RECORDED = load()
#: Commands that take little time together; ``python -m tests.record_predictions`` compares all.
QUICK = [command for command in COMMANDS if command.quick]


@pytest.mark.parametrize("command", QUICK, ids=lambda c: " ".join(c.words[:-1]))
def test_predictions_equal_the_record(command: Command) -> None:
    """A command's cases equal the record: floats to 1e-9, anything else exactly."""
    found = record(command)
    old = {key: RECORDED.get(key) for key in found}
    wrong = [
        f"{key}: {quantity or 'case'}: {was!r} -> {now!r}"
        for key, row in found.items()
        for quantity, was, now in differences(old[key], row)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_record_has_every_case() -> None:
    """The record holds the cases of all commands, each once, and no others."""
    keys = [key for command in COMMANDS for key in command.cases]
    assert len(keys) == len(set(keys))
    assert set(keys) == RECORDED.keys()
