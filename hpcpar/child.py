"""Starts modules of hpcpar in processes of their own, without the current folder on their path.

``python -m hpcpar`` puts the current folder first on the path: a file there could take the place of
any module. This file is started by its own path instead.
"""

from __future__ import annotations

import os
import sys


def command(module: str = "hpcpar") -> list[str]:
    """The words that start a module; its arguments follow."""
    return [sys.executable, os.path.abspath(__file__), module]


def _main() -> None:
    """Runs the module that the first argument names, from the hpcpar that this file belongs to."""
    here = os.path.dirname(os.path.abspath(__file__))
    # Python has put this folder on the path, whose files are not modules of their own
    sys.path[:] = [folder for folder in sys.path if folder != here]
    import runpy
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("hpcpar", os.path.join(here, "__init__.py"))
    assert spec is not None and spec.loader is not None
    sys.modules["hpcpar"] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules["hpcpar"])
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
