"""Advice at the bounds of its rules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evenhand.run.advice import advise
from evenhand.run.findings import Findings

EVEN = Findings("p", kind="images", classes=("a", "b"), counts={"all": {"a": 100, "b": 100}})


def first(findings: Findings) -> str:
    return advise(findings)[0].name


@pytest.mark.parametrize(
    ("a", "b", "name"),
    [(149, 100, "even"), (150, 100, "uneven, small"), (3000, 2000, "uneven, small"), (3001, 2000, "uneven, large")],
)
def test_uneven_begins_at_three_to_two_and_large_beyond_5000(a: int, b: int, name: str) -> None:
    assert first(replace(EVEN, counts={"all": {"a": a, "b": b}})) == name


def test_few_labels_are_half_of_the_samples_or_fewer() -> None:
    half = advise(replace(EVEN, unlabelled={"x": 150, "y": 50}))[0]
    assert half.name == "few labels"
    assert half.reason.startswith("50% of the samples")
    assert "not used" not in half.reason
    more = advise(replace(EVEN, unlabelled={"x": 199}))[0]
    assert more.name == "even"
    assert more.reason.endswith("; the 199 unlabelled samples are not used")
    assert "not used" not in advise(EVEN)[0].reason


@pytest.mark.parametrize(
    ("counts", "few"),
    [
        ({"all": 31}, True), ({"all": 32}, False), ({"train": 24, "test": 1}, True), ({"train": 25, "test": 1}, False),
        ({"x/train": 25, "x/test": 1}, False), ({"train": 1, "val": 1}, False),
    ],
)  # fmt: skip
def test_validation_is_a_share_where_five_would_be_more_than_a_fifth(counts: dict[str, int], few: bool) -> None:
    found = replace(
        EVEN, unlabelled={"u": 400}, counts={key: {"a": n, "b": n + 1} for key, n in counts.items()}, domains=()
    )
    assert ("data.val_share=0.2" in advise(found)[0].set) == few


def test_domains_are_two_or_more_and_scenes_of_one_are_none() -> None:
    counts = {"x": {"a": 9, "b": 9}, "y": {"a": 9, "b": 9}}
    two = replace(EVEN, counts=counts, domains=("x", "y"))
    assert [a.name for a in advise(two)] == ["two domains", "even"]
    assert first(replace(two, domains=("x",))) == "even"
    assert [a.name for a in advise(replace(two, kind="scenes", domains=("x",)))] == ["scenes"]
    assert [a.name for a in advise(replace(two, kind="scenes"))] == [
        "scenes of two domains", "scenes of two domains, adapted",
    ]  # fmt: skip


def test_named_domains_come_in_the_place_of_the_first() -> None:
    found = replace(EVEN, counts={}, domains=("x", "y", "z"))
    assert advise(found, sources=("z",))[0].set[1:3] == ('data.source=["z"]', "data.target=x")
    assert advise(found, sources=("x", "y"), target="z")[0].set[1:3] == ('data.source=["x", "y"]', "data.target=z")
    assert advise(found, target="x")[0].set[1:3] == ('data.source=["y"]', "data.target=x")
