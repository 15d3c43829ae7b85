"""Figures: one layout for all file formats, nothing cut off, readable arrows, late imports."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from matplotlib.quiver import Quiver

from dystop.report import draw_runs
from dystop.report.figures.single_runs import labels
from dystop.report.figures.single_runs.maps import MAX_BENT_ARROWS
from dystop.report.figures.style import DPI, freeze_layout
from dystop.report.figures.svg import save
from support.fake_runs import fake_run, plain_record


def figure_of(key, runs=1):
    plots = {p.key: p for p in draw_runs([fake_run(f"run{k}", seed=k + 1) for k in range(runs)])}
    return plots[key].figure


def pixels_of(figure):
    figure.dpi = DPI
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3]


@pytest.mark.parametrize("key", ["accuracy-time", "label-distribution", "map"])
def test_bytes_do_not_depend_on_what_was_saved_before(key):
    kinds = ["svg", "png", "pdf"]
    figure, other = figure_of(key), figure_of(key)
    there = {kind: save(figure, kind) for kind in kinds}
    back = {kind: save(other, kind) for kind in kinds[::-1]}
    assert there == back
    assert there == {kind: save(figure, kind) for kind in kinds}


def test_a_figure_is_laid_out_once(monkeypatch):
    figure, calls = figure_of("loss-time"), []
    engine = figure.get_layout_engine()
    work = engine.execute
    monkeypatch.setattr(engine, "execute", lambda fig: calls.append(fig.dpi) or work(fig))
    dpi = figure.dpi
    for kind in ("svg", "png", "pdf"):
        save(figure, kind)
    assert calls == [DPI]
    assert figure.dpi == dpi


def test_nothing_is_cut_off_at_the_edge():
    for figure in (figure_of("accuracy-time"), figure_of("accuracy-time", runs=3)):
        freeze_layout(figure)
        pixels = pixels_of(figure)
        assert (pixels[[0, -1]] == 255).all()
        assert (pixels[:, [0, -1]] == 255).all()


def test_pdf_text_is_true_type():
    pdf = save(figure_of("loss-time"), "pdf")
    assert b"/FontFile2" in pdf
    assert b"/CIDFontType2" in pdf
    assert b"/Type3" not in pdf


def map_axes(workers, pairs):
    """The axes of a map with these links."""
    run = fake_run(workers=workers, rounds=0)
    record = plain_record(1, 1.0, link_pairs=pairs, active_ids=[0])
    (plot,) = [p for p in draw_runs([replace(run, records=[record])]) if p.key == "map"]
    return plot.figure.axes[0], np.asarray(run.fleet["positions"])


def test_arrows_go_from_sender_to_receiver_and_both_directions_are_visible():
    axes, positions = map_axes(4, [[0, 1], [1, 0], [2, 3]])
    arrows = [p for p in axes.patches if isinstance(p, FancyArrowPatch)]
    ends = [np.asarray(arrow._posA_posB) for arrow in arrows]
    assert np.allclose(ends, [positions[[1, 0]], positions[[0, 1]], positions[[3, 2]]])
    there, back = (a.get_path().vertices for a in arrows[:2])
    assert not np.allclose(there[1], back[1])  # bent to different sides


def test_arrows_between_workers_in_the_same_place_can_be_saved():
    run = fake_run(workers=2, rounds=0)
    record = plain_record(1, 1.0, link_pairs=[[0, 1]], positions=[[50.0, 50.0]] * 2)
    (plot,) = [p for p in draw_runs([replace(run, records=[record])]) if p.key == "map"]
    assert b"nan" not in save(plot.figure, "svg")


def test_many_links_are_one_artist():
    pairs = [[i, (i + k) % 60] for i in range(60) for k in range(1, 5)]
    assert len(pairs) > MAX_BENT_ARROWS
    axes, positions = map_axes(60, pairs)
    assert not any(isinstance(p, FancyArrowPatch) for p in axes.patches)
    (quiver,) = [c for c in axes.collections if isinstance(c, Quiver)]
    dst, src = np.asarray(pairs).T
    assert np.allclose(quiver.XY, positions[src])
    assert np.allclose(np.c_[quiver.U, quiver.V], positions[dst] - positions[src])


def test_bars_are_one_artist_per_class_and_stand_on_each_other():
    axes = Figure().add_subplot()
    labels.draw_bars(axes.figure, axes, np.array([[2, 3], [0, 4]]), ["a", "b"])
    low, high = (part.get_paths() for part in axes.collections)
    assert [p.get_extents().intervaly.tolist() for p in low] == [[0, 2], [0, 0]]
    assert [p.get_extents().intervaly.tolist() for p in high] == [[2, 5], [0, 4]]
    assert low[1].get_extents().intervalx.round(2).tolist() == [0.57, 1.43]
    assert axes.get_ylim() == (0, 5.25)


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import dystop.report as r; r.summary_rows", {"matplotlib", "jinja2", "numba", "torch"}),
        ("import dystop.report as r; r.write_report; r.write_study", {"numba", "torch", "scipy"}),
        (
            "from dystop.config import read_experiment as read; read()",
            {"torch", "networkx", "scipy.sparse", "scipy.io", "scipy.special", "matplotlib"},
        ),
        ("import dystop; dystop.DySTop", {"torch", "networkx", "scipy.sparse"}),
    ],
)
def test_nothing_heavy_is_imported_before_it_is_needed(code, absent):
    ask = f"import sys; {code}; print(*({absent!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert not done.stdout.split()
