"""`dystop plot`: figures for a paper."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dystop.cli.terminal import echo, handle_errors

if TYPE_CHECKING:
    from dystop.folders.run_folder import RunData

Figure = Literal[
    "accuracy-time", "accuracy-traffic", "accuracy-epochs", "loss-time", "time-to-target",
    "staleness", "time-shares",
]  # fmt: skip


@handle_errors
def plot(  # noqa: PLR0913 - every parameter is an option of the command
    sources: Annotated[
        list[Path],
        typer.Argument(metavar="RUN|STUDY...", help="Runs, a comparison, a sweep, a testbed run."),
    ],
    figure: Annotated[
        Figure, typer.Option("--figure", help="What to draw.", show_default=True)
    ] = "accuracy-time",
    out: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="File to write: .pdf, .svg, .pgf or .png; repeatable. [default: FIGURE.pdf]",
        ),
    ] = None,
    mechanisms: Annotated[
        str, typer.Option(metavar="A,B,C", help="Mechanisms to draw, in this order. [default: all]")
    ] = "",
    labels: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="MECHANISM=TEXT", help="Name of a mechanism; repeatable."),
    ] = None,
    panels: Annotated[
        str, typer.Option(metavar="KEY", help="A panel for each value of this key.")
    ] = "",
    columns: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Panels side by side.")
    ] = None,
    width: Annotated[
        str, typer.Option(metavar="column|page|CM", help="Width of the figure.")
    ] = "column",
    height: Annotated[
        float | None, typer.Option(metavar="CM", help="Height. [default: from the width]")
    ] = None,
    font: Annotated[
        float | None, typer.Option(min=3, max=40, metavar="PT", help="Size of texts. [default: 8]")
    ] = None,
    style: Annotated[
        str, typer.Option(metavar="FILE|NAME", help="A matplotlib style file or style.")
    ] = "",
    legend: Annotated[
        str,
        typer.Option(
            metavar="PLACE",
            help="top, right, inside, none, or a place of matplotlib such as 'lower right'.",
        ),
    ] = "top",
    target: Annotated[
        float | None,
        typer.Option(help="Accuracy of the target line, and of time-to-target and time-shares."),
    ] = None,
    band: Annotated[
        Literal["range", "std", "none"],
        typer.Option(help="Spread over the seeds: lowest to highest, standard deviation, none."),
    ] = "range",
    timing: Annotated[
        str, typer.Option(metavar="LAW", help="Timing law, where the runs have both.")
    ] = "",
    xlim: Annotated[
        str, typer.Option(metavar="FROM,TO", help="Limits of the horizontal axis.")
    ] = "",
    ylim: Annotated[
        str, typer.Option(metavar="FROM,TO", help="Limits of the vertical axis, as in 0.4,0.9.")
    ] = "",
) -> None:
    """Draw a figure for a paper from runs, a comparison or a sweep.

    The defaults suit a two-column paper: the width of a column (8.89 cm), 8 pt, embedded fonts,
    colours for colour-blind readers, and a line style for each mechanism. A page is 18.19 cm wide.
    The figure has exactly the size that was asked for: include it without scaling. The last line
    says what a caption must state.
    """
    from dystop.report.data.plot_request import PlotRequest
    from dystop.report.figures.paper import draw_paper
    from dystop.report.figures.paper_style import PaperStyle, save_paper
    from dystop.storage import write_atomic

    files = out or [Path(f"{figure}.pdf")]
    kinds = [_format(path) for path in files]
    request = PlotRequest(
        figure=figure,
        mechanisms=tuple(name.strip() for name in mechanisms.split(",") if name.strip()),
        labels=dict(map(_label, labels or [])),
        panels=panels,
        law=timing,
        target=_target(target),
        band=band,
    )
    looks = PaperStyle(
        width_in=_width_in(width),
        height_in=None if height is None else _inches("--height", height),
        columns=columns,
        font_pt=font,
        style=style,
        legend=_legend(legend),
        xlim=_limits("--xlim", xlim),
        ylim=_limits("--ylim", ylim),
    )
    with looks.applied():
        drawn = draw_paper(_runs(sources), request, looks)
        blobs = [save_paper(drawn.figure, kind) for kind in kinds]
        size = tuple(2.54 * float(side) for side in drawn.figure.get_size_inches())
    for path, blob in zip(files, blobs, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, blob, durable=False)
        echo(f"figure: {path} ({size[0]:.2f} cm x {size[1]:.2f} cm)")
    echo(f"caption: {drawn.caption}")


def _runs(sources: list[Path]) -> "list[RunData]":
    """Return the runs of all sources that have begun, each once."""
    from dystop.errors import RunFolderError
    from dystop.folders.run_folder import is_study, open_run
    from dystop.studies.study import outline

    folders: dict[Path, None] = {}
    for source in sources:
        found = outline(source).begun if is_study(source) else [source]
        if not found:
            raise RunFolderError(f"{source}: none of its runs has begun; there is nothing to draw")
        folders |= dict.fromkeys(found)
    return [open_run(folder) for folder in folders]


def _format(path: Path) -> str:
    from dystop.errors import ConfigError
    from dystop.report.figures.paper_style import FORMATS

    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        known = ", ".join(f".{name}" for name in FORMATS)
        raise ConfigError(f"command line: --out {path}: the name must end with one of {known}")
    return kind


def _label(word: str) -> tuple[str, str]:
    from dystop.errors import ConfigError

    name, equals, text = word.partition("=")
    if not (name.strip() and equals and text.strip()):
        raise ConfigError(
            f"command line: --label {word}: expected MECHANISM=TEXT, as in dystop='DySTop (ours)'"
        )
    return name.strip(), text.strip()


def _width_in(width: str) -> float:
    from dystop.report.figures.paper_style import COLUMN_IN, PAGE_IN

    named = {"column": COLUMN_IN, "page": PAGE_IN}
    return named[width] if width in named else _inches("--width", width)


def _inches(option: str, centimetres: str | float) -> float:
    from dystop.errors import ConfigError
    from dystop.report.figures.paper_style import CM_PER_INCH

    try:
        value = float(centimetres)
    except ValueError:
        value = 0.0
    if not 2.0 <= value <= 100.0:
        words = "column, page, or " if option == "--width" else ""
        raise ConfigError(
            f"command line: {option} {centimetres}: expected {words}centimetres from 2 to 100"
        )
    return value / CM_PER_INCH


def _legend(place: str) -> str:
    from dystop.errors import ConfigError, nearest
    from dystop.report.figures.paper_style import LEGENDS

    inside = [f"{v} {h}" for v in ("upper", "center", "lower") for h in ("left", "center", "right")]
    inside = ["center" if name == "center center" else name for name in inside]
    known = [*LEGENDS, *inside]
    if place not in known:
        raise ConfigError(
            f"command line: --legend {place}: expected one of {', '.join(known)}"
            f"{nearest(place, known)}"
        )
    return place


def _target(target: float | None) -> float | None:
    from dystop.cli.options import check_target

    check_target(target)
    return target


def _limits(option: str, text: str) -> tuple[float, float] | None:
    from math import isfinite

    from dystop.errors import ConfigError

    if not text:
        return None
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        low = high = 0.0
    if not (isfinite(low) and isfinite(high) and low < high):
        raise ConfigError(
            f"command line: {option} {text}: expected FROM,TO with FROM below TO, as in 0.4,0.9"
        )
    return low, high
