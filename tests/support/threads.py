"""Run a call in a daemon thread."""

import threading
from collections.abc import Callable


def in_thread(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread
