"""Sphinx configuration of the site: `make docs` builds it into build/site, without a network."""

import sys
from pathlib import Path

import dystop

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "dystop"
author = "The dystop authors"
version = release = dystop.__version__
html_title = f"dystop {release}"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "drawings",
    "generated",
    "mathml",
    "repository_links",
]
exclude_patterns = ["extensions"]
default_role = "code"  # docstrings mark code by single backticks
nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(?!dystop\.).*"),  # names of other libraries, and type aliases of ours
    (r"py:.*", r"dystop\.\w+(\.\w+)+"),  # private parts of the package have no page
]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 4

autodoc_class_signature = "mixed"
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # arrays have type aliases that say less than the text does
napoleon_numpy_docstring = False
add_module_names = False

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}
