"""Starts hpcpar's modules in child processes without the current folder on their path.

``python -m hpcpar`` puts the current folder first on the path, where a file could shadow any
module. Python therefore starts this file by its path.
"""

from __future__ import annotations

import os
import sys


def command(module: str = "hpcpar") -> list[str]:
    """The command that starts a module, without the module's arguments."""
    return [sys.executable, os.path.abspath(__file__), module]


def _main() -> None:
    """Runs the module that the first argument names, from the package around this file."""
    room = os.path.dirname(os.path.abspath(__file__))
    # Python put this folder on the path, but its files are not top-level modules
    sys.path[:] = [folder for folder in sys.path if folder != room]
    import runpy
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("hpcpar", os.path.join(os.path.dirname(room), "__init__.py"))
    assert spec is not None and spec.loader is not None
    sys.modules["hpcpar"] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules["hpcpar"])
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
