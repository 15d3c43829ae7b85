"""A stand-in for torchvision, for peers that import it without needing it in this work.

Every name can be imported from it and nothing is behind them: calling one raises an error. A real
torchvision, where there is one, goes first.
"""


class Missing:
    """What stands for every function and class that is only imported."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise NotImplementedError("torchvision is not installed in this environment")


def __getattr__(name: str) -> type[Missing]:
    if name.startswith("__"):
        raise AttributeError(name)
    return Missing
