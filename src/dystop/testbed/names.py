"""What the parties of a testbed are called."""

COORDINATOR, OBSERVER, SERVER = "coordinator", "observer", "server"


def member_name(node: int, workers: int) -> str:
    """Return the name of a worker's node.

    >>> member_name(3, 15), member_name(3, 200)
    ('w03', 'w003')
    """
    return f"w{node:0{max(2, len(str(workers - 1)))}d}"
