"""Which classes a judge of drawn images names, and in what order; what it measures: ``methods/test_generate.py``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from evenhand.measure.judging import Judge, Measure, group_means


@pytest.fixture
def judge() -> Judge:
    data: Any = SimpleNamespace(classes=("ant", "bee", "cow", "dog", "eel"), counts=(9, 7, 5, 3, 1))
    return Judge(Measure(), data, None, cast(Any, torch.device("cpu")))


def test_groups_mean_is_of_the_classes_that_have_a_value() -> None:
    groups = {"head": [0, 3], "mid": [1], "tail": [2, 4]}
    assert group_means([0.5, None, 0.2, 1.0, None], groups) == {"head": 0.75, "mid": None, "tail": 0.2}


def test_the_class_most_alike_is_named_first(judge: Judge) -> None:
    with pytest.warns(UserWarning, match=r"of class 'eel' \(0.00\), 'cow' \(0.10\), 'bee' \(0.40\) are much alike"):
        assert judge._warn_of_collapse([0.5, 0.4, 0.1, None, 0.0]) == [1, 2, 4]


def test_the_largest_spectral_norm_is_named_first(judge: Judge) -> None:
    said = r"of class 'dog' \(9.00\), 'bee' \(5.00\) is over 2 times the median class's \(2.00\)"
    with pytest.warns(UserWarning, match=said):
        judge.warn_of_explosion([1.0, 5.0, 2.0, 9.0, 1.0])
