"""What a measurement keeps to be looked at: every prediction by name, and pictures or texts of the telling ones."""

from __future__ import annotations

import base64
import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from evenhand import parallel
from evenhand.data.sources.source import Picked, joined
from evenhand.data.sources.texts import Texts
from evenhand.data.stream import Memory, Stream
from evenhand.measure import examples
from evenhand.measure.classification import Evaluation
from evenhand.run.measuring import measure
from evenhand.run.recipe import validate
from evenhand.run.training import train

NAMES = ("zebra", "ape", "cat")
TRUTH = torch.tensor([0, 1, 2, 0, 1, 2])


def logits(*rows: tuple[float, float, float]) -> Tensor:
    return torch.tensor(rows).log()


SAID = logits(
    (0.7, 0.2, 0.1),  # zebra, right
    (0.6, 0.3, 0.1),  # ape taken for zebra
    (0.05, 0.9, 0.05),  # cat taken for ape, a tie for the second
    (0.1, 0.8, 0.1),  # zebra taken for ape
    (0.35, 0.4, 0.25),  # ape, right, close
    (0.2, 0.75, 0.05),  # cat taken for ape
)


def shades(count: int, side: int = 8, channels: int = 1) -> Tensor:
    """Images whose brightness is 20 times their row."""
    return (20 * torch.arange(count)).byte().view(-1, 1, 1, 1).expand(-1, channels, side, side)


def stream(samples: Any = None) -> Stream:
    names = [f"{k}/{i}.png" for i, k in enumerate(TRUTH.tolist())]
    return Stream(Memory(shades(6), names) if samples is None else samples, TRUTH, NAMES, "test")


def test_every_prediction_stands_in_the_table_by_name() -> None:
    rows = list(csv.reader(io.StringIO(examples.predictions(Evaluation.of(SAID, TRUTH), stream()).decode())))
    assert rows == [
        ["name", "truth", "predicted", "confidence", "second", "second_confidence"],
        ["0/0.png", "zebra", "zebra", "0.7000", "ape", "0.2000"],
        ["1/1.png", "ape", "zebra", "0.6000", "ape", "0.3000"],
        ["2/2.png", "cat", "ape", "0.9000", "zebra", "0.0500"],
        ["0/3.png", "zebra", "ape", "0.8000", "zebra", "0.1000"],
        ["1/4.png", "ape", "ape", "0.4000", "zebra", "0.3500"],
        ["2/5.png", "cat", "ape", "0.7500", "zebra", "0.2000"],
    ]


def test_the_second_is_never_the_first_again() -> None:
    found = Evaluation.of(torch.zeros(2, 3), torch.tensor([0, 1]))
    assert (found.predicted != found.second).all()
    assert found.second_confidence.tolist() == pytest.approx([1 / 3, 1 / 3])
    alone = Evaluation.of(torch.zeros(1, 1), torch.tensor([0]))
    assert alone.second_confidence.tolist() == [0.0]


def test_the_surest_mistakes_come_first_then_confusions_in_turn_then_close_hits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = Evaluation.of(SAID, TRUTH)
    assert examples.chosen(found) == [2, 3, 5, 1, 0, 4]
    monkeypatch.setattr(examples, "SUREST", 1)
    # cat → ape happened twice, so it comes first in a turn: 2 is shown, then zebra → ape and ape → zebra, then 5.
    assert examples.chosen(found) == [2, 3, 1, 5, 0, 4]
    monkeypatch.setattr(examples, "EACH", 1)
    assert examples.chosen(found) == [2, 3, 1, 0, 4]
    assert examples.chosen(found, most=2) == [2, 3]
    hits = Evaluation.of(logits((0.9, 0.05, 0.05), (0.5, 0.3, 0.2), (0.6, 0.3, 0.1)), torch.zeros(3, dtype=torch.int64))
    assert examples.chosen(hits) == [1, 2]


def test_pictures_are_those_of_their_rows() -> None:
    rows = json.loads(examples.examples(Evaluation.of(SAID, TRUTH), stream()))["shown"]
    assert [(row["name"], row["truth"], row["predicted"], row["confidence"]) for row in rows[:2]] == [
        ("2/2.png", 2, 1, 0.9),
        ("0/3.png", 0, 1, 0.8),
    ]
    for row in rows:
        with Image.open(io.BytesIO(base64.b64decode(row["data"]))) as picture:
            assert picture.size == (row["width"], row["height"]) == (8, 8)
            assert picture.format == row["kind"].upper() == "PNG"
            assert picture.getpixel((4, 4)) == 20 * int(row["name"].rpartition("/")[2][0])


def test_large_pictures_are_reduced_and_all_together_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    large = stream(Memory(torch.randint(0, 255, (6, 3, 300, 150), dtype=torch.uint8)))
    rows = json.loads(examples.examples(Evaluation.of(SAID, TRUTH), large))["shown"]
    assert {(row["kind"], row["width"], row["height"]) for row in rows} == {("jpeg", 48, 96)}
    sizes = [len(row["data"]) for row in rows]
    monkeypatch.setattr(examples, "BYTES", sum(sizes[:2]))
    assert len(json.loads(examples.examples(Evaluation.of(SAID, TRUTH), large))["shown"]) == 2


def test_number_and_pictures_do_not_grow_with_the_split(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = torch.Generator().manual_seed(0)
    truth = torch.randint(50, (3000,), generator=chance)
    found = Evaluation.of(torch.randn(3000, 50, generator=chance), truth)
    fetched: list[int] = []
    source = Memory(torch.zeros(3000, 1, 4, 4, dtype=torch.uint8))
    monkeypatch.setattr(source, "fetch", lambda rows: fetched.append(len(rows)) or source.samples[rows])
    rows = json.loads(examples.examples(found, Stream(source, truth, tuple(map(str, range(50))), "test")))["shown"]
    assert len(rows) == sum(fetched) == examples.MOST
    assert max(fetched) <= examples.BATCH


def test_texts_are_shown_as_texts_and_features_as_their_images() -> None:
    texts = Texts([f"text {i} & ä猫" + "x" * 500 * (i == 2) for i in range(6)])
    tokens = stream(Memory(torch.zeros(6, 4, dtype=torch.int64), origin=texts))
    rows = json.loads(examples.examples(Evaluation.of(SAID, TRUTH), tokens))["shown"]
    assert rows[1]["text"] == "text 3 & ä猫"
    assert len(rows[0]["text"]) == examples.LETTERS
    assert rows[0]["text"].endswith("x…")
    vectors = Memory(torch.zeros(6, 4), origin=Memory(shades(6)))
    shown = json.loads(examples.examples(Evaluation.of(SAID, TRUTH), stream(vectors)))["shown"]
    with Image.open(io.BytesIO(base64.b64decode(shown[0]["data"]))) as picture:
        assert picture.getpixel((0, 0)) == 40
    bare = json.loads(examples.examples(Evaluation.of(SAID, TRUTH), stream(Memory(torch.zeros(6, 4)))))["shown"]
    assert not any("data" in row or "text" in row for row in bare)


def test_what_a_sample_was_made_of_goes_with_it() -> None:
    vectors = Memory(torch.zeros(6, 4), origin=Memory(shades(6)))
    rows = torch.tensor([4, 2])
    for picked in (vectors.pick(rows), Picked(vectors, rows), joined([vectors.pick(rows[:1]), vectors.pick(rows[1:])])):
        assert picked.origin is not None
        assert picked.origin.fetch(torch.tensor([0, 1]))[:, 0, 0, 0].tolist() == [80, 40]  # type: ignore[call-overload]
    assert joined([vectors, Memory(torch.zeros(1, 4))]).origin is None


def recipe(folder: Path) -> Any:
    data = {"set": "shapes", "n_max": 8, "imbalance": 2, "val_per_class": 2, "test_per_class": 3}
    method = {"name": "classifier", "batch": 16, "net": {"name": "small-cnn", "width": 2}}
    return validate(
        {"data": data, "method": method, "run": {"folder": str(folder), "steps": 1, "progress": False}}, "t"
    )


def test_a_run_has_both_files_for_each_split_and_only_the_writer_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = train(recipe(tmp_path / "run"))
    whole = list(csv.DictReader((folder / "predictions.csv").open()))
    assert len(whole) == 30
    counted = sum(row["truth"] == row["predicted"] for row in whole)
    assert counted / 30 == pytest.approx(json.loads((folder / "measure.json").read_text())["accuracy"])
    assert json.loads((folder / "examples.json").read_text())["shown"]
    before = (folder / "predictions.csv").read_bytes()
    measure(folder, split="val")
    assert len(list(csv.DictReader((folder / "predictions-val.csv").open()))) == 20
    assert (folder / "examples-val.json").exists()
    assert (folder / "predictions.csv").read_bytes() == before
    for name in ("predictions.csv", "examples.json"):
        (folder / name).unlink()
    monkeypatch.setattr(parallel, "is_writer", lambda: False)
    monkeypatch.setattr(examples, "files_of", lambda *_: pytest.fail("work that another process does"))
    measure(folder)
    assert not (folder / "predictions.csv").exists()
    assert not (folder / "examples.json").exists()
