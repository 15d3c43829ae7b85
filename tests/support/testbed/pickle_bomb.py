"""A value whose pickle runs code when it is read."""

import os
from pathlib import Path


class Bomb:
    """Creates a folder when its pickle is loaded."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self):
        return os.mkdir, (str(self.canary),)
