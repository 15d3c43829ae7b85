"""`python -m fuzz`: run the fuzz targets for some time; exit code 1 if there is a finding."""

import argparse
import sys
from pathlib import Path

from fuzz.engine import run_in_child
from fuzz.targets import NAMES, make_target


def main() -> None:
    """Run all targets in turn, each for its share of the time."""
    words = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    words.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(NAMES)}")
    words.add_argument("--seconds", type=float, default=300, help="for all targets together")
    words.add_argument("--inputs", type=int, help="for each target, in place of a time")
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--input", type=Path, metavar="FILE", help="give this file to one target")
    given = words.parse_args()
    targets = given.targets or list(NAMES)
    if unknown := {*targets} - {*NAMES}:
        words.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    if given.input:
        _read_one(targets[0], given.input)
        return
    failed = 0
    for name in targets:
        limits = {"inputs": given.inputs} if given.inputs else {}
        limits = limits or {"seconds": given.seconds / len(targets)}
        inputs, findings = run_in_child(make_target, name, given.seed, **limits)
        print(f"{name}: {inputs} inputs, {len(findings)} findings", flush=True)
        for k, finding in enumerate(findings):
            file = Path("build", "fuzz", f"{name}-{given.seed}-{k}")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(finding.data)
            print(f"{finding}\nor: python -m fuzz {name} --input {file}\n", flush=True)
        failed += len(findings)
    sys.exit(min(failed, 1))


def _read_one(name: str, file: Path) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        make_target(name, Path(folder)).read(file.read_bytes())


if __name__ == "__main__":
    main()
