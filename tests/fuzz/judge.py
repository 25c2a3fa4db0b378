"""Runs a command in this process and judges it: no traceback, no hang, no nonsense."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import resource
import signal
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, NoReturn

from hpcpar.cli.main import main
from hpcpar.io import hdf5
from tests import limits

#: A command that takes longer (s) is stuck.
LIMIT_S = round(limits.LIMIT_S / 3)
#: Processor time and memory of a command.
MOST_CPU_S, MOST_MEMORY_BYTES = 60, 1_500_000_000
#: Within that, a damaged HDF5 file has to be found.
CHECK_S = 5
#: Memory that a case may allocate beyond what the process has.
ROOM_BYTES = 3 << 30
#: Names of numbers that are never negative, by their ends.
_POSITIVE = re.compile(r"(?<!^rest)(?<!^excess)(_s|_bytes|flops|_per_s|^ranks|^batch"
                       r"|^samples|parameters|node_hours|efficiency|^epochs|images_per_s)$")
#: Control characters that a terminal would obey.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
#: A word in a table where a number belongs.
_NO_NUMBER = re.compile(r"(?<![\w./+'\"=-])[-+]?(nan|inf)(?![\w./'\"-])")

#: Where words of the user stand: directives, modules, names of data files.
_OWN = re.compile(r"^(#SBATCH .*|module load .*|(nan|inf)(?=: \d))", re.M)


class TooSlow(BaseException):
    """A case has taken `LIMIT_S`."""


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Within it, memory is bounded."""
    with open("/proc/self/statm", encoding="ascii") as f:
        now = int(f.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + ROOM_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    def stop(sign: int, frame: FrameType | None) -> NoReturn:
        raise TooSlow

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def command(argv: Sequence[str]) -> str:
    """The fault in how a command ended; empty if there is none."""
    out, err, begin_s, before = io.StringIO(), io.StringIO(), time.process_time(), peak_bytes()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _limited():
            status = main(argv)
    except TooSlow as late:
        return f"takes more than {LIMIT_S} s, in {_where(late)}"
    except SystemExit as end:  # --help and --version
        status = 0 if end.code == 0 else 3
    except BaseException as escaped:
        return f"{type(escaped).__name__} escapes: {str(escaped)[:200]!r}, from {_where(escaped)}"
    if time.process_time() - begin_s > MOST_CPU_S:
        return f"takes {time.process_time() - begin_s:.0f} s of processor time"
    if peak_bytes() > max(before, MOST_MEMORY_BYTES):
        return f"takes {peak_bytes() / 1e9:.2f} GB of memory"
    return _ending(status, out.getvalue(), err.getvalue(), "--json" in argv)


def peak_bytes() -> int:
    """The most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _where(err: BaseException) -> str:
    """The innermost line of ours, and the innermost of all."""
    frames = traceback.extract_tb(err.__traceback__)
    ours = [f for f in frames if "/hpcpar/" in f.filename]
    lines = dict.fromkeys(f"{f.filename.rpartition('/hpcpar/')[2]}:{f.lineno}"
                          for f in (*ours[-2:], *frames[-1:]))
    return " > ".join(lines)


def _ending(status: int, out: str, err: str, as_json: bool) -> str:
    if "Traceback (most recent call last)" in out + err:
        return "prints a traceback"
    control = _CONTROL.search(out + err)
    if control is not None:
        return f"prints the control character {control[0]!r}"
    lines = [line for line in err.splitlines() if line.startswith("hpcpar: ")]
    if status not in (0, 1, 2) or (status != 0) != (len(lines) == 1):
        return f"status {status} with {len(lines)} lines of error: {err[-300:]!r}"
    if status == 0:
        return _document(out) if as_json else _table(out)
    return ""


def _refused(word: str) -> NoReturn:
    raise ValueError(f"{word} in JSON")


def _document(text: str) -> str:
    try:
        return _numbers(json.loads(text, parse_constant=_refused), "")
    except ValueError as err:
        return f"nonsense: --json is not JSON ({err}): {text[:100]!r}"


def _numbers(node: Any, name: str) -> str:
    """Faults of numbers in a document."""
    if isinstance(node, dict):
        signed = node.get("cause") == "between"  # the steps' medians may add up to more
        return next(filter(None, (_numbers(v, "" if signed else k) for k, v in node.items())), "")
    if isinstance(node, list):
        return next(filter(None, (_numbers(v, name) for v in node)), "")
    if isinstance(node, bool) or not isinstance(node, int | float):
        return ""
    if not math.isfinite(node) or (node < 0 and _POSITIVE.search(name)):
        return f"nonsense: {name} is {node}"
    return ""


def _table(text: str) -> str:
    text = _OWN.sub("", text)
    found = _NO_NUMBER.search(text)
    if found is None:
        return ""
    begin = text.rfind("\n", 0, found.start()) + 1
    return f"nonsense: a table says {text[begin:found.end() + 20]!r}"


def in_child(judged: Callable[[], str]) -> str:
    """The judgment of a child process, which a crash or a hang of a library ends alone."""
    try:
        text, status = forked(judged, LIMIT_S + 2)
    except TimeoutError:
        return f"hangs in a library for more than {LIMIT_S} s"
    return f"crashes the process: status {status}" if status else text


def forked(action: Callable[[], str], limit_s: float) -> tuple[str, int]:
    """The text that an action in a child process returns, and the child's exit status.

    Raises
    ------
    TimeoutError
        The child has taken `limit_s`, and was ended.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            os.write(writer, action().encode("utf-8", "replace")[:4000])
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    deadline = time.monotonic() + limit_s
    while True:
        done, ended = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(reader)
            raise TimeoutError
        time.sleep(0.001)
    with os.fdopen(reader, "rb") as f:
        return f.read().decode("utf-8", "replace"), os.waitstatus_to_exitcode(ended)


class ForkedCheck:
    """In place of `subprocess` in `hpcpar.io.hdf5`: its check in a fork, without Python's start."""

    @staticmethod
    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        """The finished check of the files that the command names."""

        def told() -> str:
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                hdf5._print_fault(CHECK_S, command[4:])
            return out.getvalue()

        text, status = forked(told, LIMIT_S)
        return subprocess.CompletedProcess(command, status, text)
