"""From the [data] table to streams and views: splits that never mix, inputs of every kind, clear refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from evenhand.data.loader import Feed, Loader
from evenhand.data.prepared import Data, _statistics, prepare_data
from evenhand.data.settings import DataSettings
from evenhand.data.sources.files import Files
from evenhand.data.sources.source import Source
from evenhand.data.splits import longtail_counts
from evenhand.data.stream import Memory, Stream
from evenhand.errors import UserError
from evenhand.measure.classification import evaluate

pytestmark = pytest.mark.usefixtures("global_randomness_untouched")

CHANCE = np.random.default_rng(0)
LONGTAIL: dict[str, Any] = {"set": "shapes", "n_max": 20, "imbalance": 10}


def shapes(**settings: Any) -> Data:
    return prepare_data(DataSettings(**{**LONGTAIL, **settings}))


def pixels(stream: Stream) -> Tensor:
    return stream.fetch(torch.arange(len(stream))).flatten(1)


def shared(a: Stream, b: Stream) -> int:
    """How many images of ``a`` are in ``b``."""
    return len({row.numpy().tobytes() for row in pixels(a)} & {row.numpy().tobytes() for row in pixels(b)})


def image(path: Path, level: int, size: int = 12) -> None:
    """A picture whose mean grey is about ``level``, so that labels can be checked by eye of a test."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = CHANCE.integers(-10, 11, (size, size, 3))
    Image.fromarray((level + noise).clip(0, 255).astype(np.uint8)).save(path)


LEVELS = {"ant": 40, "bee": 120, "cow": 200}


def levels_match(stream: Stream) -> bool:
    means = pixels(stream).float().mean(1)
    assert stream.labels is not None
    expected = torch.tensor([float(LEVELS[stream.classes[k]]) for k in stream.labels.tolist()])
    return bool((means - expected).abs().max() < 20)


# the long tail


def test_counts_follow_the_profile() -> None:
    data = shapes()
    assert data.counts == longtail_counts(20, 10, 10)
    assert data.counts == data.streams["labelled"].counts
    assert data.streams["test"].counts == [60] * 10


def test_reversed_order_makes_the_last_class_the_largest() -> None:
    data = shapes(order="reversed")
    assert data.counts == longtail_counts(20, 10, 10)[::-1]
    assert [sorted(group) for group in data.groups.values()] == [[7, 8, 9], [3, 4, 5, 6], [0, 1, 2]]
    assert data.streams["labelled"].classes == shapes().classes  # names stay where they were


def test_order_by_names() -> None:
    names = ["slope", "ring", "disc", "square", "frame", "cross", "saltire", "bars", "stripes", "checks"]
    data = shapes(order=names)
    by_name = dict(zip(data.classes, data.counts, strict=True))
    assert [by_name[name] for name in names] == longtail_counts(20, 10, 10)


def test_step_profile_and_halves() -> None:
    data = shapes(kind="step", groups="halves")
    assert data.counts == [20] * 5 + [2] * 5
    assert data.groups == {"head": [0, 1, 2, 3, 4], "tail": [5, 6, 7, 8, 9]}
    assert data.facts.groups_rule == "halves"


def test_without_imbalance_the_data_stay_as_they_are() -> None:
    assert prepare_data(DataSettings(set="shapes")).counts == [60] * 10
    assert prepare_data(DataSettings(set="shapes", imbalance=10)).counts == longtail_counts(60, 10, 10)


def test_split_seed_chooses_the_samples_and_nothing_else() -> None:
    first, again, other = shapes(), shapes(), shapes(split_seed=1)
    assert first.streams["labelled"].digest() == again.streams["labelled"].digest()
    assert first.streams["labelled"].digest() != other.streams["labelled"].digest()
    assert first.counts == other.counts
    assert first.streams["test"].digest() == other.streams["test"].digest()


# held-out splits


def test_trap_16_validation_is_disjoint_from_training_and_test() -> None:
    data = shapes(val_per_class=7)
    labelled, val, test = (data.streams[name] for name in ("labelled", "val", "test"))
    assert val.counts == [7] * 10
    assert val.name == "val"
    assert shared(val, labelled) == shared(val, test) == shared(labelled, test) == 0


def test_trap_16_validation_does_not_depend_on_the_tail() -> None:
    """Carved before the tail is cut: every imbalance is judged on the same images."""
    mild, severe = shapes(val_per_class=7, imbalance=2), shapes(val_per_class=7, imbalance=20)
    assert mild.streams["val"].digest() == severe.streams["val"].digest()


def test_trap_16_held_out_splits_are_seen_clean() -> None:
    """Training images go through the augmenting view; what ``evaluate`` predicts is the stored image, normalised."""
    data = shapes(val_per_class=2, augment=["crop", "flip", "cutout"])
    val = data.streams["val"]
    seen: list[Tensor] = []

    def predict(x: Tensor) -> Tensor:
        seen.append(data.eval_view(x, torch.Generator()))
        return torch.zeros(len(x), 10)

    evaluate(predict, val, batch=8)
    mean, std = (torch.tensor(getattr(data.facts, key)).view(3, 1, 1) for key in ("mean", "std"))
    stored = val.fetch(torch.arange(len(val))).float() / 255
    torch.testing.assert_close(torch.cat(seen), (stored - mean) / std, rtol=1e-4, atol=1e-4)
    feed = Feed("labelled", 8, (data.train_view, data.eval_view))
    (batch,) = Loader(data.streams["labelled"], feed, seed=0, device=torch.device("cpu")).iterate(0, 1)
    assert not torch.equal(*batch.views)


def test_every_view_has_its_own_steps() -> None:
    """Where the second is the strong one, only it loses a square; where nothing is asked for, nothing is done."""
    data = shapes(augment=[], strong=["cutout"])
    x = data.streams["labelled"].fetch(torch.arange(8))
    weak, strong, clean = (v(x, torch.Generator()) for v in (data.train_view, data.strong_view, data.eval_view))
    assert torch.equal(weak, clean)
    assert not torch.equal(strong, clean)


def test_statistics_are_those_of_the_training_images() -> None:
    data = shapes(val_per_class=5)
    images = data.streams["labelled"].fetch(torch.arange(sum(data.counts))).double() / 255
    torch.testing.assert_close(torch.tensor(data.facts.mean).double(), images.mean((0, 2, 3)), rtol=1e-5, atol=1e-6)
    view = data.eval_view(data.streams["labelled"].fetch(torch.arange(sum(data.counts))), torch.Generator())
    torch.testing.assert_close(view.mean((0, 2, 3)), torch.zeros(3), rtol=0, atol=1e-3)
    torch.testing.assert_close(view.std((0, 2, 3)), torch.ones(3), rtol=0, atol=1e-3)


def test_statistics_leave_nothing_out_but_of_thousands_of_files(tmp_path: Path) -> None:
    """Of pictures to be decoded some do once there are over 10,000; what lies in memory costs nothing."""

    def mean(samples: Source) -> Any:
        return _statistics(DataSettings(set="x"), Stream(samples, torch.zeros(len(samples)).long(), ("a",), "train"))[0]

    for k, shade in enumerate((0, 60, 90, 250)):
        Image.new("RGB", (100, 100), (shade, shade, shade)).save(tmp_path / f"{k}.png")
    assert mean(Files(sorted(tmp_path.glob("*.png")), size=100)) == pytest.approx([100 / 255] * 3)
    many = torch.zeros(10_001, 1, 1, 1, dtype=torch.uint8)
    many[1::2] = 200
    assert mean(Memory(many)) == pytest.approx([5000 / 10_001 * 200 / 255])


def test_statistics_can_be_given() -> None:
    assert shapes(normalise="imagenet").facts.mean == [0.485, 0.456, 0.406]
    assert shapes(normalise=[[0.1, 0.2, 0.3], [1, 1, 1]]).facts.mean == [0.1, 0.2, 0.3]


@pytest.mark.parametrize("count", [1, 59, 60])
def test_fewer_test_samples_on_request(count: int) -> None:
    assert shapes(test_per_class=count).streams["test"].counts == [count] * 10


def test_the_streams_come_in_order() -> None:
    assert list(shapes(val_per_class=2).streams) == ["labelled", "val", "test"]
    assert shapes().streams["labelled"].name == "labelled"


# what users bring


def test_folders_with_splits(tmp_path: Path) -> None:
    for name, level in LEVELS.items():
        for split, count in (("train", 6), ("val", 2), ("test", 3)):
            for i in range(count):
                image(tmp_path / split / name / f"{i}.png", level)
    for i in range(5):
        image(tmp_path / "unlabelled" / f"{i}.png", 100)
    data = prepare_data(DataSettings(set=str(tmp_path), augment=[]))
    assert data.classes == tuple(LEVELS)
    assert {name: len(s) for name, s in data.streams.items()} == {"labelled": 18, "val": 6, "test": 9, "unlabelled": 5}
    assert all(levels_match(data.streams[name]) for name in ("labelled", "val", "test"))
    assert data.streams["unlabelled"].labels is None
    assert data.facts.size == [12, 12]


def test_class_folders_alone_are_split(tmp_path: Path) -> None:
    for (name, level), count in zip(LEVELS.items(), (20, 10, 2), strict=True):
        for i in range(count):
            image(tmp_path / name / f"{i}.png", level)
    data = prepare_data(DataSettings(set=str(tmp_path), test_share=0.25))
    assert data.streams["test"].counts == [5, 2, 1]
    assert data.counts == [15, 8, 1]
    assert shared(data.streams["labelled"], data.streams["test"]) == 0
    assert all(levels_match(stream) for stream in data.streams.values())


def test_grey_and_size(tmp_path: Path) -> None:
    for name, level in LEVELS.items():
        for i in range(4):
            image(tmp_path / name / f"{i}.png", level, size=20)
    data = prepare_data(DataSettings(set=str(tmp_path), grey=True, size=8))
    assert data.inputs == 1
    assert data.streams["labelled"].fetch(torch.tensor([0])).shape == (1, 1, 8, 8)
    assert levels_match(data.streams["labelled"])
    assert data.train_view(data.streams["labelled"].fetch(torch.arange(3)), torch.Generator()).shape == (3, 1, 8, 8)


def test_csv_with_hidden_labels(tmp_path: Path) -> None:
    lines = ["path,label,split"]
    for name, level in LEVELS.items():
        for i, split in enumerate(["train"] * 3 + ["test"] * 2 + ["unlabelled"]):
            image(tmp_path / f"{name}{i}.png", level)
            lines.append(f"{name}{i}.png,{name},{split}")
    (tmp_path / "all.csv").write_text("\n".join(lines))
    data = prepare_data(DataSettings(set=str(tmp_path / "all.csv")))
    assert data.counts == [3, 3, 3]
    assert data.streams["test"].counts == [2, 2, 2]
    assert len(data.streams["unlabelled"]) == 3
    assert data.streams["unlabelled"].labels is None
    assert levels_match(data.streams["labelled"])


def test_npz_with_hidden_labels(tmp_path: Path) -> None:
    def part(count: int) -> tuple[np.ndarray, np.ndarray]:
        y = np.arange(count) % 3
        noise = CHANCE.integers(-10, 11, (count, 8, 8))
        return (np.array([40, 120, 200])[y][:, None, None] + noise).astype(np.uint8), y

    arrays = {}
    for split, count in (("train", 12), ("test", 6), ("unlabelled", 9)):
        arrays[f"x_{split}"], arrays[f"y_{split}"] = part(count)
    np.savez(tmp_path / "tiny.npz", classes=np.array(list(LEVELS)), **arrays)
    data = prepare_data(DataSettings(set=str(tmp_path / "tiny.npz"), val_per_class=1))
    assert data.counts == [3, 3, 3]
    assert data.streams["val"].counts == [1, 1, 1]
    assert data.inputs == 1
    assert all(levels_match(data.streams[name]) for name in ("labelled", "val", "test"))
    hidden = data.streams["unlabelled"]
    assert hidden.labels is None
    with pytest.raises(UserError, match="has no labels"):
        _ = hidden.counts
    feed = Feed("unlabelled", 4, (data.eval_view,))
    (batch,) = Loader(hidden, feed, seed=0, device=torch.device("cpu")).iterate(0, 1)
    with pytest.raises(ValueError, match="has no labels"):
        _ = batch.y


def test_image_lists_renumbered_by_frequency(tmp_path: Path) -> None:
    counts = {"ant": 2, "bee": 5, "cow": 3}
    train, test = [], []
    for label, (name, level) in enumerate(LEVELS.items()):
        for i in range(counts[name] + 2):
            image(tmp_path / "images" / f"{name}{i}.png", level)
            (train if i < counts[name] else test).append(f"{name}{i}.png {label}")
    (tmp_path / "train.txt").write_text("\n".join(train))
    (tmp_path / "test.txt").write_text("\n".join(test))
    settings = {
        "set": str(tmp_path / "train.txt"), "test_list": str(tmp_path / "test.txt"), "root": str(tmp_path / "images"),
        "size": 12,
    }  # fmt: skip
    plain, sorted_ = (prepare_data(DataSettings(**settings, by_frequency=rule)) for rule in (False, True))
    assert (plain.classes, plain.counts) == (("0", "1", "2"), [2, 5, 3])
    assert (sorted_.classes, sorted_.counts) == (("1", "2", "0"), [5, 3, 2])
    for data in (plain, sorted_):  # the same map for training and test: names still tell the picture
        for stream in data.streams.values():
            assert stream.labels is not None
            names = [list(LEVELS)[int(stream.classes[k])] for k in stream.labels.tolist()]
            expected = torch.tensor([float(LEVELS[name]) for name in names])
            assert (pixels(stream).float().mean(1) - expected).abs().max() < 20
    assert sorted_.streams["test"].counts == [2, 2, 2]
    (tmp_path / "val.txt").write_text("\n".join(test[:3]))
    third = prepare_data(DataSettings(**settings, by_frequency=True, val_list=str(tmp_path / "val.txt")))
    assert third.streams["val"].counts == [1, 0, 2]  # renumbered as the others
    assert third.counts == sorted_.counts


# refusals: a mistake in the recipe or the data is a UserError, which the command line prints as one line


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"imbalance": 1000}, "imbalance 1000 leaves classes empty"),
        ({"n_max": 61}, "has 60 samples, the profile wants 61; lower data.n_max"),
        ({"n_max": 60, "val_per_class": 5}, "has 55 samples, the profile wants 60; lower data.n_max"),
        ({"val_per_class": 60}, "too few to hold out 60 as val"),
        ({"groups": "3/4/4"}, "groups '3/4/4' do not fit 10 classes"),
        ({"order": ["disc"]}, "must name each of the 10 classes once"),
        ({"augment": ["crop", "flop"]}, "did you mean 'flip'"),
        ({"normalise": [[0.5], [0.5]]}, "channel"),
        ({"normalise": [[0.5, 0.5, 0.5]]}, "normalise"),
    ],
)
def test_what_the_data_cannot_give_is_a_users_mistake(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        shapes(**settings)


def test_unknown_order_is_refused_by_the_table() -> None:
    with pytest.raises(ValueError, match="'sideways' is not an order"):
        DataSettings(order="sideways")


def test_trap_09_class_without_training_images(tmp_path: Path) -> None:
    for name in LEVELS:
        for split in ("train", "test"):
            if (split, name) != ("train", "cow"):
                image(tmp_path / split / name / "0.png", 100)
    with pytest.raises(UserError, match="no training samples of class cow"):
        prepare_data(DataSettings(set=str(tmp_path)))


def test_trap_09_class_with_one_image_trains_and_is_named(tmp_path: Path) -> None:
    for name, count in zip(LEVELS, (4, 4, 1), strict=True):
        for i in range(count):
            image(tmp_path / name / f"{i}.png", 100)
    with pytest.warns(UserWarning, match=r"left out of the test split.*: cow"):
        data = prepare_data(DataSettings(set=str(tmp_path)))
    assert data.counts == [3, 3, 1]
    assert data.streams["test"].counts == [1, 1, 0]


def test_trap_09_class_absent_from_validation_and_test(tmp_path: Path) -> None:
    for split, names in (("train", LEVELS), ("val", ["ant", "bee"]), ("test", ["ant", "cow"])):
        for name in names:
            for i in range(2):
                image(tmp_path / split / name / f"{i}.png", LEVELS[name])
    data = prepare_data(DataSettings(set=str(tmp_path)))
    assert data.streams["val"].counts == [2, 2, 0]
    assert data.streams["test"].counts == [2, 0, 2]
    for split in ("val", "test"):
        result = evaluate(lambda x: torch.eye(3)[torch.zeros(len(x), dtype=torch.long)], data.streams[split])
        table = result.table(data.groups)
        assert all(np.isfinite(value) for value in result.scalars().values())
        absent = data.streams[split].counts.index(0)
        assert table["absent"] == [absent]
        assert [k for k, value in enumerate(table["recall"]) if value is None] == [absent]
        assert all(value is None or np.isfinite(value) for value in table["group_recall"].values())


def test_an_image_list_needs_its_test_list(tmp_path: Path) -> None:
    image(tmp_path / "0.png", 100)
    (tmp_path / "train.txt").write_text("0.png 0")
    with pytest.raises(UserError, match=r"set data\.test_list"):
        prepare_data(DataSettings(set=str(tmp_path / "train.txt"), root=str(tmp_path)))


def test_domains_are_no_training_split(tmp_path: Path) -> None:
    for domain in ("art", "photo"):
        for name in LEVELS:
            image(tmp_path / domain / name / "0.png", 100)
    with pytest.raises(UserError, match=r"has no training part \(found: art, photo\)"):
        prepare_data(DataSettings(set=str(tmp_path)))


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere"):
        prepare_data(DataSettings(set=str(tmp_path / "nowhere")))


def test_semi_supervised_profiles_hide_labels_and_share_no_sample() -> None:
    table = DataSettings(set="shapes", imbalance=10, n_max=20, unlabelled_max=30, unlabelled_kind="inverted")
    streams = prepare_data(table).streams
    shown, hidden = streams["labelled"], streams["unlabelled"]
    assert shown.counts[0] == 20
    assert shown.counts[-1] == 2
    assert hidden.labels is None
    images = torch.cat([s.fetch(torch.arange(len(s))) for s in (shown, hidden)])
    assert len(images.flatten(1).unique(dim=0)) == len(shown) + len(hidden)
    with pytest.raises(UserError, match="the profile wants"):
        prepare_data(DataSettings(set="shapes", n_max=50, unlabelled_max=50))
