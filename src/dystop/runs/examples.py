"""The examples that come with dystop: found by name, described, and copied out.

They are the files of the folder `examples` of a checkout. A wheel holds the same files as
`dystop/examples`, so that `dystop run example:quickstart` works in any folder.
"""

import ast
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from dystop.errors import ConfigError, StorageError, nearest
from dystop.storage import write_atomic

PREFIX = "example:"
_KINDS = {".toml": "configuration", ".py": "Python", ".ipynb": "notebook"}


@dataclass(frozen=True)
class Example:
    """One example: a configuration, a script or a notebook."""

    file: Path

    @property
    def name(self) -> str:
        """Return the name that commands take."""
        return self.file.stem

    @property
    def kind(self) -> str:
        """Return what the file is: a configuration, Python or a notebook."""
        return _KINDS[self.file.suffix]

    @property
    def sentence(self) -> str:
        """Return the first sentence of the file, which says what the example shows."""
        text = self.file.read_text(encoding="utf-8")
        match self.file.suffix:
            case ".py":
                text = ast.get_docstring(ast.parse(text)) or ""
            case ".ipynb":
                text = "".join(json.loads(text)["cells"][0]["source"]).partition("\n\n")[2]
            case _:
                text = _leading_comment(text)
        return first_sentence(text)

    @property
    def users(self) -> list["Example"]:
        """Return the configurations that name a script."""
        if self.file.suffix != ".py":
            return []
        found = [example for example in examples() if example.file.suffix == ".toml"]
        return [e for e in found if self.file.name in e.file.read_text(encoding="utf-8")]

    @property
    def commands(self) -> list[str]:
        """Return the commands that the comment of a configuration shows, in order.

        A script that a configuration names is used by that configuration.
        """
        if self.file.suffix == ".toml":
            return _shown_commands(self.file.read_text(encoding="utf-8"))
        return [command for user in self.users for command in user.commands]


def _shown_commands(text: str) -> list[str]:
    r"""Return the commands in the comment of a configuration.

    >>> _shown_commands("# Try it:\n#   dystop run a.toml \\\n#     seed=1\n# More.")
    ['dystop run a.toml seed=1']
    """
    lines = text.replace("\\\n#", "").splitlines()
    return [" ".join(line[1:].split()) for line in lines if line.startswith("#  ")]


def first_sentence(text: str) -> str:
    """Return the first sentence of a text, on one line.

    >>> first_sentence('10 workers with slow links. Compare  what links carry:')
    '10 workers with slow links.'
    >>> first_sentence('An app that fits a line; see docs/tutorial/own-model-and-data.md.')
    'An app that fits a line; see docs/tutorial/own-model-and-data.md.'
    """
    line = " ".join(text.split())
    ends = [at for mark in (". ", "? ") if (at := line.find(mark)) >= 0]
    return line[: min(ends, default=len(line)) + 1].removesuffix(":")


def _leading_comment(text: str) -> str:
    """Return the comment at the top of a configuration, without what it shows as a command."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#") or line.startswith("#  "):
            break
        lines.append(line.removeprefix("#").strip())
    return " ".join(lines)


def examples_folder() -> Path:
    """Return the folder of the examples: in the package, or beside `src` in a checkout.

    Raises:
        ConfigError: This installation holds no examples.
    """
    package = Path(str(resources.files("dystop")))
    for folder in (package / "examples", package.parents[1] / "examples"):
        if (folder / "quickstart.toml").is_file():
            return folder
    raise ConfigError(
        f"{package / 'examples'}: this installation of dystop holds no examples; install a wheel "
        "or a checkout"
    )


def examples() -> list[Example]:
    """Return all examples, configurations first, each kind by name."""
    files = [file for file in examples_folder().iterdir() if file.suffix in _KINDS]
    order = list(_KINDS)
    return [Example(file) for file in sorted(files, key=lambda f: (order.index(f.suffix), f.stem))]


def find_example(name: str) -> Example:
    """Return the example of this name, with or without the ending of its file.

    Raises:
        ConfigError: There is no such example; the message names the nearest one.
    """
    known = examples()
    for example in known:
        if name in (example.name, example.file.name):
            return example
    close = nearest(name, [example.name for example in known])
    raise ConfigError(
        f"command line: there is no example {name!r}{close or ';'} 'dystop examples' lists them"
    )


def configuration_of(name: str) -> Path:
    """Return the file of an example that is a configuration.

    Raises:
        ConfigError: There is no such example, or it is a script or a notebook.
    """
    example = find_example(name)
    if example.file.suffix == ".toml":
        return example.file
    raise ConfigError(
        f"command line: {PREFIX}{example.name} is a {example.kind} file, not a configuration; "
        f"copy it out: dystop examples {example.name}"
    )


def files_of(example: Example) -> list[Path]:
    """Return the file of an example, the other examples that it names, and those that use it."""
    text = example.file.read_text(encoding="utf-8")
    named = [e.file for e in examples() if e.file.name in text and e.file != example.file]
    return [example.file, *named, *(user.file for user in example.users)]


def copy_examples(chosen: Sequence[Example], folder: Path) -> list[Path]:
    """Copy examples, with the files that they need, into a folder; return the new paths.

    A file that is there with the same content stays.

    Raises:
        ConfigError: A file of that name is there with another content; nothing is written.
        StorageError: The disk refused a write.
    """
    sources = dict.fromkeys(file for example in chosen for file in files_of(example))
    pairs = [(file, folder / file.name) for file in sources]
    try:
        for source, target in pairs:
            if target.exists() and target.read_bytes() != source.read_bytes():
                raise ConfigError(
                    f"{target}: exists and differs from the example; choose another folder with "
                    "--to, or remove the file"
                )
        folder.mkdir(parents=True, exist_ok=True)
        for source, target in pairs:
            write_atomic(target, source.read_bytes())
    except OSError as error:
        raise StorageError(f"{folder}: cannot write: {error.strerror}") from None
    return [target for _, target in pairs]
