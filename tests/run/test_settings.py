"""Rounds, rules and their bounds."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from evenhand.run.selection import Best, Rule, parse_rule
from evenhand.run.settings import Cycles, Run
from evenhand.tasks.classify import CLASSIFY


@pytest.mark.parametrize(
    ("budget", "pool", "labels"),
    [(0.02, 1000, 20), (0.02, 49, 1), (0.02, 30, 1), (0.29, 100, 29), (0.999, 1000, 999), (1, 1000, 1), (7.9, 50, 7)],
)
def test_a_budget_below_one_is_a_share_of_the_pool(budget: float, pool: int, labels: int) -> None:
    assert Cycles(budget=budget).labels(pool) == labels


def test_weights_add_up_to_one_at_most() -> None:
    assert Cycles(alpha=0.7, beta=0.3).beta == 0.3
    Cycles(alpha=0.1, beta=0.9)
    Cycles(alpha=0.9 + 1e-10, beta=0.1)
    with pytest.raises(ValidationError, match="add up to more than 1"):
        Cycles(alpha=0.7, beta=0.301)


@pytest.mark.parametrize("also", [["last"], ["val:loss"], ["val:ece", "val:ece"]])
def test_a_rule_beside_is_another_one(also: list[str]) -> None:
    with pytest.raises(ValidationError, match="which is kept anyway; leave it out"):
        Run(select="val:loss", select_also=also)
    assert Run(select="val:loss", select_also=["val:ece", "val:accuracy"]).select_also[0] == "val:ece"


@pytest.mark.parametrize(
    ("text", "stream", "metric"),
    [
        ("val:accuracy", "val", "accuracy"), ("oracle:accuracy", "test", "accuracy"),
        ("label-free:infomax", "target", "infomax"), ("label-free:source-risk", "val", "loss"),
    ],
)  # fmt: skip
def test_a_rule_names_what_is_judged(text: str, stream: str, metric: str) -> None:
    rule = parse_rule(text)
    assert rule is not None
    assert (rule.text, rule.stream, rule.metric) == (text, stream, metric)
    assert rule.file == f"best-{text.replace(':', '-')}.pt"


def test_rules_that_are_none_are_told_so() -> None:
    assert parse_rule("last") is None
    for wrong in ("val", "val:", "train:loss", "latest"):
        with pytest.raises(ValueError, match="is not a rule; use last"):
            parse_rule(wrong)
    with pytest.raises(ValueError, match="is no label-free score"):
        parse_rule("label-free:accuracy")


def test_the_first_of_equal_evaluations_stays_the_best() -> None:
    more, less = Rule("val", "accuracy"), Rule("val", "loss")
    best = Best([more, less], CLASSIFY)
    assert best.scores == {"val:accuracy": -math.inf, "val:loss": -math.inf}
    found = [
        best.beaten({"val": {"accuracy": a, "loss": b}}) for a, b in ((0.5, 2.0), (0.5, 1.0), (0.6, 1.0), (0.1, 3.0))
    ]
    assert found == [[more, less], [less], [more], []]
