"""`dystop reproduce`: every recipe runs at smoke scale, and verdicts follow their rules."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure as MplFigure
from matplotlib.lines import Line2D
from typer.testing import CliRunner

from dystop.cli import app
from dystop.control.stopping import Stop
from dystop.errors import ConfigError
from dystop.mechanisms import DySTop
from dystop.report.data.groups import SeedSpread
from dystop.world.geometry import scatter
from dystop_paper.data.measures import (
    ArmRuns,
    format_spread,
    reachable_target,
    with_accuracy_of,
)
from dystop_paper.data.verdicts import arms_of, judge_claims
from dystop_paper.figures.reproduced import bars
from dystop_paper.pages.verdict import draw_recipe
from dystop_paper.reproduce.campaigns import CAMPAIGNS, SCALES, SEEDS, experiments
from dystop_paper.reproduce.paper_claims import (
    CLAIMS,
    Best,
    Figure,
    Growth,
    Reduction,
    Rising,
)
from dystop_paper.reproduce.recipes import RECIPES, recipe_of
from outcomes import outcome
from support.engine_fixtures import components_for, run_to_end
from support.fake_runs import changed

pytestmark = pytest.mark.usefixtures("placeholder_figure_files")

PAPER = Path(__file__).parents[2] / "docs" / "paper-map.md"
ONE_EACH = {r.campaign.name: r for r in reversed(RECIPES.values())}


@pytest.mark.parametrize("campaign", list(CAMPAIGNS))
def test_every_campaign_runs_at_smoke_scale(campaign: str, tmp_path: Path) -> None:
    names = [r.name for r in RECIPES.values() if r.campaign.name == campaign]
    result = CliRunner().invoke(
        app, ["reproduce", *names, "--scale", "smoke", "--out", str(tmp_path), "-q"]
    )
    assert result.exit_code == 0, result.output
    for name in names:
        folder = tmp_path / "smoke" / CAMPAIGNS[campaign].reading
        page = (folder / name / "report.html").read_text()
        assert "Smoke scale" in page
        said = "Readings: literal: noise squared; fading draws 1" in page
        assert said == (campaign != "sensitivity")
        assert list((folder / name / "figures").glob("*.png"))
    assert names[0] in (folder / "paper.html").read_text()
    shown = CliRunner().invoke(
        app, ["reproduce", "--list", "--scale", "smoke", "--out", str(tmp_path)]
    )
    assert "verdict" in shown.output


def test_each_number_of_neighbours_is_really_run() -> None:
    found = {}
    for experiment in experiments(CAMPAIGNS["neighbours-fmnist"], "paper", 1):
        mechanism = experiment.mechanism
        assert isinstance(mechanism, DySTop)
        assert mechanism.neighbours is not None
        assert experiment.world.budget.models == 2 * mechanism.neighbours  # ADR 0004
        components = components_for(mechanism, 60, params=experiment.world, stop=Stop(rounds=12),
                                    position=scatter(60, (100.0, 100.0), 0))  # fmt: skip
        records, _ = run_to_end(components)
        pulls, active = sum(r.links for r in records), sum(r.active for r in records)
        found[mechanism.neighbours] = pulls / active
    # A link costs bandwidth at both ends, and budgets vary: the mean stays below s.
    assert found[4] > 3
    assert found[7] > 1.6 * found[4]
    assert found[14] > 1.6 * found[7]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("campaign", list(CAMPAIGNS))
def test_every_campaign_is_a_valid_configuration(campaign: str, scale: str) -> None:
    every = experiments(CAMPAIGNS[campaign], scale, SEEDS[scale])
    assert len(every) == len(CAMPAIGNS[campaign].arms) * SEEDS[scale]
    assert len({e.name for e in every}) == len(every)
    assert {e.world.area_m for e in every} == {(100.0, 100.0)}  # the yard of the paper


def test_paper_scale_is_the_paper_s() -> None:
    fmnist = experiments(CAMPAIGNS["main-fmnist"], "paper", 3)
    assert {e.fleet.workers for e in fmnist} == {100}
    assert {e.data.phi for e in fmnist} == {1.0, 0.7, 0.4}
    assert {e.mechanism.name for e in fmnist} == {"dystop", "asydfl", "sa-adfl", "matcha"}
    cifar = experiments(CAMPAIGNS["main-cifar10"], "paper", 1)
    assert {(e.data.name, e.model.name) for e in cifar} == {("cifar10", "resnet18")}
    boards = experiments(CAMPAIGNS["testbed-svhn"], "paper", 1)
    assert {(e.fleet.workers, e.world.compute.devices) for e in boards} == {(15, "jetson")}


def test_words_may_set_the_first_seed_and_not_what_the_arms_differ_in() -> None:
    control = CAMPAIGNS["control-fmnist"]
    every = experiments(control, "smoke", 2, ["seed=5", "training.batch=16"])
    assert {e.seed for e in every} == {5, 6}
    assert every[0].name == "V1-s5"
    for word, why in (
        ("mechanism.V=3", r"mechanism\.V .*control-fmnist.*--only"),
        ("name=x", r"name .*control-fmnist.*--only"),
        ("seed=-1", "seed = '-1'.*0 or more"),
    ):
        with pytest.raises(ConfigError, match=why):
            experiments(control, "smoke", 1, [word])


def test_claims_name_arms_that_exist() -> None:
    for campaign, claims in CLAIMS.items():
        keys = {arm.key for arm in CAMPAIGNS[campaign].arms}
        for claim in claims:
            assert set(arms_of(claim)) <= keys, claim


def test_every_figure_of_the_evaluation_has_a_recipe() -> None:
    labels = {label for recipe in RECIPES.values() for label in recipe.labels}
    mapped = set(re.findall(r"fig:[a-zA-Z_0-9.]+", PAPER.read_text()))
    assert labels <= mapped


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'fig-stalenes'.*'fig-staleness'"):
        recipe_of("fig-stalenes")


def test_a_reduction_is_judged_against_the_paper_s() -> None:
    fast = outcome("fast", [0.5, 0.8], [0.5, 0.8])
    slow = outcome("slow", [0.1, 0.2, 0.5, 0.8], [0.1, 0.2, 0.5, 0.8])
    every = {"fast": fast, "slow": slow}
    (row,) = judge_claims([Reduction("less", "time", "fast", "slow", 0.5, 0.8)], every)
    assert (row.verdict, row.ours) == ("holds", "50.0% less (20 s ± 0 s against 40 s ± 0 s)")
    (row,) = judge_claims([Reduction("less", "time", "fast", "slow", 0.9, 0.8)], every)
    assert row.verdict == "holds partly"
    (row,) = judge_claims([Reduction("less", "time", "slow", "fast", 0.5, 0.8)], every)
    assert (row.verdict, row.ours[:12]) == ("does not hold", "100.0% more ")


def test_bars_stand_for_the_targets_that_the_paper_names() -> None:
    recipe = recipe_of("fig-testbed-completion-time-svhn")
    keys = [f"{m}-phi{phi:g}" for phi in (1.0, 0.5) for m in ("dystop", "matcha")]
    levels = {1.0: [0.7, 0.8, 0.9], 0.5: [0.5, 0.6, 0.7]}
    arms = {arm.key: arm for arm in recipe.campaign.arms}
    every = {k: replace(outcome(k, levels[arms[k].x]), arm=arms[k]) for k in keys}
    plot = bars(recipe, every)
    assert "DySTop, 1: 20 s" in plot.alt
    assert "DySTop, 0.5: 30 s" in plot.alt


def test_a_rival_that_never_gets_there() -> None:
    every = {"fast": outcome("fast", [0.8]), "never": outcome("never", [0.1] * 8)}
    (row,) = judge_claims([Reduction("less", "time", "fast", "never", 0.8)], every)
    assert row.verdict == "holds"
    assert row.ours == "at least 87.5% less (10 s against not reached)"
    (row,) = judge_claims([Reduction("less", "bytes", "fast", "never", 0.8)], every)
    assert row.verdict == "holds"
    every["never"] = outcome("never", [0.1])  # as many bytes as `fast` needed to its target
    (row,) = judge_claims([Reduction("less", "bytes", "fast", "never", 0.8)], every)
    assert row.verdict == "undecided"


def test_the_best_must_be_best_beyond_the_spread() -> None:
    clear = {"a": outcome("a", [0.8], [0.82]), "b": outcome("b", [0.6], [0.62])}
    blurred = {"a": outcome("a", [0.8], [0.82]), "b": outcome("b", [0.79], [0.83])}
    claims = [Best("best", "accuracy", "a", ("a", "b"))]
    assert judge_claims(claims, clear)[0].verdict == "holds"
    assert judge_claims(claims, blurred)[0].verdict == "holds partly"
    assert (
        judge_claims([Best("best", "accuracy", "b", ("a", "b"))], clear)[0].verdict
        == "does not hold"
    )


def test_a_slower_arm_does_not_hold_even_if_its_rival_fails_once() -> None:
    slow = outcome("a", [0.1, 0.1, 0.1, 0.8], [0.1, 0.1, 0.1, 0.8])
    fast = outcome("b", [0.8, 0.8, 0.8, 0.8], [0.1, 0.2, 0.3, 0.3])
    (row,) = judge_claims([Reduction("less", "time", "a", "b", 0.5, 0.8)], {"a": slow, "b": fast})
    assert row.verdict == "does not hold"


def test_a_rival_whose_run_was_too_short_tells_nothing() -> None:
    every = {"a": outcome("a", [0.1] * 7 + [0.8]), "b": outcome("b", [0.1] * 4)}
    claims = [Reduction("less", "time", "a", "b", 0.5, 0.8), Best("first", "time", "a", ("a", "b"))]
    assert {row.verdict for row in judge_claims(claims, every)} == {"undecided"}


def test_a_number_waits_for_the_arm_that_sets_its_target() -> None:
    claim = Figure("is", "time", "b", 20.0, set_by="a")
    alone = {"b": outcome("b", [0.5, 0.6, 0.7])}
    assert judge_claims([claim], alone) == []
    assert judge_claims([claim], {"a": outcome("a", [0.62]), **alone})[0].verdict == "holds"


def test_a_time_beyond_the_run_is_told_only_if_the_run_was_long_enough() -> None:
    every = {"a": outcome("a", [0.8]), "b": outcome("b", [0.1] * 5)}
    soon = Figure("is", "time", "b", 20.0, set_by="a")
    late = Figure("is", "time", "b", 45.0, set_by="a")
    assert [row.verdict for row in judge_claims([soon, late], every)] == [
        "does not hold",
        "undecided",
    ]


def test_the_legend_has_the_colours_of_the_bars() -> None:
    recipe = recipe_of("fig-completion-time")
    arms = {arm.key: arm for arm in recipe.campaign.arms}
    keys = ("asydfl-phi0.4", "matcha-phi0.4")
    figure = bars(recipe, {k: replace(outcome(k, [0.5]), arm=arms[k]) for k in keys}).figure
    assert figure is not None
    shown = {h.get_label(): h.get_color() for h in figure.legends[0].legend_handles}
    (axes,) = figure.axes
    drawn = [to_hex(patch.get_facecolor()) for patch in axes.patches]
    assert drawn == [to_hex(shown["AsyDFL"]), to_hex(shown["MATCHA"])]


def mechanism_of(outcome: ArmRuns, name: str, provenance: str) -> ArmRuns:
    runs = tuple(
        replace(r, info=r.info | {"mechanism": {"name": name, "provenance": provenance}})
        for r in outcome.runs
    )
    return replace(outcome, runs=runs)


def test_figures_say_what_is_a_reconstruction_and_keep_colours_where_an_arm_is_missing() -> None:
    recipe = RECIPES["fig-testbed-curves-cifar100"]
    arms = {arm.key: arm for arm in recipe.campaign.arms}
    rebuilt = {"dystop": "paper", "asydfl": "reconstruction", "matcha": "authors' code"}
    every = {
        f"{name}-phi1": mechanism_of(
            replace(outcome(name, [0.1, 0.5]), arm=arms[f"{name}-phi1"]), name, provenance
        )
        for name, provenance in rebuilt.items()
    }
    plain = draw_recipe(recipe, every)[0].figure
    missing = draw_recipe(recipe, {k: o for k, o in every.items() if k != "asydfl-phi1"})[0].figure
    assert plain is not None
    assert missing is not None
    colours = dict(entries_of(plain))
    assert list(colours) == ["DySTop", "AsyDFL (reconstruction)", "MATCHA"]
    assert dict(entries_of(missing)) == {n: colours[n] for n in ("DySTop", "MATCHA")}
    beside = bars(replace(recipe, measures=("accuracy",)), every).figure
    assert beside is not None
    assert [name for name, _ in entries_of(beside)] == list(colours)  # and no square for nothing


def entries_of(figure: MplFigure) -> list[tuple[str, str]]:
    """Names and colours of a figure's legend."""
    (legend,) = figure.legends
    handles = legend.legend_handles
    return [(str(h.get_label()), to_hex(h.get_color())) for h in handles if isinstance(h, Line2D)]


def test_a_rival_that_does_not_always_arrive_leaves_a_doubt() -> None:
    steady = outcome("a", [0.1, 0.2, 0.8], [0.1, 0.2, 0.8])
    wild = outcome("b", [0.8, 0.8, 0.8], [0.1, 0.2, 0.3])
    (row,) = judge_claims([Best("fastest", "time", "a", ("a", "b"))], {"a": steady, "b": wild})
    assert row.verdict == "holds partly"


def test_a_time_to_a_target_that_is_not_reached_cannot_be_told() -> None:
    every = {"a": outcome("a", [0.5, 0.6])}
    assert judge_claims([Figure("is", "time", "a", 20.0, 0.6)], every)[0].verdict == "holds"
    (row,) = judge_claims([Figure("is", "time", "a", 20.0, 0.7)], every)
    assert (row.verdict, row.ours) == ("undecided", "20 s")


def test_rising_and_figures() -> None:
    every = {"a": outcome("a", [0.5]), "b": outcome("b", [0.6]), "c": outcome("c", [0.55])}
    assert judge_claims([Rising("up", "accuracy", ("a", "b"))], every)[0].verdict == "holds"
    assert (
        judge_claims([Rising("up", "accuracy", ("a", "b", "c"))], every)[0].verdict
        == "does not hold"
    )
    assert judge_claims([Figure("is", "accuracy", "a", 0.52)], every)[0].verdict == "holds"
    assert judge_claims([Figure("is", "accuracy", "a", 0.54)], every)[0].verdict == "holds partly"
    assert judge_claims([Figure("is", "accuracy", "a", 0.62)], every)[0].verdict == "does not hold"
    assert judge_claims([Figure("is", "accuracy", "absent", 0.9)], every) == []


def test_growth_is_a_share_of_the_longer_time() -> None:
    """As the paper counts: 67.39 and 80.16 s are 15.93 %."""
    every = {"even": outcome("even", [0.6]), "skewed": outcome("skewed", [0.1, 0.2, 0.3, 0.6])}
    claims = [Growth("grows", "time", "skewed", "even", share) for share in (0.7, 0.6, 0.16)]
    rows = judge_claims(claims, every)
    assert [row.verdict for row in rows] == ["holds", "holds partly", "does not hold"]
    assert rows[0].claim == "grows to 60 %"
    assert rows[0].ours == "by 75.0% of the longer"
    every["even"] = outcome("even", [0.01])
    assert judge_claims(claims[:1], every)[0].verdict == "undecided"


def test_targets_fall_back_to_what_is_reached() -> None:
    found = outcome("a", [0.5, 0.83], [0.4, 0.78])
    assert reachable_target([found], 0.75) == 0.75
    assert reachable_target([found], 0.8) == 0.75
    assert reachable_target([found], None) == 0.75
    assert reachable_target([outcome("a", [0.01])], 0.8) is None


def test_a_finished_recipe_is_not_run_again(tmp_path: Path) -> None:
    words = ["reproduce", "fig-phases", "--scale", "smoke", "--out", str(tmp_path)]
    assert CliRunner().invoke(app, [*words, "-q"]).exit_code == 0
    info = tmp_path / "smoke" / "literal" / "runs" / "phases-fmnist" / "combined-s0" / "run.json"
    before = json.loads(info.read_text())
    again = CliRunner().invoke(app, words)
    assert "3 finished before" in again.output
    assert json.loads(info.read_text()) == before
    other = CliRunner().invoke(app, [*words, "training.batch=16"])
    assert other.exit_code == 2
    assert "other settings" in other.output


def test_a_page_names_its_command_and_other_pages_are_updated(tmp_path: Path) -> None:
    words = ["reproduce", "--scale", "smoke", "--seeds", "1", "--out", str(tmp_path), "-q"]
    some = [*words, "fig-accuracy-bound", "training.batch=16", "--only", "bound2"]
    assert CliRunner().invoke(app, some).exit_code == 0
    folder = tmp_path / "smoke" / "literal"
    page = (folder / "fig-accuracy-bound" / "report.html").read_text()
    assert "dystop reproduce fig-accuracy-bound --scale smoke --seeds 1 training.batch=16" in page
    assert "Changed settings: training.batch=16." in page
    assert "1 of 6 settings are done" in page
    whole = (folder / "paper.html").read_text()
    assert "1 of 27 recipes" in whole
    assert "1 of 6 settings are done" in whole
    rest = [*words, "fig-staleness", "training.batch=16", "--only", "bound2", "--only", "bound5"]
    assert CliRunner().invoke(app, rest).exit_code == 0
    page = (folder / "fig-accuracy-bound" / "report.html").read_text()
    assert "2 of 6 settings are done" in page
    whole = (folder / "paper.html").read_text()
    links = re.findall(r'href="([^"#]+/report.html)"', whole)
    assert len(links) == 2
    assert all((folder / link).is_file() for link in links)


def test_a_recipe_is_run_piece_by_piece(tmp_path: Path) -> None:
    words = ["reproduce", "fig-phases", "--scale", "smoke", "--out", str(tmp_path)]
    some = CliRunner().invoke(app, [*words, "--only", "first", "--only", "second"])
    assert some.exit_code == 0, some.output
    assert "fig-phases: 1 of 3 runs are " in some.output
    page = (tmp_path / "smoke" / "literal" / "fig-phases" / "report.html").read_text()
    assert "2 of 3 settings are done" in page
    wrong = CliRunner().invoke(app, [*words, "--only", "third"])
    assert wrong.exit_code == 2
    for fact in ("--only third", "first-s0, second-s0, combined-s0"):
        assert fact in " ".join(wrong.output.split())
    rest = CliRunner().invoke(app, words)
    assert "2 finished before" in rest.output
    page = (tmp_path / "smoke" / "literal" / "fig-phases" / "report.html").read_text()
    assert "settings are done" not in page


def test_the_accuracy_of_the_global_model_may_be_used(tmp_path: Path) -> None:
    words = ["reproduce", "fig-phases", "--scale", "smoke", "--out", str(tmp_path), "-q"]
    assert CliRunner().invoke(app, [*words, "--accuracy", "global"]).exit_code == 0
    page = (tmp_path / "smoke" / "literal" / "fig-phases-global" / "report.html").read_text()
    assert "is that of the global model" in page
    assert "the test accuracy of the global model" in page
    assert "the mean test accuracy of the workers" not in page
    assert (
        'href="fig-phases-global/report.html"'
        in (tmp_path / "smoke" / "literal" / "paper-global.html").read_text()
    )
    run = outcome("one", [0.5, 0.6]).runs[0]
    run = replace(run, records=[changed(r, accuracy_global=0.9) for r in run.records])
    assert [r.accuracy for r in with_accuracy_of(run, "global").records] == [0.9, 0.9]
    assert with_accuracy_of(run, "own") is run


def test_a_name_that_resembles_nothing_gets_no_suggestion():
    done = CliRunner().invoke(app, ["reproduce", "fig-nope"])
    assert done.exit_code == 2
    assert "did you mean" not in done.stderr


def test_seeds_that_do_not_count_are_said():
    assert format_spread(SeedSpread((0.5,), 2), "accuracy").endswith("(1 of 2 seeds)")
