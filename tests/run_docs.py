"""Runs the commands on documentation pages: every ``sh`` block, in order, as a reader would.

Run: ``python tests/run_docs.py README.md docs`` in a checkout with a ``.venv``. A ``python``
(``toml``) block whose first line is ``# FILE.py`` (``# FILE.toml``) is written to that file. Blocks
of other kinds (``text``, ``sh batch``) need hours, other machines or the reader's files.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: A block to run, or a file to write; both may be indented inside a list.
BLOCK = re.compile(r"^( *)```(?:sh|(?:python|toml)\n *# (\S+\.(?:py|toml)))\n(.*?)^\1```",
                   re.M | re.S)
#: A page that takes longer (s) is stuck.
LIMIT_S = 3600


def pages(names: Iterable[str]) -> list[Path]:
    """The named Markdown files, and all Markdown files below the named folders."""
    found: list[Path] = []
    for name in names:
        path = Path(name)
        found += sorted(path.rglob("*.md")) if path.is_dir() else [path]
    return found


def script(text: str, skipped: str) -> str:
    """The commands on a page as one script, which prints each line before it runs it."""
    lines = ["set -euo pipefail"]
    for _, file, block in BLOCK.findall(text):
        if skipped and skipped in block:
            continue
        if file:
            lines.append(f"printf '%s' {shlex.quote(textwrap.dedent(block))} >{shlex.quote(file)}")
            continue
        for line in block.splitlines():
            lines += [f"printf '%s\\n' {shlex.quote('$ ' + line.strip())}", line]
    return "\n".join([*lines, ""])


def main(names: list[str]) -> int:
    skipped = os.environ.get("HPCPAR_DOCS_SKIP", "")
    env = {**os.environ, "PATH": f"{ROOT / '.venv/bin'}:{os.environ['PATH']}"}
    (ROOT / "runs").mkdir(exist_ok=True)
    failed = []
    for page in pages(names):
        text = script(page.read_text(encoding="utf-8"), skipped)
        if text.count("\n") < 2:
            continue
        print(f"\n== {page}", flush=True)
        begin = time.monotonic()
        try:
            done = subprocess.run(["bash", "-c", text], cwd=ROOT, env=env, timeout=LIMIT_S,
                                  stdin=subprocess.DEVNULL, check=False)
            status = str(done.returncode)
        except subprocess.TimeoutExpired:
            status = f"stopped after {LIMIT_S} s"
        print(f"== {page}: {time.monotonic() - begin:.0f} s, status {status}", flush=True)
        if status != "0":
            failed.append(f"{page} ({status})")
    print(f"documentation: {', '.join(failed) or 'every command ran'}")
    return len(failed) > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
