"""Latency and bandwidth of a level from the output of OSU micro-benchmarks and nccl-tests."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcpar.calibrate.alpha_beta_fit import SMALL_BYTES, hockney, residual
from hpcpar.errors import InputError
from hpcpar.io.files import reason, require_regular

#: Test of nccl-tests -> messages one after the other, and share of the buffer in each, on p ranks.
_NCCL = {"all_reduce": (lambda p: 2 * (p - 1), lambda p: 1 / p),
         "all_gather": (lambda p: p - 1, lambda p: 1 / p),
         "reduce_scatter": (lambda p: p - 1, lambda p: 1 / p),
         "sendrecv": (lambda p: 1, lambda p: 1.0)}
_OSU = re.compile(r"#\s*OSU\s+(?:MPI\S*|NCCL)?\s*(.*?)\s*(?:Test|v\d)")
_OSU_ROW = re.compile(r"^\s*(\d+)\s+(\d+(?:\.\d+)?)")
#: Size, count, type, operation, root (except for old versions and gathers), time (us).
_NCCL_ROW = re.compile(r"^\s*(\d+)\s+\d+\s+\w+\s+(?:\w+\s+)?(?:-?\d+\s+)?(\d+\.\d+|\d+)\s+"
                       r"\d+\.\d+\s+\d+\.\d+")
#: Most bytes of such a file.
_MOST_BYTES = 1 << 22


@dataclass(frozen=True)
class LevelFit:
    """A level's alpha and beta, fitted to one file.

    Attributes
    ----------
    alpha_s, small_alpha_s : float or None
        Latency, and latency of short messages; None for a test of bandwidth.
    residual, worst : float or None
        Root mean square of the fit's relative errors, and the largest one; None without a fit.
    worst_bytes : int
        Message with the largest error, or with the highest bandwidth.
    """

    file: str
    test: str
    ranks: int
    sizes: int
    alpha_s: float | None
    small_alpha_s: float | None
    beta_s_per_byte: float
    residual: float | None
    worst_bytes: int
    worst: float | None


def fit(path: str) -> LevelFit:
    """Fits the output of ``osu_latency``, ``osu_bw`` or a test of nccl-tests.

    Raises
    ------
    InputError
        The file cannot be read, comes from another test, or has too few sizes.
    """
    require_regular(path)
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            text = f.read(_MOST_BYTES)
    except OSError as err:
        raise InputError(f"cannot read {path}: {reason(err)}") from err
    header = _OSU.search(text)
    return _osu(path, header[1], text) if header else _nccl(path, text)


def _osu(path: str, test: str, text: str) -> LevelFit:
    rows = [_OSU_ROW.match(line) for line in text.splitlines()]
    values = np.array([(float(r[1]), float(r[2])) for r in rows if r and float(r[2]) > 0])
    if test == "Latency":
        return _fitted(path, f"OSU {test}", 2, values)
    if test == "Bandwidth":
        _require_sizes(path, values)
        sizes, beta = values[:, 0], 1 / (1e6 * values[:, 1])
        return LevelFit(path, f"OSU {test}", 2, len(sizes), None, None, float(beta.min()), None,
                        int(sizes[beta.argmin()]), None)
    raise InputError(f"{path} is the output of OSU '{test}', which does not say how many ranks "
                     "took part; use osu_latency and osu_bw")


def _nccl(path: str, text: str) -> LevelFit:
    named = re.search("|".join(_NCCL), text) or re.search("|".join(_NCCL), os.path.basename(path))
    ranks = len(re.findall(r"^#\s+Rank\s+\d+\s", text, re.M))
    if named is None or ranks < 2:
        what = "names neither its test" if named is None else "lists neither its ranks"
        raise InputError(f"{path} {what} nor OSU's: give the output of osu_latency, osu_bw, or of "
                         f"{', '.join(f'{name}_perf' for name in _NCCL)} with its header (a file "
                         "named after the test will do)")
    rows = [_NCCL_ROW.match(line) for line in text.splitlines()]
    values = np.array([(float(r[1]), float(r[2])) for r in rows if r and float(r[2]) > 0])
    messages, share = _NCCL[named[0]]
    scale = (share(ranks), 1 / messages(ranks))
    return _fitted(path, f"nccl-tests {named[0]}", ranks, values * scale if len(values) else values)


def _require_sizes(path: str, values: NDArray[np.float64]) -> None:
    long = np.unique(values[:, 0])[-2:] if len(values) else values
    if len(values) < 3 or long[0] < SMALL_BYTES:
        raise InputError(f"{path} has {len(values)} sizes; run the test up to some megabytes, with "
                         f"at least two messages above {SMALL_BYTES} bytes")


def _fitted(path: str, test: str, ranks: int, values: NDArray[np.float64]) -> LevelFit:
    """The fit of messages: sizes in bytes, times in us."""
    _require_sizes(path, values)
    sizes, seconds = values[:, 0].tolist(), 1e-6 * values[:, 1]
    if min(sizes) > SMALL_BYTES:
        raise InputError(f"{path} has no message of at most {SMALL_BYTES} bytes, which tells the "
                         "latency; run the test from a few bytes on")
    alpha, beta, small = fitted = hockney(sizes, seconds)
    errors = [residual([size], seconds[i:i + 1], fitted) for i, size in enumerate(sizes)]
    worst = int(np.argmax(errors))
    return LevelFit(path, test, ranks, len(values), alpha, small, beta,
                    residual(sizes, seconds, fitted), int(sizes[worst]), errors[worst])


def level_text(fits: list[LevelFit]) -> str:
    """A level for a machine file, from the files' fits: the lowest latency, the highest bandwidth.
    """
    alphas = [f.alpha_s for f in fits if f.alpha_s is not None]
    smalls = [f.small_alpha_s for f in fits if f.small_alpha_s is not None]
    lines = ["[[levels]]", 'name = "measured"']
    lines += [f'latency = "{1e6 * min(alphas):.4g} us"'] * bool(alphas)
    if smalls:
        lines += [f'small_latency = "{1e6 * min(smalls):.4g} us"',
                  f'small_size = "{SMALL_BYTES} B"']
    bandwidth = 1e-9 / min(f.beta_s_per_byte for f in fits)
    return "\n".join([*lines, f'bandwidth = "{bandwidth:.4g} GB/s"'])
