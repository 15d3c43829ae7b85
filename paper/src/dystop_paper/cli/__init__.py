"""The commands that this package adds to `dystop`, by entry points in pyproject.toml."""
