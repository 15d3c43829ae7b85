import dataclasses

import pytest

from dystop.config import Experiment, every_key, read_experiment, resolve, to_toml
from dystop.config.keys import allowed
from dystop.control.laws import LAWS
from dystop.errors import ConfigError
from dystop.mechanisms import MECHANISMS
from dystop.world.params import WorldParams, yard_of


def problem(*words, file=None):
    with pytest.raises(ConfigError) as caught:
        read_experiment(file, words)
    return str(caught.value)


def test_nothing_given_is_the_defaults():
    got = read_experiment()
    area_m = yard_of(got.fleet.workers)
    assert got == resolve(Experiment(world=WorldParams(area_m=area_m)))
    assert got.name == "dystop-fmnist-mini-s0"


@pytest.mark.parametrize(
    ("words", "side_m"),
    [
        (["fleet.workers=1"], 10.0),
        (["fleet.workers=4"], 20.0),
        (["fleet.workers=99"], 100.0 * 0.99**0.5),
        (["fleet.workers=100"], 100.0),
        (["fleet.workers=2000"], 100.0),
        (["fleet.workers=4", "world.reach=overlay"], 20.0),
        (["fleet.workers=4", "reading=physical"], 20.0),
        (["fleet.workers=4", "world.range_m=40"], 100.0),
        (["fleet.workers=4", "world={range_m=40}"], 100.0),
        (["fleet.workers=4", "world.area_m=[100, 100]"], 100.0),
    ],
)
def test_a_small_fleet_stands_as_densely_as_the_papers(tmp_path, words, side_m):
    got = read_experiment(None, words)
    assert got.world.area_m == pytest.approx((side_m, side_m))
    file = tmp_path / "config.toml"
    file.write_text(to_toml(got))
    assert "area_m = [" in file.read_text()
    again = read_experiment(file, ["fleet.workers=7"])  # a resolved file holds the value
    assert again.world.area_m == got.world.area_m


def test_the_keys_of_the_yard_may_come_from_a_file(tmp_path):
    file = tmp_path / "e.toml"
    file.write_text("[fleet]\nworkers = 9\n[world]\nreach = 'overlay'\n")
    assert read_experiment(file).world.area_m == pytest.approx((30.0, 30.0))
    assert read_experiment(file, ["fleet.workers=4"]).world.area_m == (20.0, 20.0)
    file.write_text("[fleet]\nworkers = 9\n[world]\nrange_m = 40.0\n")
    assert read_experiment(file).world.area_m == (100.0, 100.0)


def test_the_command_line_wins_over_the_file(tmp_path):
    file = tmp_path / "e.toml"
    file.write_text("seed = 3\n[stop]\nrounds = 7\nseconds = 2\n[mechanism]\nV = 4\n")
    got = read_experiment(file, ["stop.rounds=9", "mechanism.staleness_bound=1.5"])
    assert (got.seed, got.stop.rounds, got.stop.seconds) == (3, 9, 2.0)
    assert dataclasses.asdict(got.mechanism)["V"] == 4.0
    assert got.mechanism.capabilities().queue_bound == 1.5


def test_values_are_toml_and_bare_words_are_text():
    got = read_experiment(
        None,
        [
            "engine.timing=overlap",
            'engine.publish="on_completion"',
            "world.area_m=[50, 60.5]",
            "data.download=false",
            "world.compute.batch_s=measure",
            "stop={rounds=3}",
            "name=2024-01-01",
        ],
    )
    assert (got.engine.timing, got.engine.publish) == ("overlap", "on_completion")
    assert got.world.area_m == (50.0, 60.5)
    assert (got.data.download, got.world.compute.batch_s) == (False, "measure")
    assert (got.stop.rounds, got.name) == (3, "2024-01-01")


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_the_resolved_configuration_round_trips(name, tmp_path):
    words = [f"mechanism.name={name}", "world.channel.noise_w=3e-14", "data.root=/a b/\tc"]
    one = read_experiment(None, words)
    file = tmp_path / "config.toml"
    file.write_text(to_toml(one), encoding="utf-8")
    assert read_experiment(file) == one
    assert type(read_experiment(file).mechanism) is MECHANISMS[name]


def test_every_default_is_allowed_by_its_own_bounds(tmp_path):
    for name in MECHANISMS:
        text = to_toml(read_experiment(None, [f"mechanism.name={name}"]))
        (tmp_path / "all.toml").write_text(text)
        read_experiment(tmp_path / "all.toml")


def test_every_key_has_a_meaning_and_can_be_set():
    keys = list(every_key())
    names = [key.name for key in keys]
    assert len(set(names)) == len(names)
    assert {"stop.rounds", "mechanism.name", "mechanism.V", "world.channel.noise_w"} <= set(names)
    assert [key.name for key in keys if not key.meaning or not key.allowed] == []


def test_a_mechanism_is_checked_against_its_own_knobs():
    message = problem("mechanism.name=fedavg", "mechanism.V=3")
    assert "mechanism.V is not used with mechanism.name = 'fedavg'; it is with 'dystop'" in message


BAD = {
    "last part only": (["rounds=5"], ["unknown key 'rounds'", "did you mean 'stop.rounds'?"]),
    "misspelt": (["stop.round=5"], ["'stop.round'", "did you mean 'stop.rounds'?"]),
    "misspelt block": (["worlds.range_m=5"], ["did you mean 'world.range_m'?"]),
    "no idea": (["qqqq=5"], ["unknown key 'qqqq'", "dystop list keys"]),
    "wrong type": (["stop.rounds=many"], ['stop.rounds = "many"', "an integer >= 1"]),
    "float for int": (["stop.rounds=5.5"], ["stop.rounds = 5.5", "an integer >= 1"]),
    "bool for int": (["stop.rounds=true"], ["stop.rounds = true"]),
    "text for bool": (["data.download=yes"], ["true or false"]),
    "negative": (["mechanism.V=-1"], ["mechanism.V = -1", "a number >= 0"]),
    "zero workers": (["fleet.workers=0"], ["fleet.workers = 0", "an integer >= 1"]),
    "zero range": (["world.range_m=0"], ["world.range_m = 0", "a number >= 0.001"]),
    "accuracy above 1": (["stop.accuracy=1.5"], ["stop.accuracy = 1.5", "<= 1"]),
    "not finite": (["training.learning_rate=inf"], ["training.learning_rate = inf"]),
    "not a number": (["world.range_m=nan"], ["world.range_m = nan", "a finite number"]),
    "choice": (["engine.timing=papr"], [f"one of {', '.join(sorted(LAWS))}"]),
    "mechanism": (["mechanism.name=dystp"], ["installed); did you mean 'dystop'?"]),
    "case of letters": (["mechanism.name=DySTop"], ["did you mean 'dystop'?"]),
    "key of another mechanism": (
        ["mechanism.name=matcha", "mechanism.V=3"],
        ["mechanism.V is not used with mechanism.name = 'matcha'; it is with 'dystop'"],
    ),
    "mechanism type": (["mechanism.name=3"], ["mechanism.name = 3", "one of"]),
    "model": (["model.name=cnnn"], [" or package.module:factory; did you mean 'cnn'?"]),
    "data": (
        ["data.name=fmnist-mni"],
        [" or FILE.npz", "dystop data import", "did you mean 'fmnist-mini'?"],
    ),
    "not a table": (["stop=5"], ["stop = 5", "a table"]),
    "mechanism not a table": (["mechanism=dystop"], ["mechanism", "a table"]),
    "table for a value": (["stop.rounds.x=5"], ["stop.rounds", "an integer >= 1"]),
    "list length": (["world.area_m=[1]"], ["world.area_m = [1]", "a list of 2"]),
    "no value": (["seed"], ["'seed' is not key=value"]),
    "no key": (["=5"], ["is not key=value"]),
    "name with a slash": (["name=../up"], ['name = "../up"', "letters"]),
    "negative seed": (["seed=-1"], ["seed = -1"]),
    "not UTF-8": (["name=\udcff"], ["UTF-8"]),
    "date for a number": (["seed=2024-01-01"], ["seed", "an integer"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_words_are_one_clear_error(case):
    words, facts = BAD[case]
    message = problem(*words)
    assert message.startswith("command line: ")
    for part in facts:
        assert part in message


def test_problems_in_a_file_name_the_file(tmp_path):
    file = tmp_path / "e.toml"
    file.write_text("[stop]\nrounds = 0\n")
    assert problem(file=file).startswith(f"{file}: stop.rounds = 0")
    assert problem("stop.rounds=-3", file=file).startswith("command line: stop.rounds = -3")
    assert problem("stop.rounds=3", "stop.second=1", file=file).startswith("command line: ")


def test_a_date_in_a_file_is_a_wrong_type(tmp_path):
    file = tmp_path / "e.toml"
    file.write_text("seed = 2024-01-01\n")
    assert "seed = 2024-01-01; expected an integer" in problem(file=file)


def test_a_missing_file_names_its_neighbour(tmp_path):
    (tmp_path / "fig5.toml").touch()
    assert "no such file; did you mean 'fig5.toml'?" in problem(file=tmp_path / "fig6.toml")
    assert "no such file" in problem(file=tmp_path / "nowhere" / "fig6.toml")


def test_a_folder_is_no_configuration(tmp_path):
    (tmp_path / "fig5.toml").mkdir()
    assert problem(file=tmp_path / "fig6.toml").endswith("no such file")
    assert "is a folder" in problem(file=tmp_path / "fig5.toml")
    (tmp_path / "run.json").touch()
    message = problem(file=tmp_path)
    for command in (f"run {tmp_path / 'config.toml'}", f"resume {tmp_path}", f"verify {tmp_path}"):
        assert f"dystop {command}" in message


def test_invalid_toml_names_the_line(tmp_path):
    file = tmp_path / "e.toml"
    file.write_text("seed = 1\nstop = = 3\n")
    message = problem(file=file)
    assert message.startswith(f"{file}: not valid TOML")
    assert "line 2" in message


@pytest.mark.parametrize(
    ("data", "fact"),
    [(b"\xff\xfe", "not UTF-8"), (b"a = " + b"[" * 9000, "TOML")],
)
def test_foreign_files_are_refused(tmp_path, data, fact):
    file = tmp_path / "e.toml"
    file.write_bytes(data)
    assert fact in problem(file=file)
    assert "cannot be read" in problem(file=file / "below.toml")


def test_allowed_speaks_plainly():
    assert allowed(int | None) == "an integer or unset"
    assert allowed(tuple[float, ...]) == "a list, each a number"


def test_a_value_can_be_taken_back(tmp_path):
    file = tmp_path / "x.toml"
    file.write_text("[mechanism]\nneighbours = 3\n")
    assert read_experiment(file, []).mechanism.neighbours == 3
    assert read_experiment(file, ["mechanism.neighbours=unset"]).mechanism.neighbours is None
