"""What makes a report quick: one layout, lean fonts, few artists, late imports; the same look."""

import gc
import subprocess
import sys

import numpy as np
import pytest
from fontTools import subset
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont
from matplotlib.patches import FancyArrowPatch

from dystop.report import draw, write_report
from dystop.report.figures import labels
from dystop.report.figures.arrows import Arrows
from dystop.report.figures.fonts import SHAPING, lean_fonts
from dystop.report.figures.style import DPI, freeze_layout
from dystop.report.figures.svg import save
from dystop.report.garbage import spare_the_old
from dystop.rng import stream
from dystop.sparse import ints
from support.fake_runs import fake_run


def figure_of(key, runs=1):
    plots = {p.key: p for p in draw([fake_run(f"run{k}", seed=k + 1) for k in range(runs)])}
    return plots[key].figure


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
        figure.dpi = DPI
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        rim = np.asarray(canvas.buffer_rgba())[..., :3]
        assert (rim[[0, -1]] == 255).all()
        assert (rim[:, [0, -1]] == 255).all()


def test_pdf_keeps_true_type_letters_and_drops_shaping_tables():
    before = subset.load_font
    pdf = save(figure_of("loss-time"), "pdf")
    assert subset.load_font is before
    assert b"/FontFile2" in pdf
    assert b"/CIDFontType2" in pdf
    assert b"/Type3" not in pdf
    with lean_fonts(), subset.load_font(findfont("DejaVu Sans"), subset.Options()) as font:
        tables = set(font.keys())
    assert not set(SHAPING) & tables
    assert {"glyf", "cmap", "hmtx"} <= tables


def test_fonts_are_whole_again_after_an_error():
    before = subset.load_font
    with pytest.raises(RuntimeError), lean_fonts():
        raise RuntimeError
    assert subset.load_font is before


def arrows_and_patches(tail, head, gap_pt):
    figure = Figure(figsize=(4, 4), dpi=DPI)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 100), ylim=(0, 100))
    arrows = Arrows(tail, head, gap_pt, "black")
    axes.add_collection(arrows, autolim=False)
    style = {"arrowstyle": "-|>,head_length=3.2,head_width=1.6", "mutation_scale": 1}
    bend = {"connectionstyle": "arc3,rad=0.1", "shrinkA": gap_pt, "shrinkB": gap_pt}
    patches = [
        axes.add_patch(FancyArrowPatch(a, b, linewidth=0.9, **style, **bend))
        for a, b in zip(tail.tolist(), head.tolist(), strict=True)
    ]
    figure.draw_without_rendering()
    return arrows, patches, axes.transData


def test_arrows_are_those_of_single_patches():
    rng = stream(0, "arrows")
    tail, head = rng.uniform(10, 90, (40, 2)), rng.uniform(10, 90, (40, 2))
    head[0] = tail[0] + 1.0  # shorter than its gaps
    arrows, patches, to_pixels = arrows_and_patches(tail, head, 6.0)
    drawn = [path.vertices for path in arrows.get_paths()]
    for k, patch in enumerate(patches):
        wanted = to_pixels.transform(patch.get_path().vertices)
        got = np.concatenate([drawn[2 * k], drawn[2 * k + 1][:3]])
        assert np.abs(wanted[:6] - got).max() < 0.1  # of a pixel


def test_arrows_between_workers_in_the_same_place_do_no_harm():
    here = np.full((2, 2), 50.0)
    arrows, _, _ = arrows_and_patches(here, here, 6.0)
    assert all(np.isfinite(path.vertices).all() for path in arrows.get_paths())


def test_bars_are_one_artist_per_class_and_stand_on_each_other():
    axes = Figure().add_subplot()
    labels.draw_bars(axes.figure, axes, ints([[2, 3], [0, 4]]), ["a", "b"])
    low, high = (part.get_paths() for part in axes.collections)
    assert [p.get_extents().intervaly.tolist() for p in low] == [[0, 2], [0, 0]]
    assert [p.get_extents().intervaly.tolist() for p in high] == [[2, 5], [0, 4]]
    assert low[1].get_extents().intervalx.round(2).tolist() == [0.57, 1.43]
    assert axes.get_ylim() == (0, 5.25)


def test_old_objects_are_searched_again_afterwards(tmp_path):
    write_report([fake_run(rounds=3)], tmp_path, formats=())
    assert gc.get_freeze_count() == 0
    gc.freeze()
    try:
        with spare_the_old():
            pass
        assert gc.get_freeze_count() > 0  # the caller's own
    finally:
        gc.unfreeze()


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import dystop.report as r; r.summary_rows", {"matplotlib", "jinja2", "numba", "torch"}),
        ("import dystop.report as r; r.write_report; r.write_study", {"numba", "torch", "scipy"}),
        (
            "from dystop.experiments.config import read_experiment as read; read()",
            {"torch", "networkx", "scipy.sparse", "scipy.io", "scipy.special", "matplotlib"},
        ),
        ("import dystop; dystop.DySTop", {"torch", "networkx", "scipy.sparse"}),
    ],
)
def test_nothing_heavy_is_imported_before_it_is_needed(code, absent):
    ask = f"import sys; {code}; print(*({absent!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert not done.stdout.split()
