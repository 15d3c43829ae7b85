"""The `dystop` command. Nothing heavy is imported before a command needs it."""

from dystop.cli.app import app, main

__all__ = ["app", "main"]
