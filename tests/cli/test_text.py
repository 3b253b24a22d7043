"""A table of texts from `look` to a report, on the command line; and a run that meets new texts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from evenhand.data.sets import phrases
from evenhand.run.opening import open_run

RECIPE = """
about = "phrases in seconds"

[data]
set = "phrases.csv"
val_per_class = 4
text = { length = 16, augment = ["word-dropout"] }

[method]
name = "classifier"
batch = 16
net = { name = "text-mean", width = 32 }
optim = { name = "adamw", lr = 0.01, weight_decay = 0.01, schedule = "cosine" }

[run]
folder = "run"
epochs = 6
threads = 1
progress = false
"""


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """phrases.csv and text.toml in an otherwise empty working folder."""
    monkeypatch.chdir(tmp_path)
    stream = phrases.load()["train"]
    assert stream.labels is not None
    rows = zip(stream.samples.texts, stream.labels.tolist(), strict=True)
    file = tmp_path / "phrases.csv"
    file.write_text("text,label\n" + "".join(f"{text},{stream.classes[k]}\n" for text, k in rows))
    (tmp_path / "text.toml").write_text(RECIPE)
    return file


def test_from_table_to_report(cli: Callable[..., Any], table: Path) -> None:
    assert table.exists()
    assert "animals" in cli("data", "look", "phrases.csv").fine()
    assert "[data.text]" in cli("show", "text.toml").fine()
    assert "parameters" in cli("check", "text.toml").fine()
    cli("train", "text.toml").fine()
    assert "mean recall" in cli("measure", "run").fine()
    assert "val: mean recall" in cli("measure", "run", "--split", "val").fine()
    page = Path(cli("report", "run").fine().strip())
    assert "weather" in page.read_text()

    run = open_run("run")
    assert run.method.data.vocabulary is not None
    new = run.method.data.vocabulary.encode(
        ["Thunder and hail, then mist.", "A ferry ticket from the harbour", "the flute!"]
    )
    predicted = [run.method.data.classes[k] for k in run.method.predict(new).argmax(1).tolist()]  # type: ignore[attr-defined]
    assert predicted == ["weather", "travel", "music"]


def test_a_run_keeps_its_words_when_the_table_grows(cli: Callable[..., Any], table: Path) -> None:
    cli("train", "text.toml", "--set", "run.epochs=1").fine()
    run = open_run("run")
    with open(table, "a") as file:
        file.writelines("aardvark aardvark aardvark aardvark aardvark,animals\n" for _ in range(40))
    grown = open_run("run")
    assert run.method.data.vocabulary is not None
    assert grown.method.data.vocabulary is not None
    assert grown.method.data.vocabulary.words == run.method.data.vocabulary.words
    x = run.method.data.vocabulary.encode(["mist and hail"])
    assert torch.equal(run.method.predict(x), grown.method.predict(x))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("method.net={name='resnet8'}", "method.net.name = 'resnet8' does not read texts; choose another, such as"),
        ("data.set=shapes", "method.net.name = 'text-mean' does not read images; choose another, such as 'resnet32'"),
        ("data.text.strong=['back-translation']", "needs texts with a column back_translation"),
        ("data.text.lenght=4", "unknown key 'lenght' in [data.text]; did you mean 'length'?"),
        ("method.net.name=hf:nowhere", "'hf:nowhere'"),
    ],
)
def test_mistakes_are_one_line(cli: Callable[..., Any], table: Path, change: str, message: str) -> None:
    assert message in cli("train", "text.toml", "--set", change).mistake()
    assert not (table.parent / "run").exists()


def test_a_table_of_other_names_is_looked_at_as_it_will_be_read(
    cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("reviews.csv").write_text("stars,review\n" + "good,a fine day\n" * 6 + "bad,so bad\nbad,bad again\n")
    assert cli("look", "reviews.csv").code == 2
    told = ("--set", "data.text_column=review", "--set", "data.label_column=stars")
    assert "--set data.text_column=review --set data.label_column=stars" in cli("look", "reviews.csv", *told).fine()
    assert "--set takes keys of [data], not run.seed=1" in cli("look", "reviews.csv", "--set", "run.seed=1").mistake()
