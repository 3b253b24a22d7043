"""The recipe that ``train DATA`` chooses: the data read as asked, the length and the reason as the data are."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from evenhand.data.stream import Memory, Stream
from evenhand.run import choosing
from evenhand.run.choosing import choose, seconds_to_embed
from helpers import scene, truncate


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is fetched, built or timed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(choosing, "obtain_weights", lambda _: Path("weights"))
    monkeypatch.setattr(choosing, "seconds_to_embed", lambda _, side: side / 1000)
    monkeypatch.setattr(choosing, "build_method", lambda *_: None)
    monkeypatch.setattr(choosing, "time_steps", lambda *_: (0.1, 100, 10))


def pictures(root: str, **counts: int) -> Path:
    for k, (name, count) in enumerate(counts.items()):
        for i in range(count):
            scene(Path(root, name, f"{i}.png"), 1000 * k + i, (32, 32))
    return Path(root)


def test_data_are_looked_at_as_they_will_be_read() -> None:
    rows = [f"a fine day number {i} in town,{'good' if i % 3 else 'bad'}" for i in range(30)]
    Path("reviews.csv").write_text("review,stars\n" + "\n".join(rows) + "\n")
    recipe = choose("reviews.csv", ["data.text_column=review", "data.label_column=stars"])
    assert (recipe.data.text_column, recipe.data.label_column) == ("review", "stars")
    truncate(pictures("mine", ant=12, bee=3) / "ant" / "0.png")
    assert choose("mine", ["data.skip_unreadable=true"]).data.skip_unreadable


def test_self_training_is_sized_for_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    pictures("mine/train", ant=12, bee=6)
    pictures("mine", unlabelled=42)
    recipe = choose("mine")
    assert (recipe.method.name, recipe.method.net.name, recipe.data.size) == ("csst", "small-cnn", 32)
    assert recipe.run.steps == choosing.FEWEST
    assert (recipe.data.val_per_class, recipe.data.val_share) == (0, 0.2)
    assert "for 70% of the samples have no label" in capsys.readouterr().out
    assert choose("mine", ["data.val_per_class=1"]).data.val_per_class == 1
    other = choose("mine", ["run.steps=7", "method.net.name=resnet20"])
    assert (other.method.net.name, other.run.steps, other.data.size) == ("resnet20", 7, 32)


def test_few_missing_labels_are_no_reason_for_self_training(capsys: pytest.CaptureFixture[str]) -> None:
    pictures("mine/train", ant=36, bee=25)
    pictures("mine", unlabelled=42)
    recipe = choose("mine")
    assert recipe.method.name == "classifier"
    assert "the 42 unlabelled samples are not used" in capsys.readouterr().out
    assert choose("mine", ["data.val_per_class=2"]).data.val_per_class == 2


def test_what_the_user_sets_is_not_explained_as_ours(capsys: pytest.CaptureFixture[str]) -> None:
    pictures("mine", ant=12, bee=3)
    recipe = choose("mine", ["method.loss=ce"])
    said = capsys.readouterr().out
    assert recipe.method.loss == "ce"
    assert "recipe: pretrained with method.loss=ce, as you set it" in said
    assert "measured: " not in said
    assert recipe.about.endswith("(chosen for mine: method.loss=ce was set)")
    assert "measured: " in (choose("mine", ['method.loss="la"']).about and capsys.readouterr().out)


def test_balanced_sampling_takes_the_place_of_logit_adjustment(capsys: pytest.CaptureFixture[str]) -> None:
    pictures("mine", ant=12, bee=3)
    recipe = choose("mine", ["method.sampling=class-balanced"])
    said = capsys.readouterr().out
    assert (recipe.method.sampling, recipe.method.loss) == ("class-balanced", "ce")
    assert "recipe: pretrained with method.sampling=class-balanced, as you set it" in said
    assert "without that it would be method.loss=la" in said
    assert choose("mine", ["method.sampling=class-balanced", "method.loss=la"]).method.loss == "la"
    assert choose("mine", ["method.sampling=instance"]).method.loss == "la"


def test_a_target_is_not_learnt_from(capsys: pytest.CaptureFixture[str]) -> None:
    for domain in ("art", "photo", "sketch"):
        pictures(f"mine/{domain}", ant=4, bee=4)
    chosen = {tuple(given): choose("mine", given).data for given in (["data.target=art"], ["data.source=['art']"], [])}
    assert [(data.source, data.target) for data in chosen.values()] == [
        (["photo"], "art"), (["art"], "photo"), (["art"], "photo"),
    ]  # fmt: skip
    assert "learn from photo, work on art" in capsys.readouterr().out


def test_embedding_is_timed_per_image_on_the_device_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on one second at every look: one for decoding, one for the network."""
    clock = itertools.count()
    monkeypatch.setattr(choosing, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    some = Stream(Memory(torch.zeros(5, 3, 32, 32, dtype=torch.uint8)), None, (), "all")
    assert seconds_to_embed(some, 32, count=4) == 2 / 4
