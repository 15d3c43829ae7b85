"""Parts of pages that are read from the code when the site is built.

    ```{generated} keys
    ```

`commands`            every command with its options and examples, from its `--help`
`keys`                every configuration key, from the list that `dystop list keys` prints
`keys SECTION`        the keys of one section
`mechanism NAME`      facts, provenance, deviations and keys of one mechanism
`mechanisms`          a table of all mechanisms
`fields MODULE:CLASS` the fields of a dataclass, with the comments of its source
`csv`                 the columns of results.csv
`messages`            the messages of the testbed
`exit-codes`          the exceptions with their exit codes

Each of them is a function that returns Markdown.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from itertools import groupby
from typing import Any, get_args

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata
from typer.main import get_command

from dystop import errors
from dystop.cli.app import app
from dystop.config import Experiment, every_key
from dystop.config.keys import Key, keys_of
from dystop.config.write import toml_value
from dystop.mechanisms import BUILT_IN, MECHANISMS
from dystop.report.data.summary import RunSummary
from dystop.testbed.protocol import messages as protocol
from dystop.testbed.protocol.codec import Peerwise
from dystop.types import (
    Capabilities,
    ControlState,
    Fleet,
    Mechanism,
    Observation,
    View,
    provenance_of,
)


@dataclass(frozen=True)
class FieldText:
    """A field of a dataclass as its source shows it."""

    name: str
    kind: str
    default: str
    comment: str


def field_texts(kind: type) -> Iterator[FieldText]:
    """Yield the fields of a dataclass with the comment behind each."""
    lines = textwrap.dedent(inspect.getsource(kind)).splitlines()
    body = ast.parse("\n".join(lines)).body[0]
    assert isinstance(body, ast.ClassDef)
    known = {f.name for f in fields(kind)}
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            if node.target.id not in known:
                continue
            text = "\n".join(lines[node.lineno - 1 : node.end_lineno])
            comments = re.findall(r"  # ((?!fmt:|noqa).*)$", text, re.M)
            default = "" if node.value is None else ast.unparse(node.value)
            kind_text = ast.unparse(node.annotation).strip("'")
            yield FieldText(node.target.id, kind_text, default, " ".join(comments))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    escaped = ([cell.replace("|", r"\|") for cell in row] for row in lines)
    return "\n".join(f"| {' | '.join(row)} |" for row in escaped)


def code(text: str) -> str:
    """Return text as code; nothing stays nothing."""
    return f"`{text}`" if text else ""


def document_fields(path: str) -> str:
    """Return a table of the fields of a dataclass, as in `dystop.record:RoundRecord`."""
    module, _, name = path.partition(":")
    kind = getattr(import_module(module), name)
    borrowed = _comments_of_view() if kind is View else {}
    rows = [
        (code(f.name), code(f.kind), f.comment or borrowed.get(f.name, ""))
        for f in field_texts(kind)
    ]
    return table(("field", "type", "meaning"), rows)


def _comments_of_view() -> dict[str, str]:
    """Return what the types say from which a view is put together."""
    parts = (*field_texts(Fleet), *field_texts(ControlState), *field_texts(Observation))
    own = {
        "t": "the round that opens, from 1",
        "now_s": "the clock: seconds since the start of the run",
        "fleet": "the workers and their data",
        "last": "what happened in the round before; `None` in the first",
        "mailbox": "pushed messages that wait for their receivers",
        "alive": "which workers are present, [N]",
    }
    return {part.name: part.comment for part in parts if part.comment} | own


def document_csv(_: str) -> str:
    """Return a table of the columns of results.csv that hold numbers."""
    rows = [(code(f.name), code(f.kind), f.comment) for f in field_texts(RunSummary)]
    return table(("column", "type", "meaning"), [r for r in rows if r[0] not in ("`label`",)])


def document_keys(section: str) -> str:
    """Return the configuration keys, one heading for each section."""
    every = [k for k in every_key() if k.name.partition(".")[0] == section or not section]
    parts = []
    for name, keys in groupby(every, key=lambda k: k.name.rpartition(".")[0]):
        meaning = _section_meaning(name)
        parts.append(f"## `[{name}]`\n\n{meaning}\n" if name else "## At the top of the file\n")
        parts += map(_document_key, keys)
    return "\n".join(parts)


def _section_meaning(name: str) -> str:
    """Return the first line of the docstring of a section."""
    kind: Any = Experiment
    for word in filter(None, name.split(".")):
        kind = next(f.type for f in fields(kind) if f.name == word)
    if kind is Mechanism:
        return "Who trains when, and with whom. These are DySTop's; each mechanism has its own."
    return str(inspect.getdoc(kind) or "").partition("\n")[0]


def _document_key(key: Key, option: str = "no-contents-entry") -> str:
    facts = f"Default {_default(key)}. Allowed: {_plain(key.allowed)}."
    meaning = _plain(key.meaning)
    meaning = f"{meaning[:1].upper()}{meaning[1:]}."
    return f"````{{confval}} {key.name}\n:{option}:\n\n{meaning}\n\n{facts}\n````\n"


def _default(key: Key) -> str:
    return code("unset" if key.default is None else toml_value(key.default))


def _plain(text: str) -> str:
    """Return text that Markdown shows as it is: single quotes around commands become code."""
    text = re.sub(r"'([^']*)'", r"`\1`", text)
    return re.sub(r"([*_<>\[\]$])(?![^`]*`(?:[^`]*`[^`]*`)*[^`]*$)", r"\\\1", text)


def document_mechanism(name: str) -> str:
    """Return facts, provenance and keys of a mechanism."""
    kind = MECHANISMS[name]
    able = kind().capabilities()
    mode = {"async": "asynchronous", "sync": "synchronous"}[able.mode]
    default = Capabilities(mode=able.mode)
    special = [
        (code(f.name), _capability(getattr(able, f.name)), _meaning(f.name))
        for f in fields(Capabilities)
        if f.name != "mode" and getattr(able, f.name) != getattr(default, f.name)
    ]
    module = import_module(kind.__module__)
    file = f"../../src/{module.__name__.replace('.', '/')}.py"
    origin = provenance_of(kind())
    parts = [
        f"Provenance: **{origin}**. {mode.capitalize()}.",
        _paragraphs(inspect.getdoc(kind) or ""),
        f"Code: [`{module.__name__}`]({file}). Class: {{py:class}}`dystop.{kind.__name__}`.",
    ]
    if special:
        parts += ["It declares:", table(("capability", "value", "meaning"), special)]
    keys = [_document_key(key, "no-index") for key in keys_of(kind, "mechanism.")]
    parts += keys or ["It has no keys."]
    return "\n\n".join(parts)


def _capability(value: object) -> str:
    return ", ".join(sorted(value)) if isinstance(value, frozenset) else str(value)


def _meaning(name: str) -> str:
    return next(f.comment for f in field_texts(Capabilities) if f.name == name)


def _paragraphs(doc: str) -> str:
    return "\n\n".join(_plain(" ".join(p.split())) for p in doc.split("\n\n"))


def document_mechanisms(_: str) -> str:
    """Return a table of all mechanisms, with links to their sections."""
    rows = [
        (
            f"[{name}](#{name})",
            MECHANISMS[name]().capabilities().mode,
            provenance_of(kind()),
            kind.summary,
        )
        for name in BUILT_IN
        for kind in [MECHANISMS[name]]
    ]
    return table(("mechanism", "mode", "provenance", "summary"), rows)


def document_commands(_: str) -> str:
    """Return every command with its usage, options and examples."""
    group = get_command(app)
    top = ["run", "compare", "sweep"]
    names = [*top, *(name for name in group.commands if name not in top)]
    return "\n\n".join(_document_command(f"dystop {n}", group.commands[n], "##") for n in names)


def _document_command(name: str, command: Any, heading: str) -> str:
    context = command.context_class(command, info_name=name)
    usage = command.get_usage(context).removeprefix("Usage: ")
    parts = [f"{heading} `{name}`", _paragraphs(inspect.cleandoc(command.help or ""))]
    parts.append(f"```text\n{usage}\n```\n\n```{{program}} {name}\n```")
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record and parameter.opts[0].startswith("-"):
            parts.append(f"````{{option}} {record[0]}\n{_plain(record[1])}\n````")
    if examples := (command.epilog or "").partition("Examples:\n")[2]:
        parts.append(f"```text\n{textwrap.dedent(examples).rstrip()}\n```")
    subcommands = getattr(command, "commands", {})
    parts += [_document_command(f"{name} {n}", c, f"{heading}#") for n, c in subcommands.items()]
    return "\n\n".join(parts)


def document_messages(_: str) -> str:
    """Return every message of the testbed with its fields."""
    directions = (
        ("To the coordinator", get_args(protocol.ToCoordinator)),
        ("To workers and the observer", get_args(protocol.ToWorker)),
        ("From worker to worker", get_args(Peerwise)),
        ("Parts of messages", tuple(_parts_of_messages())),
    )
    parts, seen = [], set[type]()
    for title, kinds in directions:
        parts.append(f"## {title}")
        for kind in kinds:
            if kind not in seen:
                seen.add(kind)
                parts += [f"### {kind.__name__}", _paragraphs(inspect.getdoc(kind) or "")]
                rows = [(code(f.name), code(_wire_type(f)), f.comment) for f in field_texts(kind)]
                parts.append(table(("field", "type", "meaning"), rows))
    return "\n\n".join(parts)


def _wire_type(field: FieldText) -> str:
    """Return the type of a field without its bounds, and its default.

    >>> _wire_type(FieldText("nodes", "Annotated[tuple[Node, ...], Len(0, MAX_NODES)]", "()", ""))
    'tuple[Node, ...] = ()'
    """
    kind = re.sub(r"Annotated\[(.*?), (?:(?:Len|Ge|Le)\([^)]*\)(?:, )?)+\]", r"\1", field.kind)
    return f"{kind} = {field.default}" if field.default else kind


def _parts_of_messages() -> Iterator[type]:
    whole = {*get_args(protocol.Message), *get_args(Peerwise)}
    for _, kind in inspect.getmembers(protocol, inspect.isclass):
        local = kind.__module__ == protocol.__name__
        if local and kind not in whole and not issubclass(kind, Exception):
            yield kind


def document_exit_codes(_: str) -> str:
    """Return the exceptions of dystop with their exit codes."""
    kinds = [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.DystopError)
    ]
    kinds.sort(key=lambda kind: (kind.exit_code, kind.__name__))
    rows = [
        (code(k.__name__), str(k.exit_code), _plain(str(inspect.getdoc(k)).partition("\n")[0]))
        for k in kinds
    ]
    return table(("exception", "exit code", "meaning"), rows)


GENERATED: dict[str, Callable[[str], str]] = {
    "commands": document_commands,
    "csv": document_csv,
    "exit-codes": document_exit_codes,
    "fields": document_fields,
    "keys": document_keys,
    "mechanism": document_mechanism,
    "mechanisms": document_mechanisms,
    "messages": document_messages,
}


class Generated(SphinxDirective):
    """Insert a part that is read from the code."""

    required_arguments = 1
    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the part, parsed as Markdown; it is read anew in every build."""
        self.env.note_reread()
        what, *more = self.arguments
        text = GENERATED[what](*more or [""])
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directive."""
    app.add_directive("generated", Generated)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
