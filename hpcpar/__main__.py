"""``python -m hpcpar``, and the script ``hpcpar``."""

from __future__ import annotations

import sys

from hpcpar.process.signals import hold, ignore

hold()  # first: loading the rest takes time

from hpcpar.cli import main as commands  # noqa: E402


def main() -> int:
    """Runs the command; returns its exit status, which no later signal changes."""
    status = commands.main()
    ignore()
    return status


if __name__ == "__main__":
    sys.exit(main())
