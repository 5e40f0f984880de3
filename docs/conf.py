"""Sphinx configuration: Markdown pages and the API from docstrings."""

import framepool

project = "framepool"
author = "the framepool authors"
release = framepool.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "cyclopts.sphinx_ext"]
html_theme = "furo"
html_title = "framepool"
exclude_patterns = ["_build"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
