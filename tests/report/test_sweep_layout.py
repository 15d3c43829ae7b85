"""How a sweep is arranged: axis, panels, colours, stars, and the order of typing."""

from dataclasses import replace

import pytest

from dystop.report.data.comparison.study_results import study_results
from dystop.report.data.comparison.sweep_layout import curve_panels, panels, sweep_layout
from dystop.report.data.groups import group_runs
from dystop.report.pages.study import draw_groups, write_study
from support.fake_runs import fake_run


def swept_run(mechanism, V, phi, seed=0, **how):
    run = fake_run(f"{mechanism}-{V}-{phi}-s{seed}", mechanism, seed=seed, rounds=30, **how)
    section = {"name": mechanism, "V": V}
    return replace(run, config={**run.config, "mechanism": section, "data": {"phi": phi}})


@pytest.fixture
def by_phi():
    """Two mechanisms at three values of phi, typed as 1.0, 0.4, 0.7; each wins somewhere."""
    return [
        swept_run(name, 10.0, phi, slow=1.0 if (name == "dystop") == (phi > 0.5) else 2.0)
        for name in ("dystop", "matcha")
        for phi in (1.0, 0.4, 0.7)
    ]


def test_the_axis_is_no_mechanism_and_values_keep_their_order(by_phi):
    keys = ("mechanism.name", "data.phi")
    layout = sweep_layout(group_runs(by_phi), keys)
    assert (layout.axis, layout.values) == ("data.phi", (1.0, 0.4, 0.7))
    assert layout.panel_keys == ()
    assert layout.shared_keys == ("data.phi",)
    titles = [panel.title for panel in curve_panels(group_runs(by_phi), layout)]
    assert titles == ["phi = 1", "phi = 0.4", "phi = 0.7"]


def test_every_panel_has_its_stars_and_its_headline(by_phi):
    results = study_results(by_phi, 0.5, ("mechanism.name", "data.phi"))
    (ranking,) = results.rankings
    assert [p.title for p in ranking.panels] == ["phi = 1", "phi = 0.4", "phi = 0.7"]
    stars = [cell.best for cell in ranking.results[0].cells]
    assert [sum(stars[k : k + 2]) for k in (0, 2, 4)] == [1, 1, 1]
    assert [text.split(":")[0] for text in results.headlines] == [p.title for p in ranking.panels]
    assert "matcha (paper) is first" in results.headlines[1]


def test_a_colour_is_a_mechanism_in_every_figure(by_phi):
    results = study_results(by_phi, 0.5, ("mechanism.name", "data.phi"))
    colors = {(g.mechanism.name, g.color_index) for g in results.groups}
    assert colors == {("dystop", 0), ("matcha", 1)}
    for plot in draw_groups(results.rankings[0].groups, 0.5, results.swept):
        legends = plot.figure.legends if plot.figure is not None else []
        texts = [t.get_text() for legend in legends for t in legend.get_texts()]
        assert "matcha" in texts or "V = 10" not in texts


def test_one_mechanism_has_a_colour_per_value_and_a_panel_per_other_key():
    runs = [swept_run("dystop", V, phi) for V in (50.0, 1.0) for phi in (1.0, 0.4)]
    keys = ("mechanism.V", "data.phi")
    results = study_results(runs, 0.5, keys)
    layout = sweep_layout(results.groups, keys)
    assert not layout.has_mechanisms
    assert [p.title for p in panels(results.groups, layout.shared_keys)] == ["phi = 1", "phi = 0.4"]
    assert [g.color_index for g in results.groups] == [0, 0, 1, 1]


def test_a_sweep_over_mechanisms_alone_is_drawn(tmp_path):
    runs = [swept_run(name, 10.0, 0.4) for name in ("dystop", "matcha")]
    report = write_study(runs, tmp_path, title="t", formats=("svg",), over=("mechanism.name",))
    assert (tmp_path / "figures" / "sweep-accuracy.svg").is_file()
    assert len(report.results.headlines) == 1
