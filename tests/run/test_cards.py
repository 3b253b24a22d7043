"""Parts of a model's card, from numbers made by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from evenhand.measure.intervals import wilson
from evenhand.run import cards
from evenhand.run.cards import _about, _chosen, _data, _licence, _results, _using

MEASURED = {
    "split": "test", "samples": 1200, "accuracy": 0.5, "mean_recall": 0.4, "min_recall": 0.0, "ece": 0.1,
    "recall": [0.25, None, 0.0], "precision": [0.5, 0.0, 1.0],
}  # fmt: skip


def model(folder: Path, temperature: float | None = None, select: str = "last", **recipe: Any) -> Any:
    data, method = SimpleNamespace(set="some/photos", embed=recipe.get("embed", "")), SimpleNamespace(name="classifier")
    if "net" in recipe:
        method.net = SimpleNamespace(name=recipe["net"])
    made = SimpleNamespace(data=data, method=method, run=SimpleNamespace(select=select))
    return SimpleNamespace(
        run=SimpleNamespace(folder=folder, recipe=made, checkpoint="last.pt", step=7), temperature=temperature,
        classes=("a|b", "b", "c"), facts=SimpleNamespace(counts=[2000, 5, 1]),
    )  # fmt: skip


def test_recalls_have_intervals_where_the_test_is_counted(tmp_path: Path) -> None:
    rows = _results(model(tmp_path, 2.0), MEASURED).splitlines()
    assert rows[0].startswith("On the test split (1,200 samples): accuracy 50.0%")
    assert "calibration error 10.0% before the temperature." in rows[0]
    assert rows[-3:] == [
        "| a\\|b | 2000 | ? | 25.0% | 50.0% |", "| b | 5 | ? | not tested | 0.0% |", "| c | 1 | ? | 0.0% | 100.0% |",
    ]  # fmt: skip
    np.savez(tmp_path / "confusion.npz", confusion=np.array([[1, 3, 0], [0, 0, 0], [1, 1, 0]]))
    rows = _results(model(tmp_path), MEASURED).splitlines()
    assert "calibration error 10.0%. " in rows[0]
    (low, high), (least, most) = wilson(0.25, 4), wilson(0.0, 2)
    assert rows[-3:] == [
        f"| a\\|b | 2000 | 4 | 25.0% [{low:.0%}, {high:.0%}] | 50.0% |", "| b | 5 | 0 | not tested | 0.0% |",
        f"| c | 1 | 2 | 0.0% [{least:.0%}, {most:.0%}] | never predicted |",
    ]  # fmt: skip
    assert _results(model(tmp_path), {"fid": 1.0}) == "Not measured."


@pytest.mark.parametrize(("most", "rest"), [(3, ""), (2, "1 more classes are in the run's measure.json.")])
def test_a_table_of_many_classes_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, rest: str) -> None:
    monkeypatch.setattr(cards, "MOST_CLASSES", most)
    *_, last = _results(model(tmp_path), MEASURED).splitlines()
    assert last == rest if rest else last.startswith("| c |")


def test_what_it_is_made_of_is_told(tmp_path: Path) -> None:
    assert _about(model(tmp_path)) == "A classifier of 3 classes by evenhand's method `classifier`."
    assert _about(model(tmp_path, net="mlp", embed="resnet18")).endswith(
        "`classifier`, network `mlp` on features of the frozen `resnet18`."
    )
    assert _data(model(tmp_path)) == (
        "`photos`: samples not recorded. Training samples by class: 2,000 at most, 1 at least."
    )
    assert _licence("timm:x") == "timm:x, see the model's page in timm"
    assert _licence("pretrained") == "pretrained, see the model's page in timm"
    assert _licence("small-cnn:/a/b/net.pt") == "net.pt, a file of the user's, licence not known"


def test_a_choice_on_the_test_is_called_one(tmp_path: Path) -> None:
    assert _chosen(model(tmp_path, select="val:loss")).endswith("rule `val:loss`. The test split had no part in it.")
    assert "too good" in _chosen(model(tmp_path, select="oracle:loss"))


def test_weights_alone_have_no_output() -> None:
    told = {"shape": "s", "calibrated": "no", "other": "x"}
    assert _using(["m.safetensors"], told).splitlines() == [
        "- file: `m.safetensors`, the weights alone", "- shape: s", "- calibrated: no",
    ]  # fmt: skip
    both = _using(["m.onnx", "m.safetensors"], told).splitlines()
    assert both[:2] == ["- file: `m.onnx`", "- file: `m.safetensors`, the weights alone"]
    assert both[-1].startswith("- output: probabilities (N, K)")
