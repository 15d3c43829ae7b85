"""`dystop run trace=RUN` and `dystop gap RUN`, on a run that the simulator recorded."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from dystop.cli.app import app
from dystop.config import read_experiment, to_toml
from dystop.errors import ConfigError, DataError, RunFolderError
from dystop.folders.run_folder import open_run, update_info
from dystop.record import from_json
from dystop.report.pages.gap import law_text, overhead_text
from dystop.runs.building import build, load_data
from dystop.runs.run import run_experiment, verify_run
from dystop.studies.gap import WITH_OVERHEAD, gap_of
from dystop.studies.trace_metrics import errors_of, learning, plan_similarity
from dystop.world import Overhead, read_trace
from support.fake_runs import changed
from support.testbed.trace_recorder import record_experiment, write_trace

WORDS = [
    "data.name=synthetic",
    "data.options.train=200",
    "data.options.test=60",
    "model.name=softmax",
    "fleet.workers=5",
    "world.range_m=80",
    "stop.rounds=8",
    "evaluate.every_rounds=2",
    "engine.timing=testbed",
]


def quiet(*_):
    return None


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return record_experiment(tmp_path_factory.mktemp("runs"), WORDS)


@pytest.fixture(scope="module")
def found(recorded):
    return gap_of(recorded, quiet)


def test_the_trace_alone_repeats_the_run(recorded, tmp_path):
    experiment = read_experiment(None, [f"trace={recorded}"])
    assert experiment.fleet.workers == 5
    assert experiment.name == "trial-replay"
    folder = run_experiment(experiment, tmp_path, None, quiet, quiet)
    assert folder.name == "trial-replay"
    old, new = ((f / "records.jsonl").read_text() for f in (recorded, folder))
    assert new == old
    assert "replay of" in open_run(folder).fleet["physics"]
    assert verify_run(folder, None, quiet).identical


def test_keys_win_over_the_recorded_configuration(recorded):
    experiment = read_experiment(
        None, [f"trace={recorded}", "stop.rounds=3", "engine.publish=eager", "name=mine"]
    )
    assert experiment.stop.rounds == 3
    assert experiment.name == "mine"
    assert experiment.engine.publish == "on_completion"  # whatever the words set


def test_another_mechanism_starts_from_its_own_defaults(recorded):
    experiment = read_experiment(None, [f"trace={recorded}", "mechanism.name=d-psgd"])
    assert experiment.mechanism.name == "d-psgd"
    assert experiment.fleet.workers == 5
    same = read_experiment(None, [f"trace={recorded}", "mechanism.name=dystop", "mechanism.V=3"])
    assert same.mechanism.V == 3


def test_a_replay_can_be_written_and_read(recorded, tmp_path):
    experiment = read_experiment(None, [f"trace={recorded}"])
    (tmp_path / "again.toml").write_text(to_toml(experiment))
    assert read_experiment(tmp_path / "again.toml") == experiment


def test_what_cannot_be_replayed_is_refused(recorded, tmp_path):
    with pytest.raises(ConfigError, match=r"'overlap'.*'paper' or 'testbed'"):
        read_experiment(None, [f"trace={recorded}", "engine.timing=overlap"])
    with pytest.raises(RunFolderError, match="no such folder"):
        read_experiment(None, [f"trace={tmp_path / 'nowhere'}"])
    with pytest.raises(ConfigError, match=rf"{recorded}.*5 workers"):
        run_experiment(
            read_experiment(None, [f"trace={recorded}", "fleet.workers=6"]),
            tmp_path, None, quiet, quiet,
        )  # fmt: skip
    with pytest.raises(ConfigError, match="trace = 3; expected text"):
        read_experiment(None, ["trace=3"])


def test_gap_of_a_run_that_was_simulated_as_it_was(found):
    """Where real is simulated, replay and simulation differ in nothing."""
    for side in (found.replay, found.simulation):
        assert side.durations.count == 8
        assert side.durations.q95 == 0.0
        assert side.durations.total == 0.0
        assert side.plans.same_active == side.plans.same_links == side.plans.link_overlap == 1.0
        assert side.learning.curve_gap == 0.0
        assert side.learning.tested == 4
    for errors in (found.link_model, found.step_model, found.step_estimate):
        assert errors.count > 0
        assert errors.q95 == pytest.approx(0.0, abs=1e-12)
    assert found.link_estimate.mean > 0.0  # fading is not known in advance
    assert found.replay.pace == found.simulation.pace == found.real_pace
    assert found.other_law is None  # the configuration names the law that a testbed follows


def test_gap_simulates_under_the_law_of_the_testbed_whatever_the_key_says(tmp_path):
    """The recorded run obeys `testbed`, and its configuration says `paper`."""
    folder = record_experiment(tmp_path, WORDS)
    config = folder / "config.toml"
    config.write_text(config.read_text().replace('timing = "testbed"', 'timing = "paper"'))
    found = gap_of(folder, quiet)
    assert found.simulation.law == found.replay.law == "testbed"
    assert found.simulation.durations.q95 == found.replay.durations.q95 == 0.0
    assert found.other_law.law == "paper"
    assert found.other_law.durations.q95 > 0.0
    assert found.other_law.learning.final is None  # planned only
    text = law_text(found)
    for fact in ("testbed", "engine.timing", "paper"):
        assert fact in text
    asked = gap_of(folder, quiet, train=False, law="paper")
    assert (asked.simulation.law, asked.other_law.law) == ("paper", "testbed")
    assert asked.simulation.pace == found.other_law.pace
    done = CliRunner().invoke(app, ["gap", str(folder), "--no-train", "--timing", "overlap"])
    assert done.exit_code == 0, done.output
    tree = json.loads((folder / "gap" / "gap.json").read_text())
    assert [tree[side]["timing"] for side in ("replay", "simulation", "other_law")] == [
        "testbed", "overlap", "testbed",
    ]  # fmt: skip
    assert tree["other_law"]["pace"] == tree["real"]["pace"]


def test_a_mechanism_that_decides_by_models_trains_under_the_other_law(tmp_path):
    words = ["mechanism.name=fedhp", "stop.rounds=2", "stop.accuracy=0.99"]
    folder = record_experiment(tmp_path, [*WORDS[:-3], "engine.timing=paper", *words])
    assert gap_of(folder, quiet).other_law.learning.final is not None


def test_gap_finds_links_that_are_slower_than_the_model(recorded, tmp_path):
    """A testbed whose links take twice the time: the replay follows, the simulation does not."""
    lines = slow(recorded)
    folder = record_experiment(tmp_path, WORDS)
    write_trace(folder, lines)
    found = gap_of(folder, quiet)
    assert found.link_model.total == pytest.approx(-0.5)
    assert found.replay.durations.predicted_s > found.simulation.durations.predicted_s


PUSHES = [*WORDS[:-2], WORDS[-1], "world.reach=strict", "stop.rounds=60"]


@pytest.mark.parametrize("name", ["asydfl", "sa-adfl"])
def test_pushes_of_finished_senders_are_compared_with_the_channel_model(name, tmp_path):
    """No receiver of a push waits for a sender whose training was over when its order came."""
    words = [*PUSHES, "reading=literal", f"mechanism.name={name}"]
    added = Overhead(transfer_s=0.2, round_s=0.3)
    folder = record_experiment(tmp_path, words, overhead=added)
    found = gap_of(folder, quiet, train=False)
    rounds = read_trace(folder).rounds
    at_once = [line for line in rounds if (line.orders.waited_s == 0.0).all()]
    assert 0 < len(at_once) < len(rounds)  # the first round waits for the first training
    assert found.link_model.count == sum(len(line.links.dst) for line in at_once) > 20
    assert found.overhead.transfer_s == pytest.approx(added.transfer_s)
    assert found.overhead.round_s == pytest.approx(added.round_s)
    assert found.with_overhead.durations.q95 == pytest.approx(0.0, abs=1e-9)
    assert found.with_overhead.plans.same_links == 1.0
    text = overhead_text(found)
    for fact in ("0.200 s", "0.300 s", WITH_OVERHEAD):
        assert fact in text


def test_overhead_hides_behind_a_training_that_rounds_wait_for(tmp_path):
    """One slow worker sets the pace of SA-ADFL, with overhead or without.

    The replay takes the recorded waits, which were short because the overhead had passed.
    """
    words = [*PUSHES, "world.compute.batch_s=2", "reading=literal", "mechanism.name=sa-adfl"]
    added = Overhead(transfer_s=0.1, round_s=0.4)
    found = gap_of(record_experiment(tmp_path, words, overhead=added), quiet, train=False)
    real_s = found.replay.durations.measured_s
    assert found.replay.durations.predicted_s == pytest.approx(real_s - 60 * added.round_s)
    assert found.simulation.durations.predicted_s > 1.5 * found.replay.durations.predicted_s
    assert found.simulation.durations.total == pytest.approx(0.0, abs=0.05)
    assert found.with_overhead.durations.total == pytest.approx(0.0, abs=1e-9)


def test_plans_are_compared_where_records_hold_only_counts(tmp_path):
    folder = record_experiment(tmp_path, [*WORDS, "output.topology=counts"])
    found = gap_of(folder, quiet, train=False)
    assert found.replay.plans.same_links == found.simulation.plans.same_links == 1.0


@pytest.mark.parametrize("train", [True, False])
def test_other_data_than_the_run_had_are_refused(train, tmp_path):
    folder = record_experiment(tmp_path, WORDS)
    config = folder / "config.toml"
    config.write_text(config.read_text().replace("train = 200", "train = 210"))
    with pytest.raises(DataError, match=rf"{folder}: .*210 training samples, 200 when"):
        gap_of(folder, quiet, train=train)


def write_samples(file, count, seed=0):
    rng = np.random.default_rng(seed)
    parts = {"train": count, "test": 30}
    x = {f"x_{k}": rng.integers(0, 255, (n, 8, 8), dtype=np.uint8) for k, n in parts.items()}
    y = {f"y_{k}": np.arange(n) % 10 for k, n in parts.items()}
    np.savez(file, **x, **y)


@pytest.fixture(scope="module")
def recorded_with_file(tmp_path_factory):
    """Return a recorded run and the file of its data."""
    folder = tmp_path_factory.mktemp("runs")
    write_samples(file := folder / "mine.npz", 200)
    words = [f"data.name={file}", *WORDS[3:]]
    return record_experiment(folder, words), file


@pytest.mark.parametrize(
    ("count", "told"),
    [(210, "210 training samples, 200 when"), (200, "as many samples, but other values")],
)
def test_a_trace_is_not_replayed_on_other_data_than_were_recorded(
    count, told, recorded_with_file, tmp_path
):
    run, file = recorded_with_file
    write_samples(file, count, seed=1)
    words = ["run", f"trace={run}", "--out", str(tmp_path), "--no-report"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code != 0
    for fact in (f"trace = {run}", told, "data.*", "seed", f"dystop testbed {run / 'config.toml'}"):
        assert fact in " ".join(done.output.split())
    assert not list(tmp_path.iterdir())
    assert CliRunner().invoke(app, [*words, "seed=7"]).exit_code == 0  # chosen by the user
    planned = CliRunner().invoke(app, [*words, "engine.train=false"])
    assert (planned.exit_code == 0) == (count == 200)  # planning reads only labels and owners


def test_data_that_have_moved_are_still_compared(recorded_with_file, tmp_path):
    run, file = recorded_with_file
    write_samples(file, 210)
    moved = read_experiment(None, [f"trace={run}", f"data.root={tmp_path}"])
    with pytest.raises(DataError, match="210 training samples"):
        build(moved)
    write_samples(file, 200)
    assert build(moved).fleet["train_samples"] == 200


def test_data_given_as_an_object_are_the_users_choice(recorded_with_file):
    run, file = recorded_with_file
    write_samples(file, 210)
    experiment = read_experiment(None, [f"trace={run}"])
    data = load_data(read_experiment(None, ["data.name=synthetic", "data.options.train=90"]))
    assert build(experiment, data).fleet["train_samples"] == 90


def slow(recorded):
    lines = []
    for text in (recorded / "trace.jsonl").read_text().splitlines():
        line = {**(lines[-1] if lines else {}), **json.loads(text)}
        line["links"]["seconds"] = [2.0 * s for s in line["links"]["seconds"]]
        line["orders"]["exchange_s"] = [2.0 * s for s in line["orders"]["exchange_s"]]
        lines.append(line)
    return lines


def test_the_command_writes_page_figures_and_numbers(recorded, tmp_path):
    target = tmp_path / "numbers.json"
    done = CliRunner().invoke(app, ["gap", str(recorded), "--json", str(target)])
    assert done.exit_code == 0, done.output
    for words in ("completion time", "(+0.0 %)", "overlap of links", "transfers, channel model"):
        assert words in done.output
    page = (recorded / "gap" / "report.html").read_text()
    assert "<title>trial: " in page
    assert page.count("<svg") == 2
    assert (recorded / "gap" / "figures" / "gap-clock.png").stat().st_size > 1000
    assert (recorded / "gap" / "figures" / "gap-accuracy.pdf").stat().st_size > 1000
    numbers = json.loads(target.read_text())
    assert numbers == json.loads((recorded / "gap" / "gap.json").read_text())
    assert numbers["rounds"] == 8
    assert numbers["replay"]["durations"]["total"] == 0.0
    assert len(numbers["series"]["simulation"]["clock_s"]) == 8


def test_an_interrupted_run_is_compared_as_far_as_it_got_and_without_training(recorded, tmp_path):
    folder = record_experiment(tmp_path, [*WORDS[:-3], WORDS[-1], "stop.rounds=3"], "cut")
    update_info(folder, status="interrupted")
    done = CliRunner().invoke(app, ["gap", str(folder), "--no-train", "--json", "-"])
    assert done.exit_code == 0, done.output
    tree = json.loads(done.output)
    assert tree["rounds"] == 3
    assert tree["replay"]["durations"]["mean"] == 0.0
    assert tree["simulation"]["accuracy"]["final"] is None
    assert (folder / "gap" / "report.html").is_file()


def test_the_command_names_what_is_wrong(recorded, tmp_path):
    def refusal(*words):
        done = CliRunner().invoke(app, ["gap", *map(str, words)])
        assert done.exit_code == 2
        return done.output

    file = tmp_path / "no" / "file.json"
    assert f"--json {file}" in refusal(recorded, "--json", file)
    assert f"{tmp_path / 'nowhere'}: no such folder" in refusal(tmp_path / "nowhere")
    simulated = record_experiment(tmp_path, [*WORDS[:-3], WORDS[-1], "stop.rounds=1"], "plain")
    update_info(simulated, status="running")
    message = refusal(simulated)
    assert "status 'running', 1 rounds" in message
    assert f"dystop testbed --resume {simulated}" in message
    (simulated / "trace.jsonl").unlink()
    message = refusal(simulated)
    assert f"{simulated}: " in message
    assert "without a trace" in message
    assert message.endswith("dystop testbed\n")
    with pytest.raises(RunFolderError, match="holds no trace"):
        read_experiment(None, [f"trace={simulated}"])
    with pytest.raises(RunFolderError, match=r"trace: .*gone: no such folder"):
        read_experiment(None, [f"trace={simulated.parent / 'gone'}"])


def test_measures():
    nothing = errors_of(np.array([1.0]), np.array([0.0]))
    assert (nothing.count, nothing.mean, nothing.total) == (0, None, None)
    found = errors_of(np.array([1.0, 2.0, 6.0]), np.array([2.0, 2.0, 4.0]))
    assert found.mean == pytest.approx(1 / 3)
    assert found.median == 0.5
    assert found.total == pytest.approx(1 / 8)


def test_plans_that_differ(recorded):
    rounds = read_trace(recorded).rounds
    records = [from_json(x) for x in (recorded / "records.jsonl").read_text().splitlines()]
    first = changed(records[0], active_ids=[], link_pairs=[])
    alike = plan_similarity(rounds, [first, *records[1:]], lost=True)
    assert alike.same_active == 7 / 8
    assert alike.active_overlap == 7 / 8
    assert plan_similarity(rounds, [replace(records[0], added={})], lost=True) is None


def test_curves_that_differ(recorded):
    records = [from_json(x) for x in (recorded / "records.jsonl").read_text().splitlines()]
    worse = [r if r.accuracy is None else changed(r, accuracy=r.accuracy - 0.1) for r in records]
    found = learning(records, worse)
    assert found.curve_gap == pytest.approx(0.1)
    assert found.final_gap == pytest.approx(-0.1)
    none = learning(records, [changed(r, accuracy=None) for r in records])
    assert (none.final, none.curve_gap, none.tested) == (None, None, 0)
