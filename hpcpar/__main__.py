"""``python -m hpcpar``."""

from __future__ import annotations

import sys

from hpcpar.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
