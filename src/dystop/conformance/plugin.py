"""The pytest option `--mechanism NAME`: run the conformance kit on an installed mechanism.

    pytest --mechanism my-idea

Without files or folders, pytest runs the kit alone; otherwise it runs what they select.
If pytest does not load plug-ins by itself, add `-p dystop.conformance.plugin`.
"""

from pathlib import Path

import pytest

_FIXTURE = "mechanism_under_test"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.getgroup("dystop").addoption(
        "--mechanism",
        action="append",
        default=[],
        metavar="NAME",
        help="run the conformance kit of dystop on this mechanism; may be repeated",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Refuse unknown names; run the kit alone if no file or folder is given."""
    names = config.getoption("--mechanism")
    if not names:
        return
    _check(names)
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = [str(Path(__file__).with_name("suite.py"))]


def _check(names: list[str]) -> None:
    from dystop.errors import ConfigError, nearest
    from dystop.mechanisms import MECHANISMS

    for name in names:
        try:
            MECHANISMS[name]
        except KeyError:
            hint = nearest(name, MECHANISMS) or f"; there are: {', '.join(MECHANISMS)}"
            problem = f"--mechanism {name}: no such mechanism is installed{hint}"
            raise pytest.UsageError(problem) from None
        except ConfigError as error:
            raise pytest.UsageError(str(error)) from None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test of the kit on each named mechanism."""
    if _FIXTURE in metafunc.fixturenames:
        from dystop.mechanisms import MECHANISMS

        names: list[str] = metafunc.config.getoption("--mechanism")
        metafunc.parametrize(_FIXTURE, [MECHANISMS[name]() for name in names], ids=names)
