"""The page and its figures: complete, self-contained, and safe against its input."""

import errno
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn

from dystop.errors import ConfigError, RunFolderError, StorageError
from dystop.folders.run_folder import RunData
from dystop.report import draw_runs, write_report
from dystop.report.data.names import rerun_command
from dystop.report.data.notices import notices
from dystop.report.data.settings import differing_settings
from dystop.report.data.summary import summarise
from dystop.report.figures.single_runs.labels import sorted_shares
from dystop.report.figures.single_runs.learning import NO_EVALUATION, NO_ROUND
from dystop.report.figures.single_runs.maps import map_data, typical_round
from dystop.report.figures.svg import save
from dystop.report.pages.runs import render_runs
from dystop.sparse import ints
from dystop.training.models.build import build_model
from dystop.training.models.catalogue import MODELS
from support.fake_runs import changed, fake_fleet, fake_run, plain_record

KEYS = {
    "accuracy-time", "loss-time", "communication-time", "accuracy-communication",
    "staleness-rounds", "staleness-histogram", "active-workers", "round-duration",
    "label-distribution", "map",
}  # fmt: skip


@pytest.fixture(scope="module")
def three():
    return [
        fake_run("dystop-s1"),
        fake_run("asydfl-s1", "AsyDFL", "reconstruction", seed=2, share=0.05),
        fake_run("third", "MATCHA", "authors' code", seed=3, share=0.9, slow=3.0),
    ]


def page_of(runs, out, **more):
    return write_report(runs, out, formats=(), **more).html.read_text()


def text_of(page):
    """The words of a page, entities resolved as a browser would."""
    return page.replace("&#39;", "'").replace("&amp;", "&")


@pytest.mark.parametrize("count", [1, 3])
def test_files_are_there_and_are_what_they_say(three, tmp_path, count):
    files = write_report(three[:count], tmp_path)
    assert files.html == tmp_path / "report.html"
    assert {f.stem for f in files.figures} == KEYS
    magic = {".png": b"\x89PNG\r\n\x1a\n", ".pdf": b"%PDF-"}
    for file in files.figures:
        assert file.read_bytes().startswith(magic[file.suffix])
        assert file.stat().st_size > 2000
    assert not list(tmp_path.rglob(".*"))


@pytest.mark.parametrize("count", [1, 2])
def test_page_asks_nothing_from_outside_and_explains_every_figure(three, tmp_path, count):
    page = page_of(three[:count], tmp_path)
    assert "http://" not in page
    assert "https://" not in page
    assert "<script" not in page
    assert not re.search(r"<link|@import|<img|<iframe", page)
    assert all(
        ref.startswith(("#", "data:", "figures/"))
        for ref in re.findall(r'(?:href|src)="([^"]*)"', page)
    )
    assert all(plot.caption in text_of(page) for plot in draw_runs(three[:count]))
    assert page.count('<svg role="img" aria-label="') == len(KEYS)
    assert not re.search(r"\bnan\b", page, re.IGNORECASE)


def test_every_id_is_unique_and_every_reference_is_met(three, tmp_path):
    page = page_of(three, tmp_path)
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:url\(#|href="#)([^")]*)', page)) <= set(ids)


def test_header_says_what_ran_and_how_to_repeat_it(three, tmp_path):
    page = text_of(page_of(three[:1], tmp_path))
    for words in (
        "dystop-s1", "provenance: paper", "async", "finished", "200 rounds reached",
        "a round lasts until its slowest active worker has pulled", "eager: a pull returns",
        "dystop run 'runs/demo folder/a/config.toml'", "torch 2.13.0", "mechanism.V",
        "noise power",
    ):  # fmt: skip
        assert words in page, words


def test_provenance_is_in_the_legends_and_in_the_table(three, tmp_path):
    page = page_of(three, tmp_path)
    assert "AsyDFL (reconstruction)" in page
    legends = [svg for svg in page.split("<svg")[1:] if "accuracy-time-" in svg]
    assert any(">asydfl-s1 (reconstruction)</text>" in svg for svg in legends)


def test_differing_settings_are_listed(three):
    rows = dict(differing_settings(three))
    assert rows["mechanism.name"] == ['"dystop"', '"AsyDFL"', '"MATCHA"']
    assert rows["mechanism.staleness_bound"] == ["2", "–", "–"]
    assert "workers" not in rows
    assert differing_settings([three[0], three[0]]) == []


def test_a_key_without_a_value_is_unset_and_a_foreign_one_is_a_dash(three):
    dystop, other, _ = three
    block = {k: v for k, v in dystop.config["mechanism"].items() if k != "staleness_bound"}
    bare = replace(dystop, config={**dystop.config, "mechanism": block})
    rows = dict(differing_settings([dystop, bare, other]))
    assert rows["mechanism.staleness_bound"] == ["2", "unset", "–"]
    limited = replace(dystop, config={**dystop.config, "training": {"workers": 2}})
    assert ["2", "unset"] in dict(differing_settings([limited, dystop])).values()


def test_names_cannot_become_markup(three, tmp_path):
    evil = "<script>alert(1)</script>"
    bad = replace(
        three[0],
        name=evil,
        info={**three[0].info, "stop_reason": evil, "mechanism": {"name": evil, "summary": evil}},
        config={evil: {"x": evil}},
        fleet={**three[0].fleet, "physics": {evil: evil}, "class_names": [evil] * 10},
    )
    bad = replace(bad, records=bad.records[:5])
    for runs in ([bad], [bad, bad]):
        page = page_of(runs, tmp_path)
        assert "<script" not in page
        assert "&lt;script&gt;" in page
        assert "default-src 'none'" in page


def test_odd_names_do_not_break_figures(tmp_path):
    run = fake_run(rounds=3, workers=3, every=1)
    names = ["$x", "a$b$c", "_hidden", "日本", "a\nb", "%s {x}", "--", "]]>", ""]
    page = page_of([replace(run, name=name) for name in names], tmp_path)
    assert "日本" in page
    (single,) = [p.figure for p in draw_runs([replace(run, name="日本")]) if p.key == "map"]
    assert single is not None
    assert save(single, "png").startswith(b"\x89PNG")


def test_no_round_no_evaluation_one_round(tmp_path):
    full = fake_run(rounds=6, workers=4)
    empty = page_of([replace(full, records=[])], tmp_path)
    assert NO_ROUND in empty
    assert NO_EVALUATION in empty
    unscored = [changed(r, accuracy=None) for r in full.records]
    assert "dystop-demo has not been evaluated" in page_of(
        [replace(full, records=unscored)], tmp_path
    )
    once = page_of([replace(full, records=full.records[4:5])], tmp_path)
    assert "Evaluated once." in once
    page_of([replace(full, records=[]), full, full], tmp_path)


def test_bare_folder_still_gives_a_page(tmp_path):
    run = replace(fake_run(rounds=0), config={}, info={}, fleet={})
    rows = [plain_record(1, 10.0, loss=None)]
    for records in ([], rows):
        page = page_of([replace(run, records=records)], tmp_path)
        assert "no map" in page
        assert "label counts" in page


@pytest.mark.parametrize("workers", [1, 41, 1000])
def test_any_number_of_workers(workers, tmp_path):
    run = fake_run(workers=workers, rounds=3, every=1)
    plots = {plot.key: plot for plot in draw_runs([run])}
    assert all(plot.figure is not None for plot in plots.values())
    assert ("staircase" in plots["label-distribution"].caption) == (workers > 40)
    assert len(page_of([run], tmp_path)) < 3_000_000


def test_alive_workers_are_drawn_only_under_churn():
    run = fake_run(workers=5, rounds=4)
    assert "alive-workers" not in {plot.key for plot in draw_runs([run])}
    fewer = [changed(r, alive=4) for r in run.records]
    assert "alive-workers" in {plot.key for plot in draw_runs([replace(run, records=fewer)])}


def test_map_shows_a_typical_round_and_the_server():
    run = replace(fake_run(workers=6, rounds=5), fleet=fake_fleet(6, 1, server=True))
    rows = [
        plain_record(1, 1.0, link_pairs=[], active_ids=[0]),
        plain_record(2, 2.0, link_pairs=[[0, 1]], active_ids=[0]),
        plain_record(3, 3.0, link_pairs=[[6, 1], [2, 6]], active_ids=[2, 1]),
        plain_record(4, 4.0, link_pairs=[], active_ids=[0]),
        plain_record(5, 5.0),
    ]
    record = typical_round(rows)
    assert record is not None
    assert record.round == 3
    shown = map_data(run, record)
    assert shown is not None
    assert (shown.workers, len(shown.positions)) == (6, 7)
    assert shown.dst.tolist() == [6, 2]
    assert shown.src.tolist() == [1, 6]


def test_a_typical_round_is_not_one_of_the_many_with_a_single_worker():
    small = [plain_record(t, float(t), link_pairs=[[0, 1]]) for t in range(1, 9)]
    large = plain_record(9, 9.0, link_pairs=[[k, 0] for k in range(1, 12)])
    record = typical_round([*small, large])
    assert record is not None
    assert record.round == 9


def test_map_follows_workers_that_move():
    run = fake_run(workers=2, rounds=1)
    moved = plain_record(1, 1.0, positions=[[1.0, 2.0], [3.0, 4.0]])
    shown = map_data(run, moved)
    assert shown is not None
    assert shown.positions.tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_heat_map_rows_are_shares_sorted_by_class():
    share = sorted_shares(ints([[0, 4], [3, 1], [4, 0], [0, 0]]))
    assert share.tolist() == [[1.0, 0.0], [0.75, 0.25], [0.0, 0.0], [0.0, 1.0]]


def test_the_same_runs_give_the_same_bytes(three):
    plots, again = draw_runs(three[:1]), draw_runs(three[:1])
    summaries = summarise(three[:1])
    assert render_runs(three[:1], summaries, plots) == render_runs(three[:1], summaries, again)
    first, second = plots[0].figure, again[0].figure
    assert first is not None
    assert second is not None
    assert save(first, "pdf") == save(second, "pdf")


def test_long_histories_say_that_points_are_means():
    rows = [plain_record(t, 10.0 * t) for t in range(1, 1001)]
    plots = {p.key: p for p in draw_runs([replace(fake_run(rounds=0), records=rows)])}
    assert "mean of 5 rounds" in " ".join(plots["loss-time"].notes)


def test_user_mistakes_are_named(three, tmp_path):
    with pytest.raises(ConfigError, match="at least one run"):
        write_report([], tmp_path)
    with pytest.raises(ConfigError, match=r"'gif'.*png, pdf, svg"):
        write_report(three, tmp_path, formats=("gif",))
    with pytest.raises(ConfigError, match="target accuracy is 80"):
        write_report(three, tmp_path, target=80)
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=str(tmp_path / "file")):
        write_report(three[:1], tmp_path / "file")


@pytest.mark.parametrize(("number", "space"), [(errno.ENOSPC, True), (errno.EACCES, False)])
def test_space_is_asked_for_only_where_it_helps(three, tmp_path, monkeypatch, number, space):
    def refuse(path, content, **options):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("dystop.report.pages.files.write_atomic", refuse)
    with pytest.raises(StorageError, match="could not be written") as caught:
        write_report(three[:1], tmp_path, formats=())
    assert ("free some space" in str(caught.value)) is space


def test_a_run_of_the_testbed_says_so():
    simulated = RunData(Path("runs/a"), "a", {}, {"status": "finished"}, {}, [])
    real = RunData(Path("runs/b"), "b", {}, {"status": "finished", "kind": "testbed"}, {}, [])
    assert rerun_command(simulated) == "dystop run runs/a/config.toml"
    assert rerun_command(real) == "dystop testbed runs/b/config.toml"
    assert any("b " in sentence and "testbed" in sentence for sentence in notices([real]))
    assert not any("testbed" in sentence for sentence in notices([simulated]))


def test_a_run_that_learns_nothing_is_reported():
    fine, poor, early = fake_run(), fake_run(top=0.0), fake_run(top=0.0, rounds=10)
    text = " ".join(notices([poor]))
    assert "guessing among 10 classes" in text
    assert "training.device=cpu" in text
    assert not any("guessing" in sentence for sentence in notices([fine, early]))


def test_moving_averages_of_batch_norm_are_reported():
    def of(name: str, **evaluate: str) -> RunData:
        run = fake_run()
        return replace(run, config=run.config | {"model": {"name": name}, "evaluate": evaluate})

    text = " ".join(notices([of("resnet18"), of("resnet18", statistics="running")]))
    assert text.count("resnet18") == 1
    assert "evaluate.statistics=recomputed" in text
    real = of("mobilenet-v2")
    real = replace(real, info=real.info | {"kind": "testbed"})
    fitting = [of("resnet18", statistics="recomputed"), of("resnet18-gn"), of("my.net:build"), real]
    assert not any("batch norm" in sentence for sentence in notices(fitting))


def test_the_catalogue_knows_which_models_have_batch_norm():
    for name, entry in MODELS.items():
        if entry.tokens:
            assert not entry.batch_norm
            continue
        parts = build_model(name, 3, (32, 32), 10, seed=0).modules()
        assert entry.batch_norm == any(isinstance(part, nn.BatchNorm2d) for part in parts)


def test_a_stand_in_model_is_reported():
    run = fake_run()
    odd = replace(run, config=run.config | {"model": {"name": "cnn", "wire_bytes": 44_734_248}})
    text = " ".join(notices([odd, odd]))
    assert text.count("44.7 MB") == text.count("model.wire_bytes") == 1
    assert "cnn" in text
    assert not any("model.wire_bytes" in sentence for sentence in notices([run]))
