"""What all pages share: the templates, inline figures, and tables of details.

A page is one self-contained HTML file without scripts and without requests.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dystop import __version__
from dystop.folders.run_folder import RunData
from dystop.report.data.settings import Table
from dystop.report.figures.style import Plot, css_color
from dystop.report.figures.svg import inline_svg

Figures = list[tuple[Plot, Markup | None]]


@dataclass(frozen=True)
class DetailTable:
    """A table of details that several runs may share."""

    runs: str
    rows: Table


def render_template(name: str, *, package: str = "dystop.report", **values: object) -> str:
    """Render a template of a package, which may use those of this one; every value is escaped."""
    own, theirs = PackageLoader("dystop.report"), PackageLoader(package)
    environment = Environment(
        loader=ChoiceLoader([own, theirs]), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.globals["css_color"] = css_color
    environment.filters["keep_units"] = keep_units
    return environment.get_template(name).render(version=__version__, **values)


def keep_units(text: str) -> str:
    r"""Return a text whose numbers stay on one line with their units and their spread.

    >>> keep_units("60 % after 1.2 ± 0.3 s").split(" ")
    ['60\xa0%', 'after', '1.2\xa0±\xa00.3\xa0s']
    """
    text = re.sub(r"(?<=\d) (?=(±|%|s\b|h\b|[kMGT]?B\b|epochs\b))", "\N{NO-BREAK SPACE}", text)
    return text.replace("± ", "±\N{NO-BREAK SPACE}")


def inline_figures(plots: Sequence[Plot]) -> Figures:
    """Pair every plot with its figure as SVG; None where it has no figure."""
    return [
        (plot, None if plot.figure is None else inline_svg(plot.figure, plot.key, plot.alt))
        for plot in plots
    ]


def fleet_rows(run: RunData) -> Table:
    """Return the size of the fleet, the data and the model, then the physical constants."""
    fleet = run.fleet
    sizes = fleet.get("data_size") or []
    area, parameters = fleet.get("area_m"), fleet.get("model_parameters")
    rows = {
        "workers": f"{len(sizes):,}" if sizes else None,
        "training samples": f"{sum(sizes):,}" if sizes else None,
        "classes": ", ".join(map(str, fleet.get("class_names") or [])),
        "model parameters": f"{parameters:,}" if parameters else None,
        "model size": f"{fleet['model_bytes']:,} bytes" if fleet.get("model_bytes") else None,
        "area": f"{area[0]:g} m x {area[1]:g} m" if area else None,
        "radio range": f"{fleet['range_m']:g} m" if fleet.get("range_m") else None,
    }
    physics = fleet.get("physics") or {}
    return [(k, str(v)) for k, v in [*rows.items(), *physics.items()] if v]
