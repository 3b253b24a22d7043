"""One pass over samples, reckoned from what was seen."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from evenhand.data.sources.files import Files
from evenhand.data.stream import Memory, Stream
from evenhand.run import seen as module
from evenhand.run.seen import Seen, _across, blank, copies, groups, pictures, see, shift, words

FLAT = np.full((32, 32, 3), 7, np.float32)


def noise(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0, 255, (32, 32, 3)).astype(np.float32)


def test_shapes_are_of_the_ends_and_the_middle() -> None:
    sizes = [(100, 10 * k) for k in range(1, 12)]  # width over height: 10, 5, 3.3, ..., 100 / 110
    sizes.append((200, 6))
    found = pictures(Seen(sizes=sizes[::-1], modes=Counter({"RGB": 11})))
    assert found is not None
    assert (found.smallest, found.largest, found.median) == ((100, 10), (100, 110), (100, 60))
    ordered = sorted(width / height for width, height in sizes)
    assert found.aspects == (ordered[1], ordered[6], ordered[10])
    assert pictures(Seen()) is None


def test_areas_and_not_sides_say_which_is_smallest() -> None:
    found = pictures(Seen(sizes=[(4, 40), (9, 9), (30, 10)]))
    assert found is not None
    assert (found.smallest, found.largest, found.median) == ((9, 9), (30, 10), (9, 10))


def test_texts_have_a_middle_and_a_longest() -> None:
    assert words(Seen(texts=["a b c", "a", "a b c d e", "a b"])) == (3, 5)
    assert words(Seen()) is None


def test_blank_are_those_of_one_colour() -> None:
    nearly = FLAT + np.linspace(0, 2.5, 32, dtype=np.float32)[:, None]  # deviates by 0.74
    seen = Seen(names=["flat", "noise", "nearly"], small=[FLAT, noise(0), nearly])
    assert blank(seen) == ("flat",)
    assert blank(Seen()) == ()


def test_blank_images_are_no_copies_of_each_other() -> None:
    places = [("all", "a"), ("all", "b"), ("all", "a"), ("all", "a")]
    seen = Seen(
        places=places, names=["w", "x", "y", "z"], marks=[b"1", b"1", b"2", b"2"],
        small=[FLAT, FLAT, noise(1), noise(1)], sizes=[(32, 32)] * 4,
    )  # fmt: skip
    exact, near = groups(seen)
    assert exact[0] != exact[1]
    found = copies(seen, exact, near)
    assert [(one.near, one.across, one.names) for one in found] == [(False, "", ("y", "z"))]


def test_near_copies_are_told_of_unless_they_are_exact() -> None:
    seen = Seen(places=[("all", "a")] * 4, names=["w", "x", "y", "z"])
    found = copies(seen, torch.tensor([0, 0, 1, 2]), torch.tensor([5, 5, 6, 6]))
    assert [(one.near, one.names) for one in found] == [(False, ("w", "x")), (True, ("y", "z"))]


@pytest.mark.parametrize(
    ("places", "across"),
    [
        ({("train", "a"), ("test", "a")}, "splits"),
        ({("train", "a"), ("train", "b")}, "classes"),
        ({("train", "a")}, ""),
        ({("train", "a"), ("unlabelled", "")}, "unlabelled"),
        ({("train", "a"), ("x/unlabelled", "")}, "unlabelled"),
        ({("unlabelled", "")}, "unlabelled"),
    ],
)
def test_copies_lie_across_splits_before_classes(places: set[tuple[str, str]], across: str) -> None:
    assert _across(places) == across


def test_folders_of_thirty_are_compared_and_ten_pairs_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "simple_features", lambda small, _: torch.arange(float(len(small)))[:, None])
    monkeypatch.setattr(module, "told_apart", lambda one, other: float(other[0] - one[0]))
    counts = {"a": 30, "b": 29, "c": 31}
    places = [(split, "") for split, count in counts.items() for _ in range(count)]
    assert shift(Seen(places=places, small=[FLAT] * len(places))) == {("a", "c"): 59.0}
    many = [(split, "") for split in "abcdef" for _ in range(30)]
    assert len(shift(Seen(places=many, small=[FLAT] * len(many)))) == 10
    assert shift(Seen(places=many)) == {}


def test_arrays_are_seen_as_files_are() -> None:
    grey = Stream(Memory(torch.arange(24, dtype=torch.uint8).view(2, 1, 3, 4)), torch.tensor([1, 0]), ("a", "b"), "x")
    colour = Stream(Memory(torch.zeros(1, 3, 5, 6, dtype=torch.uint8)), None, (), "y")
    vectors = Stream(Memory(torch.zeros(1, 4)), None, (), "z")
    found = see({"train": grey, "unlabelled": colour, "all": vectors})
    assert found.sizes == [(4, 3), (4, 3), (6, 5)]
    assert found.modes == {"L": 2, "RGB": 1}
    assert found.places == [("train", "b"), ("train", "a"), ("unlabelled", ""), ("all", "")]
    assert [one.shape for one in found.small] == [(32, 32, 3)] * 3
    assert (found.small[1][..., 0] == found.small[1][..., 2]).all()
    assert found.names[0].startswith("train: ")
    assert len(set(found.marks)) == 4


def test_a_file_is_seen_as_a_whole(tmp_path: Path) -> None:
    """Its edges too: white on black, a frame of one pixel around 32 x 32."""
    pixels = np.zeros((32, 32, 3), np.uint8)
    pixels[[0, -1]] = pixels[:, [0, -1]] = 255
    Image.fromarray(pixels).save(tmp_path / "a.png")
    Image.new("L", (8, 4)).save(tmp_path / "b.png")
    (tmp_path / "c.png").write_bytes(b"x")
    files = [tmp_path / name for name in ("a.png", "b.png", "c.png")]
    found = see({"all": Stream(Files(files, size=32), torch.tensor([0, 1, 1]), ("a", "b"), "all")})
    assert np.array_equal(found.small[0], pixels)
    assert (found.sizes, found.modes) == ([(32, 32), (8, 4)], {"RGB": 1, "L": 1})
    assert found.names == [str(file) for file in files[:2]]
    assert [*found.unreadable] == [str(files[2])]
    assert found.places == [("all", "a"), ("all", "b")]
