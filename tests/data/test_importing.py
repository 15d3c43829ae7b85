"""Foreign data: folders of images, tables, torch data sets and Hugging Face data sets."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import EpsImagePlugin, Image
from typer.testing import CliRunner

from dystop.cli.app import app
from dystop.data.importing import import_data, save_data
from dystop.data.importing.features import features_of, scaled, targets_of
from dystop.data.importing.images import read_folders
from dystop.data.loading import load
from dystop.data.table_files import read_table, write_table
from dystop.errors import ConfigError, DataError

TABLE = "age,colour,income,sick,hospital\n" + "".join(
    f"{20 + k},{('red', 'blue')[k % 2]},{1000.5 * k},{('no', 'yes')[k % 3 == 0]},h{k % 4}\n"
    for k in range(40)
)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def draw(path, value, size=(6, 4), mode="L"):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)


def photos(root="photos"):
    for k in range(5):
        draw(f"{root}/cat/{k}.png", 10 + k)
        draw(f"{root}/dog/more/{k}.png", 200 + k)


def alike(one, other):
    assert one.class_names == other.class_names
    for key in ("x_train", "y_train", "x_test", "y_test"):
        a, b = getattr(one, key), getattr(other, key)
        assert a.dtype == b.dtype
        assert np.array_equal(a, b)
    assert one.columns.keys() == other.columns.keys()
    assert all(np.array_equal(one.columns[k], other.columns[k]) for k in one.columns)


def test_a_folder_of_images():
    photos()
    (Path("photos") / "notes.txt").write_text("mine")
    data = import_data("photos", share=0.4)
    assert (data.shape, data.classes, data.class_names) == ((1, 4, 6), 2, ("cat", "dog"))
    assert (len(data.y_train), np.bincount(data.y_test).tolist()) == (6, [2, 2])
    for x, y in ((data.x_train, data.y_train), (data.x_test, data.y_test)):
        assert ((x[:, 0, 0, 0] >= 200) == y).all()


def test_folders_of_train_and_test_images_and_colours():
    photos("photos/train")
    draw("photos/test/dog/1.png", (200, 9, 8), mode="RGB")
    draw("photos/test/owl/1.png", 77)
    data = import_data("photos")
    assert (data.shape, data.class_names) == ((3, 4, 6), ("cat", "dog", "owl"))
    assert (len(data.y_train), data.y_test.tolist()) == (10, [1, 2])
    assert data.x_test[0, :, 0, 0].tolist() == [200, 9, 8]


def test_images_are_scaled_on_request():
    photos()
    draw("photos/cat/wide.png", 10, size=(9, 4))
    with pytest.raises(DataError, match=r"9 x 4 pixels.*6 x 4.*--size"):
        import_data("photos")
    assert import_data("photos", size=(8, 8)).shape == (1, 8, 8)


def test_a_table_gives_features_classes_and_groups():
    Path("sick.csv").write_text(TABLE)
    data = import_data("sick.csv", target="sick", groups=["hospital"], drop=["income"])
    assert (data.shape, data.class_names) == ((3,), ("no", "yes"))
    assert (len(data.y_train), len(data.y_test)) == (32, 8)
    assert data.x_train.dtype == np.float32
    np.testing.assert_allclose(data.x_train.mean(axis=0), 0, atol=1e-5)
    assert set(data.columns["hospital"]) == {"h0", "h1", "h2", "h3"}
    assert len(data.columns["hospital"]) == 32


def test_a_parquet_table_is_the_same_as_a_csv():
    Path("sick.csv").write_text(TABLE)
    table = read_table(Path("sick.csv"))
    write_table(Path("sick.parquet"), table)
    how = {"target": "sick", "groups": ["hospital"]}
    alike(import_data("sick.csv", **how), import_data("sick.parquet", **how))


@settings(derandomize=True, deadline=None, max_examples=40)
@given(
    st.lists(
        st.tuples(st.integers(-9, 9), st.floats(-1e6, 1e6), st.sampled_from(["a", "b,", "ü"])),
        min_size=1,
    )
)
def test_tables_are_read_back(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("tables")
    whole, numbers, texts = map(np.array, zip(*rows, strict=True))
    table = {"whole": whole, "numbers": numbers + 0.5, "texts": texts}
    for kind in ("csv", "parquet"):
        write_table(folder / f"t.{kind}", table)
        found = read_table(folder / f"t.{kind}")
        assert list(found) == list(table)
        assert all(np.array_equal(found[key], table[key]) for key in table)


def test_features_worked_by_hand():
    table = {"n": np.array([1, 2]), "c": np.array(["x", "y"]), "b": np.array([True, False])}
    assert features_of("t", table, ()).tolist() == [[1, 1, 0, 1], [2, 0, 1, 0]]
    assert scaled(np.array([[1.0], [3.0], [9.0]]), np.array([0, 1])).tolist() == [[-1], [1], [7]]


def test_targets_worked_by_hand():
    found = targets_of("t", "y", np.array(["b", "a", "b"]), "auto")
    assert (found.labels.tolist(), found.names, found.numbers) == ([1, 0, 1], ("a", "b"), None)
    found = targets_of("t", "y", np.array([7, 3, 7]), "auto")
    assert (found.labels.tolist(), found.names) == ([1, 0, 1], ("3", "7"))
    found = targets_of("t", "y", np.arange(20) / 2, "auto")
    assert found.labels.tolist() == sorted([*range(10)] * 2)
    assert found.numbers.shape == (20, 1)


class Pairs(torch.utils.data.Dataset):
    """Images and labels, as torchvision has them."""

    def __init__(self, count, kind="tensor"):
        self.count, self.kind = count, kind

    def __len__(self):
        return self.count

    def __getitem__(self, k):
        if not 0 <= k < self.count:
            raise IndexError
        image = np.full((5, 4, 3), 10 * (k % 3), np.uint8)
        if self.kind == "pillow":
            return Image.fromarray(image), k % 3
        return torch.from_numpy(image).permute(2, 0, 1) / 255, torch.tensor(k % 3)


@pytest.mark.parametrize("kind", ["tensor", "pillow"])
def test_a_torch_data_set(kind):
    data = import_data(Pairs(12, kind), test=Pairs(6, kind), name="mine")
    assert (data.name, data.shape, data.classes) == ("mine", (3, 5, 4), 3)
    assert data.x_train.dtype == (np.uint8 if kind == "pillow" else np.float32)
    assert data.y_test.tolist() == [0, 1, 2, 0, 1, 2]


def test_a_hugging_face_data_set():
    hf = pytest.importorskip("datasets", reason="pip install 'dystop[huggingface]'")
    features = hf.Features(
        {
            "age": hf.Value("int64"),
            "city": hf.Value("string"),
            "writer": hf.Value("string"),
            "label": hf.ClassLabel(names=["no", "yes", "never"]),
        }
    )
    rows = {
        "age": list(range(20)),
        "city": ["A", "B"] * 10,
        "writer": [f"w{k % 5}" for k in range(20)],
        "label": [1, 0] * 10,
    }
    train = hf.Dataset.from_dict(rows, features=features)
    data = import_data(hf.DatasetDict(train=train, test=train.select(range(4))), groups=["writer"])
    assert (data.shape, data.class_names) == ((3,), ("no", "yes", "never"))
    assert data.y_test.tolist() == [1, 0, 1, 0]
    assert data.columns["writer"].tolist() == rows["writer"]
    images = {"image": [np.full((4, 4, 3), k, np.uint8) for k in range(10)], "label": [0, 1] * 5}
    kinds = hf.Features({"image": hf.Image(), "label": hf.ClassLabel(names=["a", "b"])})
    pictures = import_data(hf.Dataset.from_dict(images, features=kinds), share=0.2)
    assert (pictures.shape, pictures.class_names) == ((3, 4, 4), ("a", "b"))
    assert pictures.x_train.dtype == np.uint8


def test_an_imported_set_is_saved_and_loaded():
    Path("sick.csv").write_text(TABLE)
    data = import_data("sick.csv", target="sick", groups=["hospital"])
    save_data(data, Path("sick.npz"))
    alike(load("sick.npz"), data)
    with pytest.raises(ConfigError, match=r"\.npz"):
        save_data(data, Path("sick.csv"))


@pytest.mark.parametrize(
    ("change", "how", "facts"),
    [
        ({}, {}, ["which column", "--target", "age, colour"]),
        ({}, {"target": "sik"}, ["'sik'", "did you mean 'sick'"]),
        ({}, {"target": "sick", "groups": ["hospitl"]}, ["'hospitl'", "'hospital'"]),
        ({}, {"target": "sick", "drop": ["x"]}, ["'x'", "age, colour"]),
        ({"21,blue": ",blue"}, {"target": "sick"}, ["row 2", "'age'", "--drop"]),
        ({"21,blue": "21,"}, {"target": "sick"}, ["row 2", "'colour'", "--drop"]),
        ({"yes": ""}, {"target": "sick"}, ["target 'sick'", "empty"]),
        ({}, {"target": "sick", "share": 0.001}, ["share of 0.001", "40 samples"]),
        ({}, {"target": "sick", "test": "other.csv"}, ["other.csv", "no such file"]),
        ({}, {"target": "colour", "task": "regression"}, ["'colour'", "no number"]),
    ],
)
def test_a_bad_table_is_refused_with_one_message(change, how, facts):
    text = TABLE
    for old, new in change.items():
        text = text.replace(old, new)
    Path("sick.csv").write_text(text)
    with pytest.raises(DataError) as caught:
        import_data("sick.csv", **how)
    assert all(fact in str(caught.value) for fact in facts), str(caught.value)


def test_too_many_categories_are_refused():
    Path("t.csv").write_text("name,y\n" + "".join(f"n{k},{k % 2}\n" for k in range(1001)))
    with pytest.raises(DataError, match=r"'name' has 1,001.*--drop.*--group"):
        import_data("t.csv", target="y")


def test_bad_sources_are_refused_with_one_message():
    Path("empty").mkdir()
    for source, facts in (
        ("empty", ["empty", "for each class"]),
        ("nowhere", ["nowhere", "no such file"]),
        (Path(__file__), [".csv or .parquet"]),
        (3, ["int", "torch"]),
        ([(1, 2, 3)], ["item 0", "pair"]),
        ([], ["empty"]),
        ([([1.0], 0), ([1.0, 2.0], 1)], ["item 1", "(2,)", "(1,)"]),
        ({"training": []}, ["'train'", "training"]),
    ):
        with pytest.raises(DataError) as caught:
            import_data(source)
        assert all(fact in str(caught.value) for fact in facts), str(caught.value)


def test_a_file_that_is_no_image_is_named():
    photos()
    Path("photos/cat/3.png").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"3\.png: cannot be read"):
        import_data("photos")
    draw("photos/cat/3.png", 3000, mode="I;16")
    with pytest.raises(DataError, match=r"3\.png: .*8 bits"):
        import_data("photos")


def dystop(*words, code=0):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result.output


def test_from_the_command_line_to_a_run():
    Path("sick.csv").write_text(TABLE)
    shown = dystop(
        "data", "import", "sick.csv", "sick.npz", "--target", "sick", "--group", "hospital"
    )
    assert "32 training and 8 test samples" in shown
    words = ["data.name=sick.npz", "model.name=softmax", "fleet.workers=4", "stop.rounds=2"]
    by_hospital = ["data.partition=column", "data.column=hospital"]
    dystop("run", *words, *by_hospital, "--no-report", "-q", "--name", "one")
    photos()
    shown = dystop("data", "import", "photos", "photos.npz", "--size", "8x8")
    assert "1 x 8 x 8" in shown
    assert load("photos.npz").class_names == ("cat", "dog")
    for words in (["--size", "8"], ["--size", "0x3"], ["--test", "nowhere"], ["--task", "x"]):
        dystop("data", "import", "photos", "other.npz", *words, code=2)
    assert not Path("other.npz").exists()


def test_a_number_to_predict_is_a_regression():
    Path("sick.csv").write_text(TABLE)
    data = import_data("sick.csv", target="income", drop=["hospital"])
    assert (data.task, data.values, data.classes) == ("regression", 1, 10)
    assert data.targets[0].shape == (32, 1)
    np.testing.assert_allclose(data.targets[0].std(), 1, rtol=1e-5)
    raw = import_data("sick.csv", target="income", drop=["hospital"], scale=False)
    assert set(np.concatenate(raw.targets)[:, 0]) == {np.float32(1000.5 * k) for k in range(40)}
    save_data(data, Path("income.npz"))
    again = load("income.npz")
    alike(again, data)
    assert (again.task, again.values) == ("regression", 1)
    assert np.array_equal(again.targets[1], data.targets[1])
    words = ["data.name=income.npz", "model.name=softmax", "fleet.workers=4", "stop.rounds=2"]
    dystop("run", *words, "--no-report", "-q", "--name", "one")
    assert '"r2"' in Path("runs/one/records.jsonl").read_text()


SMALL = "a,b,y\n" + "".join(f"{k},{k % 3},{'xz'[k % 2]}\n" for k in range(20))


@pytest.mark.parametrize(
    ("raw", "facts"),
    [
        (b"", ["no row"]),
        (b"a,b,y\n", ["no row"]),
        (SMALL.encode("utf-16"), ["byte 0", "UTF-8"]),
        (SMALL.replace("x", "\xe9").encode("latin-1"), ["byte 10", "UTF-8"]),
        (SMALL.replace("3,", "3\0,").encode(), ["line 5", "byte 0"]),
        (SMALL.replace(",", ";").encode(), ["'a;b;y'", "commas"]),
        (SMALL.replace(",", "\t").encode(), ["commas"]),
        (SMALL.replace("a,b", "a,a").encode(), ["twice: a"]),
        (SMALL.replace("a,b", "a,").encode(), ["empty name"]),
        (SMALL.encode() + b"1,2\n", ["line 22", "2 cells", "3 names"]),
        (SMALL.encode() + b'1,2,"x\n', ["cannot be read"]),
        (SMALL.encode() + b",2,x\n", ["row 21", "'a'", "empty", "--drop"]),
        (SMALL.encode() + b"inf,2,x\n", ["row 21", "'a'", "inf", "--drop"]),
        (SMALL.encode() + b"1e300,2,x\n", ["row 21", "'a'", "1e+300", "--drop"]),
        (SMALL.encode() + b"NA,2,x\n", ["row 21", "'a'", "'NA'", "numbers"]),
        (SMALL.encode() + b'"1,000",2,x\n', ["row 21", "'a'", "'1,000'", "numbers"]),
        (SMALL.encode() + b"1,2,\n", ["row 21", "target 'y'", "empty"]),
        (SMALL.replace("x", "1").replace("z", "2").encode() + b"1,2,NA\n", ["row 21", "'NA'"]),
        (SMALL.replace("z", "x").encode(), ["target 'y'", "same value", "regression"]),
        (
            ("a,b,y\n" + "".join(f"{k},1,{k}\n" for k in range(20))).encode(),
            ["target 'y'", "another value in every row", "regression"],
        ),
    ],
)
@pytest.mark.filterwarnings("error")
def test_bad_contents_of_a_csv_are_named(raw, facts):
    Path("t.csv").write_bytes(raw)
    done = CliRunner().invoke(app, ["data", "import", "t.csv", "o.npz", "--target", "y"])
    assert done.exit_code == 2, done.output
    assert done.stderr.startswith("Error: t.csv: ")
    assert all(fact in done.stderr for fact in facts), done.stderr
    assert not Path("o.npz").exists()


@pytest.mark.parametrize(
    "raw",
    [
        b"\n" + SMALL.encode(),
        b"\xef\xbb\xbf" + SMALL.encode(),
        SMALL.replace(",", " , ").encode(),
        SMALL.replace("\n", "\r\n").encode(),
        SMALL.replace("\n", "\n\n").encode(),
    ],
)
def test_spaces_and_empty_lines_of_a_csv_do_not_count(raw):
    Path("t.CSV").write_bytes(raw)
    Path("plain.csv").write_text(SMALL)
    alike(import_data("t.CSV", target="y"), import_data("plain.csv", target="y"))


@pytest.mark.parametrize(
    ("how", "facts"),
    [
        ({"test": "text.csv"}, ["'b'", "text", "numbers"]),
        ({"test": "o.npz"}, ["o.npz", ".csv or .parquet"]),
        ({"share": float("nan")}, ["share of nan"]),
        ({"size": (4, 4)}, ["size is for images"]),
    ],
)
def test_options_that_do_not_fit_a_table_are_refused(how, facts):
    Path("t.csv").write_text(SMALL)
    Path("text.csv").write_text("a,b,y\n1,q,x\n2,r,z\n")
    Path("o.npz").write_bytes(b"")
    with pytest.raises((DataError, ConfigError)) as caught:
        import_data("t.csv", target="y", **how)
    assert all(fact in str(caught.value) for fact in facts), str(caught.value)


def test_kinds_of_parquet_columns():
    from decimal import Decimal

    import pyarrow
    from pyarrow import parquet

    y = ["x", "z"] * 10

    def imported(column):
        parquet.write_table(pyarrow.table({"a": column, "y": y}), "t.parquet")
        return import_data("t.parquet", target="y", scale=False)

    price = imported(pyarrow.array([Decimal(k) / 2 for k in range(20)], pyarrow.decimal128(5, 2)))
    assert sorted({*price.x_train.ravel(), *price.x_test.ravel()})[1] == 0.5
    for column, fact in (
        (pyarrow.array([True, None] * 10), "row 2 of column 'a' is empty"),
        (pyarrow.array([None] * 20, pyarrow.null()), "row 1 of column 'a' is empty"),
        (pyarrow.array([[1, 2]] * 20), "'a' holds ndarray"),
        (pyarrow.array([b"q"] * 20), "'a' holds bytes"),
        (pyarrow.array([0] * 20, pyarrow.date32()), "'a' holds datetime64"),
    ):
        with pytest.raises(DataError, match=fact):
            imported(column)
    twice = pyarrow.Table.from_arrays([pyarrow.array(y)] * 2, names=["y", "y"])
    parquet.write_table(twice, "t.parquet")
    with pytest.raises(DataError, match="twice: y"):
        import_data("t.parquet", target="y")


@pytest.mark.parametrize(
    ("change", "how", "facts"),
    [
        (lambda: Path("photos/cat/9.png").write_bytes(b"<svg/>"), {}, ["9.png", "kind of image"]),
        (lambda: Path("photos/cat/9.png").mkdir(), {}, ["9.png", "not a regular file"]),
        (lambda: Path("photos/dog").rename("dog"), {}, ["'cat'", "two classes"]),
        (lambda: None, {"target": "y"}, ["target is for tables"]),
        (lambda: None, {"task": "regression"}, ["task is for tables"]),
    ],
)
def test_bad_folders_of_images_are_named(change, how, facts):
    photos()
    change()
    with pytest.raises((DataError, ConfigError)) as caught:
        import_data("photos", **how)
    assert all(fact in str(caught.value) for fact in facts), str(caught.value)
    assert "BytesIO" not in str(caught.value)
    assert "BufferedReader" not in str(caught.value)


def test_an_image_of_a_kind_that_starts_a_program_is_refused(tmp_path, monkeypatch):
    """Pillow knows a file by its content, and hands PostScript to Ghostscript."""

    def start(*_, **__):
        raise AssertionError("Ghostscript would run")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", start)
    (tmp_path / "a").mkdir()
    file = tmp_path / "a" / "1.png"
    Image.new("RGB", (4, 4)).save(file, format="EPS")
    with pytest.raises(DataError, match=r"1\.png"):
        read_folders([tmp_path], ["a"], (4, 4))
