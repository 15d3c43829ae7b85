"""Mistakes in options and arguments, in the words of dystop.

Typer checks them with pydantic, and prints the words of pydantic.
"""

from collections.abc import Mapping
from typing import Any

import typer
from typer.core import TyperGroup

from dystop.cli.packages import announced, loaded

_KINDS = {
    "int_parsing": "an integer",
    "int_parsing_size": "an integer of fewer digits",
    "int_from_float": "an integer",
    "float_parsing": "a number",
    "bool_parsing": "true or false",
}
_BOUNDS = {
    "greater_than_equal": ("ge", ">="),
    "greater_than": ("gt", ">"),
    "less_than_equal": ("le", "<="),
    "less_than": ("lt", "<"),
}


class Commands(TyperGroup):
    """All commands, also those of installed packages; mistakes are named in plain words."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, the built-in ones first."""
        built_in = super().list_commands(ctx)
        return [*built_in, *sorted(announced().keys() - set(built_in))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of a name; None: there is none."""
        built_in = super().get_command(ctx, cmd_name)
        if built_in is not None or cmd_name not in announced():
            return built_in
        return loaded(cmd_name)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that the words name."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            problems = getattr(error.__cause__, "errors", None)  # those of pydantic
            if callable(problems):
                error.message = _in_plain_words(problems()[0])
            raise


def _in_plain_words(problem: Mapping[str, Any]) -> str:
    kind, facts = problem["type"], problem.get("ctx", {})
    if kind in _BOUNDS:
        name, sign = _BOUNDS[kind]
        return f"{problem['input']}; expected {sign} {facts[name]}"
    if kind in _KINDS:
        return f"{problem['input']!r}; expected {_KINDS[kind]}"
    return str(facts.get("error", problem["msg"]))
