"""Pictures of any shape become squares: what is kept, what is drawn at random, and that arrays and files agree."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from evenhand.data.prepared import prepare_data
from evenhand.data.settings import DataSettings
from evenhand.data.sources.files import Files
from evenhand.data.sources.formats import read
from evenhand.data.sources.frames import BOXES, FILL, MARGIN, Cuts, Frame, Interpolation, choose_frame, cut, random_box
from evenhand.data.sources.source import Joined, Memory, Picked
from evenhand.data.views.images import build
from evenhand.errors import UserError
from helpers import picture, save_picture, seeded

TALL = (30, 90)


def test_pad_keeps_all_of_a_tall_picture_between_two_borders(tmp_path: Path) -> None:
    path = save_picture(tmp_path / "tall.png", *TALL)
    seen = Files([path], size=90, frame="pad").fetch([0])[0].permute(1, 2, 0).numpy()
    assert np.array_equal(seen[:, 30:60], np.array(picture(*TALL)))
    assert (seen[:, :30] == FILL).all()
    assert (seen[:, 60:] == FILL).all()
    grey = Files([path], size=45, frame="pad", mode="L").fetch([0])[0, 0]
    assert set(grey[:, :15].flatten().tolist()) == {118}
    assert grey[:, 15:30].float().std() > 5


def test_squash_is_the_whole_picture_stretched(tmp_path: Path) -> None:
    path = save_picture(tmp_path / "tall.png", *TALL)
    seen = Files([path], size=48, frame="squash").fetch([0])[0].permute(1, 2, 0).numpy()
    assert np.array_equal(seen, np.array(picture(*TALL).resize((48, 48), Image.Resampling.BILINEAR)))


def test_only_a_crop_leaves_a_margin_and_generators_lose_none(tmp_path: Path) -> None:
    path = save_picture(tmp_path / "a.png", 120, 120)
    shown = {how: Files([path], size=96, frame=how).frame.box(120, 120) for how in ("crop", "pad", "squash")}
    assert shown["pad"] == shown["squash"] == (0, 0, 120, 120)
    assert shown["crop"][0] > 5
    assert Files([path], size=96, whole=True).frame.box(120, 120) == (0, 0, 120, 120)
    assert Files([path], size=96, whole=True, frame="pad").frame.box(60, 120) == (-30, 0, 90, 120)
    kept = Files([path], size=96, whole=True, frame="pad").framed(48, 3)
    assert kept.frame == Frame(48, "pad", 48)


sides = st.integers(1, 400)


@given(sides, sides, st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_random_boxes_lie_in_the_picture_or_cover_its_side(width: int, height: int, seed: int) -> None:
    draws = torch.rand(10, 4, generator=seeded(seed))
    left, top, right, bottom = Frame(8, "squash").random_box(width, height, draws, *BOXES)
    assert 0 <= left < right <= width + 1e-6
    assert 0 <= top < bottom <= height + 1e-6
    left, top, right, bottom = Frame(8, "pad").random_box(width, height, draws, *BOXES)
    for start, stop, length in ((left, right, width), (top, bottom, height)):
        inside = start >= -1e-6 and stop <= length + 1e-6
        covers = start <= 1e-6 and stop >= length - 1e-6
        assert inside or covers
    assert right - left <= max(width, height)
    assert bottom - top <= max(width, height)


def test_random_boxes_keep_the_aspect_that_evaluation_shows() -> None:
    draws = torch.rand(2000, 10, 4, generator=seeded(1))
    pads = np.array([Frame(8, "pad").random_box(100, 300, some, *BOXES) for some in draws])
    squashed = np.array([Frame(8, "squash").random_box(100, 300, some, *BOXES) for some in draws])
    ratio = (pads[:, 2] - pads[:, 0]) / (pads[:, 3] - pads[:, 1])
    assert 0.74 < ratio.min() < 0.8
    assert 1.25 < ratio.max() < 1.35
    area = (pads[:, 2] - pads[:, 0]) * (pads[:, 3] - pads[:, 1]) / 300**2
    assert area.min() < 0.1
    assert area.max() > 0.9
    ratio = 3 * (squashed[:, 2] - squashed[:, 0]) / (squashed[:, 3] - squashed[:, 1])
    assert 0.74 < ratio.min() < 0.8
    assert 1.25 < ratio.max() < 1.36
    assert squashed[:, 2].max() > 99
    assert squashed[:, 3].max() > 299


@pytest.mark.parametrize("how", ["crop", "pad", "squash"])
@pytest.mark.parametrize("size", [(150, 110), (40, 130), (120, 120)])
def test_arrays_are_framed_exactly_as_files(tmp_path: Path, how: str, size: tuple[int, int]) -> None:
    path = save_picture(tmp_path / "a.png", *size)
    for side in (48, 100):
        for mode, channels in (("RGB", 3), ("L", 1)):
            files = Files([path], size=side, mode=mode, frame=how)  # type: ignore[arg-type]
            pixels = torch.from_numpy(np.array(picture(*size).convert(mode))).view(1, size[1], size[0], channels)
            ours = Memory(pixels.permute(0, 3, 1, 2)).cut(files.frame, channels)
            assert torch.equal(ours.fetch(torch.tensor([0])), files.fetch([0]))
            assert ours.frame == files.frame


def test_a_box_beyond_the_right_edge_is_filled_there() -> None:
    seen = np.array(cut(Image.new("RGB", (10, 20), "red"), (0, 0, 20, 20), 20))
    assert (seen[:, :10] == (255, 0, 0)).all()
    assert (seen[:, 10:] == FILL).all()


@pytest.mark.parametrize(
    ("sizes", "how"),
    [
        ([(100, 100)] * 9 + [(100, 300)], "crop"),  # one odd picture in ten decides nothing
        ([(108, 100)] * 10, "crop"),
        ([(112, 92)] * 10, "squash"),  # ORL's faces: a crop cost 2 points
        ([(400, 300)] * 10, "squash"),  # all alike
        ([(400, 300), (300, 400)] * 5, "pad"),
        ([(100, 300)] * 10, "pad"),  # too tall to stretch
        ([], "crop"),
    ],
)
def test_the_frame_is_chosen_by_the_aspect(sizes: list[tuple[int, int]], how: str) -> None:
    chosen, why = choose_frame(sizes)
    assert chosen == how
    assert why


def classes_of(folder: Path, size: tuple[int, int], count: int = 6) -> Path:
    for k in ("ant", "bee"):
        (folder / k).mkdir(parents=True)
        for i in range(count):
            save_picture(folder / k / f"{i}.png", *size, i + 10 * (k == "bee"))
    return folder


def test_folders_are_framed_by_their_aspect_unless_told(tmp_path: Path) -> None:
    place = classes_of(tmp_path / "tall", (20, 60))
    auto = read(place)["all"].samples
    assert auto.frame == Frame(60, "pad", 60)  # the side is that which the frame fills
    assert read(place, frame="crop")["all"].samples.frame == Frame(20, "crop", 20)
    data = prepare_data(DataSettings(set=str(place), frame="squash", size=32))
    assert (data.facts.frame, data.facts.resize, data.facts.size) == ("squash", 32, [32, 32])
    assert prepare_data(DataSettings(set=str(place))).facts.framing == Frame(60, "pad", 60)


def test_a_run_keeps_the_frame_it_began_with(tmp_path: Path) -> None:
    place = classes_of(tmp_path / "tall", (20, 60))
    began = prepare_data(DataSettings(set=str(place), size=24))
    for k in ("ant", "bee"):
        for i in range(6, 80):
            save_picture(place / k / f"{i}.png", 30, 30, i)
    assert prepare_data(DataSettings(set=str(place), size=24)).facts.frame == "crop"
    again = prepare_data(DataSettings(set=str(place), size=24), began.facts)
    assert again.labelled.samples.frame == Frame(24, "pad", 24)


def test_resized_crop_views_leave_small_pictures_on_disk(tmp_path: Path) -> None:
    place = classes_of(tmp_path / "small", (20, 20))
    assert not prepare_data(DataSettings(set=str(place))).labelled.samples.decodes
    assert prepare_data(DataSettings(set=str(place), augment=["resized-crop"])).labelled.samples.decodes


def test_arrays_take_size_frame_and_grey(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    wide = chance.integers(0, 256, (12, 20, 40, 3), dtype=np.uint8)
    np.savez(tmp_path / "wide.npz", x=wide, y=np.arange(12) % 2)
    set_ = str(tmp_path / "wide.npz")
    assert prepare_data(DataSettings(set=set_)).facts.size == [20, 40]  # as they are
    padded = prepare_data(DataSettings(set=set_, frame="pad", size=40, augment=[]))
    assert padded.facts.framing == Frame(40, "pad", 40)
    image = padded.labelled.fetch(torch.tensor([0]))[0]
    assert (image[:, 0] == torch.tensor(FILL).view(3, 1)).all()
    assert prepare_data(DataSettings(set=set_, size=16, grey=True)).inputs == 1
    np.savez(tmp_path / "square.npz", x=wide[:, :, :20], y=np.arange(12) % 2)
    square = DataSettings(set=str(tmp_path / "square.npz"), frame="pad")
    with pytest.raises(UserError, match=r"data\.frame has no effect.*leave it out"):
        prepare_data(square)
    assert prepare_data(DataSettings(set="shapes", size=16, n_max=4, imbalance=2)).facts.size == [16, 16]


@pytest.mark.parametrize("key", [{"frame": "pad"}, {"size": 32}, {"grey": True}, {"normalise": "imagenet"}])
def test_texts_and_vectors_refuse_what_changes_images(tmp_path: Path, key: dict[str, object]) -> None:
    np.savez(tmp_path / "v.npz", x=np.random.default_rng(0).normal(size=(20, 4)), y=np.arange(20) % 2)
    for name in ("phrases", str(tmp_path / "v.npz")):
        with pytest.raises(UserError, match=rf"data\.{next(iter(key))}"):
            prepare_data(DataSettings(set=name, **key))  # type: ignore[arg-type]


def test_picked_and_joined_pictures_give_boxes_where_all_can(tmp_path: Path) -> None:
    files = Files([save_picture(tmp_path / "a.png", 40, 20)] * 4, size=16)
    picked = Picked(files, torch.tensor([1, 2])).boxed(Cuts(16))
    assert picked is not None
    assert len(picked) == 2
    drawn = picked.fetch(torch.tensor([0, 1]), seeded(0))
    assert not torch.equal(drawn[0], drawn[1])
    assert Joined([files, files]).boxed(Cuts(16)) is not None
    assert Joined([files, files.held(True)]).boxed(Cuts(16)) is None


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_boxes_become_the_side_that_is_asked_for_as_pil_makes_it(tmp_path: Path, interpolation: Interpolation) -> None:
    path = save_picture(tmp_path / "a.png", 40, 20)
    cuts = Cuts(24, (0.3, 0.5), (1.0, 2.0), interpolation)
    (seen,) = Files([path], size=16).boxed(cuts).fetch([0], seeded(3))
    left, top, right, bottom = random_box(40, 20, torch.rand(1, 10, 4, generator=seeded(3))[0], (0.3, 0.5), (1.0, 2.0))
    kind = Image.Resampling[interpolation.upper()]
    wanted = Image.open(path).convert("RGB").resize((24, 24), kind, box=(left, top, right, bottom))
    assert torch.equal(seen, torch.from_numpy(np.array(wanted)).permute(2, 0, 1))
    view = build([f"resized-crop{'-bicubic' * (interpolation == 'bicubic')}"], size=24, mean=(0.5,) * 3, std=(1,) * 3)
    assert view.cuts == Cuts(24, interpolation=interpolation)


def test_a_picture_too_narrow_to_show_anything_is_one_line(tmp_path: Path) -> None:
    path = save_picture(tmp_path / "line.png", 1, 10_000)
    with pytest.raises(UserError, match=r"line\.png': 1 x 10000 pixels are too narrow.*replace or remove it"):
        Files([path], size=32).fetch([0])


def test_what_lies_beyond_a_picture_is_filled_on_every_side() -> None:
    box = (
        -2,
        -1,
        6,
        3,
    )  # of 8 x 4, around a picture of 4 x 2: from its pixels to those of the frame, twice and 4 times
    seen = np.array(cut(Image.new("RGB", (4, 2), "red"), box, 16))
    red = (seen == (255, 0, 0)).all(2)
    assert np.array_equal(np.argwhere(red).min(0), (4, 4))
    assert np.array_equal(np.argwhere(red).max(0), (11, 11))
    assert red.sum() == 64
    assert (seen[~red] == FILL).all()


def drawn(area: float, shape: float, x: float, y: float) -> torch.Tensor:
    return torch.tensor([[area, shape, x, y]])


def test_random_boxes_by_hand() -> None:
    """Half the area of 100 x 80, square: 63 of 0..37 to move across, of 0..17 down."""
    half = ((0.5, 0.5), (1.0, 1.0))
    assert random_box(100, 80, drawn(0, 0, 0, 0), *half) == (0, 0, 63, 63)
    assert random_box(100, 80, drawn(0, 0, 0.999, 0.999), *half) == (37, 17, 100, 80)
    wide = ((0.25, 0.75), (0.5, 2.0))
    assert random_box(100, 80, drawn(0, 1, 0, 0), *wide) == (0, 0, 63, 32)  # a quarter, twice as wide
    assert random_box(100, 80, drawn(0, 0, 0, 0.5), *wide) == (0, 9, 32, 72)
    assert random_box(100, 80, drawn(1, 0.5, 0, 0), *wide) == (0, 0, 77, 77)  # three quarters
    fits = torch.cat([drawn(1, 1, 0, 0), drawn(0, 0.5, 0, 0)])
    assert random_box(100, 80, fits, *wide) == (0, 0, 45, 45)  # the first, 110 wide, does not fit
    usual = random_box(100, 80, drawn(0, 0.5, 0, 0))
    assert usual == random_box(100, 80, drawn(0, 0.5, 0, 0), (0.08, 1.0), (3 / 4, 4 / 3)) == (0, 0, 25, 25)


def test_where_no_box_fits_the_largest_in_the_centre_is_taken() -> None:
    assert random_box(4, 4, drawn(0, 0, 0, 0), (1 / 16, 1 / 16), (1.0, 1.0)) == (0, 0, 1, 1)  # one pixel is a box
    assert random_box(4, 4, drawn(0, 0, 0, 0), (0.01, 0.01), (1.0, 1.0)) == (0, 0, 4, 4)  # less is none
    whole = ((1.0, 1.0), (3 / 4, 4 / 3))
    assert random_box(300, 30, drawn(0, 0, 0, 0), *whole) == (130, 0, 170, 30)
    assert random_box(30, 300, drawn(0, 0, 0, 0), *whole) == (0, 130, 30, 170)
    assert random_box(30, 1, drawn(0, 0, 0, 0), (1.0, 1.0), (0.1, 0.3)) == (14, 0, 15, 1)
    assert random_box(1, 30, drawn(0, 0, 0, 0), (1.0, 1.0), (3.0, 9.0)) == (0, 14, 1, 15)


def test_frames_by_hand() -> None:
    assert Frame(8, "squash").box(30, 90) == (0, 0, 30, 90)
    assert Frame(8, "pad").box(30, 90) == (-30, 0, 60, 90)
    assert Frame(8, "pad").box(90, 30) == (0, -30, 90, 60)
    assert Frame(10).box(40, 20) == (10, 0, 30, 20)
    assert Frame(10, "crop", 20).box(40, 20) == (15, 5, 25, 15)
    assert Frame(10, resize=5).box(10, 5) == (0, -2, 10, 8)
    whole, inside = ((1.0, 1.0), (1.0, 1.0)), ((0.25, 0.25), (1.0, 1.0))
    assert Frame(8, "squash").random_box(30, 90, drawn(0, 0, 0, 0), *whole) == (0, 0, 30, 90)
    assert Frame(8, "squash").random_box(30, 90, drawn(0, 0, 0.999, 0), *inside) == pytest.approx((15, 0, 30, 45))
    assert Frame(8, "squash").random_box(90, 30, drawn(0, 0, 0, 0.999), *inside) == pytest.approx((0, 15, 45, 30))
    assert Frame(8, "pad").random_box(30, 90, drawn(0, 0, 0.999, 0.5), *whole) == (0, 0, 90, 90)
    assert Frame(8, "pad").random_box(30, 90, drawn(0, 0, 0.999, 0.999), *inside) == pytest.approx((-15, 45, 30, 90))
    assert Frame(8, "pad").random_box(90, 60, drawn(0, 0, 0.5, 0.5), *inside) == pytest.approx(
        (23, 7.667, 68, 52.667), abs=0.01
    )
    assert Frame(8).random_box(100, 80, drawn(0, 0, 0, 0), (0.5, 0.5), (1.0, 1.0)) == (0, 0, 63, 63)


def test_a_box_within_rounding_of_the_picture_has_no_border() -> None:
    red = Image.new("RGB", (10, 10), "red")
    for box in ((0, 0, 11, 11), (0, 0, 10.9, 5), (0.0, 2, 10, 11)):
        assert (np.array(cut(red, box, 6)) == (255, 0, 0)).all()
    for box in ((0, 0, 12, 10), (0, 0, 10, 12), (-1, 0, 9, 10), (0, -1, 10, 9)):
        assert (np.array(cut(red, box, 20)) == FILL).all(2).any()
    grey = np.array(cut(Image.new("L", (10, 10), 7), (-10, -10, 10, 10), 20))
    assert (grey[:10] == 118).all()
    assert (grey[10:, 10:] == 7).all()
    for box in ((-400, 0, 2, 4), (0, -400, 4, 2)):  # less than a pixel of the picture is seen, as one
        assert (np.array(cut(red, box, 4)) == (255, 0, 0)).all(2).any()
    assert (FILL, MARGIN) == ((124, 116, 104), 256 / 224)
    assert BOXES == ((0.08, 1.0), (3 / 4, 4 / 3))


@pytest.mark.parametrize(
    ("sizes", "how"),
    [
        ([(110, 100)] * 10, "crop"), ([(111, 100)] * 10, "squash"), ([(100, 111)] * 10, "squash"),
        ([(200, 100)] * 10, "squash"), ([(201, 100)] * 10, "pad"),
        ([(150, 100)] * 5 + [(165, 100)] * 5, "squash"), ([(150, 100)] * 5 + [(166, 100)] * 5, "pad"),
        ([(100, 100)] * 17 + [(300, 100)] * 4, "pad"), ([(100, 100)] * 20 + [(300, 100)] * 1, "crop"),
        ([(100, 300)] + [(150, 100)] * 20, "squash"),
    ],
)  # fmt: skip
def test_the_frame_changes_at_its_limits(sizes: list[tuple[int, int]], how: str) -> None:
    assert choose_frame(sizes)[0] == how


def test_why_a_frame_was_chosen_is_told_in_numbers() -> None:
    assert choose_frame([(108, 100)])[1].startswith("nine in ten have sides within 1.08 : 1")
    assert choose_frame([(150, 100)] * 3 + [(151, 100)])[1].startswith("nearly all have width : height 1.50")
    assert (
        choose_frame([(400, 100), (100, 200)])[1]
        == "width : height goes from 0.50 to 4.00; a crop would lose up to 75% of one"
    )
    assert choose_frame([])[1] == "no picture was found"
