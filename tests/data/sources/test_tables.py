"""Tables of numbers, other delimiters, columns by other names, and labels that are words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import evenhand
from evenhand.data.prepared import prepare_data
from evenhand.data.settings import DataSettings
from evenhand.data.sources.formats import read
from evenhand.data.sources.rows import Columns
from evenhand.data.sources.tables import Table, read_features
from evenhand.errors import UserError
from evenhand.run import load_recipe, train

PLAIN = "height,girth,label\n1.5,2,oak\n-1e3,0,elm\n3,4,oak\n"


def save(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


@pytest.mark.parametrize(
    ("name", "text", "encoding"),
    [
        ("t.csv", PLAIN, "utf-8"),
        ("t.csv", PLAIN, "utf-8-sig"),
        ("t.csv", PLAIN.replace(",", ";"), "utf-8-sig"),
        ("t.csv", PLAIN.replace(",", "\t"), "utf-8"),
        ("t.tsv", PLAIN.replace(",", "\t"), "utf-8"),
        ("t.csv", PLAIN.replace("\n", "\r\n"), "utf-8"),
        ("t.csv", PLAIN.replace(",", ", ").replace("oak", '"oak"'), "utf-8"),
        ("t.csv", "\n".join(f",{line}" for line in PLAIN.splitlines()), "utf-8"),  # as pandas writes row numbers
    ],
)
def test_numbers_are_read(tmp_path: Path, name: str, text: str, encoding: str) -> None:
    stream = read(save(tmp_path / name, text, encoding))["all"]
    assert stream.kind == "vectors"
    assert stream.fetch(torch.arange(3)).tolist() == [[1.5, 2], [-1000, 0], [3, 4]]
    assert (stream.classes, stream.labels.tolist()) == (("elm", "oak"), [1, 0, 1])
    assert stream.samples.name(1) == f"{name}:3"
    assert isinstance(stream.samples, Table)
    assert stream.subset(torch.tensor([2])).samples.columns == ("height", "girth")


def test_splits_and_rows_without_label(tmp_path: Path) -> None:
    rows = "a,label,split\n1,x,train\n2,y,train\n3,y,test\n4,,train\n5,x,val\n6,x,unlabelled\n"
    streams = read(save(tmp_path / "t.csv", rows))
    found = {name: part.fetch(torch.arange(len(part)))[:, 0].tolist() for name, part in streams.items()}
    assert found == {"train": [1, 2], "test": [3], "unlabelled": [4, 6], "val": [5]}
    assert streams["unlabelled"].labels is None


def test_other_names_for_columns(tmp_path: Path) -> None:
    text = "label,species,height,girth,note\n7,oak,1,2,tall\n8,elm,3,4,thin\n"
    table = save(tmp_path / "t.csv", text)
    named = read(table, columns=Columns("species", features=("girth", "height")))["all"]
    assert named.classes == ("elm", "oak")
    assert named.fetch(torch.arange(2)).tolist() == [[2, 1], [4, 3]]
    both = read(table, columns=Columns("species", features=("label (another)", "height")))["all"]
    assert both.fetch(torch.arange(2)).tolist() == [[7, 1], [8, 3]]
    settings = DataSettings(set=str(table), label_column="note", columns=["height"], test_share=0.5)
    with pytest.raises(UserError, match=r"too few to hold out a test split"):
        prepare_data(settings)


def test_texts_by_other_names(tmp_path: Path) -> None:
    rows = [("fine film", "good"), ("dull film", "bad")]
    save(tmp_path / "t.tsv", "review\tverdict\ttext\n" + "".join(f"{a}\t{b}\t1\n" for a, b in rows))
    save(tmp_path / "t.jsonl", "".join(f'{{"review": "{a}", "verdict": "{b}", "text": "no"}}\n' for a, b in rows))
    save(tmp_path / "p.csv", "path,label,review,verdict\n" + "".join(f"x,1,{a},{b}\n" for a, b in rows))
    for name in ("t.tsv", "t.jsonl", "p.csv"):
        stream = read(tmp_path / name, columns=Columns("verdict", "review"))["all"]
        assert stream.samples.texts == ["fine film", "dull film"]
        assert (stream.classes, stream.labels.tolist()) == (("bad", "good"), [1, 0])
    save(tmp_path / "u.jsonl", '{"review": "fine", "verdict": "good"}\n{"review": "who knows"}\n')
    assert set(read(tmp_path / "u.jsonl", columns=Columns("verdict", "review"))) == {"all", "unlabelled"}
    rows = "review;verdict;split\nfine;a;train\ndull;b;train\nso so;b;train\nbad;b;test\n"
    named = {"text_column": "review", "label_column": "verdict", "groups": "halves"}
    data = prepare_data(DataSettings(set=str(save(tmp_path / "m.csv", rows)), **named))
    assert data.counts == [1, 2]


def test_image_lists_with_semicolons_and_another_label(tmp_path: Path) -> None:
    for name in ("1.png", "2.png"):
        Image.new("RGB", (16, 16)).save(tmp_path / name)
    table = save(tmp_path / "t.csv", "path;label;kind\n1.png;9;cat\n2.png;9;dog\n")
    assert read(table, columns=Columns("kind"))["all"].classes == ("cat", "dog")
    assert read(table)["all"].counts == [2]


def test_domains_of_an_image_list_with_other_signs_and_names(tmp_path: Path) -> None:
    lines = ["path;what;domain"]
    for domain in ("studio", "street"):
        for i, kind in enumerate(["cat", "dog"] * 3):
            Image.new("RGB", (8, 8), (40 * i, 0, 9)).save(tmp_path / f"{domain}{i}.png")
            lines.append(f"{domain}{i}.png;{kind};{domain}")
    table = save(tmp_path / "t.csv", "\n".join(lines))
    data = prepare_data(
        DataSettings(set=str(table), source=["studio"], target="street", label_column="what", groups="halves")
    )
    assert data.classes == ("cat", "dog")
    assert len(data.streams["target"]) == 6


def test_tables_of_two_domains(tmp_path: Path) -> None:
    for name, shift in (("one", 0), ("two", 5)):
        rows = "".join(f"{i + shift},{i % 3},{'ab'[i % 2]}\n" for i in range(12))
        save(tmp_path / f"{name}.csv", f"x,y,label\n{rows}")
    settings = DataSettings(set=str(tmp_path / "one.csv"), target=str(tmp_path / "two.csv"), groups="halves")
    data = prepare_data(settings)
    assert {"source", "target", "test"} <= set(data.streams)
    assert data.streams["target"].labels is None
    assert data.streams["source"].kind == "vectors"


MISTAKES = {
    "no label": ("a,species\n1,x\n", Columns(), r"no column 'label'; name yours in data\.label_column"),
    "misspelt label": (
        "a,label\n1,x\n",
        Columns("lable"),
        r"no column 'lable' \(data\.label_column\); did you mean 'lab",
    ),
    "misspelt text": ("review,label\nx,y\n", Columns(text="revew"), r"\(data\.text_column\); did you mean 'review'"),
    "misspelt column": ("a,label\n1,x\n", Columns(features=("b",)), r"no column 'b' \(data\.columns\)"),
    "a word": ("a,b,label\n1,2,x\n1,tall,y\n", Columns(), r"line 3: 'b' is 'tall', no number; name the columns"),
    "a gap": ("a,b,label\n1,,x\n", Columns(), r"line 2 has no 'b': fill it in"),
    "a short row": ("a,label,b\n1,x\n", Columns(), r"line 2 has no 'b': fill it in"),
    "a long row": ("a;label\n1;x;3\n", Columns(), r"line 2 has more cells than the header; quote .* semicolons"),
    "nan": ("a,label\nnan,x\n", Columns(), r"line 2: 'a' is nan, not a finite number"),
    "too large": ("a,label\n1e300,x\n", Columns(), r"'a' is 1e300, not a finite"),
    "decimal comma": ("a;b;label\n1;2,5;x\n", Columns(), r"'b' is '2,5'; write it with a point, 2\.5"),
    "underscore": ("a,b,label\n1,1_000,x\n", Columns(), r"'b' is '1_000', no number"),
    "no rows": ("a,label\n", Columns(features=("a",)), "header but no rows"),
    "thousands": ("a;b;label\n1;1,234;x\n", Columns(), r"with a point, 1\.234, or without the comma if .*, 1234$"),
    "beyond float32": ("a,b,label\n1,1e39,x\n", Columns(), r"'b' is 1e39, not a finite number"),
    "decimal commas": ("a;b;label\n1,5;2,5;x\n", Columns(), r"'a' is '1,5'; write it with a point, 1\.5"),
    "no numbers": ("label\nx\n", Columns(), "no column 'path'"),
    "unknown split": ("a,label,split\n1,x,trian\n", Columns(), "did you mean 'train'"),
    "a label of the test alone": ("a,label,split\n1,x,train\n2,z,test\n", Columns(), "no training row has label 'z'"),
    "domains": ("a,label,domain\n1,x,3\n", Columns(), "save each domain as a table"),
    "texts and numbers": ("a,label\n1,x\n", Columns(text="b", features=("a",)), "leave one of them out"),
}


@pytest.mark.parametrize(("text", "columns", "said"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_are_one_line(tmp_path: Path, text: str, columns: Columns, said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        read(save(tmp_path / "t.csv", text), columns=columns)
    assert "\n" not in str(caught.value)


def test_names_of_columns_without_a_table_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 2), np.float32), y=[0, 0, 1, 1])
    for place in (tmp_path / "a.npz", "shapes", "fashion-mnist", "arrays"):
        with pytest.raises(UserError, match=r"data\.label_column = 'kind' is of a table"):
            prepare_data(DataSettings(set=str(place), label_column="kind"))
        with pytest.raises(UserError, match=r"data\.columns are of a \.csv or \.tsv"):
            prepare_data(DataSettings(set=str(place), columns=["a"]))
    save(tmp_path / "t.jsonl", '{"text": "x", "label": "y"}\n')
    with pytest.raises(UserError, match=r"data\.columns are of a \.csv"):
        read(tmp_path / "t.jsonl", columns=Columns(features=("a",)))


def test_row_numbers_are_pointed_at(tmp_path: Path) -> None:
    table = save(tmp_path / "t.csv", "Id,a,label\n1,2,x\n")
    with pytest.warns(UserWarning, match=r"column 'Id' is learnt from too"):
        assert read(table)["all"].samples.columns == ("Id", "a")


def test_a_table_trains_standardised_by_its_training_part(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    k = np.arange(40) % 2
    x = rng.normal(size=(40, 2)) * [1, 1000] + 4 * k[:, None] * [1, 1000] + [0, 5000]
    lines = [
        f"{a},{b},{'ny'[c]},{'train' if i < 30 else 'test'}" for i, ((a, b), c) in enumerate(zip(x, k, strict=True))
    ]
    table = save(tmp_path / "t.csv", "\n".join(["a,b,sick,split", *lines]))
    (tmp_path / "t.toml").write_text(
        f'data = {{ set = "{table}", label_column = "sick", groups = "halves" }}\n'
        'method = { name = "classifier", batch = 16, net = { name = "mlp", width = 16 }, optim.lr = 0.05 }\n'
        f'run = {{ steps = 30, threads = 1, progress = false, folder = "{tmp_path / "run"}" }}\n'
    )
    model = evenhand.load(train(load_recipe(tmp_path / "t.toml")))
    np.testing.assert_allclose(model.facts.mean, x[:30].mean(0), rtol=1e-5)
    assert model.facts.columns == ("a", "b")
    save(tmp_path / "new.tsv", "b\tname\ta\n" + "".join(f"{b}\tsome one\t{a}\n" for a, b in x[30:]))
    new = read_features(tmp_path / "new.tsv", (tmp_path / "new.tsv").read_text(), model.facts.columns)
    said = [one.label for one in model.predict(new.samples.numpy())]
    assert np.mean(np.array(said) == np.array(list("ny"))[k[30:]]) >= 0.9
    with pytest.raises(UserError, match="no column 'b', which the model was trained with"):
        read_features(Path("x.csv"), "a,c\n1,2\n", model.facts.columns)


@pytest.mark.parametrize("words", [["oak", "elm", "oak"], [b"oak", b"elm", b"oak"]])
def test_words_as_labels_of_arrays(tmp_path: Path, words: list[str]) -> None:
    x = np.zeros((3, 8, 8), np.uint8)
    np.savez(tmp_path / "a.npz", x_train=x, y_train=words, x_test=x, y_test=["elm", "elm", "oak"])
    streams = read(tmp_path / "a.npz")
    assert streams["train"].classes == ("elm", "oak")
    assert streams["train"].labels.tolist() == [1, 0, 1]
    assert streams["test"].labels.tolist() == [0, 0, 1]
    np.savez(tmp_path / "b.npz", x=x, y=words, classes=["oak", "elm", "ash"])
    assert read(tmp_path / "b.npz")["all"].counts == [2, 1, 0]
    np.savez(tmp_path / "c.npz", x=x, y=["oak", "elm", "okk"], classes=["oak", "elm"])
    with pytest.raises(UserError, match=r"label 'okk' is not among the classes; did you mean 'oak'"):
        read(tmp_path / "c.npz")
    np.savez(tmp_path / "d.npz", x_train=x, y_train=words, x_test=x, y_test=[0, 1, 0])
    with pytest.raises(UserError, match=r"give words \(N,\) or numbers everywhere"):
        read(tmp_path / "d.npz")
