"""Arrays of a program at the bounds of what is taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from evenhand.errors import UserError
from evenhand.run.handed import Inputs, labels_of, numbered


class Frame:
    """As much of a data frame as is asked for."""

    def __init__(self, columns: tuple[Any, ...], values: np.ndarray) -> None:
        self.columns, self.values = columns, values

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        return self.values


def test_floats_up_to_one_are_shares_of_255() -> None:
    unit = np.array([[[0.0, 0.5], [1.0, 0.25]]])
    inputs = Inputs.of(unit)
    assert inputs == Inputs("images", (2, 2), 255.0)
    assert np.array_equal(inputs.read(unit), [[[0, 128], [255, 64]]])
    assert Inputs.of(2 * unit).scale == 1.0
    assert Inputs.of(np.ones((1, 2, 2), np.int64)) == Inputs("images", (2, 2), 1.0)
    assert Inputs("images") == Inputs("images", (), 1.0, ())


def test_pixels_end_at_255() -> None:
    inputs = Inputs("images", (1, 2))
    assert np.array_equal(inputs.read(np.array([[[0.0, 255.4]]])), [[[0, 255]]])
    for wrong in ([[[-1, 3]]], [[[3, 256]]]):
        with pytest.raises(UserError, match=r"expected 0\.\.255: scale them"):
            inputs.read(np.array(wrong))
    with pytest.raises(UserError, match=r"images lie in 0\.\.2, expected 0\.\.1:"):
        Inputs("images", (1, 2), 255.0).read(np.array([[[0.0, 2.0]]]))


def test_columns_are_those_of_a_frame_whose_names_are_words() -> None:
    numbers = np.zeros((3, 2))
    assert Inputs.of(Frame(("a", "b"), numbers)) == Inputs("vectors", (2,), columns=("a", "b"))
    assert Inputs.of(Frame((0, "b"), numbers)).columns == ()
    assert Inputs.of(numbers).columns == ()
    inputs = Inputs("vectors", (2,), columns=("a", "b"))
    assert inputs.read(numbers).dtype == np.float32  # type: ignore[union-attr]
    with pytest.raises(UserError, match="They differ in: another order"):
        inputs.read(Frame(("b", "a"), numbers))
    with pytest.raises(UserError, match="They differ in: b, c;"):
        inputs.read(Frame(("a", "c"), numbers))


@pytest.mark.parametrize(
    ("inputs", "X", "said"),
    [
        (Inputs("vectors", (2,)), np.zeros((1, 3)), "X has 3 features, but Classifier is expecting 2 features"),
        (Inputs("vectors", (2,)), np.zeros((1, 2, 2)), r"X has samples \(2, 2\), but Classifier was fitted to \(2,\)"),
        (Inputs("images", (2, 2)), np.zeros((1, 2)), r"X has samples \(2,\)"),
        (Inputs("images", (2, 2)), np.zeros((1, 2, 3)), r"X has samples \(2, 3\)"),
        (Inputs("vectors", (2,)), ["a"], "X is texts, but Classifier was fitted to vectors"),
        (Inputs("texts"), np.zeros((1, 2)), r"X is an array \(1, 2\), but Classifier was fitted to texts"),
        (Inputs("images", (2, 2, 1, 1)), np.zeros((1, 2, 2, 1, 1)), "X has 5 axes"),
        (Inputs("vectors", (2,)), np.zeros(2), "Expected 2D array, got 1D array"),
        (Inputs("vectors", (1,)), np.array([[np.inf]]), "contains infinity"),
        (Inputs("vectors", (1,)), np.array([[np.nan]]), "contains NaN"),
        (Inputs("vectors", (1,)), np.array([[1j]]), "Complex data"),
    ],
)
def test_what_is_not_like_fits_is_refused(inputs: Inputs, X: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        inputs.read(X)


def test_four_axes_tensors_and_texts_are_taken() -> None:
    assert Inputs.of(torch.zeros(2, 4, 4, 3, dtype=torch.uint8)) == Inputs("images", (4, 4, 3))
    assert Inputs.of(["a", "b"]) == Inputs("texts")
    assert Inputs("texts").read(np.array(["a", "b"])) == ["a", "b"]
    assert np.array_equal(Inputs.of([["1", "2"]]).read([["1", "2"]]), [[1.0, 2.0]])


def test_samples_are_named_by_their_rows_and_framed() -> None:
    source = Inputs("images", (300, 260)).source(np.zeros((2, 300, 260), np.uint8), "val")
    assert [source.name(row) for row in range(2)] == ["val/0", "val/1"]
    assert source.fetch(torch.tensor([0])).shape == (1, 1, 224, 224)  # type: ignore[union-attr]
    small = Inputs("images", (9, 7, 3)).source(np.zeros((1, 9, 7, 3), np.uint8), "val")
    assert small.fetch(torch.tensor([0])).shape == (1, 3, 7, 7)  # type: ignore[union-attr]
    asked = Inputs("images", (9, 7)).source(np.zeros((1, 9, 7), np.uint8), "val", 5)
    assert asked.fetch(torch.tensor([0])).shape == (1, 1, 5, 5)  # type: ignore[union-attr]
    texts = Inputs("texts").source(["x", "y"], "labelled")
    assert (texts.kind, texts.name(1)) == ("texts", "labelled/1")


def test_labels_are_one_whole_class_a_sample() -> None:
    assert labels_of([1.0, 2.0], 2).tolist() == [1.0, 2.0]
    assert labels_of(torch.tensor([3, 4]), 2).tolist() == [3, 4]
    with pytest.warns(UserWarning, match="A column-vector y was passed"):
        assert labels_of([[5], [6]], 2).tolist() == [5, 6]
    for wrong, said in (
        ([[1, 2], [3, 4]], "y should be a 1d array"), ([1, 2, 3], "X has 2 samples and y 3"),
        ([1.0, 2.5], "Unknown label type: continuous"), ([1.0, np.nan], "Input y contains NaN"), (None, "is None"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=said):
            labels_of(wrong, 2)


def test_a_label_is_its_place_among_the_classes() -> None:
    classes = np.array(["ant", "bee", "cow"])
    assert numbered(np.array(["cow", "ant", "bee"]), classes, "y").tolist() == [2, 0, 1]
    for unknown in ("aaa", "bat", "dog"):
        with pytest.raises(UserError, match=f"y_val has the label '{unknown}', of which there is no training sample"):
            numbered(np.array(["ant", unknown]), classes, "y_val")
