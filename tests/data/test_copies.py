"""Copies and near copies lie on one side of every hold-out; what is too rare to be held out trains, and is named."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from evenhand.data import copies as copies_module
from evenhand.data.copies import (
    ALIKE,
    BLANK,
    CHAIN,
    EDGES,
    FLAT,
    PAIRWISE,
    PERMUTATIONS,
    SHARED,
    SIDE,
    WORDS,
    copies,
    fingerprints,
    hash_of,
    joined_up,
    near_pictures,
    near_texts,
    numbered,
    thumbnails,
    without_chains,
)
from evenhand.data.holdout import Whole, held_rows, hold_out_count, hold_out_share
from evenhand.data.prepared import prepare_data
from evenhand.data.settings import DataSettings
from evenhand.data.sources.files import Files
from evenhand.data.sources.texts import Texts
from evenhand.data.splits import balanced_holdout, longtail_subset
from evenhand.data.stream import Memory, Stream
from evenhand.errors import UserError

CLASSES = ("ant", "bee")


def scene(seed: int, side: int = 96) -> Image.Image:
    """A picture with shapes of its own, blurred as photographs are."""
    coarse = np.random.default_rng(seed).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)


def changed(picture: Image.Image, path: Path) -> None:
    """The same picture smaller, paler and saved as a JPEG."""
    picture.resize((70, 70)).point(lambda level: 20 + 0.8 * level).save(path, quality=60)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Ten scenes of each class; of ant also three near copies of one and an exact copy of another."""
    for k, name in enumerate(CLASSES):
        (tmp_path / name).mkdir()
        for i in range(10):
            scene(100 * k + i).save(tmp_path / name / f"{i}.png")
    scene(11).save(tmp_path / "ant" / "11.png")
    for i in range(3):
        changed(scene(4), tmp_path / "ant" / f"near{i}.jpg")
    (tmp_path / "ant" / "again.png").write_bytes((tmp_path / "ant" / "7.png").read_bytes())
    return tmp_path


def stream_of(folder: Path) -> Stream:
    paths = sorted(folder.rglob("*.*"))
    labels = torch.tensor([CLASSES.index(path.parent.name) for path in paths])
    return Stream(Files(paths, size=32, names=[p.name for p in paths]), labels, CLASSES, "train")


def test_copies_and_near_copies_share_a_number_and_others_none(photos: Path) -> None:
    stream = stream_of(photos)
    groups = copies(stream).tolist()
    names = [stream.samples.name(row) for row in range(len(stream))]
    found: dict[int, set[str]] = {}
    for name, group, k in zip(names, groups, stream.labels.tolist(), strict=True):  # type: ignore[union-attr]
        found.setdefault(group, set()).add(f"{k}/{name}")
    several = sorted(sorted(some) for some in found.values() if len(some) > 1)
    assert several == [["0/4.png", "0/near0.jpg", "0/near1.jpg", "0/near2.jpg"], ["0/7.png", "0/again.png"]]


def test_flat_pictures_are_not_near_each_other() -> None:
    flat = np.random.default_rng(0).normal(128, 1, (5, 32, 32)).astype(np.float32)
    assert near_pictures(flat) == []


def test_pictures_that_are_merely_of_one_kind_stay_apart() -> None:
    exact = torch.arange(CHAIN + 5)
    chain = joined_up(exact, [(i, i + 1) for i in range(CHAIN)])
    assert len(chain.unique()) == 5
    assert torch.equal(without_chains(exact, chain), exact)
    small = joined_up(exact, [(i, i + 1) for i in range(CHAIN - 1)])
    assert torch.equal(without_chains(exact, small), small)


def test_pairs_join_up_by_whatever_way_they_are_linked() -> None:
    assert joined_up(torch.tensor([0, 1, 2, 3, 1, 5]), [(3, 2), (4, 3)]).tolist() == [0, 1, 1, 1, 1, 5]


def test_texts_that_share_most_of_their_runs_of_words() -> None:
    base = "the quick brown fox jumps over the lazy dog while nobody at all is looking out of the old window today"
    texts = [base, base.upper() + "!", base.replace("nobody", "someone"), base.replace("today", "again"), "a short one"]
    pairs = near_texts(texts)
    assert (0, 3) in pairs or (1, 3) in pairs  # one word at the end
    assert not any(2 in pair or 4 in pair for pair in pairs)  # a word in the middle breaks five runs of 17
    stream = Stream(Texts(texts), torch.zeros(5, dtype=torch.long), ("x",), "train")
    assert copies(stream).tolist() == [0, 0, 2, 0, 4]


def test_without_copies_the_rule_is_the_stated_one() -> None:
    labels = torch.arange(40) % 4
    groups = torch.arange(40)
    for seed in range(3):
        held, short = held_rows(labels, [2, 3, 1, 2], seed, groups, "subset", least=1)
        assert held.nonzero()[:, 0].tolist() == longtail_subset(labels, [2, 3, 1, 2], seed).tolist()
        assert short == []
        held, _ = held_rows(labels, [3] * 4, seed, groups, "holdout", least=3)
        assert held.nonzero()[:, 0].tolist() == balanced_holdout(labels, 3, seed, 4)[1].tolist()


@pytest.mark.parametrize("seed", range(6))
def test_no_copy_crosses_a_hold_out(photos: Path, seed: int) -> None:
    whole = Whole.of(stream_of(photos))
    for rest, held in (hold_out_share(whole, 0.3, seed, "test"), hold_out_count(whole, 4, seed, "val")):
        ants = [
            {s.samples.name(i) for i in range(len(s)) if s.labels is not None and int(s.labels[i]) == 0}
            for s in (rest.stream, held)
        ]
        for group in ({"4.png", "near0.jpg", "near1.jpg", "near2.jpg"}, {"7.png", "again.png"}):
            assert sum(bool(group & side) for side in ants) == 1
        assert len(rest.groups) == len(rest.stream)
    assert hold_out_count(whole, 4, seed, "val")[1].counts == [4, 4]


def test_copies_under_two_labels_train_and_blank_images_are_no_copies() -> None:
    images = torch.randint(256, (12, 1, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    blank = Stream(Memory(torch.zeros(3, 1, 4, 4, dtype=torch.uint8)), None, (), "x")
    assert copies(blank).tolist() == [0, 1, 2]
    images[6] = images[0]
    labels = torch.tensor([0] * 6 + [1] * 6)
    for seed in range(8):
        _, held = hold_out_share(Whole.of(Stream(Memory(images), labels, CLASSES, "x")), 0.4, seed, "test")
        assert not {held.samples.name(row) for row in range(len(held))} & {"0", "6"}


def test_a_class_of_one_image_trains_and_is_left_out_of_the_test_by_name(photos: Path) -> None:
    (photos / "wasp").mkdir()
    scene(999).save(photos / "wasp" / "only.png")
    with pytest.warns(UserWarning, match=r"left out of the test split.*min_per_class.*: wasp"):
        data = prepare_data(DataSettings(set=str(photos)))
    assert data.counts[data.classes.index("wasp")] == 1
    assert data.streams["test"].counts[data.classes.index("wasp")] == 0
    with pytest.warns(UserWarning, match="bee, wasp"):
        few = prepare_data(DataSettings(set=str(photos), min_per_class=11))
    assert few.streams["test"].counts[1:] == [0, 0]
    assert few.streams["test"].counts[0] > 0


def test_a_class_of_copies_counts_as_one_image(photos: Path) -> None:
    (photos / "wasp").mkdir()
    for i in range(4):
        changed(scene(999), photos / "wasp" / f"{i}.jpg")
    with pytest.warns(UserWarning, match="wasp"):
        data = prepare_data(DataSettings(set=str(photos)))
    assert data.counts[2] == 4


def test_nothing_but_single_images_cannot_be_split(tmp_path: Path) -> None:
    for name in CLASSES:
        (tmp_path / name).mkdir()
        scene(len(name) + ord(name[0])).save(tmp_path / name / "a.png")
    with pytest.raises(UserError, match=r"every class has fewer than 2 different samples.*bring a test split"):
        prepare_data(DataSettings(set=str(tmp_path)))


def test_ordinary_folders_have_a_validation_share(photos: Path) -> None:
    data = prepare_data(DataSettings(set=str(photos), val_share=0.3))
    assert data.streams["val"].counts[1] == 2  # of the eight that are left after the test
    assert "val" not in prepare_data(DataSettings(set=str(photos))).streams
    with pytest.raises(ValueError, match="leave one out"):
        DataSettings(val_share=0.1, val_per_class=2)


def test_too_few_to_hold_out_is_told_by_name(photos: Path) -> None:
    with pytest.raises(UserError, match=r"class 'bee' has \d+ samples.*lower data\.val_per_class"):
        prepare_data(DataSettings(set=str(photos), val_per_class=9))
    with pytest.raises(UserError, match="class 'ant' has 3 samples but 9 are asked for"):
        prepare_data(DataSettings(set=str(photos), test_per_class=9))


@pytest.mark.parametrize(
    ("key", "value"),
    [("test_share", 0.3), ("val_share", 0.2), ("embed_size", 64), ("test_list", "x.txt"),
     ("by_frequency", True), ("unlabelled_kind", "uniform"), ("kind", "step")],
)  # fmt: skip
def test_a_key_without_effect_is_refused(tmp_path: Path, key: str, value: object) -> None:
    for split in ("train", "val", "test"):
        for name in CLASSES:
            (tmp_path / "parted" / split / name).mkdir(parents=True)
            for i in range(2):
                scene(ord(split[0]) + 10 * i + len(name)).save(tmp_path / "parted" / split / name / f"{i}.png")
    with pytest.raises(UserError, match=rf"data\.{key} = .* has no effect.*leave it out"):
        prepare_data(DataSettings(set=str(tmp_path / "parted"), **{key: value}))  # type: ignore[arg-type]


def test_borders_make_no_copies(tmp_path: Path) -> None:
    """Small tall pictures live in memory, with a border of two thirds: they are compared without it."""
    for name in CLASSES:
        (tmp_path / name).mkdir()
        for i in range(5):
            scene(10 * ord(name[0]) + i, 60).crop((0, 0, 20, 60)).save(tmp_path / name / f"{i}.png")
    data = prepare_data(DataSettings(set=str(tmp_path)))
    assert data.facts.frame == "pad"
    assert not data.labelled.samples.decodes
    assert data.streams["test"].counts == [1, 1]
    assert len(copies(data.labelled).unique()) == len(data.labelled)


def test_what_is_alike_but_for_its_edges_is_no_copy() -> None:
    """A slope from black to white with grain of its own: correlated by 0.998, the edges by a half."""
    chance = np.random.default_rng(0)
    slope = np.broadcast_to(np.linspace(0, 255, 32, dtype=np.float32), (2, 32, 32))
    grain = chance.normal(0, 3, (2, 32, 32)).astype(np.float32)
    assert np.corrcoef((slope + grain).reshape(2, -1))[0, 1] > 0.9975
    assert near_pictures(slope + grain) == []
    assert near_pictures(slope + grain[[0, 0]] + 0.01 * grain) == [(0, 1)]


def test_validation_shares_leave_the_same_classes_out(photos: Path) -> None:
    for i in range(20, 26):
        scene(i).save(photos / "ant" / f"{i}.png")
    with pytest.warns(UserWarning, match=r"left out of the val split.*: bee"):
        data = prepare_data(DataSettings(set=str(photos), val_share=0.3, min_per_class=9))
    assert data.streams["test"].counts[1] > 0
    assert data.streams["val"].counts[1] == 0
    assert data.streams["val"].counts[0] > 0


def test_limits_of_what_counts_as_a_copy_are_the_measured_ones() -> None:
    assert (SIDE, ALIKE, EDGES, FLAT, BLANK, CHAIN, PAIRWISE) == (32, 0.997, 0.97, 4.0, 0.5, 10, 30_000)
    assert (WORDS, SHARED, PERMUTATIONS) == (5, 0.8, 24)


def test_beyond_so_many_pictures_near_copies_are_sought_within_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    small = np.random.default_rng(0).normal(128, 40, (6, 32, 32)).astype(np.float32)
    small[3], small[5] = 10 + 0.5 * small[0], small[4]  # of another brightness and contrast
    labels = torch.tensor([0, 0, 1, 1, 1, 1])
    assert near_pictures(small, labels) == [(0, 3), (4, 5)]
    monkeypatch.setattr(copies_module, "PAIRWISE", 6)
    assert near_pictures(small, labels) == [(0, 3), (4, 5)]
    monkeypatch.setattr(copies_module, "PAIRWISE", 5)
    assert near_pictures(small, labels) == [(4, 5)]
    assert near_pictures(small) == [(0, 3), (4, 5)]
    flat = (small - 128) / 40 * np.array([3.9, 4.5, 4.5, 4.5, 3.9, 3.9], np.float32)[:, None, None] + 128
    flat[3] = flat[1]
    assert near_pictures(flat) == [(1, 3)]  # too flat to compare: 0, 4 and 5
    small[2] = np.nan
    assert near_pictures(small) == [(0, 3), (4, 5)]


def test_near_copies_are_found_in_blocks_of_any_number() -> None:
    many = np.random.default_rng(0).normal(128, 40, (1030, 32, 32)).astype(np.float32)
    many[1028], many[1029] = many[3], many[1026]
    assert near_pictures(many) == [(3, 1028), (1026, 1029)]


def test_fingerprints_are_of_files_arrays_and_words(tmp_path: Path) -> None:
    scene(1).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes((tmp_path / "a.png").read_bytes())
    files = Files([tmp_path / "a.png", tmp_path / "b.png", tmp_path / "gone.png"], size=8)
    one, other, gone = fingerprints(Stream(files, None, (), "x"))
    assert one == other == hashlib.sha256((tmp_path / "a.png").read_bytes()).digest()
    assert gone == hashlib.sha256(str(tmp_path / "gone.png").encode()).digest()
    texts = Stream(Texts(["A  b, C!", "a b c", "a b d"]), None, (), "x")
    assert numbered(fingerprints(texts)).tolist() == [0, 0, 2]
    vectors = Stream(Memory(torch.tensor([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]])), None, (), "x")
    assert copies(vectors).tolist() == [0, 1, 0]


def test_thumbnails_are_of_the_whole_picture_grey(tmp_path: Path) -> None:
    scene(1).crop((0, 0, 96, 40)).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"no image")
    stream = Stream(Files([tmp_path / "a.png", tmp_path / "b.png"], size=8), None, (), "x")
    small = thumbnails(stream)
    assert small.shape == (2, 32, 32)
    wanted = np.asarray(scene(1).crop((0, 0, 96, 40)).convert("L").resize((32, 32), Image.Resampling.BILINEAR))
    assert np.abs(small[0] - wanted).max() <= 1
    assert np.isnan(small[1]).all()
    for channels in (1, 3):
        held = torch.randint(256, (2, channels, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        grey = thumbnails(Stream(Memory(held), None, (), ""))
        weights = torch.tensor([0.299, 0.587, 0.114]) if channels == 3 else torch.ones(1)
        expected = (held[1].float() * weights.view(-1, 1, 1)).sum(0)
        assert np.abs(grey[1] - expected.numpy()).max() <= 1


def test_arrays_without_a_frame_are_copies_only_where_they_are_equal_and_not_blank() -> None:
    images = torch.randint(256, (5, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images[2], images[3] = images[0], images[0] + 1
    images[1], images[4] = 9, 9
    images[1, 1], images[4, 1] = 7, 7  # blank in every channel
    assert copies(Stream(Memory(images), None, (), "x")).tolist() == [0, 1, 0, 3, 4]


def test_texts_need_ten_words_and_four_fifths_of_their_runs() -> None:
    words = [f"w{i}" for i in range(50)]
    base = " ".join(words)
    assert near_texts([" ".join(words[:9]), " ".join(words[:9])]) == []
    assert near_texts([" ".join(words[:10]), " ".join(words[:10])]) == [(0, 1)]
    assert near_texts([base, base, " ".join(words[:49])]) == [(0, 1), (0, 2)]
    assert near_texts([base, " ".join(words[25:])]) == []
    assert hash_of("a") == int.from_bytes(hashlib.blake2b(b"a", digest_size=8).digest(), "little")


def test_contents_not_copies_make_a_chain() -> None:
    """Eleven equal pictures are one content; eleven that are merely near are a kind."""
    equal = torch.zeros(CHAIN + 3, dtype=torch.int64)
    assert torch.equal(without_chains(equal, equal), equal)
