"""Links out of `docs/`: source files get a page of coloured code, the README is the home page.

Pages link as on GitHub, `[topology.py](../src/dystop/control/topology.py)`, so that both work.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

ROOT = Path(__file__).parents[2]
SHOWN = (".py", ".toml")
PAGES = {
    "README": "index",
    "CHANGELOG": "changelog",
    "CONTRIBUTING": "contributing",
    "SECURITY": "security",
}
"""Pages of the repository's root, and the pages of the site that hold them."""


def redirect(app: Sphinx, doctree: nodes.document) -> None:
    """Lead the links of a page to source pages and to the site's own pages."""
    for node in list(doctree.findall(addnodes.download_reference)):
        file = (ROOT / "docs" / app.env.docname).parent.joinpath(node["reftarget"]).resolve()
        if file.suffix in SHOWN and file.is_relative_to(ROOT):
            page = source_page(file)
            app.env.metadata[app.env.docname].setdefault("sources", []).append(str(file))
            up = "../" * app.env.docname.count("/")
            link = nodes.reference("", "", *node.children, refuri=f"{up}{page}.html", internal=True)
            node.replace_self(link)
    for node in doctree.findall(addnodes.pending_xref):
        target = Path(node["reftarget"])
        if node.get("refdomain") == "doc" and target.parent == ROOT and target.name in PAGES:
            node["reftarget"] = PAGES[target.name]


def source_page(file: Path) -> str:
    """Return the name of the page of a source file."""
    return f"source/{file.relative_to(ROOT).as_posix()}"


def source_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield a page for each source file that a page links to."""
    linked = {file for facts in app.env.metadata.values() for file in facts.get("sources", [])}
    for file in map(Path, sorted(linked)):
        name = file.relative_to(ROOT).as_posix()
        code = highlight(
            file.read_text(encoding="utf-8"),
            get_lexer_for_filename(file.name),
            HtmlFormatter(linenos="inline", anchorlinenos=True, lineanchors="L"),
        )
        page = {"title": name, "body": f"<h1>{name}</h1>{code}", "toctree": _no_navigation}
        yield source_page(file), page, "page.html"


def _no_navigation(**options: object) -> str:
    """Return nothing: the navigation of seventy source pages would take half of the build."""
    return ""


def setup(app: Sphinx) -> ExtensionMetadata:
    """Redirect links before Sphinx copies the files that they name."""
    app.connect("doctree-read", redirect, priority=400)
    app.connect("html-collect-pages", source_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
