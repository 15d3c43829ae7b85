"""Change the code in ways that are wrong, one after another, and see that tests notice.

    python scripts/mutants.py --jobs 2
    python scripts/mutants.py --only staleness --only guard

`scripts/mutants.toml` lists the mutants: a file, an exact text in it, what replaces the text, and
the tests that must fail then. Each job has a copy of the tree, so the working tree never changes.
The named tests run once without any mutant, because a test that always fails kills nothing.

The exit code is 0 if every mutant was killed, 1 if one survived, and 2 if nothing can be said: a
text is not found exactly once, a test is missing, or a test fails without a mutant.
"""

import argparse
import ast
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory

import click

ROOT = Path(__file__).resolve().parent.parent
TABLE = Path(__file__).with_name("mutants.toml")
COPIED = ("src", "tests", "examples", "benchmarks", "paper", "docs", "pyproject.toml")
LIMIT_S = 900  # of the tests of one mutant; a mutant that never ends is killed
_PASSED, _FAILED = 0, 1  # exit codes of pytest


@dataclass(frozen=True)
class Mutant:
    """One wrong change, and the tests that must fail because of it."""

    name: str
    file: str
    text: str
    replacement: str
    tests: tuple[str, ...]  # as pytest names them: file::function

    def changed(self, source: str) -> str:
        """Return the source of the file with this mutant."""
        return source.replace(self.text, self.replacement)


@dataclass(frozen=True)
class Result:
    """What the tests said about a mutant."""

    mutant: Mutant
    code: int | None  # exit code of pytest; None: the tests did not end
    seconds: float
    output: str

    @property
    def verdict(self) -> str:
        """Whether it was killed or survived; broken: the tests could not be run."""
        if self.code in (_FAILED, None):
            return "killed"
        return "SURVIVED" if self.code == _PASSED else "BROKEN"


def read_table(path: Path = TABLE) -> list[Mutant]:
    """Return the mutants of a table."""
    entries = tomllib.loads(path.read_text())["mutant"]
    return [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def problems(mutants: Sequence[Mutant], root: Path = ROOT) -> Iterator[str]:
    """Say which mutants no longer fit the tree."""
    names = [mutant.name for mutant in mutants]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"{name}: two mutants have this name"
    for mutant in mutants:
        path = root / mutant.file
        source = path.read_text() if path.is_file() else ""
        if (count := source.count(mutant.text)) != 1:
            yield f"{mutant.name}: its text occurs {count} times in {mutant.file}, expected once"
        elif mutant.changed(source) == source:
            yield f"{mutant.name}: it changes nothing"
        elif problem := _syntax_error(mutant.changed(source)):
            yield f"{mutant.name}: {problem}"
        if not mutant.tests:
            yield f"{mutant.name}: it names no test"
        for test in mutant.tests:
            if not _exists(root, test):
                yield f"{mutant.name}: there is no test {test}"


def _syntax_error(source: str) -> str:
    try:
        ast.parse(source)
    except SyntaxError as error:
        return f"line {error.lineno} is no Python any more"
    return ""


def _exists(root: Path, test: str) -> bool:
    """Return whether a test function is defined, as file::function."""
    file, _, function = test.partition("::")
    path = root / file
    if not path.is_file():
        return False
    found = {n.name for n in ast.parse(path.read_text()).body if isinstance(n, ast.FunctionDef)}
    return function in found


def run_all(mutants: Sequence[Mutant], root: Path, jobs: int) -> Iterator[Result]:
    """Yield the result of each mutant as soon as it is known; raise SystemExit(2) beforehand."""
    with TemporaryDirectory(prefix="mutants-") as place:
        copies = SimpleQueue[Path]()
        for job in range(min(jobs, len(mutants))):
            copies.put(_copy(root, Path(place) / str(job)))
        first = copies.get()
        tests = sorted({test for mutant in mutants for test in mutant.tests})
        click.echo(f"{len(tests)} tests without a mutant ...")
        code, output = _pytest(first, tests)
        copies.put(first)
        if code != _PASSED:
            click.echo(f"{output}\nthese tests must pass without a mutant; mend them first")
            raise SystemExit(2)

        def work(number: int, mutant: Mutant) -> Result:
            copy = copies.get()
            try:
                return _run(mutant, number, copy)
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(jobs) as pool:
            waiting = [pool.submit(work, k, mutant) for k, mutant in enumerate(mutants)]
            for done in as_completed(waiting):
                yield done.result()


def _copy(root: Path, folder: Path) -> Path:
    """Copy what the tests need into a new folder."""
    folder.mkdir()
    for name in COPIED:
        source = root / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", ".hypothesis")
            shutil.copytree(source, folder / name, ignore=ignored)
        elif source.exists():
            shutil.copy2(source, folder / name)
    return folder


def _run(mutant: Mutant, number: int, copy: Path) -> Result:
    """Put a mutant into a copy, run its tests, and restore the copy."""
    file, began = copy / mutant.file, time.monotonic()
    before, times = file.read_text(), file.stat()
    file.write_text(mutant.changed(before))
    at = 2_000_000_000 + number  # Python knows stale bytecode by times in whole seconds
    os.utime(file, (at, at))
    try:
        code, output = _pytest(copy, mutant.tests)
    finally:
        file.write_text(before)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    return Result(mutant, code, time.monotonic() - began, output)


def _pytest(copy: Path, tests: Sequence[str]) -> tuple[int | None, str]:
    """Run tests of a copy until one fails; return the exit code and what was printed."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    places = [str(copy / place) for place in ("src", "paper/src", "benchmarks/src")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return None, f"the tests did not end within {LIMIT_S} s"
    return done.returncode, done.stdout + done.stderr


def main(words: Sequence[str] | None = None, table: Path = TABLE, root: Path = ROOT) -> int:
    """Run the mutants and print a table; return the exit code."""
    parser = argparse.ArgumentParser(description="see that tests notice wrong code")
    parser.add_argument("--jobs", type=int, default=1, help="mutants that are tested at once")
    parser.add_argument("--only", action="append", default=[], help="part of a name; repeatable")
    parser.add_argument("--list", action="store_true", help="only show the names")
    options = parser.parse_args(words)
    mutants = read_table(table)
    if found := list(problems(mutants, root)):
        click.echo("\n".join(found))
        return 2
    if options.only:
        mutants = [m for m in mutants if any(part in m.name for part in options.only)]
    if options.list or not mutants:
        click.echo("\n".join(mutant.name for mutant in mutants) or "no mutant has such a name")
        return 0 if mutants else 2
    began, results = time.monotonic(), list[Result]()
    for result in run_all(mutants, root, max(1, options.jobs)):
        results.append(result)
        head = f"{len(results):3}/{len(mutants)} {result.seconds:6.1f} s  {result.verdict:8}"
        click.echo(f"{head}  {result.mutant.name}")
        if result.verdict == "BROKEN":
            click.echo(result.output)
    return summary(results, time.monotonic() - began)


def summary(results: Sequence[Result], seconds: float) -> int:
    """Print what survived, and return the exit code."""
    left = [result for result in results if result.verdict != "killed"]
    click.echo(f"{len(results) - len(left)} of {len(results)} mutants killed in {seconds:.0f} s")
    for result in left:
        mutant = result.mutant
        click.echo(f"\n{result.verdict}: {mutant.name} in {mutant.file}")
        click.echo(f"    {mutant.text.strip()}\n    became\n    {mutant.replacement.strip()}")
        click.echo(f"    and these tests did not fail: {' '.join(mutant.tests)}")
    return max((2 if result.verdict == "BROKEN" else 1 for result in left), default=0)


if __name__ == "__main__":
    sys.exit(main())
