"""Latency and bandwidth from the output of OSU micro-benchmarks and nccl-tests."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomllib

from hpcpar.calibrate.benchmark_files import fit, level_text
from hpcpar.cli.main import main
from hpcpar.errors import InputError
from tests.unit.cli.output import document, text

SIZES = [1 << i for i in range(23)]


def osu(tmp_path: Path, test: str, unit: str, values: list[float]) -> str:
    path = tmp_path / f"{test.lower()}.txt"
    rows = [f"{n:<10d}{value:>20.2f}" for n, value in zip(SIZES, values, strict=True)]
    path.write_text("\n".join([f"# OSU MPI {test} Test v7.3", "# Datatype: MPI_CHAR.",
                               f"# Size          {unit}", *rows, ""]))
    return str(path)


def nccl(tmp_path: Path, ranks: int, microseconds: list[float], name: str = "all_reduce") -> str:
    """A log of nccl-tests 2.13, with times out of place and in place."""
    path = tmp_path / f"{name}.txt"
    lines = ["# nThread 1 nGpus 1 minBytes 1 maxBytes 4194304 step: 2(factor) warmup iters: 5"]
    lines += [f"#  Rank {r:2d} Group  0 Pid  1{r} on n1 device  {r} [0x0{r}] NVIDIA A100-SXM4-80GB"
              for r in range(ranks)]
    lines.append("#       size         count      type   redop    root     time   algbw   busbw")
    lines += [f"{n:>12d}{n // 4:>14d}     float     sum      -1{t:>9.2f}{n / t / 1e3:>8.2f}"
              f"{1.5 * n / t / 1e3:>8.2f}      0{2 * t:>9.2f}{n / t / 2e3:>8.2f}    0.01      0"
              for n, t in zip(SIZES, microseconds, strict=True)]
    path.write_text("\n".join([*lines, "# Avg bus bandwidth    : 41.0", ""]))
    return str(path)


def test_a_latency_test_gives_latencies_and_bandwidth(tmp_path: Path) -> None:
    path = osu(tmp_path, "Latency", "Avg Latency(us)",
               [(1.2 if n <= 4096 else 2.5) + n / 12e3 for n in SIZES])
    found = fit(path)
    assert found.test == "OSU Latency" and found.ranks == 2 and found.sizes == len(SIZES)
    assert found.small_alpha_s == pytest.approx(1.2e-6, rel=0.01)
    assert found.beta_s_per_byte == pytest.approx(1 / 12e9, rel=0.1)
    assert found.alpha_s is not None and 1.2e-6 < found.alpha_s < 2.5e-6
    assert found.worst is not None and found.residual is not None
    assert found.worst > found.residual > 0.01 and found.worst_bytes >= 4096  # two protocols


def test_a_bandwidth_test_gives_the_bandwidth(tmp_path: Path) -> None:
    path = osu(tmp_path, "Bandwidth", "Bandwidth (MB/s)", [n / (0.5 + n / 12.5e3) for n in SIZES])
    found = fit(path)
    assert found.alpha_s is None and found.residual is None
    assert found.beta_s_per_byte == pytest.approx(1 / 12.5e9, rel=0.01)


@pytest.mark.parametrize(("name", "messages", "share"), [
    ("all_reduce", 14, 1 / 8), ("all_gather", 7, 1 / 8), ("reduce_scatter", 7, 1 / 8)])
def test_a_ring_of_nccl_gives_its_links(tmp_path: Path, name: str, messages: int,
                                        share: float) -> None:
    path = nccl(tmp_path, 8, [messages * (2.0 + share * n / 100e3) for n in SIZES], name)
    found = fit(path)
    assert (found.test, found.ranks) == (f"nccl-tests {name}", 8)
    assert found.alpha_s == pytest.approx(2e-6, rel=0.01)
    assert found.beta_s_per_byte == pytest.approx(1 / 100e9, rel=0.05)
    assert found.residual is not None and found.residual < 0.01


def test_the_level_has_the_lowest_latency_and_the_highest_bandwidth(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [osu(tmp_path, "Latency", "Latency (us)", [1.5 + n / 10e3 for n in SIZES]),
             osu(tmp_path, "Bandwidth", "Bandwidth (MB/s)", [n / (n / 12e3) for n in SIZES])]
    level = tomllib.loads(level_text([fit(file) for file in files]))["levels"][0]
    assert level["bandwidth"] == "12 GB/s" and level["latency"].startswith("1.5")
    words = ["machines", "--from-osu", files[0], "--from-osu", files[1]]
    assert document(capsys, *words)["level"] == level_text([fit(file) for file in files])
    assert main([*words, "cori-knl"]) == 2
    assert "leave out the machine" in capsys.readouterr().err
    shown = text(capsys, *words)
    assert "mean error" in shown and "[[levels]]" in shown


@pytest.mark.parametrize(("content", "told"), [
    ("# OSU MPI Allreduce Latency Test v7.3\n1 2.0\n", "does not say how many ranks took part"),
    ("# OSU MPI Latency Test v7.3\n1 2.0\n2 2.0\n", "has 2 sizes"),
    ("# OSU MPI Latency Test v7.3\n8192 2.0\n16384 3.0\n32768 4.0\n", "no message of at most 4096"),
    ("hello", "names neither its test nor OSU's"), ("all_reduce_perf", "lists neither its ranks"),
    ("", "names neither"),
])
def test_other_files_are_refused_in_one_line(tmp_path: Path, content: str, told: str) -> None:
    path = tmp_path / "f.txt"
    path.write_text(content)
    with pytest.raises(InputError, match=told) as refused:
        fit(str(path))
    assert "\n" not in str(refused.value) and str(path) in str(refused.value)
