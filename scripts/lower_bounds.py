"""Print the oldest version that each dependency of pyproject.toml may have, for pip-audit."""

import re
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
_BOUND = re.compile(r"(?P<name>[\w.-]+)(\[[\w,]+\])?>=(?P<version>[\w.]+)")


def lower_bounds() -> dict[str, str]:
    """Return the lower bound of every dependency, those of the extras included."""
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    extras = project["optional-dependencies"].values()
    bounds = {}
    for word in (*project["dependencies"], *(word for extra in extras for word in extra)):
        if found := _BOUND.match(word):
            name, version = found["name"].lower(), found["version"]
            if bounds.setdefault(name, version) != version:
                raise SystemExit(f"{PYPROJECT}: {name} has two bounds: {bounds[name]}, {version}")
        elif not word.startswith("dystop["):
            raise SystemExit(f"{PYPROJECT}: {word}: has no lower bound")
    return bounds


if __name__ == "__main__":
    for name, version in sorted(lower_bounds().items()):
        print(f"{name}=={version}")  # noqa: T201
