"""`dystop pki`: the certificates of a federation."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from dystop.cli.examples import examples
from dystop.cli.handle_errors import handle_errors
from dystop.cli.output import show_table

pki = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=examples("pki"),
    help="Keys and certificates: every party of a testbed has its own.",
)
Folder = Annotated[Path, typer.Option(help="Folder of the authority, its keys and certificates.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="coordinator, observer, w00, w01, ...")]
_DEFAULT = Path("pki")


def check_installed() -> None:
    """One line where the testbed's packages are not installed."""
    from importlib.util import find_spec

    from dystop.errors import ConfigError

    missing = [name for name in ("grpc", "cryptography") if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"{' and '.join(missing)} not installed; the testbed needs: pip install "
            "'dystop[testbed]'"
        )


@handle_errors
def init(folder: Folder = _DEFAULT) -> None:
    """Make the authority of a new federation."""
    check_installed()
    from dystop.testbed.security.authority import init as make

    typer.echo(f"authority {make(folder)[:16]} in {folder}; keep {folder / 'ca.key'} to yourself")


@handle_errors
def issue(
    name: Name,
    folder: Folder = _DEFAULT,
    days: Annotated[int, typer.Option(min=1, help="How long it is valid.")] = 90,
) -> None:
    """Make key and certificate of a party, or renew them."""
    check_installed()
    from dystop.testbed.security.authority import issue as make

    typer.echo(f"{name} {make(folder, name, days)[:16]} valid {days} days")
    typer.echo(f"its host needs {name}.key, {name}.crt and ca.crt of {folder}")


@handle_errors
def revoke(name: Name, folder: Folder = _DEFAULT) -> None:
    """Refuse all certificates of a party from now on."""
    check_installed()
    from dystop.testbed.security.authority import revoke as end

    typer.echo(f"{name}: {len(end(folder, name))} certificates revoked")


@handle_errors
def listing(folder: Folder = _DEFAULT) -> None:
    """Show who has a certificate."""
    check_installed()
    show_table(("name", "certificate", "valid until", "state"), list(_rows(folder)))


def _rows(folder: Path) -> Iterator[tuple[str, str, str, str]]:
    """One line for each party that was ever given a certificate."""
    from dystop.errors import ConfigError
    from dystop.testbed.security.authority import fingerprint
    from dystop.testbed.security.files import read_register
    from dystop.testbed.security.identity import parse_certificate, utc_now

    if not (folder / "ca.crt").is_file():
        raise ConfigError(f"{folder} holds no authority; make one with: dystop pki init")
    issued, revoked = read_register(folder / "issued.json"), read_register(folder / "revoked.json")
    for name, prints in sorted(issued.items()):
        file = folder / f"{name}.crt"
        newest = fingerprint(file.read_bytes()) if file.is_file() else str(prints[-1])
        until = (
            parse_certificate(file, file.read_bytes()).not_valid_after_utc
            if file.is_file()
            else None
        )
        state = "revoked" if newest in revoked else "valid"
        if until is not None and until < utc_now() and state == "valid":
            state = "expired"
        yield name, newest[:16], f"{until:%Y-%m-%d}" if until else "", state


@handle_errors
def token(
    name: Name,
    folder: Folder = _DEFAULT,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it to a file of your own.")
    ] = None,
) -> None:
    """Make a one-time word with which a party gets its certificate over the network."""
    check_installed()
    from dystop.storage import PRIVATE
    from dystop.testbed.enrolment.tokens import make_token
    from dystop.testbed.security.authority import fingerprint
    from dystop.testbed.security.files import write_file

    word = make_token(folder, name)
    if out is None:
        typer.echo(word)
        return
    write_file(out, f"{word}\n".encode(), PRIVATE)
    typer.echo(f"{out}: good once, within 24 hours; bring it to the host of {name}, and there:")
    ca = fingerprint((folder / "ca.crt").read_bytes())
    typer.echo(f"dystop pki join {name} --token-file {out.name} --from HOST:PORT --ca-sha256 {ca}")


@handle_errors
def join(
    name: Name,
    token_file: Annotated[str, typer.Option(metavar="FILE", help="With the token; -: stdin.")],
    address: Annotated[
        str, typer.Option("--from", metavar="HOST:PORT", help="The coordinator's --enrol.")
    ],
    ca: Annotated[Path | None, typer.Option(metavar="FILE", help="The authority's ca.crt.")] = None,
    ca_sha256: Annotated[
        str | None, typer.Option(metavar="HEX", help="Its fingerprint, where the file is not here.")
    ] = None,
    folder: Annotated[Path, typer.Option(help="For key and certificate of this host.")] = _DEFAULT,
) -> None:
    """Get the certificate of this host by a token; the key is made here and stays here."""
    check_installed()
    from dystop.errors import ConfigError
    from dystop.testbed.enrolment.client import authority_at, read_token
    from dystop.testbed.enrolment.client import join as enrol

    if (ca is None) == (ca_sha256 is None):
        raise ConfigError("give one of --ca and --ca-sha256: a token is not said to just anybody")
    if ca is not None and not ca.is_file():
        raise ConfigError(f"--ca {ca}: no such file; copy ca.crt, or give --ca-sha256")
    word = read_token(token_file)
    authority = ca.read_bytes() if ca else authority_at(address, str(ca_sha256))
    print_ = enrol(folder, name, word, authority, address)
    typer.echo(f"{name} {print_[:16]}: {name}.key, {name}.crt and ca.crt are in {folder}")


_COMMANDS: dict[str, Callable[..., None]] = {
    "init": init,
    "issue": issue,
    "revoke": revoke,
    "list": listing,
    "token": token,
    "join": join,
}
for _name, _command in _COMMANDS.items():
    pki.command(_name)(_command)
