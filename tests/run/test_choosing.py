"""The recipe that ``train DATA`` chooses: the data read as asked, the length and the reason as the data are."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from evenhand.data.stream import Memory, Stream
from evenhand.errors import UserError
from evenhand.run import choosing
from evenhand.run.choosing import (
    Choice,
    _fitted,
    _pretrained,
    _refuse,
    _sides,
    _steps,
    choose,
    is_data,
    seconds_to_embed,
)
from evenhand.run.findings import Findings
from evenhand.run.recipe import Recipe, load_recipe
from evenhand.run.seen import Pictures
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


# by hand


def choice(say: Console | None = None, name: str = "folder", **own: str) -> Choice:
    return Choice(name, {}, {key.replace("__", "."): value for key, value in own.items()}, say or Console(quiet=True))


def found(counts: dict[str, dict[str, int]], **more: Any) -> Findings:
    return Findings("p", kind="images", classes=("a", "b"), counts=counts, **more)


def test_what_is_told_is_printed_as_it_is(narrow: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    choice(narrow).tell("about [red] 12 images of many")
    assert narrow.file.getvalue() == "about [red] 12 images of many\n"  # type: ignore[attr-defined]
    monkeypatch.setattr(choosing, "Console", lambda: narrow)
    pictures("my [b] photos", ant=12, bee=3)
    choose("my [b] photos")
    lines = narrow.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert "2 classes, largest 12, smallest 3: imbalance 4.0" in lines


def test_files_that_are_tables_are_data(tmp_path: Path) -> None:
    for name in ("a.csv", "b.TSV", "c.jsonl", "d.npz", "e.json", "f.toml", "g.txt"):
        (tmp_path / name).touch()
    assert [path.name for path in sorted(tmp_path.iterdir()) if is_data(str(path))] == [
        "a.csv", "b.TSV", "c.jsonl", "d.npz", "e.json",
    ]  # fmt: skip
    assert not is_data(str(tmp_path / "none.csv"))


@pytest.mark.parametrize(
    ("slip", "said"),
    [
        ("skip_unreadable=true", "unknown key 'skip_unreadable' in the recipe"),
        ("run.epoch=3", r"unknown key 'epoch' in \[run\]; did you mean 'epochs'"),
        ("data.sise=32", r"unknown key 'sise' in \[data\]; did you mean 'size'"),
    ],
)
def test_slips_are_refused_before_the_data_are_looked_at(slip: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenhand.run.choosing.find", None)
    with pytest.raises(UserError, match=said):
        choose("photos", [slip])


def test_the_first_error_is_told_and_the_others_counted() -> None:
    sound = Findings("photos")
    _refuse(sound, [])
    for findings, errors, said in (
        (sound, ["bad"], "photos: bad"),
        (sound, ["bad in photos/a", "b", "c"], "bad in photos/a (2 more: evenhand look photos)"),
        (replace(sound, unreadable={"x": "", "y": ""}), ["x", "y"], "photos: 2 files cannot be read, such as: x"),
        (
            replace(sound, unreadable={"x": "", "y": ""}), ["x", "y", "z"],
            "photos: 2 files cannot be read, such as: x (1 more: evenhand look photos)",
        ),
        (
            replace(sound, unreadable=dict.fromkeys(map(str, range(12)), "")), [*map(str, range(10)), "more", "z"],
            "photos: 12 files cannot be read, such as: 0 (2 more: evenhand look photos)",
        ),
        (replace(sound, unreadable={"x": ""}), ["cannot read x"], "photos: cannot read x"),
        (
            Findings("my photos", unreadable={"x": ""}), ["cannot read my photos/x", "z"],
            "cannot read my photos/x (1 more: evenhand look 'my photos')",
        ),
    ):  # fmt: skip
        with pytest.raises(UserError) as error:
            _refuse(findings, errors)
        assert str(error.value) == said


@pytest.mark.parametrize(
    ("count", "fine_tune", "batch", "held"),
    [
        (19, False, "32", False), (20, False, "32", True), (499, False, "32", True), (500, False, "64", True),
        (500, True, "32", True),
    ],
)  # fmt: skip
def test_batches_and_what_is_held_out_follow_the_counts(count: int, fine_tune: bool, batch: str, held: bool) -> None:
    one = choice()
    _pretrained(one, found({"all": {"a": count, "b": count}}), fine_tune)
    assert one.values == {"method.batch": batch} | ({"data.val_share": "0.1"} if held else {})
    assert one.name == ("pretrained:fine-tune" if fine_tune else "folder")


def test_nothing_more_is_held_out_of_data_that_bring_validation() -> None:
    many = {"a": 30, "b": 30}
    for findings, given in (
        (found({"x/train": many, "x/val": many}), choice()),
        (found({"all": many}), choice(data__val_share="0")),
    ):
        _pretrained(given, findings, False)
        assert "data.val_share" not in given.values


@pytest.mark.parametrize(
    ("labelled", "hidden", "most", "steps"),
    [(100, 4200, 9000, 600), (1000, 10, 9000, 1000), (100, 100, 9000, 500), (1000, 10, 700, 700), (10, 10, None, 500)],
)
def test_self_training_shows_each_sample_as_often_as_where_it_was_measured(
    labelled: int, hidden: int, most: int | None, steps: int
) -> None:
    """A step shows 64 labelled samples and 7 times as many others, each 64 times in all."""
    recipe: Any = SimpleNamespace(method=SimpleNamespace(batch=64, unlabelled_ratio=7), run=SimpleNamespace(steps=most))
    assert _steps(recipe, found({"train": {"a": labelled}}, unlabelled={"u": hidden})) == steps


def fitted(recipe: Recipe, given: Choice, budget: float | None, monkeypatch: pytest.MonkeyPatch, **more: Any) -> Recipe:
    """A recipe whose 100 steps take 0.1 seconds each, 11 with the evaluations."""
    data = SimpleNamespace(streams={}, facts=SimpleNamespace(size=more.pop("size", [48, 32])))
    monkeypatch.setattr(choosing, "read_data", lambda _: data)
    return _fitted(given, recipe, budget, **more)


def test_epochs_and_steps_are_cut_to_the_budget(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = load_recipe("folder", ["run.epochs=40", "run.device=cpu"])
    cut = fitted(recipe, choice(Console()), 5.5, monkeypatch)
    assert (cut.run.epochs, cut.run.eval_every) == (20, 5)
    assert capsys.readouterr().out == "about 0 min 6 s: 20 epochs at 32 pixels, 100 ms a step, measured on cpu\n"
    assert fitted(recipe, choice(), 11.1, monkeypatch) == fitted(recipe, choice(), None, monkeypatch) == recipe
    short = fitted(recipe, choice(), 0.55, monkeypatch)
    assert (short.run.epochs, short.run.eval_every) == (2, 1)
    assert fitted(recipe, choice(), 0.001, monkeypatch).run.epochs == 0.1
    assert fitted(recipe, choice(run__epochs="40"), 0.55, monkeypatch) == recipe
    smaller = fitted(recipe, choice(Console()), 0.55, monkeypatch, last=False)
    assert (smaller.run.epochs, smaller.run.eval_every) == (2, recipe.run.eval_every)
    assert capsys.readouterr().out == ""  # a smaller side is tried before anything is said
    assert fitted(recipe, choice(), 3 / 40 * 11 + 1e-9, monkeypatch, last=False).run.eval_every == 1
    steps = load_recipe("folder", ["run.steps=100", "run.device=cpu"])
    assert fitted(steps, choice(Console()), 5.6, monkeypatch, size=[]).run.steps == 50
    assert capsys.readouterr().out == "about 0 min 6 s: 50 steps, 100 ms a step, measured on cpu\n"
    assert fitted(steps, choice(), 0.01, monkeypatch).run.steps == 1
    assert fitted(steps, choice(run__steps="100"), 0.01, monkeypatch).run.steps == 100


@pytest.mark.parametrize(
    ("stored", "sides", "net"),
    [
        (32, (32,), "small-cnn"),
        (33, (33,), "resnet18"),
        (100, (100, 96), "resnet18"),
        (500, (160, 128, 96), "resnet18"),
    ],
)
def test_images_are_not_enlarged_for_a_network_from_scratch(
    stored: int, sides: tuple[int, ...], net: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    shapes = Pictures((9, 9), (stored, stored + 9), (900, 900), (1.0, 1.0, 1.0), {}, "crop", "")
    given = choice()
    assert _sides(given, found({}, pictures=shapes)) == sides
    assert given.load().method.net.name == net
    tuned = choice(name="pretrained:fine-tune")
    assert _sides(tuned, found({}, pictures=shapes)) == (160, 128, 96)
    assert _sides(choice(data__size="20"), found({}, pictures=shapes)) == (20,)
    named = choice(data__size="20", method__net__name="resnet18")
    _sides(named, found({}, pictures=shapes))
    assert named.values == {}


def test_a_gpu_begins_with_larger_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert _sides(choice(), found({})) == choosing.SIDES == (224, 160, 128, 96)


def test_what_the_user_holds_out_takes_the_place_of_ours() -> None:
    given = choice(data__val_share="0.3")
    given.values["data.val_per_class"] = "7"
    assert given.splits
    assert (given.load().data.val_share, given.load().data.val_per_class) == (0.3, 0)
    given = choice()
    given.values["data.val_per_class"] = "7"
    assert not given.splits
    assert given.load().data.val_per_class == 7


def test_eight_images_are_embedded_to_take_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    clock = itertools.count()
    monkeypatch.setattr(choosing, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    some = Stream(Memory(torch.zeros(9, 3, 32, 32, dtype=torch.uint8)), None, (), "all")
    assert seconds_to_embed(some, 32) == 2 / 8


def test_the_reason_that_is_kept_is_not_endless() -> None:
    name = "x" * 240
    pictures(name, ant=12, bee=3)
    about = choose(name).about
    assert len(about) == 400
    assert f"(chosen for {name}: the largest class has 4.0 times" in about
