"""Old BLAS kernels that the environment forces, and other processes on a node."""

from __future__ import annotations

import pytest

from hpcpar.diagnose import processor

NEW, MIDDLE, OLD = "avx avx2 fma avx512f", "avx avx2 fma", "sse4_2 avx"


@pytest.mark.parametrize(("coretype", "flags", "lacks"), [
    ("", NEW, ""), ("SkylakeX", NEW, ""), ("SAPPHIRERAPIDS", NEW, ""),
    ("Haswell", NEW, "AVX-512"), ("Zen", NEW, "AVX-512"), ("Nehalem", NEW, "AVX-512"),
    ("Haswell", MIDDLE, ""), ("Sandybridge", MIDDLE, "AVX2"), ("Nehalem", MIDDLE, "AVX2"),
    ("Sandybridge", OLD, ""), ("Prescott", OLD, "AVX,"), ("Haswell", OLD, ""),
    ("Nehalem", "sse4_2", ""),
])
def test_kernels_older_than_the_processor_are_reported(coretype: str, flags: str,
                                                       lacks: str) -> None:
    text = f"processor : 0\nmodel name : X\nflags\t\t: fpu sse {flags} ht\nbugs : none\n"
    environ = {"OPENBLAS_CORETYPE": coretype} if coretype else {}
    said = processor.old_kernels(environ, text)
    assert bool(said) == bool(lacks)
    assert not lacks or (f"{coretype} forces kernels without {lacks}" in said)
    assert processor.old_kernels(environ, "no flags here") == ""


def test_a_forced_cache_size_is_reported() -> None:
    said = processor.old_kernels({"OPENBLAS_L2_SIZE": "524288"}, f"flags : {NEW}")
    assert "OPENBLAS_L2_SIZE=524288" in said


@pytest.mark.parametrize(("processes", "ranks", "cores", "said"), [
    (2, 2, 2, ""), (3, 2, 4, ""), (4, 4, 2, ""), (3, 2, 2, "1 other process run"),
    (9, 1, 8, "8 other processes run on the 8 cores"), (0, 2, 2, ""),
])
def test_other_processes_count_where_they_take_cores(processes: int, ranks: int, cores: int,
                                                     said: str) -> None:
    found = processor.load(processes, ranks, cores)
    assert said in found and bool(found) == bool(said)


def test_this_node_runs_at_least_this_process() -> None:
    assert processor.running() >= 1
    assert all(isinstance(line, str) for line in processor.slowdowns(10_000))
