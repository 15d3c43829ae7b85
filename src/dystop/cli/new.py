"""`dystop new`: a small project from which a user starts a mechanism."""

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
    """The kinds of projects that `dystop new` creates."""

    mechanism = "mechanism"


def _problem(name: str) -> str:
    """Return why a mechanism cannot have this name; empty if it can."""
    from dystop.mechanisms import MECHANISMS

    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        better = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-0123456789")[:_LONGEST].strip("-")
        hint = f", such as {better!r}" if better else ""
        return f"use up to {_LONGEST} lower-case letters and digits, joined by hyphens{hint}"
    package = name.replace("-", "_")
    if name in MECHANISMS:
        return "a mechanism has this name (see 'dystop list mechanisms'); choose another name"
    if keyword.iskeyword(package) or package in sys.stdlib_module_names | {"src", "tests"}:
        return f"Python reserves {package!r}; choose another name"
    spec = find_spec(package)
    if spec is not None and spec.origin is not None:  # a spec without origin is a plain folder
        return f"a module {package!r} is installed; choose another name"
    return ""


def template_values(name: str) -> dict[str, str]:
    """Return the values for the templates of a project.

    >>> template_values("my-idea")["kind"]
    'MyIdea'
    """
    return {
        "name": name,
        "package": name.replace("-", "_"),
        "kind": "".join(part.capitalize() for part in name.split("-")),
        "distribution": f"dystop-{name}",
    }


def project_files(name: str) -> dict[str, str]:
    """Return path and text of every file of the project."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    values = template_values(name)
    loader = PackageLoader("dystop.cli", "scaffold")
    templates = Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True)
    return {
        path.format(**values): templates.get_template(f"{template}.jinja").render(values)
        for path, template in _FILES.items()
    }


def _write(folder: Path, texts: dict[str, str]) -> None:
    """Write all files into a new folder."""
    from dystop.errors import ConfigError, StorageError

    try:
        folder.mkdir(parents=True)
        for path, text in texts.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    except FileExistsError:
        raise ConfigError(
            f"command line: {folder} exists; choose another name, or another folder with --out"
        ) from None
    except OSError as error:
        raise StorageError(f"{folder}: cannot write: {error.strerror}") from None


@handle_errors
def new(
    what: Annotated[What, typer.Argument(help="Kind of project.")],
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the mechanism, such as my-idea.")
    ],
    out: Annotated[
        Path, typer.Option(help="Folder in which the project folder is created.")
    ] = Path(),
) -> None:
    """Create a project for your own mechanism: code, test and configuration.

    You can install and run the project at once. Then change the method `plan`.
    """
    from dystop.errors import ConfigError

    if problem := _problem(name):
        raise ConfigError(f"command line: name {name!r}: {problem}")
    folder, texts = out / name, project_files(name)
    _write(folder, texts)
    shown = shlex.quote(str(folder))
    for path in texts:
        typer.echo(f"  {folder / path}")
    typer.echo("next:")
    typer.echo(f"  pip install -e {shlex.quote(f'{folder}[test]')}")
    typer.echo(f"  pytest {shown}")
    typer.echo(f"  dystop run {shlex.quote(str(folder / f'{name}.toml'))}")
