"""Links out of `docs/`: files get a page of coloured code, folders a list, the README is home.

Pages link as on a code host, `[topology.py](../src/dystop/control/topology.py)`, so that both work.
"""

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

ROOT = Path(__file__).parents[2]
PAGES = {
    "README": "index",
    "CHANGELOG": "changelog",
    "CONTRIBUTING": "contributing",
    "SECURITY": "security",
    "paper/README": "paper/index",
}
"""Pages outside `docs/`, and the pages of the site that hold them."""
BESIDE = {ROOT / "paper/docs": "paper", ROOT / "benchmarks/docs": "benchmarks"}
"""Folders of pages outside `docs/`, and the links in `docs/` by which Sphinx finds them."""


def redirect(app: Sphinx, doctree: nodes.document) -> None:
    """Lead the links of a page to source pages and to the site's own pages."""
    here = (ROOT / "docs" / app.env.docname).parent
    for node in list(doctree.findall(_is_link)):
        if node.get("refdomain") == "doc":
            target = Path(node["reftarget"])
            name = target.relative_to(ROOT).as_posix() if target.is_relative_to(ROOT) else ""
            node["reftarget"] = PAGES.get(name, node["reftarget"])
            for folder, link in BESIDE.items():
                if target.is_relative_to(folder):
                    node["reftarget"] = f"{link}/{target.relative_to(folder).as_posix()}"
            continue
        place = (here / node["reftarget"]).resolve()
        if place.exists() and is_shown(place):
            app.env.metadata[app.env.docname].setdefault("sources", []).append(str(place))
            address = f"{'../' * app.env.docname.count('/')}{source_page(place)}.html"
            node.replace_self(nodes.reference("", "", *node.children, refuri=address))


def is_shown(place: Path) -> bool:
    """Return whether a file or folder of the repository gets a page; data of `docs/` do not."""
    is_data = (
        any(place.is_relative_to(x) for x in (ROOT / "docs", *BESIDE)) and place.suffix != ".py"
    )
    return place.is_relative_to(ROOT) and not is_data


def _is_link(node: nodes.Node) -> bool:
    """Return whether a node is a link that Markdown wrote."""
    if isinstance(node, addnodes.download_reference):
        return True
    return isinstance(node, addnodes.pending_xref) and node["reftype"] == "myst"


def source_page(place: Path) -> str:
    """Return the name of the page of a file or folder of the repository."""
    name = f"source/{place.relative_to(ROOT).as_posix()}"
    return f"{name}/index" if place.is_dir() else name


def source_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield a page for each file and folder that a page links to, and for the files in folders."""
    linked = {Path(x) for facts in app.env.metadata.values() for x in facts.get("sources", [])}
    inside = {file for place in linked if place.is_dir() for file in files_in(place)}
    for place in sorted(linked | inside):
        name = place.relative_to(ROOT).as_posix()
        body = _list_of(place) if place.is_dir() else _coloured(place)
        page = {"title": name, "body": f"<h1>{name}</h1>{body}", "toctree": _no_navigation}
        yield source_page(place), page, "page.html"


def files_in(folder: Path) -> list[Path]:
    """Return the files of a folder and of those in it, without caches."""
    return sorted(x for x in folder.rglob("*") if x.is_file() and "__pycache__" not in x.parts)


def _list_of(folder: Path) -> str:
    names = [file.relative_to(folder).as_posix() for file in files_in(folder)]
    items = (f'<li><a href="{escape(name)}.html">{escape(name)}</a></li>' for name in names)
    return f"<ul>{''.join(items)}</ul>"


def _coloured(file: Path) -> str:
    try:
        lexer = get_lexer_for_filename(file.name)
    except ClassNotFound:
        lexer = TextLexer()
    lines = HtmlFormatter(linenos="inline", anchorlinenos=True, lineanchors="L")
    coloured: str = highlight(file.read_text(encoding="utf-8"), lexer, lines)
    return coloured


def _no_navigation(**options: object) -> str:
    """Return nothing: the navigation of all source pages would take half of the build."""
    return ""


def setup(app: Sphinx) -> ExtensionMetadata:
    """Redirect links before Sphinx copies the files that they name."""
    app.connect("doctree-read", redirect, priority=400)
    app.connect("html-collect-pages", source_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
