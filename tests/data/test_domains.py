"""Domains: where they are found, what of the target stays out of reach, and which mistakes are named."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from evenhand.data.prepared import Data, prepare_data
from evenhand.data.sets import catalogue, shapes
from evenhand.data.settings import DataSettings
from evenhand.data.sources.files import Files
from evenhand.data.sources.source import Joined, Memory, Picked
from evenhand.data.splits import longtail_counts
from evenhand.data.stream import Stream, join
from evenhand.errors import UserError

pytestmark = pytest.mark.usefixtures("global_randomness_untouched")

CHANCE = np.random.default_rng(0)
LEVELS = {"ant": 40, "bee": 120, "cow": 200}
OFFSETS = {"art": 0, "clip": 15, "photo": 30}  # of every domain's grey, so that a test can tell it


def draw(path: Path, level: int, size: int = 12) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = CHANCE.integers(-3, 4, (size, size, 3))
    Image.fromarray((level + noise).clip(0, 255).astype(np.uint8)).save(path)


def domain(
    root: Path, name: str, counts: Iterable[int] = (6, 6, 6), classes: Iterable[str] = LEVELS, **how: Any
) -> None:
    for label, count in zip(classes, counts, strict=True):
        for i in range(count):
            draw(root / label / f"{i}.png", LEVELS.get(label, 90) + OFFSETS[name], **how)


def folders(root: Path, **counts: Iterable[int]) -> str:
    for name, numbers in counts.items():
        domain(root / name, name, numbers)
    return str(root)


def pixels(stream: Stream) -> Tensor:
    return stream.fetch(torch.arange(len(stream))).flatten(1)


def shared(a: Stream, b: Stream) -> int:
    return len({row.numpy().tobytes() for row in pixels(a)} & {row.numpy().tobytes() for row in pixels(b)})


def comes_from(stream: Stream, *names: str) -> bool:
    """Whether labels match the pictures and the pictures are of these domains."""
    means = pixels(stream).float().mean(1)
    assert stream.labels is not None
    levels = torch.tensor([float(LEVELS[stream.classes[k]]) for k in stream.labels.tolist()])
    offsets = torch.tensor([float(OFFSETS[name]) for name in names])
    return bool(((means - levels)[:, None] - offsets).abs().min(1).values.max() < 5)


def lengths(data: Data) -> dict[str, int]:
    return {name: len(stream) for name, stream in data.streams.items()}


def adapt(where: str | Path, source: list[str], target: str, **settings: Any) -> Data:
    return prepare_data(DataSettings(set=str(where), source=source, target=target, augment=[], **settings))


# where domains are


def test_domain_folders(tmp_path: Path) -> None:
    data = adapt(folders(tmp_path, art=(10, 20, 10), photo=(5, 4, 3)), ["art"], "photo")
    assert list(data.streams) == ["source", "target", "val", "test"]
    assert lengths(data) == {"source": 36, "target": 12, "val": 4, "test": 12}
    assert (data.classes, data.counts) == (tuple(LEVELS), [9, 18, 9])
    assert data.labelled is data.streams["source"]
    assert comes_from(data.streams["source"], "art")
    assert comes_from(data.streams["val"], "art")
    assert comes_from(data.streams["test"], "photo")
    assert shared(data.streams["source"], data.streams["val"]) == 0
    assert data.facts.size == [12, 12]


def test_target_labels_are_out_of_reach(tmp_path: Path) -> None:
    """Transductive, as in Office-Home: the test is the target's images, but only the test has their labels."""
    data = adapt(folders(tmp_path, art=(6, 6, 6), photo=(5, 4, 3)), ["art"], "photo")
    target, test = data.streams["target"], data.streams["test"]
    assert target.labels is None
    assert torch.equal(pixels(target), pixels(test))
    assert test.counts == [5, 4, 3]
    with pytest.raises(UserError, match="has no labels"):
        _ = target.counts


def test_several_sources(tmp_path: Path) -> None:
    where = folders(tmp_path, art=(3, 4, 5), clip=(2, 2, 2), photo=(1, 1, 1))
    data = adapt(where, ["clip", "art"], "photo", val_share=0)
    assert lengths(data) == {"source": 18, "target": 3, "test": 3}
    assert data.counts == [5, 6, 7]
    assert comes_from(data.streams["source"], "art", "clip")
    assert not comes_from(data.streams["source"], "art")


def test_several_sources_of_large_files(tmp_path: Path) -> None:
    for name in OFFSETS:
        domain(tmp_path / name, name, (2, 2, 2), size=70)
    data = adapt(tmp_path, ["art", "clip"], "photo", val_share=0, size=66)
    assert isinstance(data.streams["target"].samples, Files)
    assert comes_from(data.streams["source"], "art", "clip")
    assert data.streams["source"].fetch(torch.tensor([11, 0, 5])).shape == (3, 3, 66, 66)


def test_domains_with_splits_of_their_own(tmp_path: Path) -> None:
    for name in ("art", "photo"):
        for split, count in (("train", 4), ("val", 2), ("test", 3)):
            domain(tmp_path / name / split, name, [count] * 3)
    data = adapt(tmp_path, ["art"], "photo")
    assert lengths(data) == {"source": 12, "target": 12, "val": 6, "test": 9}
    assert shared(data.streams["target"], data.streams["test"]) == 0
    assert comes_from(data.streams["val"], "art")
    assert comes_from(data.streams["test"], "photo")


def test_two_folders_anywhere(tmp_path: Path) -> None:
    for name in ("art", "photo"):
        domain(tmp_path / f"my {name}", name)
    data = prepare_data(DataSettings(set=str(tmp_path / "my art"), target=str(tmp_path / "my photo"), val_share=0))
    assert comes_from(data.streams["source"], "art")
    assert comes_from(data.streams["test"], "photo")


def test_a_target_without_labels_on_disk(tmp_path: Path) -> None:
    domain(tmp_path / "art", "art")
    for i in range(7):
        draw(tmp_path / "scans" / f"{i}.png", 100, size=20)
    data = prepare_data(DataSettings(set=str(tmp_path / "art"), target=str(tmp_path / "scans")))
    assert lengths(data) == {"source": 15, "target": 7, "val": 3}  # no labels, no test
    assert data.streams["target"].fetch(torch.tensor([0])).shape == (1, 3, 12, 12)
    assert data.streams["target"].classes == data.classes


def rows(root: Path, table: dict[tuple[str, str], list[str]], columns: str = "path,label,domain,split") -> Path:
    """A CSV with one new image for each label of each (domain, split)."""
    lines = [columns]
    for (name, split), labels in table.items():
        for label in labels:
            path = f"{len(lines)}.png"
            draw(root / path, LEVELS.get(label, 90) + OFFSETS[name])
            cells = {"path": path, "label": label, "domain": name, "split": split}
            lines.append(",".join(cells[column] for column in columns.split(",")))
    (root / f"{len(lines)}-{columns.count(',')}.csv").write_text("\n".join(lines))
    return root / f"{len(lines)}-{columns.count(',')}.csv"


def test_csv_with_domains(tmp_path: Path) -> None:
    every = list(LEVELS)
    table = {("art", ""): every * 3, ("photo", ""): every * 2, ("clip", ""): ["zebra"]}  # clip is not in use
    data = adapt(rows(tmp_path, table, "path,label,domain"), ["art"], "photo", val_share=0)
    assert data.classes == tuple(LEVELS)
    assert lengths(data) == {"source": 9, "target": 6, "test": 6}
    assert comes_from(data.streams["source"], "art")
    assert comes_from(data.streams["test"], "photo")


def test_csv_with_a_few_target_labels(tmp_path: Path) -> None:
    every = list(LEVELS)
    table = {("art", "train"): every * 2, ("art", "val"): every, ("photo", "unlabelled"): every * 4,
             ("photo", "train"): every, ("photo", "test"): every * 3}  # fmt: skip
    data = adapt(rows(tmp_path, table), ["art"], "photo")
    assert lengths(data) == {"source": 6, "target": 12, "target_labelled": 3, "val": 3, "test": 9}
    assert data.streams["target"].labels is None
    assert comes_from(data.streams["target_labelled"], "photo")
    assert shared(data.streams["target"], data.streams["target_labelled"]) == 0


def test_a_few_target_labels_need_not_show_every_class(tmp_path: Path) -> None:
    every = list(LEVELS)
    table = {("art", "train"): every * 4, ("photo", "unlabelled"): every, ("photo", "train"): ["bee", "cow"]}
    data = adapt(rows(tmp_path, table), ["art"], "photo")
    assert data.classes == tuple(every)
    assert data.streams["target_labelled"].counts == [0, 1, 1]
    table[("photo", "train")] = ["bee", "yak"]
    with pytest.raises(UserError, match=r"labels of target 'photo' that no source has: yak; .*intersection"):
        adapt(rows(tmp_path, table), ["art"], "photo")


def test_visda_has_a_class_called_train(tmp_path: Path) -> None:
    classes = ["bus", "train", "truck"]
    for name, where in (("art", "train"), ("photo", "validation")):
        domain(tmp_path / where, name, (5, 6, 7), classes)
    data = adapt(tmp_path, ["train"], "validation", val_share=0)
    assert data.classes == tuple(classes)
    assert data.counts == [5, 6, 7]
    assert data.streams["test"].counts == [5, 6, 7]


def test_validation_of_some_sources_only_trains(tmp_path: Path) -> None:
    every = list(LEVELS)
    table = {("art", "train"): every * 4, ("art", "val"): every, ("clip", "train"): every * 4, ("photo", "test"): every}
    data = adapt(rows(tmp_path, table), ["art", "clip"], "photo", val_share=0)
    assert lengths(data) == {"source": 27, "target": 3, "test": 3}
    assert comes_from(data.streams["source"], "art", "clip")


def test_image_lists(tmp_path: Path) -> None:
    """Numbers in the list are the classes, whatever the folders are called."""
    lists: dict[str, list[str]] = {}
    for name in ("art", "photo"):
        domain(tmp_path / name, name, (4, 4, 4))
        for label, number in (("cow", 0), ("ant", 1), ("bee", 2)):
            for i in range(4):
                key = f"{name}_{'test' if i == 3 and name == 'photo' else 'train'}"
                lists.setdefault(key, []).append(f"{name}/{label}/{i}.png {number}")
    (tmp_path / "image_list").mkdir()
    for key, lines in lists.items():
        (tmp_path / "image_list" / f"{key}.txt").write_text("\n".join(lines))
    how: dict[str, Any] = {"root": str(tmp_path), "size": 12, "val_share": 0}
    source, target = ["image_list/art_train.txt"], "image_list/photo_train.txt"
    data = adapt("ignored", source, target, test_list="image_list/photo_test.txt", **how)
    assert lengths(data) == {"source": 12, "target": 9, "test": 3}
    renamed = Stream(data.streams["test"].samples, data.streams["test"].labels, ("cow", "ant", "bee"))
    assert comes_from(renamed, "photo")
    alone = prepare_data(DataSettings(set=str(tmp_path / source[0]), target=target, **how))
    assert lengths(alone) == {"source": 12, "target": 9, "test": 9}
    with pytest.raises(UserError, match="by_frequency"):
        adapt("ignored", source, target, by_frequency=True, **how)


def npz(path: Path, classes: Iterable[str], per_class: int = 2, size: int = 8) -> str:
    names = list(classes)
    y = np.arange(len(names)).repeat(per_class)
    x = (y[:, None, None] * 20 + CHANCE.integers(0, 10, (len(y), size, size))).astype(np.uint8)
    np.savez(path, x=x, y=y, classes=np.array(names))
    return str(path)


def test_two_sets_in_one_frame(tmp_path: Path) -> None:
    """Colour at 32 pixels meets grey at 8: the larger frame, unless the recipe says otherwise."""
    target = npz(tmp_path / "t.npz", reversed(shapes.CLASSES))
    data = prepare_data(DataSettings(set="shapes", target=target, augment=[]))
    assert lengths(data) == {"source": 540, "target": 20, "val": 60, "test": 20}
    assert data.classes == shapes.CLASSES
    test = data.streams["test"]
    assert test.fetch(torch.arange(20)).shape == (20, 3, 32, 32)
    assert test.labels is not None
    assert test.labels.tolist() == np.arange(9, -1, -1).repeat(2).tolist()  # by name, not by number
    small = prepare_data(DataSettings(set="shapes", target=target, size=16, grey=True, augment=[]))
    assert {s.fetch(torch.tensor([0])).shape for s in small.streams.values()} == {(1, 1, 16, 16)}
    assert small.inputs == 1


def test_domains_of_a_built_in_set(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {}
    for style, name in (("noto", "art"), ("twemoji", "photo")):
        for split, count in (("train", 4), ("test", 2)):
            y = torch.arange(3).repeat(count)
            levels = torch.tensor(list(LEVELS.values()))[y] + OFFSETS[name]
            images = levels.view(-1, 1, 1, 1).expand(-1, 3, 8, 8).byte()
            parts[f"{style}/{split}"] = Stream(Memory(images), y, tuple(LEVELS), style)
    monkeypatch.setattr(catalogue, "load", lambda *_, **__: parts)
    data = adapt("emoji-home", ["noto"], "twemoji", val_per_class=1)
    assert lengths(data) == {"source": 9, "target": 12, "val": 3, "test": 6}
    assert comes_from(data.streams["source"], "art")
    assert comes_from(data.streams["test"], "photo")
    with pytest.raises(UserError, match=r"no domain 'tweemoji'.* did you mean 'twemoji'"):
        adapt("emoji-home", ["noto"], "tweemoji")
    with pytest.raises(
        UserError, match=r"'emoji-home' holds the domains noto, twemoji; name one or more in data.source"
    ):
        adapt("emoji-home", [], "twemoji")


def test_the_long_tail_is_the_sources(tmp_path: Path) -> None:
    where = folders(tmp_path, art=(20, 20, 20), photo=(5, 4, 3))
    plain = adapt(where, ["art"], "photo", val_per_class=4)
    tail = adapt(where, ["art"], "photo", val_per_class=4, imbalance=8, test_per_class=2)
    assert tail.counts == longtail_counts(16, 3, 8)
    assert len(tail.streams["target"]) == 12
    assert tail.streams["test"].counts == [2, 2, 2]
    assert tail.streams["val"].digest() == plain.streams["val"].digest()


# refusals


def test_missing_classes_are_named_and_dropped_only_when_asked(tmp_path: Path) -> None:
    domain(tmp_path / "art", "art")
    domain(tmp_path / "photo", "photo", (3, 3, 3), ["ant", "bee", "zebra"])
    domain(tmp_path / "clip", "clip", (3,), ["ant"])  # not in use, so its classes do not matter
    with pytest.raises(UserError, match=r"'art' lacks zebra; 'photo' lacks cow; .*data\.classes = \"intersection\""):
        adapt(tmp_path, ["art"], "photo")
    data = adapt(tmp_path, ["art"], "photo", classes="intersection", val_share=0)
    assert data.classes == ("ant", "bee")
    assert lengths(data) == {"source": 12, "target": 6, "test": 6}
    assert comes_from(data.streams["test"], "photo")
    with pytest.raises(UserError, match=r"share 1 class\(es\)"):
        adapt(tmp_path, ["art"], "clip", classes="intersection")


def test_target_labels_outside_the_sources_classes(tmp_path: Path) -> None:
    source = rows(tmp_path, {("art", "train"): list(LEVELS) * 2}, "path,label,split")
    target = rows(tmp_path, {("photo", "train"): [*LEVELS, "zebra"]}, "path,label,split")
    with pytest.raises(UserError, match=r"same classes: '.*/7-2\.csv' lacks zebra; correct"):
        prepare_data(DataSettings(set=str(source), target=str(target)))


def test_a_target_of_one_class_is_only_warned_of(tmp_path: Path) -> None:
    domain(tmp_path / "art", "art")
    domain(tmp_path / "photo", "photo", (4,), ["bee"])
    with pytest.warns(UserWarning, match="target 'photo' has images of one class only, 'bee'; add others"):
        data = adapt(tmp_path, ["art"], "photo")
    assert data.classes == tuple(LEVELS)
    assert data.streams["test"].counts == [0, 4, 0]


@pytest.mark.parametrize(
    ("source", "target", "says"),
    [
        (["art"], "empty", "target 'empty': no images under '.*/empty'; add some"),
        (["art"], "foto", r"no domain 'foto'.*did you mean 'photo'"),
        (["art", "art"], "photo", r"domain 'art' is twice in data\.source"),
        (["art", "photo"], "photo", "domain 'photo' is both source and target"),
        ([], "photo", r"holds the domains art, empty, photo, scans; name one or more in data\.source"),
        (["scans"], "photo", "source 'scans' has no labelled training images"),
        (["art"], "", r"name the one to adapt to in data\.target"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, source: list[str], target: str, says: str) -> None:
    folders(tmp_path, art=(2, 2, 2), photo=(2, 2, 2))
    (tmp_path / "empty").mkdir()
    draw(tmp_path / "scans" / "0.png", 100)
    with pytest.raises(UserError, match=says):
        adapt(tmp_path, source, target)


def test_an_empty_target_without_labels_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", x=np.zeros((6, 8, 8), np.uint8), y=np.arange(6) % 3)
    np.savez(tmp_path / "t.npz", x_unlabelled=np.zeros((0, 8, 8), np.uint8))
    with pytest.raises(UserError, match=r"target '.*t\.npz': .*, unlabelled: there are no samples; add some"):
        prepare_data(DataSettings(set=str(tmp_path / "s.npz"), target=str(tmp_path / "t.npz")))


def test_a_domain_csv_with_labels_outside_the_sources_classes(tmp_path: Path) -> None:
    table = {("art", ""): list(LEVELS) * 2, ("photo", ""): [*LEVELS, "zebra"]}
    with pytest.raises(UserError, match=r"same classes: 'art' lacks zebra; .*data\.classes = \"intersection\""):
        adapt(rows(tmp_path, table, "path,label,domain"), ["art"], "photo")


def test_too_few_to_validate(tmp_path: Path) -> None:
    where = folders(tmp_path, art=(1, 2, 2), photo=(1, 1, 1))
    with pytest.warns(UserWarning, match=r"left out of the val split.*: ant"):
        data = adapt(where, ["art"], "photo")
    assert data.streams["val"].counts == [0, 1, 1]


# the frame


@given(st.lists(st.integers(0, 11), max_size=20))
def test_joined_sources_answer_in_the_order_asked(indices: list[int]) -> None:
    whole = torch.arange(12, dtype=torch.uint8).view(12, 1, 1, 1)
    parts = (Memory(whole[:5]), Picked(Memory(whole), torch.tensor([5, 6, 7])), Memory(whole[8:]))
    joined = Joined(parts)
    assert len(joined) == 12
    assert joined.fetch(torch.tensor(indices, dtype=torch.long)).flatten().tolist() == indices


def test_join_keeps_labels_beside_their_images() -> None:
    streams = [
        Stream(Memory(torch.full((n, 1, 2, 2), v, dtype=torch.uint8)), torch.full((n,), v), ("a", "b", "c")) for n, v in
        ((2, 2), (3, 0))
    ]  # fmt: skip
    both = join(streams, "source")
    assert both.labels is not None
    assert both.fetch(torch.arange(5))[:, 0, 0, 0].tolist() == both.labels.tolist() == [2, 2, 0, 0, 0]
    assert both.digest() != join(streams[::-1], "source").digest()


def test_reframing_memory() -> None:
    colour = torch.randint(0, 256, (4, 3, 10, 14), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    grey = Memory(colour).framed(14, 1).fetch(torch.arange(4))
    pil = [np.asarray(Image.fromarray(x.permute(1, 2, 0).numpy()).convert("L")).copy() for x in colour]
    reference = torch.from_numpy(np.stack(pil))[:, None].float()
    reference = F.interpolate(reference, (14, 14), mode="bilinear", antialias=True)
    assert (grey.float() - reference).abs().max() <= 2
    small = Memory(colour).framed(5, 3).fetch(torch.arange(4)).float()
    reference = F.interpolate(colour.float(), (5, 5), mode="bilinear", antialias=True)
    assert (small - reference).abs().max() <= 1.5
    back = Memory(grey).framed(14, 3).fetch(torch.arange(4))
    assert torch.equal(back, grey.expand(-1, 3, -1, -1))


def test_reframing_files_decodes_anew(tmp_path: Path) -> None:
    draw(tmp_path / "0.png", 77, size=30)
    files = Picked(Files([tmp_path / "0.png"], size=10), torch.tensor([0, 0]))
    again = files.framed(20, 1)
    assert again.fetch(torch.tensor([1])).shape == (1, 1, 20, 20)
    assert abs(float(again.fetch(torch.tensor([1])).float().mean()) - 77) < 2
