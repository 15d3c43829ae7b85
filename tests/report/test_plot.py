"""`dystop plot`: files of exactly the size asked for, chosen lines, and mistakes in one message."""

import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from matplotlib.colors import to_hex
from typer.testing import CliRunner

from dystop.cli import app
from dystop.errors import ConfigError
from dystop.folders.run_folder import open_run
from dystop.report.data.plot_request import FIGURES, PlotRequest, plot_panels
from dystop.report.figures.paper import draw_paper
from dystop.report.figures.paper_style import (
    CM_PER_INCH,
    COLUMN_IN,
    PAGE_IN,
    PaperStyle,
    save_paper,
)
from dystop.studies.study import outline

SMALL = [
    "data.name=synthetic", "data.options.train=200", "data.options.test=60",
    "model.name=softmax", "fleet.workers=6", "stop.rounds=6", "evaluate.every_rounds=1",
]  # fmt: skip


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A sweep over two mechanisms and two values of phi, with two seeds."""
    out = tmp_path_factory.mktemp("runs")
    over = ["--over", "mechanism.name=dystop,fedavg", "--over", "data.phi=1.0,0.4"]
    done = call("sweep", *SMALL, *over, "--seeds", 2, "--out", out, "--name", "x", "--quiet")
    assert done.exit_code == 0, done.output
    return out / "x"


@pytest.fixture(scope="module")
def runs(study):
    return [open_run(folder) for folder in outline(study).begun]


def drawn(runs, style=None, **request):
    style = style or PaperStyle()
    with style.applied():
        return draw_paper(runs, PlotRequest(panels="data.phi", **request), style)


def texts(figure):
    return [t.get_text() for legend in figure.legends for t in legend.get_texts()]


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_has_a_panel_per_value(runs, name):
    found = drawn(runs, figure=name, target=0.05)
    titles = [axes.get_title() for axes in found.figure.axes]
    assert titles == ["phi = 1", "phi = 0.4"]
    assert "mean over 2 seeds" in found.caption
    assert "timing law paper" in found.caption


def test_mechanisms_labels_and_order(runs):
    figure = drawn(runs, mechanisms=("fedavg", "dystop"), labels={"dystop": "DySTop (ours)"}).figure
    assert texts(figure) == ["fedavg (reference)", "DySTop (ours)"]
    lines = figure.axes[0].get_lines()
    assert len({line.get_linestyle() for line in lines}) == 2
    assert len({line.get_color() for line in lines}) == 2


def test_settings_of_one_mechanism_are_lines(runs):
    style = PaperStyle()
    with style.applied():
        figure = draw_paper(runs, PlotRequest(mechanisms=("dystop",)), style).figure
    assert texts(figure) == ["phi = 1", "phi = 0.4"]
    both = plot_panels(runs, PlotRequest())[0].lines
    assert [line.color for line in both] == [0, 0, 1, 1]  # a colour is a mechanism
    assert [line.style for line in both] == [0, 1, 0, 1]  # a line style is a setting


def with_keys(run, **tables):
    """Return a run whose configuration has other values in some tables."""
    config = {**run.config}
    for table, values in tables.items():
        config[table] = {**config[table], **values} if isinstance(values, dict) else values
    return replace(run, config=config)


def test_a_reading_stands_for_the_keys_that_it_sets(runs):
    """The legend names the reading, not the keys behind it, but other differences as well."""
    one = next(run for run in runs if run.info["mechanism"]["name"] == "dystop")
    literal = with_keys(one, reading="literal", evaluate={"model": "trained"})
    physical = with_keys(one, reading="physical", evaluate={"model": "aggregated"})
    labels = [line.label for line in plot_panels([literal, physical], PlotRequest())[0].lines]
    assert labels == ["reading = literal", "reading = physical"]
    faster = with_keys(literal, testbed={"time_scale": 0.5})  # times are emulated seconds
    drawn_lines = plot_panels([literal, faster], PlotRequest())[0].lines
    assert not any("time_scale" in line.label for line in drawn_lines)
    slow = with_keys(physical, training={"learning_rate": 0.01})
    panels = plot_panels([literal, physical, slow], PlotRequest(panels="reading"))
    assert [len(panel.lines) for panel in panels] == [1, 2]
    assert "learning_rate = 0.01" in panels[1].lines[1].label
    assert "model" not in panels[1].lines[1].label


def test_limits_target_and_band(runs):
    style = PaperStyle(xlim=(0.0, 0.02), ylim=(0.1, 0.9), legend="inside")
    figure = drawn(runs, style, target=0.5, band="std").figure
    axes = figure.axes[0]
    assert axes.get_xlim() == (0.0, 0.02)
    assert axes.get_ylim() == (0.1, 0.9)
    assert [0.5, 0.5] in [list(line.get_ydata()) for line in axes.get_lines()]
    assert not figure.legends
    assert axes.get_legend() is not None
    assert not drawn(runs, band="none").figure.axes[0].collections


@pytest.mark.parametrize(("width", "inches"), [("column", COLUMN_IN), ("page", PAGE_IN), ("12", 0)])
def test_files_have_the_size_that_was_asked_for(study, tmp_path, width, inches):
    files = [tmp_path / f"a.{kind}" for kind in ("pdf", "svg", "pgf", "png")]
    outs = [word for file in files for word in ("--out", file)]
    done = call("plot", study, "--panels", "data.phi", "--width", width, "--height", 5, *outs)
    assert done.exit_code == 0, done.output
    points = 72 * (inches or 12 / CM_PER_INCH), 72 * 5 / CM_PER_INCH
    pdf, svg, pgf, png = (file.read_bytes() for file in files)
    box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+) ([\d.]+) ?\]", pdf)
    assert [float(side) for side in box.groups()] == pytest.approx(points, abs=0.01)
    root = ElementTree.fromstring(svg)
    assert [float(side) for side in root.get("viewBox").split()[2:]] == pytest.approx(
        points, abs=0.01
    )
    assert b"phi = 0.4" in svg
    sizes = re.search(rb"pgfpathrectangle.*?\{\\pgfqpoint\{([\d.]+)in\}\{([\d.]+)in\}\}", pgf)
    assert [72 * float(side) for side in sizes.groups()] == pytest.approx(points, abs=0.1)
    assert b"fedavg (reference)" in pgf
    assert png.startswith(b"\x89PNG")
    assert f"{2.54 * points[0] / 72:.2f} cm" in done.output


def test_fonts_are_embedded_as_truetype(runs, tmp_path):
    style = PaperStyle()
    with style.applied():
        pdf = save_paper(draw_paper(runs[:1], PlotRequest(), style).figure, "pdf")
        again = save_paper(draw_paper(runs[:1], PlotRequest(), style).figure, "pdf")
    assert pdf == again
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf.replace(b" ", b"")
    if shutil.which("pdffonts"):
        (tmp_path / "a.pdf").write_bytes(pdf)
        listed = subprocess.run(
            ["pdffonts", tmp_path / "a.pdf"], capture_output=True, text=True, check=True
        ).stdout
        assert "TrueType" in listed
        assert "Type 3" not in listed


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs LaTeX")
def test_pgf_compiles(study, tmp_path):
    call("plot", study, "--panels", "data.phi", "--out", tmp_path / "a.pgf")
    page = r"\documentclass{article}\usepackage{pgf}\begin{document}\input{a.pgf}\end{document}"
    (tmp_path / "page.tex").write_text(page)
    subprocess.run(
        ["pdflatex", "-interaction=batchmode", "-halt-on-error", "page"], cwd=tmp_path, check=True
    )


def test_a_style_file_wins_and_the_font_wins_over_it(runs, tmp_path):
    file = tmp_path / "mine.mplstyle"
    file.write_text("font.size: 6\naxes.prop_cycle: cycler('color', ['123456', '654321'])\n")
    style = PaperStyle(style=str(file), font_pt=9)
    with style.applied():
        figure = draw_paper(runs, PlotRequest(panels="data.phi"), style).figure
        assert figure.axes[0].xaxis.label.get_fontsize() == 9
    assert to_hex(figure.axes[0].get_lines()[0].get_color()) == "#123456"


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["--mechanisms", "dystpo"], ["dystpo", "did you mean 'dystop'", "fedavg"]),
        (["--label", "matcha=M"], ["--label matcha", "dystop, fedavg"]),
        (["--label", "dystop"], ["MECHANISM=TEXT"]),
        (["--panels", "data.phy"], ["data.phy", "data.phi"]),
        (["--width", "wide"], ["--width wide", "column, page"]),
        (["--height", "0"], ["--height 0", "2 to 100"]),
        (["--style", "gplot"], ["--style gplot", "ggplot"]),
        (["--legend", "bottom"], ["--legend bottom", "lower left"]),
        (["--xlim", "5,1"], ["--xlim 5,1", "FROM below TO"]),
        (["--ylim", "a"], ["--ylim a"]),
        (["--timing", "overlap"], ["--timing overlap", "paper"]),
        (["--target", "80"], ["--target 80", "0.8"]),
        (["--out", "figure.jpeg"], ["figure.jpeg", ".pdf, .svg, .pgf, .png"]),
        (["--figure", "time-to-target"], ["no target", "--target"]),
    ],
)
def test_mistakes_are_named_and_nothing_is_written(study, tmp_path, monkeypatch, words, facts):
    monkeypatch.chdir(tmp_path)
    done = call("plot", study, *words)
    assert done.exit_code == 2, done.output
    said = " ".join(done.output.split())
    for fact in facts:
        assert fact in said
    assert not list(tmp_path.iterdir())


def test_a_style_file_that_is_none_is_refused(study, tmp_path):
    bad = tmp_path / "bad.mplstyle"
    bad.write_text("font.size: huge and more\n")
    done = call("plot", study, "--style", bad, "--out", tmp_path / "a.pdf")
    assert done.exit_code == 2
    assert "bad.mplstyle" in done.output
    assert not (tmp_path / "a.pdf").exists()


def test_two_laws_need_a_choice(runs):
    other = [
        replace(
            run,
            info={**run.info, "timing": "overlap"},
            config={**run.config, "engine": {**run.config["engine"], "timing": "overlap"}},
        )
        for run in runs
    ]
    with pytest.raises(ConfigError, match="--timing paper"):
        plot_panels([*runs, *other], PlotRequest())
    one = plot_panels([*runs, *other], PlotRequest(law="overlap", panels="data.phi"))
    assert all(line.group.law == "overlap" for panel in one for line in panel.lines)


def test_several_runs_and_a_testbed_run(runs, study, tmp_path):
    folders = outline(study).begun[:2]
    done = call("plot", *folders, "--out", tmp_path / "a.svg")
    assert done.exit_code == 0, done.output
    measured = [replace(runs[0], info={**runs[0].info, "kind": "testbed"})]
    found = drawn(measured)
    assert "measured time" in found.caption
    assert found.figure.axes[0].get_xlabel() == "Measured time (s)"
