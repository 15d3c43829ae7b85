"""Rows of the four tables: by hand, and against a slow twin."""

from pathlib import Path
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from dystop.export.rows import COLUMNS, TABLES, RoundRows
from dystop.export.writer import Curves, curves
from dystop.record import SCORE
from dystop.recorders import number_fields
from support.export_fixtures import rich_record
from support.fake_runs import plain_record


def rows_of(record, traced=None, energy_j_total=None):
    """Return the rows of all tables."""
    found = RoundRows(record, traced, energy_j_total)
    return SimpleNamespace(**{table: list(found.of(table)) for table in TABLES})


def test_a_round_by_hand():
    rows = rows_of(rich_record(2), energy_j_total=60.0)
    assert rows.rounds[0]["energy_j"] == 30.0
    assert rows.rounds[0]["notes.phase"] == 1.0
    assert "accuracy" not in rows.rounds[0]
    assert rows.workers == [
        {"round": 2, "clock_s": 3.0, "worker": 0, "active": True, "accuracy": 0.2, "loss": 1.0,
         "energy_j": 12.0, "epsilon": None, "not_finite": False, "x_m": None, "y_m": None},
        {"round": 2, "clock_s": 3.0, "worker": 1, "active": False, "accuracy": None, "loss": None,
         "energy_j": 10.0, "epsilon": None, "not_finite": False, "x_m": None, "y_m": None},
        {"round": 2, "clock_s": 3.0, "worker": 2, "active": False, "accuracy": 0.4, "loss": 2.0,
         "energy_j": 8.0, "epsilon": None, "not_finite": False, "x_m": None, "y_m": None},
    ]  # fmt: skip
    assert rows.links == [{"round": 2, "clock_s": 3.0, "dst": 0, "src": 2, "lost": False}]
    (test,) = rows.tests
    assert (test["accuracy"], test["energy_j_total"], test["accuracy_worst"]) == (0.2, 60.0, 0.2)
    assert abs(test["accuracy_jain"] - 0.6**2 / (2 * 0.2)) < 1e-9


def test_a_round_without_a_test_and_without_names():
    rows = rows_of(plain_record(1, 2.0))
    assert (rows.workers, rows.links, rows.tests) == ([], [], [])
    assert rows.rounds[0]["round"] == 1


def test_positions_are_columns():
    rows = rows_of(plain_record(1, 2.0, positions=[[1.0, 2.0], [3.0, 4.0]]))
    assert [(r["worker"], r["x_m"], r["y_m"], r["active"]) for r in rows.workers] == [
        (0, 1.0, 2.0, None),
        (1, 3.0, 4.0, None),
    ]


def test_a_worker_whose_loss_is_not_finite_has_a_row():
    (row,) = rows_of(plain_record(1, 2.0, not_finite=[3])).workers
    assert (row["worker"], row["not_finite"], row["active"]) == (3, True, None)


def test_the_score_of_another_task_has_its_own_curve():
    record = plain_record(1, 2.0, accuracy=0.5, accuracy_global=0.6, score_name="r2")
    points = curves(RoundRows(record))
    assert (points["tests/r2"], points["tests/r2_global"]) == (0.5, 0.6)
    assert not any("accuracy" in name for name in points)
    assert RoundRows(record).record.accuracy == 0.5
    assert next(RoundRows(record).of("tests"))["score_name"] == "r2"


def test_links_of_a_trace_replace_those_of_the_record():
    traced = {"dst": [0, 1], "src": [1, 0], "stage": [0, 1], "seconds": [0.5, None],
              "bytes": [10, 0], "lost": [False, True], "stale": [True, True]}  # fmt: skip
    rows = rows_of(plain_record(1, 2.0, link_pairs=[[0, 1]]), traced)
    assert rows.links[1] == {"round": 1, "clock_s": 2.0, "dst": 1, "src": 0, "stage": 1,
                             "seconds": None, "bytes": 0, "lost": True}  # fmt: skip


def test_every_number_of_a_record_is_in_a_table():
    assert number_fields().keys() <= COLUMNS["rounds"].keys() | COLUMNS["tests"].keys()
    assert not COLUMNS["rounds"].keys() & set(SCORE)


def test_the_reference_names_every_column():
    page = (Path(__file__).parents[2] / "docs/how-to/export.md").read_text()
    sections = dict(zip(TABLES, page.split("\n### ")[1:], strict=True))
    for table, columns in COLUMNS.items():
        assert sections[table].startswith(table)
        missing = [name for name in columns if f"`{name}`" not in sections[table]]
        assert set(missing) <= {"round", "clock_s"}


@st.composite
def records(draw):
    n = draw(st.integers(1, 6))
    some = st.none() | st.lists(st.none() | st.floats(0, 1), min_size=n, max_size=n)
    ids = draw(st.none() | st.lists(st.integers(0, n - 1), unique=True))
    pairs = draw(st.none() | st.lists(st.lists(st.integers(0, n - 1), min_size=2, max_size=2)))
    accuracy = draw(st.none() | st.floats(0, 1))
    return plain_record(
        draw(st.integers(1, 99)), 1.0, active_ids=ids, link_pairs=pairs, accuracy=accuracy,
        worker_accuracy=draw(some), worker_loss=draw(some),
    )  # fmt: skip


@given(records())
def test_rows_have_known_columns_and_lose_nothing(record):
    rows = rows_of(record)
    for table in TABLES:
        for row in getattr(rows, table):
            assert row.keys() <= COLUMNS[table].keys() | {"notes.phase"}
            assert row["round"] == record.round
    assert {r["worker"] for r in rows.workers if r["active"]} == set(record.get("active_ids") or ())
    found = {r["worker"]: r["accuracy"] for r in rows.workers if r["accuracy"] is not None}
    assert found == {
        k: x for k, x in enumerate(record.get("worker_accuracy") or ()) if x is not None
    }
    assert [[r["dst"], r["src"]] for r in rows.links] == (record.get("link_pairs") or [])
    assert len(rows.tests) == (record.accuracy is not None)


def test_a_round_that_comes_again_gives_only_what_is_new():
    given_before = Curves()
    first = given_before.new("a", RoundRows(plain_record(1, 2.0)))
    assert first["rounds/loss"] == 1.0
    again = given_before.new("a", RoundRows(plain_record(1, 2.0, accuracy=0.5)))
    assert again["tests/accuracy"] == 0.5
    assert not any(name.startswith("rounds/") for name in again)
    assert given_before.new("a", RoundRows(plain_record(1, 2.0, accuracy=0.5))) == {}
    assert given_before.new("b", RoundRows(plain_record(1, 2.0))) == first
    assert "rounds/round" not in curves(RoundRows(plain_record(1, 2.0)))
