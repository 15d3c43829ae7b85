"""Run the slices of the atlas at the paper's scale on one machine with many cores and a GPU.

    python paper/scripts/atlas_slices.py OUT --jobs 15 --minutes 5 data.root=FOLDER

Every slice is what `dystop atlas` runs, with 4 x 4 points and six mechanisms. Many runs share a
process, so that libraries and the GPU are started once per process. What has finished when the time
is over is drawn; `dystop atlas OUT/NAME` goes on from there.
"""

import argparse
import os
import time
from pathlib import Path

import click
from search_readings import run_until

from dystop.errors import RunFolderError
from dystop.studies.study import Study, grow_study
from dystop_paper.atlas import Atlas, chart, read_axis, write_points
from dystop_paper.cli.atlas import report_atlas

SLICES = {
    "atlas-speed": ("spread=0,0.3,0.6,0.9", "communication=0.1,0.5,2,10"),
    "atlas-data": ("skew=0.1,0.3,0.6,1", "density=6,12,25,50"),
}
MECHANISMS = ["dystop", "matcha", "ad-psgd", "asydfl", "sa-adfl", "d-psgd"]
COMMON = ["reading=physical", "fleet.workers=100", "data.name=fashion-mnist", "stop.rounds=100000",
          "output.topology=counts", "output.models=none"]  # fmt: skip


def slice_of(name: str, words: list[str], turns: float, out: Path) -> Study:
    """Return the study of one slice, with its points beside it."""
    x, y = SLICES[name]
    axes = read_axis("--x", x), read_axis("--y", y)
    every = chart(Atlas(None, [*COMMON, *words], *axes, MECHANISMS, 1, turns, []))
    study = grow_study(out, name, every.experiments)
    write_points(study.path, every.content)
    return study


def main() -> None:
    """Run both slices within the given time, one after the other, and draw them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path)
    parser.add_argument("--slices", default=",".join(SLICES))
    parser.add_argument("--turns", type=float, default=60)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE")
    args = parser.parse_intermixed_args()
    end = time.monotonic() + 60 * args.minutes
    names = args.slices.split(",")
    for done, name in enumerate(names):
        study = slice_of(name, args.words, args.turns, args.out)
        left_s = max(0.0, end - time.monotonic())
        run_until(study, args.jobs, time.monotonic() + left_s / (len(names) - done))
        try:
            report_atlas(study.path, None, quiet=False)
        except RunFolderError as nothing_finished:
            click.echo(nothing_finished)


if __name__ == "__main__":
    main()
