"""`dystop pki`: keys and certificates of the parties of a testbed."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from dystop.cli.help_examples import help_examples
from dystop.cli.terminal import handle_errors, show_table
from dystop.testbed.security import check_installed
from dystop.units import plural

pki = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=help_examples("pki"),
    help="Keys and certificates of the parties of a testbed.",
)
Folder = Annotated[Path, typer.Option(help="Folder of the authority, its keys and certificates.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="coordinator, observer, w00, w01, ...")]
_DEFAULT = Path("pki")


@handle_errors
def init(folder: Folder = _DEFAULT) -> None:
    """Create the certificate authority of a new federation."""
    check_installed()
    from dystop.testbed.security.authority import init as make

    typer.echo(f"authority {make(folder)[:16]} in {folder}; keep {folder / 'ca.key'} secret")


@handle_errors
def issue(
    name: Name,
    folder: Folder = _DEFAULT,
    days: Annotated[int, typer.Option(min=1, help="Days of validity.")] = 90,
) -> None:
    """Create the key and the certificate of a party, or renew them."""
    check_installed()
    from dystop.testbed.security.authority import issue as make

    typer.echo(f"{name} {make(folder, name, days)[:16]} valid {days} days")
    typer.echo(f"its host needs {name}.key, {name}.crt and ca.crt of {folder}")


@handle_errors
def revoke(name: Name, folder: Folder = _DEFAULT) -> None:
    """Revoke all certificates of a party."""
    check_installed()
    from dystop.testbed.security.authority import revoke as end

    typer.echo(f"{name}: {len(end(folder, name))} certificates revoked")


@handle_errors
def listing(folder: Folder = _DEFAULT) -> None:
    """List the parties that have a certificate."""
    check_installed()
    show_table(("name", "certificate", "valid until", "state"), list(_rows(folder)))


def _rows(folder: Path) -> Iterator[tuple[str, str, str, str]]:
    """Return one row for each party that was ever given a certificate."""
    from dystop.errors import ConfigError
    from dystop.testbed.security.authority import fingerprint
    from dystop.testbed.security.files import read_register
    from dystop.testbed.security.identity import parse_certificate, utc_now

    if not (folder / "ca.crt").is_file():
        raise ConfigError(f"{folder} holds no authority; create one with: dystop pki init")
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
        Path | None, typer.Option(metavar="FILE", help="Write it to a private file.")
    ] = None,
) -> None:
    """Create a one-time token with which a party gets its certificate over the network."""
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
    typer.echo(f"{out}: valid once, for 24 hours; copy it to the host of {name}, and run there:")
    ca = fingerprint((folder / "ca.crt").read_bytes())
    typer.echo(f"dystop pki join {name} --token-file {out.name} --from HOST:PORT --ca-sha256 {ca}")


@handle_errors
def tokens(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.toml", help="The experiment; it says who takes part.")
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for NAME.token and ca.crt.")],
    folder: Folder = _DEFAULT,
) -> None:
    """Create a token for every party of an experiment that has no certificate yet.

    A second call gives new tokens to those that are still without a certificate.
    """
    check_installed()
    from dystop.config import read_experiment
    from dystop.storage import PRIVATE
    from dystop.testbed.enrolment.tokens import make_token
    from dystop.testbed.security.files import read_register, write_file
    from dystop.testbed.setup.launch import other_parties

    issued = read_register(folder / "issued.json")
    names = [name for name in other_parties(read_experiment(file)) if not issued.get(name)]
    words = [make_token(folder, name) for name in names]
    out.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_file(out / "ca.crt", (folder / "ca.crt").read_bytes())
    for name, word in zip(names, words, strict=True):
        write_file(out / f"{name}.token", f"{word}\n".encode(), PRIVATE)
    typer.echo(f"{out}: {plural(len(names), 'token')}, each valid once, for 24 hours")


@handle_errors
def serve(
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where tokens are redeemed.")],
    folder: Folder = _DEFAULT,
) -> None:
    """Let new parties redeem their tokens until this process is stopped.

    `dystop coordinator --enrol` starts this command beside itself. No other process reads the key
    of the authority.
    """
    check_installed()
    import logging
    import signal
    import sys

    from dystop.testbed.enrolment.server import EnrolService

    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    service = EnrolService(folder).start(listen)
    typer.echo(service.address)
    sys.stdout.flush()
    try:
        signal.pause()
    finally:
        service.stop()


@handle_errors
def join(
    name: Name,
    token_file: Annotated[str, typer.Option(metavar="FILE", help="File with the token; -: stdin.")],
    address: Annotated[
        str,
        typer.Option("--from", metavar="HOST:PORT", help="The --enrol address of the coordinator."),
    ],
    ca: Annotated[Path | None, typer.Option(metavar="FILE", help="The authority's ca.crt.")] = None,
    ca_sha256: Annotated[
        str | None,
        typer.Option(metavar="HEX", help="Fingerprint of ca.crt, if the file is not on this host."),
    ] = None,
    folder: Annotated[
        Path, typer.Option(help="Folder for the key and the certificate of this host.")
    ] = _DEFAULT,
) -> None:
    """Get the certificate of this host with a token; the key is created here and never sent."""
    check_installed()
    from dystop.errors import ConfigError
    from dystop.testbed.enrolment.client import authority_at, read_token
    from dystop.testbed.enrolment.client import join as enrol

    if (ca is None) == (ca_sha256 is None):
        raise ConfigError(
            "give one of --ca and --ca-sha256; a token is sent only to a known authority"
        )
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
    "tokens": tokens,
    "serve": serve,
    "join": join,
}
for _name, _command in _COMMANDS.items():
    pki.command(_name)(_command)
