"""Which predictions are shown, in what order, and how small."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import pytest
import torch
from PIL import Image

from evenhand.data.sources.texts import Texts
from evenhand.data.stream import Memory, Stream
from evenhand.measure import examples
from evenhand.measure.classification import Evaluation


def said(rows: list[tuple[int, int, float]], classes: int = 3) -> Evaluation:
    """Of (truth, prediction, confidence)."""
    truth, predicted = (torch.tensor([row[i] for row in rows]) for i in (0, 1))
    sure = torch.tensor([row[2] for row in rows])
    return Evaluation(
        predicted, sure, torch.zeros(len(rows)), torch.ones(len(rows)).bool(), (predicted + 1) % classes,
        (1 - sure) / 2, truth, classes,
    )  # fmt: skip


def images(count: int, channels: int = 3, side: int = 8) -> Memory:
    pixels = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(count, channels, side, side)
    return Memory(pixels, [f"n{i}" for i in range(count)])


def test_surest_mistakes_come_first_then_confusions_in_turn_then_close_hits(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        (0, 0, 0.99), (0, 0, 0.5), (0, 0, 0.6), (1, 1, 0.7), (0, 1, 0.9), (0, 1, 0.8), (1, 0, 0.7), (2, 1, 0.6),
        (0, 1, 0.4), (2, 1, 0.3),
    ]  # fmt: skip
    monkeypatch.setattr(examples, "SUREST", 2)
    assert examples.chosen(said(rows)) == [4, 5, 7, 6, 9, 8, 1, 3, 2]
    assert examples.chosen(said(rows), most=3) == [4, 5, 7]
    monkeypatch.setattr(examples, "EACH", 1)
    assert examples.chosen(said(rows)) == [4, 5, 7, 6, 1, 3, 2]
    assert (examples.MOST, examples.CLOSE, examples.BYTES, examples.SIDE) == (200, 2, 600_000, 96)
    assert (examples.LETTERS, examples.SHARP, examples.BATCH) == (400, 40, 16)
    assert examples._in_turn([[1, 2, 3], [4], []], 2) == [1, 4, 2]


def test_twenty_four_and_six_of_a_confusion_are_shown() -> None:
    rows = [(0, 1, 1 - i / 1000) for i in range(40)] + [(1, 2, 0.5 - i / 1000) for i in range(9)]
    assert examples.chosen(said(rows)) == [*range(24), *range(40, 46)]


def test_predictions_have_a_line_for_each_sample() -> None:
    stream = Stream(images(2), torch.tensor([0, 2]), ("ant", "bee", "cow"), "test")
    made = examples.files_of(said([(0, 1, 0.9), (2, 2, 0.123456)]), stream)
    assert made["predictions.csv"].decode().splitlines() == [
        "name,truth,predicted,confidence,second,second_confidence",
        "n0,ant,bee,0.9000,cow,0.0500",
        "n1,cow,cow,0.1235,ant,0.4383",
    ]
    shown = json.loads(made["examples.json"])["shown"]
    assert [(one["name"], one["truth"], one["predicted"], one["confidence"]) for one in shown] == [
        ("n0", 0, 1, 0.9), ("n1", 2, 2, 0.1235),
    ]  # fmt: skip
    assert made["examples.json"].decode().startswith('{\n "shown"')


@pytest.mark.parametrize(
    ("side", "kind", "width"), [(8, "png", 8), (40, "png", 40), (41, "jpeg", 41), (200, "jpeg", 96)]
)
@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_are_small_and_tiny_ones_sharp(side: int, kind: str, width: int, channels: int) -> None:
    made = examples._picture(torch.full((channels, side, side), 90, dtype=torch.uint8))
    assert (made["kind"], made["width"], made["height"]) == (kind, width, width)
    stored = Image.open(io.BytesIO(base64.b64decode(made["data"])))
    assert (stored.format, stored.mode, stored.size) == (kind.upper(), "L" if channels == 1 else "RGB", (width, width))
    assert stored.convert("L").getpixel((2, 2)) == 90


def test_what_exceeds_the_bytes_is_left_out_and_texts_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(images(3), torch.tensor([0, 0, 0]), ("ant", "bee", "cow"), "test")
    found = said([(0, 1, 0.9), (0, 1, 0.8), (0, 1, 0.7)])
    size = len(examples._picture(torch.zeros(3, 8, 8, dtype=torch.uint8))["data"])

    def names(limit: int) -> list[str]:
        monkeypatch.setattr(examples, "BYTES", limit)
        return [one["name"] for one in json.loads(examples.examples(found, stream))["shown"]]

    lengths = [len(one["data"]) for one in json.loads(examples.examples(found, stream))["shown"]]
    assert size > 0
    assert names(sum(lengths)) == ["n0", "n1", "n2"]
    assert names(sum(lengths) - 1) == ["n0", "n1"]
    texts: Any = Texts(["x" * 400, "y" * 401])
    shown = examples._seen(texts, torch.tensor([0, 1]))
    assert [one["text"] for one in shown] == ["x" * 400, "y" * 399 + "…"]
    assert examples._seen(Memory(torch.zeros(2, 3)), torch.tensor([0, 1])) == [{}, {}]
    origin = Stream(Memory(torch.zeros(3, 2), ["v0", "v1", "v2"], images(3)), torch.tensor([0, 0, 0]), ("a",) * 3, "x")
    monkeypatch.setattr(examples, "BYTES", 10**6)
    looked_at = json.loads(examples.examples(found, origin))["shown"]
    assert (looked_at[0]["name"], looked_at[0]["kind"]) == ("v0", "png")
