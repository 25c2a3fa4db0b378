"""The CUDA C kernels without a GPU: compilation by NVRTC; and the selection of a GPU."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcpar.errors import InputError
from hpcpar.kernels import cupy_sources
from tests.cuda_support import *  # noqa: F403
from tests.cuda_support import call_on_cpu

# -- NVRTC -----------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def nvrtc() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from cupy.cuda import nvrtc as module
        module.getVersion()
    except Exception as err:  # CuPy wraps a missing library in more than one type
        pytest.skip(f"NVRTC is not usable: {err}")
    return module


def compile_nvrtc(nvrtc: Any, text: str, name: str, arch: str, real: str) -> str:
    """Compile a source without a warning; returns the PTX."""
    program = nvrtc.createProgram(text, name, (), ())
    try:
        nvrtc.compileProgram(program,
                             (f"--gpu-architecture={arch}", "--std=c++17", f"-DREAL={real}"))
    except Exception as err:
        pytest.fail(f"{name} for {arch}, REAL={real}: {err}\n{nvrtc.getProgramLog(program)}")
    log = nvrtc.getProgramLog(program).strip("\0 \n")
    assert not log, log
    assert len(nvrtc.getCUBIN(program)) > 1000
    ptx: bytes = nvrtc.getPTX(program)
    nvrtc.destroyProgram(program)
    return ptx.decode()


@pytest.mark.parametrize("real", cupy_sources.REALS.values())
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("subject", cupy_sources.SUBJECTS)
def test_each_source_compiles(nvrtc: Any, subject: str, arch: str, real: str) -> None:
    compile_nvrtc(nvrtc, cupy_sources.source(subject), f"{subject}.cu", arch, real)


@pytest.mark.parametrize("real", cupy_sources.REALS.values())
@pytest.mark.parametrize("arch", ["sm_75", "sm_100"])
def test_all_sources_compile_for_other_cards(nvrtc: Any, arch: str, real: str) -> None:
    compile_nvrtc(nvrtc, "\n".join(map(cupy_sources.source, cupy_sources.SUBJECTS)), "all.cu", arch,
                  real)


#: Arrays that a kernel reads and arrays that it writes.
STREAMS = {"activation_forward": (1, 1), "activation_backward": (2, 1), "pack": (1, 1),
           "unpack": (1, 1), "unpack_add": (2, 1), "sgd_update": (3, 2), "plain_update": (2, 1),
           "adam_update": (4, 3), "sgd_updates": (3, 2), "plain_updates": (2, 1),
           "adam_updates": (4, 3), "copy_box": (1, 1), "add_boxes": (2, 1),
           "add_activation": (2, 1), "channel_moments": (1, 0), "channel_moments_backward": (2, 0),
           "batchnorm_forward": (1, 1), "batchnorm_backward": (2, 1)}


@pytest.mark.parametrize("real", cupy_sources.REALS.values())
@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
@pytest.mark.parametrize("kernel", STREAMS)
def test_contiguous_arrays_move_by_16_bytes(nvrtc: Any, kernel: str, arch: str, real: str) -> None:
    source = cupy_sources.source(cupy_sources.kernels()[kernel])
    ptx = compile_nvrtc(nvrtc, source, kernel, arch, real)
    body = re.search(rf"\.entry {kernel}\(.*?\n\}}", ptx, re.DOTALL)
    assert body
    # addresses from a table may lie in any memory for the compiler
    loads, stores = (len(re.findall(rf"\b{access}\.(global\S*\.)?v[24]\.", body[0]))
                     for access in ("ld", "st"))
    # A compiler that unrolls the loop repeats all accesses equally often.
    reads, writes = STREAMS[kernel]
    assert loads >= reads and stores >= writes and loads * writes == stores * reads


def test_every_source_is_listed() -> None:
    folder = Path(cupy_sources.__file__).parent
    assert {path.stem for path in folder.glob("*.cu")} == set(cupy_sources.SUBJECTS)
    text = "".join(map(cupy_sources.source, cupy_sources.SUBJECTS))
    assert len(cupy_sources.kernels()) == text.count("\nKERNEL ")
    assert "atomicAdd" not in text


@pytest.mark.parametrize("index", [0, 12345, 2**31 - 1, 2**31, 2**36 + 98765])
def test_indices_become_places(libraries: dict[str, ctypes.CDLL], index: int) -> None:
    to = np.zeros(5, np.int64)
    shape = (2**20, 3, 50, 1400, 11)
    call_on_cpu(libraries["float32"], "probe_place", (1,), (1,), (index, *shape[1:], to))
    assert tuple(to) == tuple(np.unravel_index(index, shape))
    for shape in ((2**40, 5, 7, 3, 9), (1, 1, 1, 1, 2**40), (3, 2**33, 1, 2, 5)):
        call_on_cpu(libraries["float32"], "probe_place5", (1,), (1,), (index, *shape[1:], to))
        assert tuple(to) == tuple(np.unravel_index(index, shape))


@pytest.mark.parametrize("offset", [0, 1])
def test_a_misaligned_vector_ends_the_process(libraries: dict[str, ctypes.CDLL],
                                              offset: int) -> None:
    kernel = """
KERNEL touch_vector(REAL *a) { apply_to_vectors([](REAL &element) { element += 1; }, a); }
"""
    code = (Path(cupy_sources.__file__).parent / "common.cuh").read_text(encoding="utf-8") + kernel
    script = f"""
import cuda_cpu, numpy as np
base = np.zeros(16, np.float32)
first = -base.ctypes.data % 16 // 4 + {offset}
cuda_cpu.launch(cuda_cpu.library({code!r}, "float"), "touch_vector", (1,), (1,), (base[first:],))
assert base.sum() == 4
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[1],
                          capture_output=True, text=True)
    assert done.returncode == 0 if offset == 0 else done.returncode < 0, done.stderr


# -- choosing the GPU ------------------------------------------------------------------------------


def test_a_missing_gpu_is_one_line() -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    if cupy.cuda.is_available():
        pytest.skip("this machine has a GPU")
    from hpcpar.kernels.cupy_backend import CupyBackend

    with pytest.raises(InputError, match="--device cpu") as info:
        CupyBackend()
    assert "\n" not in str(info.value)
