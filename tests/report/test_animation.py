"""The moving picture of a run: well-formed, complete, and silent about what was not recorded."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from dystop.cli.app import app
from dystop.errors import RunFolderError
from dystop.report.figures.single_runs.animation import animation, staleness_by_round
from support.fake_runs import fake_run

SVG = "{http://www.w3.org/2000/svg}"


def test_every_worker_and_every_link_is_drawn_and_nothing_is_fetched():
    run = fake_run(workers=7, rounds=12)
    root = ElementTree.fromstring(animation(run, rounds=10, length_s=5.0))
    links = sum(len(r.get("link_pairs") or ()) for r in run.records[:10])
    assert len(root.findall(f".//{SVG}animateMotion")) == links
    shaded = [
        c
        for c in root.iter(f"{SVG}circle")
        if c.find(f"{SVG}animate[@attributeName='fill']") is not None
    ]
    assert len(shaded) == 7
    lengths = {a.get("dur") for kind in ("animate", "animateMotion") for a in root.iter(SVG + kind)}
    assert lengths == {"5s"}
    text = animation(run)
    assert not re.search(r"<script|href|url\((?!#)", text)


def test_moments_of_an_animation_rise_from_0_to_at_most_1():
    root = ElementTree.fromstring(animation(fake_run(workers=5, rounds=20)))
    for element in root.iter():
        if times := element.get("keyTimes"):
            moments = [float(t) for t in times.split(";")]
            assert moments[0] == 0
            assert moments == sorted(moments)
            assert moments[-1] <= 1
            values = element.get("values") or element.get("keyPoints") or ""
            assert len(values.split(";")) == len(moments)


def test_staleness_is_counted_from_the_active_workers():
    run = fake_run(workers=9, rounds=15)
    found = staleness_by_round(run.records, 9)
    means = [r.staleness_mean for r in run.records]
    assert found.mean(axis=1).tolist() == pytest.approx(means)


def test_a_name_cannot_become_markup():
    run = fake_run(mechanism="<b>&x", workers=3, rounds=2)
    assert "<b>" not in animation(run)
    ElementTree.fromstring(animation(run))


def test_a_run_without_links_is_refused():
    run = fake_run(workers=3, rounds=2)
    bare = replace(run, records=[replace(r, added={}) for r in run.records])
    with pytest.raises(RunFolderError, match=r"run it with output\.topology=full"):
        animation(bare)


def test_the_command_writes_one_file(tmp_path):
    words = ["fleet.workers=3", "stop.rounds=3", "data.name=synthetic", "model.name=softmax"]
    call = CliRunner().invoke
    made = call(app, ["run", *words, "--no-report", "-q", "--out", str(tmp_path), "--name", "a"])
    assert made.exit_code == 0, made.output
    assert call(app, ["animate", str(tmp_path / "a")]).exit_code == 0
    ElementTree.parse(tmp_path / "a" / "animation.svg")
    missing = call(app, ["animate", str(tmp_path / "b")])
    assert missing.exit_code == 2
