"""The parsers of foreign bytes, with valid inputs and the errors that say that an input is bad."""

import atexit
import io
import json
import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from shutil import copytree, rmtree
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image
from typer.testing import CliRunner

from dystop.cli.app import app
from dystop.config import read_experiment
from dystop.dashboard.run_folders.log_reader import read_tail
from dystop.data.assignment import read_assignment
from dystop.data.importing.images import read_folders
from dystop.data.npz import read_npz, read_samples
from dystop.data.private import read_facts
from dystop.data.table_files import read_table, write_table
from dystop.errors import DystopError
from dystop.export.sources import RunSource
from dystop.folders.run_folder import open_run
from dystop.sealed import FIELD, UNSEALED, seal
from dystop.simulator.checkpoint import load_newest
from dystop.studies.study import create_study, open_study, outline
from dystop.testbed.audit.check import check_run
from dystop.testbed.enrolment.server import _request
from dystop.testbed.enrolment.tokens import _checked_request
from dystop.testbed.ledger.sqlite import SqliteLedger
from dystop.testbed.ledger.tables import RecordLine, RoundLine, read_blob, restore
from dystop.testbed.protocol import codec
from dystop.testbed.protocol.coded import pack_messages, unpack_messages
from dystop.testbed.protocol.payload import PayloadReceiver, Schema, digest
from dystop.testbed.protocol.pulls import ModelHeader, PullBroken
from dystop.testbed.setup.enrolment import read_enrolled, read_enrolment
from dystop.testbed.worker.checkpoint import decode_state, encode_state
from dystop.testbed.worker.history import read_event_log
from dystop.testbed.worker.state import first_state
from dystop.training.saved import read_model
from dystop.world.trace import TRACE
from dystop.world.trace_file import read_trace
from fuzz.engine import Target
from fuzz.mutations import (
    Rng,
    of_bytes,
    of_json,
    of_safetensors,
    of_whole_json,
    of_zip,
    pick,
)
from support.codecs import codec_for
from support.testbed.fuzzing import Values

Make = Callable[[str, Path], Target]
SMALL = (
    "data.name=synthetic", "data.train_limit=60", "data.test_limit=20", "model.name=softmax",
    "fleet.workers=3", "stop.rounds=3", "evaluate.every_rounds=1",
)  # fmt: skip
BAD = (DystopError,)
CPU = torch.device("cpu")
WIDTH = 12
SCHEMA = Schema((("a.weight", (2, 3)), ("a.bias", (2,)), ("b.running_var", (4,))))
COMPRESSED = {
    "topk": codec_for("topk", 0.25, (8, 4), 5),
    "places": codec_for("topk", 0.04, (8, 4), 5),
    "randomk": codec_for("randomk", 0.25, (8, 4), 5),
    "sign": codec_for("sign", 0.25, (8, 4), 5),
}


def make_target(name: str, folder: Path) -> Target:
    """Return a target; it may write into this folder, which is empty."""
    return _MAKERS[name](name, folder)


def _called(*words: str) -> None:
    result = CliRunner().invoke(app, [*words])
    if result.exit_code:
        raise AssertionError(result.output) from result.exception


def _simulated(folder: Path) -> Path:
    """Return a folder with a finished run; its models and checkpoints are kept."""
    return Path(copytree(_finished("run", "output.models=all", "output.checkpoint_every=1"),
                         folder / "run"))  # fmt: skip


def _testbed(folder: Path) -> Path:
    """Return a folder with a finished testbed run: ledger, trace, event logs."""
    words = ("testbed", "testbed.time_scale=0.05", "--transport", "memory")
    return Path(copytree(_finished(*words), folder / "run"))


@cache
def _finished(command: str, *words: str) -> Path:
    """Return the folder of a run that several targets copy; it is removed at the exit."""
    folder = TemporaryDirectory()
    atexit.register(folder.cleanup)
    place = ("--out", folder.name, "--name", "run", "--no-report", "--quiet")
    _called(command, *SMALL, *words, *place)
    return Path(folder.name, "run")


def _in_file(
    name: str,
    path: Path,
    read: Callable[[], object],
    seeds: Iterable[bytes] = (),
    **more: Any,
) -> Target:
    """Return a target that reads a file; the file's own content is the first valid input."""
    valid = (*([path.read_bytes()] if path.exists() else []), *seeds)

    def write_and_read(data: bytes) -> object:
        path.write_bytes(data)
        return read()

    return Target(name, write_and_read, valid, more.pop("refusals", BAD), **more)


# What peers, workers and coordinators send ------------------------------------------------------


def _messages(name: str, folder: Path) -> Target:
    del folder
    side: Any = name.removeprefix("message-")
    values = Values(np.random.default_rng(1), {})
    seeds = [_encoded(values, kind) for kind in codec._SIDES[side] for _ in range(6)]
    read = codec.decode
    return Target(name, lambda data: read(data, side), tuple(filter(None, seeds)),
                  (codec.BadMessage,), of_json)  # fmt: skip


def _encoded(values: Values, kind: type) -> bytes:
    try:
        return codec.encode(values.message(kind))
    except codec.BadMessage:  # some random texts are no addresses or digests
        return b'{"type":"%s"}' % codec._word(kind).encode()


def _payload(name: str, folder: Path) -> Target:
    """The header of a model and its bytes: a line of JSON, then the payload."""
    del folder
    body = b"".join(map(bytes, SCHEMA.pack(np.arange(WIDTH, dtype=np.float32))))
    header = ModelHeader(3, 1, 0, len(body), digest([body]), SCHEMA.hash)

    def read(data: bytes) -> object:
        first, _, rest = data.partition(b"\n")
        said = codec.decode(first, "peer")
        if not isinstance(said, ModelHeader):
            return None
        receiver = PayloadReceiver(SCHEMA)
        receiver.begin(said)
        for at in range(0, len(rest), 7):
            receiver.write(memoryview(rest)[at : at + 7])
        return receiver.finish()

    def mend(data: bytes) -> bytes:
        first, _, rest = data.partition(b"\n")
        try:
            said = codec.decode(first, "peer")
            if isinstance(said, ModelHeader) and len(rest) == said.size:
                first = codec.encode(replace(said, sha256=digest([rest])))
        except codec.BadMessage:
            pass
        return first + b"\n" + rest

    seeds = (codec.encode(header) + b"\n" + body,)
    return Target(name, read, seeds, (codec.BadMessage, PullBroken), _line_or_rest, mend)


def _line_or_rest(rng: Rng, data: bytes) -> bytes:
    first, _, rest = data.partition(b"\n")
    if rng.random() < 0.5:
        return of_json(rng, first) + b"\n" + rest
    return first + b"\n" + of_safetensors(rng, rest)


def _compressed(name: str, folder: Path) -> Target:
    """One byte that chooses the compressor, one with the number of messages, and the payload."""
    del folder
    kinds = list(COMPRESSED.values())
    seeds = []
    for k, kind in enumerate(kinds):
        for count in (1, 3):
            sent = [kind.message(np.arange(WIDTH, dtype=np.float32), 1, t + 1)
                    for t in range(count)]  # fmt: skip
            body = b"".join(map(bytes, pack_messages(kind, sent)))
            seeds.append(bytes([k, count]) + body)

    def read(data: bytes) -> object:
        if len(data) < 2:
            return None
        kind = kinds[data[0] % len(kinds)]
        return [kind.restored(m, 1) for m in unpack_messages(kind, data[2:], data[1])]

    return Target(name, read, tuple(seeds), (PullBroken, ValueError), of_bytes)


def _enrol(name: str, folder: Path) -> Target:
    """What a stranger sends to the enrolment port."""
    del folder
    from cryptography.hazmat.primitives.asymmetric import ec

    from dystop.testbed.enrolment.client import _request as signed

    pem = signed(ec.generate_private_key(ec.SECP256R1()), "w00")
    seed = json.dumps({"token": "ab" * 16, "request": pem}).encode()

    def read(data: bytes) -> object:
        found = _request(data)
        return found and _checked_request(found[1], "w00")

    return Target(name, read, (seed,), BAD, of_whole_json)


# Run folders and studies ------------------------------------------------------------------------


def _run_file(file: str, read: Callable[[Path], object] = open_run, **how: Any) -> Make:
    def make(name: str, folder: Path) -> Target:
        run = _simulated(folder)
        return _in_file(name, run / file, lambda: read(run), **{"mutate": of_json, **how})

    return make


def _records(run: Path) -> object:
    read_tail(run)
    RunSource(run).read()
    return open_run(run)


def _late_scores(name: str, folder: Path) -> Target:
    run = _simulated(folder)
    seed = b'{"round":1,"accuracy":0.5,"loss":2.0}\n{"round":2,"accuracy":0.25}\n'
    lines = (run / "records.jsonl").read_text().splitlines()
    without = [{**json.loads(line), "accuracy": None, "no_score": "late"} for line in lines]
    (run / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in without))
    return _in_file(name, run / "late_scores.jsonl", lambda: _records(run), (seed,), mutate=of_json)


def _study(name: str, folder: Path) -> Target:
    names = ("dystop", "matcha")
    every = [read_experiment(None, [*SMALL, f"name={n}", f"mechanism.name={n}"]) for n in names]
    study = create_study(folder, "study", every).path

    def read() -> object:
        outline(study)
        return open_study(study)

    return _in_file(name, study / "study.json", read, mutate=of_whole_json)


def _config(name: str, folder: Path) -> Target:
    path = _simulated(folder) / "config.toml"
    return _in_file(name, path, lambda: read_experiment(path), mutate=_of_toml)


def _of_toml(rng: Rng, data: bytes) -> bytes:
    """Return a TOML text in which a value is another, or a line stands elsewhere."""
    lines = data.split(b"\n")
    at = int(rng.integers(len(lines)))
    key, found, _ = lines[at].partition(b" = ")
    kind = int(rng.integers(4))
    if found and kind < 2:
        others = [line.partition(b" = ")[2] for line in lines if b" = " in line]
        odd = (
            b'nan -inf 1e400 [] [[]] {} "../x" "/dev/zero" -1 0 true 1979-05-27 "m:make" ""'.split()
        )
        lines[at] = key + b" = " + pick(rng, [*odd, b"9223372036854775807"] if kind else others)
    elif kind == 2:
        lines.insert(int(rng.integers(len(lines))), lines.pop(at))
    else:
        return of_bytes(rng, data)
    return b"\n".join(lines)


def _resealed(data: bytes) -> bytes:
    """Return a sealed file with the digest that its bytes have."""
    file = io.BytesIO(_unsealed(data))
    try:
        seal(file)
    except ValueError:
        return data
    return file.getvalue()


def _unsealed(data: bytes) -> bytes:
    """Return a sealed file in the form in which it is built, so that mutations keep its length."""
    mark = f'"{FIELD}":"'.encode()
    spaced = f'"{FIELD}": "'.encode()
    head, found, rest = data.replace(spaced, mark, 1).partition(mark)
    if data.count(spaced):  # one byte less: the length of the header is one less, too
        length = int.from_bytes(head[:8], "little")
        head = max(length - 1, 0).to_bytes(8, "little") + head[8:]
    return head + found + UNSEALED.encode() + rest[len(UNSEALED) :] if found else data


def _checkpoint(name: str, folder: Path) -> Target:
    run = _simulated(folder)
    newest, *others = sorted((run / "checkpoints").glob("*.safetensors"), reverse=True)
    for other in others:
        other.unlink()
    return _in_file(
        name, newest, lambda: load_newest(run / "checkpoints", CPU),
        mutate=of_safetensors, mend=_resealed,
    )  # fmt: skip


def _worker_checkpoint(name: str, folder: Path) -> Target:
    del folder
    state = first_state(np.arange(7, dtype=np.float32), np.arange(2), deltas=True)
    seed = encode_state(replace(state, run="ab" * 16))
    return Target(name, decode_state, (seed,), (ValueError, *BAD), of_safetensors, _resealed)


def _model(name: str, folder: Path) -> Target:
    path = _simulated(folder) / "models" / "global.safetensors"
    return _in_file(name, path, lambda: read_model(path), mutate=of_safetensors)


# Testbed runs -----------------------------------------------------------------------------------


def _trace(name: str, folder: Path) -> Target:
    run = _testbed(folder)
    return _in_file(name, run / TRACE, lambda: read_trace(run), mutate=of_json)


def _replay(name: str, folder: Path) -> Target:
    """A trace that is read is also run: one number must not decide what that takes."""
    run = _testbed(folder)

    def read() -> object:
        words = ["run", f"trace={run}", "engine.train=false", "--no-report", "--quiet"]
        place = ("--out", str(folder / "again"), "--name", "x")
        result = CliRunner().invoke(app, [*words, *place], env={"DYSTOP_DEBUG": "1"})
        rmtree(folder / "again", ignore_errors=True)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return None

    return _in_file(name, run / TRACE, read, mutate=of_json)


def _history(name: str, folder: Path) -> Target:
    run = _testbed(folder)
    path = next(run.glob("workers/*/history.jsonl"), None) or next(run.rglob("history.jsonl"))

    def read() -> object:
        read_event_log(path)
        return check_run(run)

    return _in_file(name, path, read, mutate=of_json)


def _ledger(name: str, folder: Path) -> Target:
    run = _testbed(folder)
    path = run / "state.db"
    _checkpointed(path)

    def read() -> object:
        for other in (*run.glob("state.db-*"), *run.glob("state.head"), *run.glob("state.lock")):
            other.unlink()
        with closing(SqliteLedger(path)) as ledger:
            return restore(ledger)

    return _in_file(name, path, read, mutate=of_bytes)


def _checkpointed(path: Path) -> None:
    import sqlite3

    with closing(sqlite3.connect(path)) as base:
        base.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        base.execute("PRAGMA journal_mode = DELETE")


def _blob(name: str, folder: Path) -> Target:
    """A value in a row of the ledger, whose checksum anybody can compute."""
    with closing(SqliteLedger(_testbed(folder) / "state.db")) as ledger:
        rounds: Sequence[RoundLine] = list(ledger.rows("rounds"))
        records: Sequence[RecordLine] = list(ledger.rows("records"))
    seeds = {*(r.plan for r in rounds), *(r.books for r in rounds if r.books)}
    seeds |= {v for r in records for v in vars(r).values() if isinstance(v, bytes)}
    return Target(name, read_blob, tuple(sorted(seeds)[:6]), (ValueError,), of_safetensors)


def _enrolment(name: str, folder: Path) -> Target:
    run = _testbed(folder)
    experiment = read_experiment(run / "config.toml")

    def read() -> object:
        with suppress(DystopError):  # these workers bring no data
            read_enrolled(run / "enrolment.json", experiment)
        return read_enrolment(run, experiment)

    refusals = BAD
    return _in_file(name, run / "enrolment.json", read, mutate=of_whole_json, refusals=refusals)


# Data -------------------------------------------------------------------------------------------


def _npz(name: str, folder: Path) -> Target:
    rng = np.random.default_rng(0)
    images = {"x_train": rng.integers(0, 256, (4, 3, 3)).astype(np.uint8),
              "x_test": rng.integers(0, 256, (2, 3, 3)).astype(np.uint8),
              "y_train": np.array([0, 1, 0, 1]), "y_test": np.array([0, 1])}  # fmt: skip
    table = {**images, "x_train": np.ones((4, 2)), "x_test": np.ones((2, 2)),
             "y_train": np.ones(4), "y_test": np.ones(2), "column.writer": np.arange(4),
             "mean": np.ones(1), "std": np.ones(1)}  # fmt: skip
    named = {**images, "class_names": np.array(["a", "b"]), "mean": np.ones(1), "std": np.ones(1)}
    path = folder / "data.npz"

    def read() -> object:
        with suppress(DystopError):
            read_samples(path)
        return read_npz(path)

    seeds = []
    for arrays in (images, table, named):
        file = io.BytesIO()
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
        seeds.append(file.getvalue())
    return _in_file(name, path, read, seeds, mutate=of_zip)


def _csv(name: str, folder: Path) -> Target:
    path = folder / "data.csv"
    seeds = (b"a,b,label\n1,2.5,x\n2,,y\n", b"sample,worker\n0,0\n1,1\n2,2\n")
    return _in_file(name, path, lambda: read_table(path), seeds, mutate=_of_csv)


def _of_csv(rng: Rng, data: bytes) -> bytes:
    lines = data.split(b"\n")
    if rng.random() < 0.9 or len(lines) < 2:
        return of_bytes(rng, data)
    long = b"x" * int(rng.integers(1, 130_000))
    return b"\n".join([lines[0], *lines[1:2] * 4000, lines[1].replace(b"1", long)])


def _parquet(name: str, folder: Path) -> Target:
    path, made = folder / "data.parquet", []
    write_table(path, {"a": np.arange(20), "b": np.linspace(0, 1, 20), "c": np.array(["x"] * 20)})
    made.append(path.read_bytes())
    return _in_file(name, path, lambda: read_table(path), mutate=of_bytes)


def _assignment(name: str, folder: Path) -> Target:
    path = folder / "parts.json"
    seeds = (b'{"0":[0,1],"1":[2],"2":[3]}',)
    return _in_file(name, path, lambda: read_assignment(path, 4, 3), seeds, mutate=of_whole_json)


def _facts(name: str, folder: Path) -> Target:
    path = folder / "w00.json"
    seed = {"data_size": 3, "label_counts": [1, 2], "shape": [1, 2, 2], "pixels": "uint8",
            "mean": [0.5], "std": [0.25]}  # fmt: skip
    seeds = (json.dumps(seed).encode(),)
    return _in_file(name, path, lambda: read_facts(path), seeds, mutate=of_whole_json)


def _images(name: str, folder: Path) -> Target:
    ending = name.removeprefix("image-")
    path = folder / "a" / f"1.{ending}"
    path.parent.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(path)

    def read() -> object:
        return read_folders([folder], ["a"], (8, 8))

    return _in_file(name, path, read, mutate=_of_image)


def _of_image(rng: Rng, data: bytes) -> bytes:
    if data[:4] == b"\x89PNG" and rng.random() < 0.3:  # another size, under a right checksum
        import zlib

        size = struct.pack(">II", *(int(2 ** rng.uniform(0, 31)) for _ in range(2)))
        head = b"IHDR" + size + data[24:29]
        return data[:12] + head + struct.pack(">I", zlib.crc32(head)) + data[33:]
    return of_bytes(rng, data)


_MAKERS: dict[str, Make] = {
    **dict.fromkeys(("message-coordinator", "message-worker", "message-peer"), _messages),
    "payload": _payload,
    "compressed": _compressed,
    "enrol": _enrol,
    "records": _run_file("records.jsonl", _records),
    "late-scores": _late_scores,
    "info": _run_file("run.json", mutate=of_whole_json),
    "fleet": _run_file("fleet.json", mutate=of_whole_json),
    "study": _study,
    "config": _config,
    "checkpoint": _checkpoint,
    "worker-checkpoint": _worker_checkpoint,
    "model": _model,
    "trace": _trace,
    "replay": _replay,
    "history": _history,
    "ledger": _ledger,
    "blob": _blob,
    "enrolment": _enrolment,
    "npz": _npz,
    "csv": _csv,
    "parquet": _parquet,
    "assignment": _assignment,
    "facts": _facts,
    **dict.fromkeys(("image-png", "image-gif", "image-bmp", "image-tif"), _images),
}
NAMES = tuple(_MAKERS)
