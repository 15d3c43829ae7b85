"""`dystop new`: a small project to start a mechanism of one's own from."""

import keyword
import re
import shlex
import sys
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from dystop.cli.terminal import handle_errors

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LONGEST = 40
_FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "{name}.toml": "config.toml",
    "src/{package}/__init__.py": "mechanism.py",
    "tests/test_{package}.py": "test.py",
}


class What(StrEnum):
    """What can be started."""

    mechanism = "mechanism"


def _problem(name: str) -> str:
    """Why a mechanism cannot have this name, or nothing."""
    from dystop.mechanisms import MECHANISMS

    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        better = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-0123456789")[:_LONGEST].strip("-")
        hint = f", as in {better!r}" if better else ""
        return f"use up to {_LONGEST} lower-case letters and digits joined by hyphens{hint}"
    package = name.replace("-", "_")
    if name in MECHANISMS:
        return "there is a mechanism of that name ('dystop list mechanisms'); choose another"
    if keyword.iskeyword(package) or package in sys.stdlib_module_names | {"src", "tests"}:
        return f"Python uses {package!r} itself; choose another"
    spec = find_spec(package)
    if spec is not None and spec.origin is not None:  # without one it is a mere folder
        return f"a module {package!r} is installed already; choose another"
    return ""


def words(name: str) -> dict[str, str]:
    """What the templates are filled with.

    >>> words("my-idea")["kind"]
    'MyIdea'
    """
    return {
        "name": name,
        "package": name.replace("-", "_"),
        "kind": "".join(part.capitalize() for part in name.split("-")),
        "distribution": f"dystop-{name}",
    }


def files(name: str) -> dict[str, str]:
    """Every file of the project: path and text."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    known = words(name)
    loader = PackageLoader("dystop.cli", "scaffold")
    templates = Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True)
    return {
        path.format(**known): templates.get_template(f"{template}.jinja").render(known)
        for path, template in _FILES.items()
    }


def _write(folder: Path, texts: dict[str, str]) -> None:
    """All files into a folder that must not exist yet."""
    from dystop.errors import ConfigError, StorageError

    try:
        folder.mkdir(parents=True)
        for path, text in texts.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    except FileExistsError:
        raise ConfigError(
            f"command line: {folder} exists already; choose another name, or another place by --out"
        ) from None
    except OSError as error:
        raise StorageError(f"{folder}: cannot be written: {error.strerror}") from None


@handle_errors
def new(
    what: Annotated[What, typer.Argument(help="What to start.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name, as in my-idea.")],
    out: Annotated[Path, typer.Option(help="Folder to put the project folder into.")] = Path(),
) -> None:
    """Start a mechanism of your own: an installable project with code, test and config.

    The mechanism works as it is; change its `plan`.
    """
    from dystop.errors import ConfigError

    if problem := _problem(name):
        raise ConfigError(f"command line: name {name!r}: {problem}")
    folder, texts = out / name, files(name)
    _write(folder, texts)
    shown = shlex.quote(str(folder))
    for path in texts:
        typer.echo(f"  {folder / path}")
    typer.echo("next:")
    typer.echo(f"  pip install -e {shown}")
    typer.echo(f"  pytest {shown}")
    typer.echo(f"  dystop run {shlex.quote(str(folder / f'{name}.toml'))}")
