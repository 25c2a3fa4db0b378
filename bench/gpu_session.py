"""Everything that a first hour on a GPU has to show, in less than 30 minutes, most needed first.

Run: ``python bench/gpu_session.py --out gpu`` on a machine with one GPU, with hpcpar's extras
``gpu``, ``mpi``, ``test`` and ``digits``, and PyTorch with CUDA where a comparison is wanted. After
every part it writes ``gpu/session.json`` and ``gpu/session.md`` anew, so a session that is cut off
leaves what it had. Each part is a process with a time limit: a kernel that hangs costs that part
alone.

``--pretended`` runs the same on a pretended GPU (``tests/pretended``), on small networks, to check
the script: its times mean nothing. ``--parts versions,tests`` runs some.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.gpu_parts import PARTS  # noqa: E402
from hpcpar.io.files import write_text  # noqa: E402

#: Seconds between the two signals that end a part.
_GRACE_S = 10


def run_part(name: str, folder: Path, pretended: bool, most_s: float) -> dict[str, Any]:
    """Result of a part, or why there is none, and the seconds it took."""
    limit_s = min(PARTS[name].limit_s, most_s)
    result, log = folder / f"{name}.json", folder / f"{name}.log"
    result.unlink(missing_ok=True)
    environ = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
    paths = [str(ROOT / "tests" / "pretended")] if pretended else []
    given = [environ["PYTHONPATH"]] if environ.get("PYTHONPATH") else []
    environ["PYTHONPATH"] = os.pathsep.join([*paths, str(ROOT), *given])
    command = [sys.executable, "-m", "bench.gpu_parts", name, str(result)]
    begin = time.monotonic()
    with log.open("w") as out:
        process = subprocess.Popen([*command, *(["--small"] if pretended else [])], env=environ,
                                   cwd=ROOT, stdout=out, stderr=subprocess.STDOUT,
                                   start_new_session=True)
        try:
            status = process.wait(limit_s)
            fault = f"exit status {status}" if status else ""
        except subprocess.TimeoutExpired:
            fault = f"stopped after {limit_s:g} s"
            _end(process)
    found: dict[str, Any] = json.loads(result.read_text()) if result.exists() else {}
    if fault:
        found["fault"] = fault
        found["log"] = log.read_text(errors="replace").splitlines()[-15:]
    return found | {"seconds": round(time.monotonic() - begin, 1)}


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a part with everything that it has started."""
    for signal in (15, 9):
        try:
            os.killpg(process.pid, signal)
            process.wait(_GRACE_S)
            return
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            return


def page(results: dict[str, Any], pretended: bool) -> str:
    """The session as a page of Markdown."""
    lines = [f"# GPU session, {results['date']}", ""]
    if pretended:
        lines += ["**On a pretended GPU: nothing here ran on a card, and no time means anything.**",
                  ""]
    for name, part in results["parts"].items():
        lines += [f"## {PARTS[name].title} ({part['seconds']:g} s)", ""]
        if "fault" in part:
            lines += [f"**{part['fault']}**", "", "```text", *part["log"], "```", ""]
        for fact, value in part.get("facts", {}).items():
            lines.append(f"* {fact}: {value}")
        for row in part.get("rows", [])[:1]:
            lines += ["", _row(list(row)), _row(["---"] * len(row))]
        lines += [_row(list(row.values())) for row in part.get("rows", [])]
        lines.append("")
    return "\n".join(lines)


def _row(cells: list[Any]) -> str:
    shown = [f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in cells]
    return f"| {' | '.join(shown)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--out", default="gpu", help="folder of the results (default gpu)")
    parser.add_argument("--pretended", action="store_true", help="check this script without a GPU")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--limit-s", type=float, default=1e9, help="of a part, if below its own")
    options = parser.parse_args()
    folder = Path(options.out).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"date": datetime.date.today().isoformat(), "parts": {}}
    failed = False
    for name in options.parts.split(","):
        print(f"{PARTS[name].title} (at most {PARTS[name].limit_s} s)", flush=True)
        part = run_part(name, folder, options.pretended, options.limit_s)
        results["parts"][name] = part
        failed = failed or "fault" in part
        print(f"  {part.get('fault', 'done')}, {part['seconds']:g} s", flush=True)
        write_text(str(folder / "session.json"), json.dumps(results, indent=1) + "\n", "session")
        write_text(str(folder / "session.md"), page(results, options.pretended), "session")
    print(f"results in {folder}/session.md")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
