"""Runs and comparisons in a notebook."""

import re

import pytest

import dystop
from dystop.errors import ConfigError

SMALL = {"workers": 4, "dataset": "synthetic", "model": "softmax", "rounds": 3}
KINDS = ["accuracy", "accuracy-data", "loss", "data"]


@pytest.fixture(scope="module")
def run():
    return dystop.simulate("d-psgd", **SMALL).run()


@pytest.fixture(scope="module")
def comparison():
    return dystop.compare({"a <b>": "d-psgd", "fedavg": "fedavg"}, seeds=[0, 1], **SMALL)


@pytest.mark.parametrize("what", KINDS)
def test_a_run_is_drawn(run, what, tmp_path):
    drawing = run.plot(what)
    assert drawing._repr_png_().startswith(b"\x89PNG")
    assert len(drawing.figure.axes) == 1
    assert drawing.alt in repr(drawing)
    drawing.save(tmp_path / "figure.svg")
    assert "<svg" in (tmp_path / "figure.svg").read_text()


@pytest.mark.parametrize("what", KINDS)
def test_a_comparison_is_drawn(comparison, what):
    drawing = comparison.plot(what)
    assert drawing._repr_png_().startswith(b"\x89PNG")
    labels = [text.get_text() for text in drawing.figure.legends[0].get_texts()]
    assert labels == ["a <b>", "fedavg"]


def self_contained(page):
    assert "http" not in page
    assert "<script" not in page
    assert re.findall(r'src="([^"]{22})', page) == ["data:image/png;base64,"]


def test_a_run_is_a_table_with_a_figure(run):
    page = run._repr_html_()
    self_contained(page)
    for fact in ("d-psgd", "seed", "3", "accuracy"):
        assert fact in page


def test_a_comparison_is_a_table_with_a_figure(comparison):
    page = comparison._repr_html_()
    self_contained(page)
    assert "a &lt;b&gt;" in page
    assert "<b>" not in page
    assert all(row["mechanism"] in page or "&lt;" in page for row in comparison.summary())


def test_the_score_of_another_task_has_its_name():
    shared = {**SMALL, "dataset": "generated-table", "task": "regression"}
    run = dystop.simulate("d-psgd", **shared).run()
    page = run._repr_html_()
    assert "<th>r2</th>" in page
    assert "test r2" in run.plot().alt
    assert "accuracy" not in page
    assert repr(run).startswith("Run('d-psgd-generated-table-s0', 3 rounds, r2 ")


def test_names_do_not_become_markup(run):
    named = dystop.Run("<script>x", run.config, run.records, stop_reason="<i>")
    page = named._repr_html_()
    self_contained(page)
    assert "&lt;script&gt;x" in page
    assert "&lt;i&gt;" in page


def test_nothing_to_draw_is_said(run, tmp_path):
    empty = dystop.Run("empty", run.config, ())
    drawing = empty.plot()
    assert drawing._repr_png_() is None
    assert "no accuracy to draw" in repr(drawing)
    assert "no accuracy to draw" in empty._repr_html_()
    with pytest.raises(ConfigError, match="no accuracy"):
        drawing.save(tmp_path / "figure.png")


def test_wrong_names_are_refused(run, comparison, tmp_path):
    for value in (run, comparison):
        with pytest.raises(ConfigError, match=r"'acuracy'.*did you mean 'accuracy'"):
            value.plot("acuracy")
    with pytest.raises(ConfigError, match=r"\.png"):
        run.plot().save(tmp_path / "figure.txt")
    assert not list(tmp_path.iterdir())
