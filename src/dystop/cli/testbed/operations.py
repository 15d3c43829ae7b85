"""`dystop check`, `dystop pardon` and `dystop restore`: work on the folder of a testbed run."""

from typing import Annotated

import typer

from dystop.cli.options import Folder
from dystop.cli.terminal import handle_errors
from dystop.errors import shell_command


@handle_errors
def check(run: Folder) -> None:
    """Audit the files of a testbed run and name every guarantee that was broken.

    Exits with 0 if none was broken, with 5 if one was, and with 2 if event logs of workers are
    missing, so that not all guarantees can be checked. A notice names a member that misbehaved or
    failed; it breaks no guarantee.
    """
    from dystop.errors import RunFolderError, VerificationError
    from dystop.testbed.audit.check import audit_run
    from dystop.testbed.setup.launch import checked_folder
    from dystop.units import are

    audit = audit_run(checked_folder(run))
    for notice in audit.notices:
        typer.echo(f"notice: {notice}")
    findings = audit.findings
    for finding in findings:
        typer.echo(str(finding))
    for missing in audit.missing:
        typer.echo(str(missing))
    if findings:
        raise VerificationError(f"{run}: {len(findings)} guarantees were broken")
    if audit.missing:
        raise RunFolderError(
            f"{run}: {are(len(audit.missing), 'event log')} missing, so I3, I4, I6 and I7 are not "
            f"fully checked; nothing else is wrong. Copy the workers' folders to {run / 'workers'}"
        )
    typer.echo(f"{run}: no guarantee was broken")


@handle_errors
def pardon(
    run: Folder, name: Annotated[str, typer.Argument(metavar="NAME", help="Whom: w00, w01, ...")]
) -> None:
    """Let a worker return from quarantine, in a run that is running or stopped."""
    from dystop.errors import ConfigError
    from dystop.folders.run_folder import open_run
    from dystop.testbed.setup.launch import checked_folder
    from dystop.testbed.setup.operations import request_pardon

    if open_run(checked_folder(run)).info.get("status") == "finished":
        raise ConfigError(f"{run}: the run has finished; no worker can return to it")
    if request_pardon(run, name):
        typer.echo(f"{name} may join again; 'dystop testbed' restarts its process; otherwise run:")
        typer.echo(f"dystop worker ... --name {name}")
    else:
        typer.echo(f"no coordinator is running in {run}; {name} may join as soon as one is started")


@handle_errors
def restore(run: Folder) -> None:
    """Make the ledger of a coordinator usable again after damage or loss.

    A ledger that only lacks its last commits continues without them, unless a backup is newer.
    Otherwise the newest good backup takes its place, and the damaged file is kept as state.damaged.
    No worker does a round twice: rounds that it has already done close immediately without it, and
    `dystop check` names them.
    """
    from dystop.testbed.setup.launch import checked_folder
    from dystop.testbed.setup.operations import restore_ledger

    round_ = restore_ledger(checked_folder(run))
    typer.echo(f"{run}: the ledger is restored to its state after round {round_}")
    resume = shell_command("testbed", "--resume", run)
    typer.echo(f"resume with: {resume}, or start the coordinator again")
