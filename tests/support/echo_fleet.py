"""Workers that answer at once, over the memory transport: a coordinator's load, and no learning."""

import threading
from typing import Any

from dystop.bench.echo import echoes as fleet_of

__all__ = ["fleet_of", "in_thread"]


def in_thread(call: Any) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread
