"""Figures of the fault tests go to the terminal, whatever else is captured."""

import pytest


@pytest.fixture
def tell(capsys, request):
    """Print a line of figures under the name of the test."""

    def line(text: str) -> None:
        with capsys.disabled():
            print(f"\n  {request.node.name}: {text}")

    return line
