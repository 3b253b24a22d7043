"""Which classes of a generator are named aloud, in what order, and what keeps the alarm silent."""

from __future__ import annotations

import re
import warnings

import pytest
import torch

from evenhand.data.stream import Memory, Stream
from evenhand.measure import alarms
from evenhand.measure.alarms import warn_of_absence, warn_of_collapse, warn_of_explosion, warn_of_silence

CLASSES = ("ant", "bee", "cow", "dog", "eel")
EVEN = [10, 10, 10]


def stream(counts: list[int], name: str = "val") -> Stream:
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    return Stream(Memory(torch.zeros(len(labels), 1, 2, 2, dtype=torch.uint8)), labels, CLASSES[: len(counts)], name)


def test_the_class_most_alike_is_named_first() -> None:
    with pytest.warns(UserWarning, match=r"of class 'eel' \(0.00\), 'cow' \(0.10\), 'bee' \(0.40\) are much alike"):
        assert warn_of_collapse([0.5, 0.4, 0.1, None, 0.0], CLASSES, below=0.5) == [1, 2, 4]


def test_the_largest_spectral_norm_is_named_first() -> None:
    said = r"of class 'dog' \(9.00\), 'bee' \(5.00\) is over 2 times the median class's \(2.00\)"
    with pytest.warns(UserWarning, match=said):
        warn_of_explosion([1.0, 5.0, 2.0, 9.0, 1.0], CLASSES)


def test_a_class_hardly_drawn_is_named_once_enough_were() -> None:
    """Of five classes an even share is 0.2: below 0.02 a class is named, of 100 images or more."""
    shares = torch.tensor([0.6, 0.019, 0.02, 0.36, 0.001])
    with pytest.warns(UserWarning, match=r"class 'eel' \(0.10\), 'bee' \(1.90\) is hardly drawn: .* even one were 20$"):
        warn_of_absence(shares, 100, CLASSES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_absence(shares, 99, CLASSES)
        warn_of_absence(torch.tensor([0.6, 0.03, 0.03, 0.31, 0.03]), 1000, CLASSES)
        warn_of_explosion([1.0, 1.0, 2.0, 1.0, 1.0], CLASSES)  # twice the median is not yet wild
        assert warn_of_collapse([0.5, None, 0.5, 0.9, 1.0], CLASSES, below=0.5) == []


@pytest.mark.parametrize(
    ("asked", "annotated", "drawn", "real", "said"),
    [
        (True, False, 30, EVEN, ""),
        (True, True, 30, EVEN, ""),
        (False, True, 10, EVEN, ""),  # of uneven shares some class may have enough
        (False, True, 9, EVEN, ", since 9 drawn images are under 10 of each class: .*judge_samples = 30$"),
        (False, False, 30, EVEN, ", since nobody names the classes of what is drawn: set needs.annotator"),
        (True, False, 28, EVEN, r" for 2 of 3 classes \(bee, cow\), since 28 drawn images are under 10 of each class"),
        (False, False, 30, [30], ""),  # of one class there is nothing to name
        (True, False, 27, EVEN, ", since 27 drawn images are under 10 of each class: .*judge_samples = 30$"),
        (False, True, 30, [9, 9, 9], ", since 'val' has under 10 images of each to compare with: add some, or hold"),
        (False, True, 30, [10, 9, 3], r" for 2 of 3 classes \(bee, cow\), since 'val' has under 10 images of each"),
        (True, False, 30, None, ", since 'val' has under 10 images of each to compare with: add some"),
    ],
)
def test_that_the_alarm_cannot_sound_is_told(
    asked: bool, annotated: bool, drawn: int, real: list[int] | None, said: str
) -> None:
    peers = stream(real) if real else stream(EVEN).unlabelled()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_silence(peers, drawn, asked=asked, annotated=annotated)
    assert len(caught) == bool(said)
    if said:
        assert re.match(f"no collapse alarm{said}", str(caught[0].message))


def test_who_holds_out_none_is_not_told_to_hold_out_none() -> None:
    with pytest.warns(UserWarning, match=r"'labelled' has under 10 images of each to compare with: add some$"):
        warn_of_silence(stream([1, 1, 1], "labelled"), 2000, asked=True, annotated=False)


def test_many_classes_are_named_by_the_first_five() -> None:
    names = [f"c{k}" for k in range(8)]
    assert alarms._named(range(5), [0.1] * 8, names).count("c") == 5
    assert alarms._named(range(7), [0.1] * 8, names).endswith("'c4' (0.10), 2 more")
    assert (alarms.EXPLODED, alarms.RARE, alarms.ENOUGH) == (2.0, 0.1, 20)
