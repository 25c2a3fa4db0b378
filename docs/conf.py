"""Sphinx configuration: ``sphinx-build -W docs runs/docs`` builds the pages, with links checked."""

from __future__ import annotations

import hpcpar

project = "hpcpar"
author = copyright = "the hpcpar authors"
version = release = hpcpar.__version__
extensions = ["myst_nb", "sphinxarg.ext", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["conf.py"]
html_theme = "furo"
html_title = "hpcpar"
templates_path: list[str] = []

# headings are link targets; pages link into the sources of the checkout
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
# the notebook holds the outputs of its last run; a test runs it again
nb_execution_mode = "off"
autodoc_typehints = "description"
autodoc_member_order = "bysource"
