"""Findings in words, from findings made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rich.console import Console

from evenhand.run.advice import Advice
from evenhand.run.findings import Copies, Findings
from evenhand.run.looking import class_table, facts, problems, tell
from evenhand.run.objects import Objects
from evenhand.run.seen import Pictures

SOUND = Findings("p", classes=("a", "b"), counts={"all": {"a": 4, "b": 4}})
BOXES = Objects(
    images={"train": 3}, bare={"train": 1}, optional=0, sizes={}, sides=None, aspects=None, faults=(), missing=(),
    flat=(), outside=(), resized=(),
)  # fmt: skip


def told(console: Console) -> list[str]:
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def test_lines_are_printed_as_they_are_written_and_three_pieces_of_advice(narrow: Console) -> None:
    found = Findings("my [b] photos 2024", domains=("[red] number 1", "[b] number 2"))
    advice = [Advice(f"n{i}", f"recipe[b]{i}", (), f"[red] reason {i}", f"[red] evidence {i}") for i in range(4)]
    tell(found, advice, narrow)
    expected = ["domains: [red] number 1, [b] number 2"]
    for i in range(3):
        expected += ["", f"{'or' if i else 'advice'}: evenhand train 'recipe[b]{i}'", f"  why: [red] reason {i}"]
        expected += [f"  measured: [red] evidence {i}"]
    assert told(narrow) == [*expected, "", "or let it choose: evenhand train 'my [b] photos 2024'"]


def test_what_would_stop_training_is_not_offered_to_it(narrow: Console) -> None:
    advice = [Advice("n", "recipe", (), "reason", "evidence")]
    tell(replace(SOUND, empty=("c",), counts={}), advice, narrow)
    assert not any("let it choose" in line for line in told(narrow))
    tell(SOUND, [], narrow)
    assert not any("let it choose" in line for line in told(narrow))


def test_the_table_has_the_most_frequent_class_first() -> None:
    counts = {"train": {"few": 1, "many": 9, "[b]": 5}, "test": {"few": 2, "many": 3}}
    found = Findings("p", classes=("few", "many", "[b]"), counts=counts, groups={"head": ["many"], "tail": ["few"]})
    say = Console(width=60, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    say.print(class_table(found))
    assert [line.split() for line in say.export_text().splitlines()] == [
        ["class", "train", "test", "group"], ["many", "9", "3", "head"], ["[b]", "5", "0"], ["few", "1", "2", "tail"],
        ["all", "15", "5"],
    ]  # fmt: skip


def test_pictures_and_texts_are_told_of() -> None:
    shapes = Pictures((10, 20), (30, 40), (50, 60), (0.5, 1.0, 2.0), {"RGB": 7, "L": 1}, "crop", "nearly square")
    lines = [*facts(replace(SOUND, pictures=shapes, words=(3, 9)))]
    assert lines[1:] == [
        "sizes: 10 x 20 to 50 x 60, median 30 x 40; width : height 0.50 to 2.00, median 1.00",
        "modes: RGB 7, L 1",
        "frame: crop (nearly square; data.frame says otherwise)",
        "words: median 3, longest 9",
    ]
    scenes = [*facts(replace(SOUND, pictures=shapes, objects=BOXES, unlabelled={"street": 5}))]
    assert scenes[1] == "images: train 3 (1 without any box), street 5 without annotations"
    assert not any(line.startswith(("frame:", "boxes:", "unlabelled:")) for line in scenes)


def test_half_of_what_is_known_of_boxes_is_not_told() -> None:
    sides = replace(BOXES, sides=(1.0, 2.0, 3.0), sizes={"small": 1, "large": 3})
    assert len([*facts(replace(SOUND, objects=sides))]) == 2
    both = [*facts(replace(SOUND, objects=replace(sides, aspects=(0.5, 1.0, 2.0), optional=4)))]
    assert both[2:] == [
        "boxes: small 25%, large 75% (COCO: below 32 x 32 and 96 x 96 pixels); side 1 to 3, median 2",
        "their width : height 0.50 to 2.00, median 1.00",
        "optional boxes (difficult, crowds): 4, neither trained on nor counted as missed",
    ]


def test_ten_of_a_kind_are_listed_and_the_others_counted() -> None:
    for count, last in ((10, "error: f9: bad"), (12, "... and 2 more")):
        files = {f"f{i}": "bad" for i in range(count)}
        lines = [*problems(replace(SOUND, unreadable=files))]
        assert len(lines) == 10 + (count > 10)
        assert lines[-1] == last
    faults = replace(BOXES, faults=[f"fault {i}" for i in range(11)])
    assert [*problems(replace(SOUND, objects=faults))][-1] == "... and 1 more"


def test_a_remedy_is_told_where_it_holds() -> None:
    damaged = {"a.png": "cannot read a.png: replace it, or set data.skip_unreadable", "b.png": "is broken"}
    assert [*problems(replace(SOUND, unreadable=damaged))] == [
        "error: cannot read a.png: replace it, or set data.skip_unreadable", "error: b.png: is broken",
    ]  # fmt: skip
    one, _ = problems(replace(SOUND, unreadable=damaged, objects=BOXES))
    assert one == "error: cannot read a.png: replace it"


def test_a_single_sample_cannot_be_tested_unless_a_test_is_brought() -> None:
    lone = replace(SOUND, counts={"train": {"a": 4, "b": 1}})
    said = "warning: classes with a single sample: b; they train"
    assert [*problems(lone)] == [f"{said}, but nothing is left to test them on (data.min_per_class); add images"]
    tested = replace(lone, counts={**lone.counts, "test": {"a": 1, "b": 1}})
    assert [*problems(tested)] == [f"{said}; add images"]
    assert [*problems(replace(lone, objects=BOXES))] == []


def test_copies_are_told_by_kind_exact_ones_first() -> None:
    def some(near: bool, across: str) -> Copies:
        return Copies(near, across, ("x", "y"))

    lines = [*problems(replace(SOUND, copies=(some(True, ""), some(False, ""), some(True, "classes"))))]
    assert [line.partition(", such as")[0] for line in lines] == [
        "info: 1 sets of exact copies within a class",
        "warning: 1 sets of near copies under two labels",
        "info: 1 sets of near copies within a class",
    ]
    (line,) = problems(replace(SOUND, copies=(some(False, ""),), objects=BOXES))
    assert line.startswith("info: 1 sets of exact copies within a split")


def test_folders_differ_from_three_in_four_on() -> None:
    shift: Any = {("a", "b"): 0.75, ("a", "c"): 0.7499}
    lines = [*problems(replace(SOUND, shift=shift))]
    assert [line.split(":")[0] for line in lines] == ["warning", "shift"]


def test_classes_without_boxes_are_told_of_among_domains_alone() -> None:
    found = replace(SOUND, objects=BOXES, counts={"x": {"a": 4, "b": 0}}, domains=("x",))
    assert [*problems(found)] == ["warning: no box to learn from for b; add some, or remove the class"]
    assert [*problems(replace(found, domains=()))] == [
        "error: no training object of class b: add some, or remove the class"
    ]
