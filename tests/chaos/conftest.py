"""Print the figures of the fault tests on the terminal, although pytest captures output."""

import pytest


@pytest.fixture
def show(capsys, request):
    """Return a function that prints a line of figures under the name of the test."""

    def line(text: str) -> None:
        with capsys.disabled():
            print(f"\n  {request.node.name}: {text}")

    return line
