"""The one number of all formats: of what dystop stores, and of what its processes send each other.

It stands in `run.json` and `study.json`, in the checkpoints of simulator and workers, in the ledger
(`PRAGMA user_version`), in the enrolment, in the payload of a model and in the first message of a
session (`Join.format`).
"""

FORMAT = 4
"""The number of this version. Every change of a format raises it.

A format changes when a file, table, message or field is added, removed, renamed or reordered, when
it means something else, and when a class or a field that a checkpoint or a ledger holds is renamed.
Nothing converts: a reader refuses any other number with `other_format`.
"""


def other_format(what: object, found: object) -> str:
    """Return the sentence that refuses another number.

    >>> other_format("runs/x/run.json", 3)  # doctest: +ELLIPSIS
    'runs/x/run.json: its format is 3, this version of dystop uses 4; use the version ...'
    """
    return (
        f"{what}: its format is {found}, this version of dystop uses {FORMAT}; use the version of "
        "dystop that wrote it, or start a new run"
    )
