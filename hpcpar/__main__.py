"""``python -m hpcpar``, and the script ``hpcpar``."""

from __future__ import annotations

import sys

from hpcpar.signals import hold

hold()  # first: loading the rest takes time

from hpcpar.cli.main import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
