"""Exports of folders: each format by its real reader, live, repeated, and with bad input."""

import csv
import json
import shutil
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from dystop.cli import app
from dystop.errors import ConfigError, RunFolderError, StorageError
from dystop.export import Format, writer
from dystop.export.export import export
from dystop.export.sources import ABANDONED_S, open_source
from dystop.folders.late_scores import LateScoreLog
from dystop.folders.run_folder import write_atomic
from dystop.format import FORMAT
from support.export_fixtures import GrowingRun, rich_record, without_score

TABLES = ("rounds", "workers", "links", "tests")


@pytest.fixture
def run(tmp_path):
    growing = GrowingRun(tmp_path)
    growing.write(*map(rich_record, (1, 2, 3, 4)))
    growing.end()
    return growing


def csv_rows(out, table):
    with (out / f"{table}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def contents(out):
    return {p.relative_to(out): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}


def study_of(tmp_path, *names):
    """A sweep over data.phi whose runs may be missing."""
    folder = tmp_path / "sweep"
    folder.mkdir()
    rows = [{"folder": name} for name in names]
    content = {"format": FORMAT, "over": ["data.phi"], "runs": rows}
    write_atomic(folder / "study.json", json.dumps(content).encode())
    return folder


def test_csv(run, tmp_path):
    written = export(run.folder, Format.csv, tmp_path / "out")
    assert (written.runs, written.rounds) == (1, 4)
    assert [path.name for path in written.paths] == [f"{table}.csv" for table in TABLES]
    rounds, tests = csv_rows(tmp_path / "out", "rounds"), csv_rows(tmp_path / "out", "tests")
    assert [row["round"] for row in rounds] == ["1", "2", "3", "4"]
    assert rounds[0]["run"] == "trial"
    assert (rounds[0]["mechanism"], rounds[0]["seed"]) == ("dystop", "3")
    assert [row["energy_j_total"] for row in tests] == ["60.0", "120.0"]
    assert len(csv_rows(tmp_path / "out", "workers")) == 4 * 3
    assert csv_rows(tmp_path / "out", "links")[0]["lost"] == "false"


@pytest.mark.parametrize("to", [Format.parquet, Format.arrow])
def test_pyarrow_reads_what_was_written(run, tmp_path, to):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import feather, parquet

    export(run.folder, to, tmp_path / "out")
    read = parquet.read_table if to is Format.parquet else feather.read_table
    tables = {name: read(tmp_path / "out" / f"{name}.{to}") for name in TABLES}
    assert [tables[name].num_rows for name in TABLES] == [4, 12, 4, 2]
    schema = tables["tests"].schema
    assert schema.field("accuracy").type == pyarrow.float64()
    assert schema.field("round").type == schema.field("tested").type == pyarrow.int64()
    assert tables["tests"]["tested"].to_pylist() == [None, None]
    assert tables["tests"]["accuracy"].to_pylist() == pytest.approx([0.2, 0.4])
    assert tables["workers"].schema.field("active").type == pyarrow.bool_()
    assert tables["rounds"]["run"].to_pylist() == ["trial"] * 4


def accumulated(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return found


def test_tensorboard_reads_what_was_written(run, tmp_path):
    pytest.importorskip("tensorboard")
    export(run.folder, Format.tensorboard, tmp_path / "out")
    found = accumulated(tmp_path / "out" / "trial")
    points = found.Scalars("tests/accuracy")
    assert [(p.step, p.wall_time) for p in points] == [(2, 3.0), (4, 6.0)]
    assert [p.value for p in points] == pytest.approx([0.2, 0.4])
    assert [p.step for p in found.Scalars("rounds/energy_j")] == [1, 2, 3, 4]
    assert "rounds/notes.phase" in found.Tags()["scalars"]
    assert "workers/accuracy" in found.Tags()["tensors"]


@pytest.mark.parametrize("to", [Format.csv, Format.parquet, Format.arrow, Format.tensorboard])
def test_a_repeated_export_changes_nothing(run, tmp_path, to):
    export(run.folder, to, tmp_path / "out")
    before = contents(tmp_path / "out")
    export(run.folder, to, tmp_path / "out")
    assert contents(tmp_path / "out") == before


def test_the_default_place_is_in_the_run(run):
    assert export(run.folder, Format.csv).paths[0] == run.folder / "export" / "rounds.csv"


def test_a_study_is_one_set_of_tables(tmp_path):
    folder = study_of(tmp_path, "a", "b", "missing")
    for name, rounds in (("a", 2), ("b", 3)):
        growing = GrowingRun(folder, name)
        growing.write(*(rich_record(t) for t in range(1, rounds + 1)))
        growing.end()
        (folder / "plan").mkdir(exist_ok=True)
        shutil.copy(folder / name / "config.toml", folder / "plan" / f"{name}.toml")
    written = export(folder, Format.csv, tmp_path / "out")
    assert (written.runs, written.rounds) == (2, 5)
    rows = csv_rows(tmp_path / "out", "rounds")
    assert [row["run"] for row in rows] == ["a", "a", "b", "b", "b"]
    assert {row["data.phi"] for row in rows} == {"0.4"}


def test_following_a_run_to_its_end(tmp_path):
    growing, out = GrowingRun(tmp_path), tmp_path / "out"
    growing.write(rich_record(1))
    seen = []

    def grow(_):
        """Check what is there, then let the run go on."""
        seen.append(len(csv_rows(out, "rounds")))
        if len(seen) < 4:
            growing.write(rich_record(len(seen) + 1))
        else:
            growing.end()

    written = export(growing.folder, Format.csv, out, follow=True, wait=grow)
    assert seen == [1, 2, 3, 4]
    assert written.rounds == 4


def test_following_gives_the_events_of_an_export_at_the_end(tmp_path):
    pytest.importorskip("tensorboard")
    growing, out = GrowingRun(tmp_path), tmp_path / "live"
    growing.write(rich_record(1))
    waits = iter(range(2, 5))

    def grow(_):
        growing.write(rich_record(next(waits)))
        points = accumulated(out / "trial").Scalars("rounds/loss")
        assert [p.step for p in points] == list(range(1, len(points) + 1))
        if len(points) == 3:
            growing.end()

    export(growing.folder, Format.tensorboard, out, follow=True, wait=grow)
    export(growing.folder, Format.tensorboard, tmp_path / "after")
    assert contents(out) == contents(tmp_path / "after")


def test_following_a_study_whose_runs_begin_later(tmp_path):
    folder, out = study_of(tmp_path, "a", "b"), tmp_path / "out"
    runs, ended = {}, set()

    def grow(_):
        """Let the next thing happen: a run begins, or ends."""
        for name in ("a", "b"):
            if name not in runs:
                runs[name] = GrowingRun(folder, name)
                runs[name].write(rich_record(1))
                return
            if name not in ended:
                runs[name].write(rich_record(2))
                runs[name].end()
                ended.add(name)
                return

    written = export(folder, Format.csv, out, follow=True, wait=grow)
    assert (written.runs, written.rounds) == (2, 4)


def test_following_ends_when_nobody_writes_any_more(tmp_path):
    growing, now_s = GrowingRun(tmp_path), [0.0]
    growing.write(rich_record(1))
    growing.die()
    source = open_source(growing.folder, lambda: now_s[0])
    assert not source.is_over
    now_s[0] = ABANDONED_S - 0.1
    assert not source.is_over  # a coordinator may be on its way back
    now_s[0] = ABANDONED_S
    assert source.is_over


def test_ctrl_c_keeps_what_was_followed(tmp_path):
    growing, out = GrowingRun(tmp_path), tmp_path / "out"
    growing.write(rich_record(1))

    def interrupt(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(growing.folder, Format.csv, out, follow=True, wait=interrupt)
    assert len(csv_rows(out, "rounds")) == 1


def test_a_late_score_and_a_late_trace_are_added(tmp_path):
    growing, out = GrowingRun(tmp_path, kind="testbed"), tmp_path / "out"
    growing.write(rich_record(1), without_score(rich_record(2)))
    growing.trace(1)
    steps = []

    def grow(_):
        links, tests = csv_rows(out, "links"), csv_rows(out, "tests")
        steps.append((len(links), [t["accuracy"] for t in tests]))
        if len(steps) == 1:
            growing.trace(2)
        elif len(steps) == 2:
            with LateScoreLog(growing.folder) as log:
                log.append(rich_record(2))
        else:
            growing.end()

    export(growing.folder, Format.csv, out, follow=True, wait=grow)
    # One link of the record stands for round 2 until its trace with two links has come.
    assert steps == [(3, []), (4, []), (4, ["0.2"])]
    assert [link["seconds"] for link in csv_rows(out, "links")] == ["0.5", "", "0.5", ""]
    workers = [row for row in csv_rows(out, "workers") if row["round"] == "2"]
    assert [row["accuracy"] for row in workers] == ["0.2", "", "0.4"]


def test_a_failed_write_leaves_the_old_file(run, tmp_path, monkeypatch):
    out = tmp_path / "out"
    export(run.folder, Format.csv, out)
    before = contents(out)

    def full(path, columns, rows):
        path.write_text("half")
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("dystop.export.export.write_csv", full)
    with pytest.raises(StorageError, match=r"free space.*dystop export"):
        export(run.folder, Format.csv, out)
    assert contents(out) == before


def test_what_a_killed_export_left_is_removed(run, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / ".rounds.csv.tmp-123").write_text("half")
    export(run.folder, Format.csv, out)
    assert sorted(p.name for p in out.iterdir()) == sorted(f"{table}.csv" for table in TABLES)


def test_bad_input_gets_one_message(run, tmp_path):
    with pytest.raises(RunFolderError, match=r"tril: no such folder; did you mean 'trial'"):
        export(tmp_path / "tril", Format.csv)
    with pytest.raises(RunFolderError, match="It holds runs: name one"):
        export(tmp_path, Format.csv)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"cannot be created.*--out"):
        export(run.folder, Format.csv, tmp_path / "file")
    with (run.folder / "records.jsonl").open("a") as file:
        file.write("no record\n")
    with pytest.raises(RunFolderError, match=r"records\.jsonl: a line is damaged"):
        export(run.folder, Format.csv, tmp_path / "new")


@pytest.mark.parametrize(
    ("to", "package", "extra"),
    [("parquet", "pyarrow", "parquet"), ("arrow", "pyarrow", "parquet"), ("wandb",) * 3,
     ("tensorboard",) * 3, ("mlflow",) * 3],
)  # fmt: skip
def test_a_missing_package_is_named_before_anything_is_written(
    run, tmp_path, monkeypatch, to, package, extra
):
    def absent(name):
        raise ImportError(name)

    monkeypatch.setattr(writer, "import_module", absent)
    with pytest.raises(ConfigError, match=rf"needs {package}.*pip install 'dystop\[{extra}\]'"):
        export(run.folder, Format(to), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command(run, tmp_path):
    done = CliRunner().invoke(
        app, ["export", str(run.folder), "--to", "csv", "--out", str(tmp_path / "o")]
    )
    assert done.exit_code == 0, done.output
    assert "exported: 4 rounds of 1 run" in done.output
    assert str(tmp_path / "o" / "tests.csv") in done.output
    assert CliRunner().invoke(app, ["export", "nowhere", "--to", "csv"]).exit_code == 2


@pytest.mark.slow
def test_a_live_testbed_is_followed_to_its_end(tmp_path):
    """A testbed of three workers runs in another process while it is exported here."""
    words = [
        "data.name=synthetic", "data.options.train=60", "data.options.test=20",
        "model.name=softmax", "fleet.workers=3", "stop.rounds=8", "evaluate.every_rounds=2",
        "evaluate.per_worker=true", "energy.enabled=true", "testbed.time_scale=0.1",
        "--transport", "memory", "--name", "live", "--no-report", "--out", str(tmp_path),
    ]  # fmt: skip
    folder, out, seen = tmp_path / "live", tmp_path / "out", []
    command = [sys.executable, "-m", "dystop", "testbed", *words]

    def look(_):
        seen.append(len(csv_rows(out, "rounds")))
        time.sleep(0.1)

    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as testbed:
        try:
            while not (folder / "run.json").is_file():
                assert testbed.poll() is None
                time.sleep(0.1)
            written = export(folder, Format.csv, out, follow=True, wait=look)
            assert testbed.wait(60) == 0
        finally:
            testbed.kill()
    assert written.rounds == 8
    assert seen[0] < 8  # it was read while it ran
    tests = csv_rows(out, "tests")
    assert [row["round"] for row in tests] == ["2", "4", "6", "8"]
    assert all(float(row["energy_j_total"]) > 0 and row["accuracy_worst"] for row in tests)
    assert all(row["seconds"] for row in csv_rows(out, "links") if row["lost"] == "false")


def test_an_id_belongs_to_a_user_and_a_folder(tmp_path, monkeypatch):
    """An export replaces what has the same id, on a tracking server of several users, too."""
    ids = []
    for user, name in [("me", "a"), ("me", "a"), ("me", "b"), ("somebody", "a")]:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / user))
        folder = tmp_path / name / "trial"
        if not folder.exists():
            folder.parent.mkdir()
            growing = GrowingRun(folder.parent)
            growing.write(rich_record(1))
            growing.end()
        (source,) = open_source(folder).runs
        ids.append(source.label.id)
    assert ids[0] == ids[1]
    assert len({*ids}) == 3
