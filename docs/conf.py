"""Sphinx configuration: ``sphinx-build -W docs runs/docs`` builds the pages and checks links."""

from __future__ import annotations

import os

from sphinx.application import Sphinx

import hpcpar
from hpcpar.cli.main import COMMANDS, parsers

project = "hpcpar"
author = copyright = "the hpcpar authors"
version = release = hpcpar.__version__
extensions = ["myst_nb", "sphinx_copybutton"]
exclude_patterns = ["conf.py"]
html_theme = "furo"
html_title = "hpcpar"
# headings are link targets
myst_heading_anchors = 3
# the notebook is kept without outputs: every build runs it, and fails where a cell fails
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_timeout = 3600
nb_execution_raise_on_error = True


def command_help() -> str:
    """The help of every command and of its kinds, as sections of a page."""
    os.environ["COLUMNS"] = "100"
    shown = {}
    for name in COMMANDS:
        shown[name] = parsers(name)[1]
        shown |= {f"{name} {kind}": each for kind, each in shown[name].kinds.items() if kind}
    return "\n".join(f"## {name}\n\n```text\n{parser.format_help()}```\n"
                     for name, parser in shown.items())


def fill_in(app: Sphinx, page: str, source: list[str]) -> None:
    """Puts the help into the page of commands."""
    if page == "reference/commands":
        source[0] = source[0].replace("{{ help }}", command_help())


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", fill_in)
