"""Build hooks: the long description of the package, and the examples in its wheel.

Links of README are relative, so that they work in a checkout and in an unpacked sdist. On a package
index they would lead nowhere. If `[project.urls]` names the repository as `Source`, links and
pictures get its address; without an address only their text remains.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)]*)\)")


def long_description(readme: str, source: str, version: str) -> str:
    """Return README with addresses in place of relative links; without `source`, with their text.

    >>> long_description("[a](b.md) ![c](d.svg)", "https://host/dystop", "1.0")
    '[a](https://host/dystop/blob/v1.0/b.md) ![c](https://host/dystop/raw/v1.0/d.svg)'
    >>> long_description("[a](b.md), [x](https://y) ![c](d.svg)", "", "1.0")
    'a, [x](https://y) *c*'
    """

    def absolute(link: re.Match[str]) -> str:
        picture, text, target = link.groups()
        if source:
            return f"{picture}[{text}]({source}/{'raw' if picture else 'blob'}/v{version}/{target})"
        return f"*{text}*" if picture else text

    return _LINK.sub(absolute, readme)


class LongDescription(MetadataHookInterface):
    """Sets `readme`, the one dynamic field."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Put the long description into the metadata."""
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        source = metadata.get("urls", {}).get("Source", "").rstrip("/")
        text = long_description(readme, source, metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


class Examples(BuildHookInterface[Any]):
    """Puts `examples/` into a wheel; an editable installation finds the folder of the checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the folder, unless the installation is editable."""
        if version != "editable":
            build_data["force_include"]["examples"] = "dystop/examples"
