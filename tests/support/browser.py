"""The checks of pages in a real browser, where one is installed."""

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

SCRIPT = Path(__file__).parents[2] / "scripts" / "take_screenshots.py"


def browser_checks() -> ModuleType | None:
    """Return the module of the script that takes screenshots; None without a browser."""
    has_browser = shutil.which("chromium") or shutil.which("google-chrome")
    if not has_browser or importlib.util.find_spec("playwright") is None:
        return None
    spec = importlib.util.spec_from_file_location("take_screenshots", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
