"""Quantities with units in machine files, and the commented template."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from hpcpar.cli.main import main
from hpcpar.errors import InputError
from hpcpar.machine import files
from hpcpar.machine.quantities import quantity


@pytest.mark.parametrize(("text", "kind", "value"), [
    ("300 GB/s", "rate", 3e11), ("300GB/s", "rate", 3e11), ("100 Gb/s", "rate", 12.5e9),
    ("200 Gbit/s", "rate", 25e9), ("2.5e3 MB/s", "rate", 2.5e9), ("1 GiB/s", "rate", 2.0**30),
    ("3 us", "time", 3e-6), ("3 µs", "time", 3e-6), ("250 ns", "time", 2.5e-7), ("1 s", "time", 1),
    ("16 GB", "size", 16e9), ("16 GiB", "size", 2.0**34), ("64 kB", "size", 64e3),
    ("15 Tflop/s", "flops", 15e12), ("15 TFLOPS", "flops", 15e12), ("2 Pflop/s", "flops", 2e15),
])
def test_quantities_have_units(text: str, kind: str, value: float) -> None:
    assert quantity(text, kind, "x") == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(("text", "kind", "example"), [
    ("300 GB", "rate", "300 GB/s"), ("300", "rate", "300 GB/s"), (300, "rate", "300 GB/s"),
    ("fast", "rate", "300 GB/s"), ("-3 GB/s", "rate", "300 GB/s"), ("0 GB/s", "rate", "300 GB/s"),
    ("16 gb", "size", "16 GB"), ("3 Ms", "time", "3 us"), ("15 TB/s", "flops", "15 Tflop/s"),
    ("1e GB", "size", "16 GB"), ("inf GB", "size", "16 GB"), ("3 us us", "time", "3 us"),
])
def test_invalid_quantities_are_named_with_an_example(text: object, kind: str,
                                                      example: str) -> None:
    with pytest.raises(InputError, match=r"'x' = .* is not a number above 0") as caught:
        quantity(text, kind, "m.toml: 'x'")
    assert f'as in "{example}"' in str(caught.value)


def plain() -> dict[str, Any]:
    return {"name": "m",
            "device": {"memory_bytes": 16e9, "flops_per_s": 15e12, "bandwidth_bytes_per_s": 5e11,
                       "launch_s": 5e-6, "peak_flops_per_s": 2e13,
                       "rates": {"tf32": 1.5e14, "float16": 3e14}},
            "levels": [{"name": "all", "ranks": 0, "alpha_s": 3e-6, "beta_s_per_byte": 1 / 3e11,
                        "small_alpha_s": 1e-6, "small_bytes": 4000}]}


def with_units() -> dict[str, Any]:
    return {"name": "m",
            "device": {"memory": "16 GB", "rate": "15 Tflop/s", "bandwidth": "500 GB/s",
                       "launch": "5 us", "peak": "20 Tflop/s",
                       "rates": {"tf32": "150 Tflop/s", "float16": 3e14}},
            "levels": [{"name": "all", "ranks": 0, "latency": "3 us", "bandwidth": "300 GB/s",
                        "small_latency": "1 us", "small_size": "4 kB"}]}


def test_a_file_with_units_is_the_same_machine(tmp_path: Path) -> None:
    machine, other = files.from_dict(plain()), files.from_dict(with_units())
    a, b = machine.levels[0], other.levels[0]
    assert (b.alpha_s, b.beta_s_per_byte, b.small_alpha_s, b.small_bytes) == pytest.approx(
        (a.alpha_s, a.beta_s_per_byte, a.small_alpha_s, a.small_bytes))
    numbers, others = asdict(machine.device), asdict(other.device)
    for text in ("name", "vendor", "kind", "sheet"):
        assert numbers.pop(text) == others.pop(text) == ""
    assert numbers.pop("rates") == others.pop("rates") == {"tf32": 1.5e14, "float16": 3e14}
    assert others == pytest.approx(numbers, rel=1e-12)
    files.save(other, str(tmp_path / "m.toml"))
    assert files.load(str(tmp_path / "m.toml")) == other


@pytest.mark.parametrize(("part", "field", "value", "message"), [
    ("device", "memory_bytes", 1, "'memory' and 'memory_bytes' mean the same"),
    ("device", "bandwidth", "5 GB", "m, 'device': 'bandwidth' = '5 GB' is not a number"),
    ("levels", "alpha_s", 1, "m, 'levels', entry 1: 'latency' and 'alpha_s' mean the same"),
    ("levels", "latency", 3, "entry 1: 'latency' = 3 is not a number above 0 with a unit"),
    ("levels", "latencyy", "3 us", "unknown field 'latencyy'"),
])
def test_wrong_fields_are_named(part: str, field: str, value: object, message: str) -> None:
    data = with_units()
    (data["levels"][0] if part == "levels" else data["device"])[field] = value
    with pytest.raises(InputError, match=message):
        files.from_dict(data, "m")


def test_a_template_is_written_once_and_loads(tmp_path: Path,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "my.toml"
    assert main(["machines", "--new", str(path)]) == 0
    machine = files.load(str(path))
    device = machine.device
    assert (device.vendor, device.kind, machine.kind) == ("NVIDIA", "gpu", "gpu")
    assert (device.multiprocessors, device.lanes, device.software_year) == (108, 64, 2026)
    assert machine.name == "my-cluster" and [level.ranks for level in machine.levels] == [8, 0]
    assert all(len(line) <= 100 for line in path.read_text().splitlines())
    path.write_text("mine")
    assert main(["machines", "--new", str(path)]) == 2 and path.read_text() == "mine"
    assert "is not replaced" in capsys.readouterr().err
    assert main(["machines", "--new", str(tmp_path / "no" / "m.toml")]) == 2
