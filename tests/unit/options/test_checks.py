"""Checks of values: bounded, finite, refused in one line and at once."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from hpcpar.cli.main import main
from hpcpar.errors import InputError
from hpcpar.options import checks

NONSENSE = ("nan", "inf", "-inf", "1e400", "-1", "", "true", "null", "x", "9" * 5000, None, True)


@pytest.mark.parametrize("check", [
    checks.natural, checks.positive, checks.ranks, checks.microbatches, checks.seed,
    checks.several_ranks, checks.amount, checks.fraction, checks.magnitude, checks.part,
    checks.share, checks.image])
def test_every_check_refuses_nonsense(check: Callable[[Any], object]) -> None:
    for value in NONSENSE:
        with pytest.raises(InputError) as err:
            check(value)
        assert "\n" not in str(err.value) and len(str(err.value)) < 300


@pytest.mark.parametrize(("check", "largest"), [
    (checks.positive, 10**10), (checks.natural, 10**10), (checks.ranks, 2**20),
    (checks.microbatches, 1024), (checks.seed, 2**63 - 1)])
def test_counts_have_a_largest_value(check: Callable[[Any], int], largest: int) -> None:
    assert check(largest) == check(str(largest)) == largest
    with pytest.raises(InputError, match=f"is more than the maximum of {largest:,}"):
        check(largest + 1)


def test_parts_of_samples_are_plain_numbers() -> None:
    assert [checks.share(x) for x in ("8", "1/4", "0.25", 0.1, 2)] == [
        8, Fraction(1, 4), Fraction(1, 4), Fraction(1, 10), 2]
    for value in ("1e999999999", "1e-999999999", "1/0", "0", f"1/{10**30}"):
        with pytest.raises(InputError, match="is not a number of samples"):
            checks.share(value)


def test_arguments_that_are_not_text_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["machines", "\udcff.toml"]) == 2
    assert "'\\udcff.toml' is not valid UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [
    "data synthetic x.h5 --samples 1000000000000",
    "data synthetic x.h5 --classes 1000000000",
    "data synthetic x.h5 --targets 9000000000",
    "data synthetic x.h5 --input 1000000000x8x8 --samples 1",
    "data synthetic x.h5 --samples 9000000000",
    "data digits x.h5 --size 1000000",
    "predict --network lenet5 --ranks 4 --batch 1000000000000",
    "predict --network lenet5 --ranks 1000000000000 --batch 4",
    "predict --network alexnet --ranks 4 --batch 4 --classes 1000000000000",
    "predict --network alexnet --ranks 4 --batch 10000000000",
    "predict --network lenet5 --input 1000000000000x8x8 --ranks 4 --batch 4",
    "predict --network lenet5 --ranks 4 --batch 4096 --strategy pipeline --microbatches 4096",
    "predict --network lenet5 --ranks 4 --batch 4 --epochs 1e300",
    "predict --network lenet5 --ranks 4 --batch 4 --io nan",
    "run --plan p.json --data d.h5 --rate nan",
    "run --plan p.json --data d.h5 --momentum 1",
    "run --plan p.json --data d.h5 --decay inf",
    "run --plan p.json --data d.h5 --seed -1",
    "verify --plan p.json --tolerance nan",
    "data images x.h5 folder --test-fraction=--",
])
def test_absurd_options_are_refused_at_once_in_one_line(
        argv: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(argv.split()) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
