from __future__ import annotations

import contextlib
import hashlib
import io
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader, Dataset, TensorDataset

from evenhand.data.loader import Feed, Loader
from evenhand.data.sources import files as files_module
from evenhand.data.sources.files import (
    Files,
    load_image,
    random_square,
)
from evenhand.data.sources.frames import Cuts, centre_box, random_box
from evenhand.data.sources.items import Items, from_dataset
from evenhand.data.sources.paths import images_in, natural
from evenhand.data.stream import Stream
from evenhand.data.views.view import OfSamples
from evenhand.errors import UserError
from helpers import picture, save_picture, seeded, truncate


def test_an_image_of_the_wanted_size_is_returned_untouched(tmp_path: Path) -> None:
    path = save_picture(tmp_path / "a.png", 32, 32)
    expected = torch.from_numpy(np.array(picture(32, 32))).permute(2, 0, 1)
    assert torch.equal(Files([path], size=32).fetch(torch.tensor([0]))[0], expected)
    grey = Files([path], size=32, mode="L").fetch([0])
    assert torch.equal(grey[0, 0], torch.from_numpy(np.array(picture(32, 32).convert("L"))))


@pytest.mark.parametrize("sides", [(300, 200), (200, 301), (97, 97), (130, 520)])
def test_evaluation_framing_equals_resize_then_centre_crop(tmp_path: Path, sides: tuple[int, int]) -> None:
    path = save_picture(tmp_path / "a.png", *sides)
    resize = round(96 * 256 / 224)
    scale = resize / min(sides)
    slow = picture(*sides).resize((round(sides[0] * scale), round(sides[1] * scale)), Image.Resampling.BILINEAR)
    left, top = round((slow.width - 96) / 2), round((slow.height - 96) / 2)
    expected = np.array(slow.crop((left, top, left + 96, top + 96))).transpose(2, 0, 1)
    ours = Files([path], size=96).fetch([0])[0].numpy()
    assert np.abs(ours.astype(int) - expected).max() <= 3  # rounding of the long side only


def test_jpeg_draft_agrees_with_full_decoding(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    picture(900, 700).save(path, quality=95)
    box = centre_box(900, 700, 96, 110)
    expected = np.array(Image.open(path).resize((96, 96), Image.Resampling.BILINEAR, box=box)).astype(int)
    ours = Files([path], size=96).fetch([0])[0].permute(1, 2, 0).numpy()
    assert np.abs(ours - expected).mean() < 1.5


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("sides", [(40, 40), (800, 500)])  # the large one goes through JPEG draft
def test_exif_orientation_is_applied(tmp_path: Path, orientation: int, sides: tuple[int, int]) -> None:
    upright = picture(*sides)
    undo = {
        2: 0,
        3: 3,
        4: 1,
        5: 5,
        6: 2,
        7: 6,
        8: 4,
    }  # transposition that makes the file need its orientation
    turned = upright.transpose(Image.Transpose(undo[orientation])) if orientation > 1 else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    turned.save(tmp_path / "turned.jpg", quality=95, exif=exif)
    upright.save(tmp_path / "upright.jpg", quality=95)
    files = Files([tmp_path / "turned.jpg", tmp_path / "upright.jpg"], size=40, random_frame=True)
    ours, expected = files.fetch([0, 1]).int()
    assert (ours - expected).abs().float().mean() < 2
    crops = [files.fetch([i], seeded(5)).int() for i in (0, 1)]
    assert (crops[0] - crops[1]).abs().float().mean() < 2


def test_palette_alpha_and_sixteen_bit(tmp_path: Path) -> None:
    red = Image.new("RGBA", (8, 8), (255, 0, 0, 255))
    red.paste((0, 0, 0, 0), (0, 0, 4, 8))  # left half transparent black
    red.save(tmp_path / "alpha.png")
    palette = red.convert("P", palette=Image.Palette.ADAPTIVE)
    palette.info["transparency"] = palette.getpixel((0, 0))
    palette.save(tmp_path / "palette.png", transparency=palette.getpixel((0, 0)))
    for name in ("alpha.png", "palette.png"):
        pixels = np.array(load_image(tmp_path / name))
        assert pixels[0, 0].tolist() == [255, 255, 255], name
        assert pixels[0, 7].tolist() == [255, 0, 0], name
    opaque = picture(8, 8).convert("P")
    opaque.save(tmp_path / "opaque.png")
    assert np.array_equal(np.array(load_image(tmp_path / "opaque.png")), np.array(opaque.convert("RGB")))
    Image.fromarray(np.full((8, 8), 0x80FF, np.uint16)).save(tmp_path / "deep.png")
    assert set(np.array(load_image(tmp_path / "deep.png", "L")).ravel()) == {0x80}
    Image.fromarray(np.ones((8, 8), np.float32)).save(tmp_path / "float.tif")
    with pytest.raises(UserError, match=r"float\.tif.*8 bits"):
        load_image(tmp_path / "float.tif")


def test_random_framing_draws_from_the_generator_alone(tmp_path: Path) -> None:
    files = Files([save_picture(tmp_path / "a.png", 200, 150)] * 4, size=96)
    torch.manual_seed(1)
    first = files.fetch(torch.arange(4), seeded(3))
    torch.manual_seed(2)
    assert torch.equal(first, files.fetch(torch.arange(4), seeded(3)))
    assert not torch.equal(first, files.fetch(torch.arange(4), seeded(4)))
    assert not torch.equal(first[0], first[1])
    fixed = Files([tmp_path / "a.png"], size=96, random_frame=False)
    assert torch.equal(fixed.fetch([0], seeded(3)), fixed.fetch([0]))
    small = Files([tmp_path / "a.png"], size=32)
    assert torch.equal(small.fetch([0], seeded(3)), small.fetch([0]))


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 2000), st.integers(1, 2000), st.integers(0, 2**31))
def test_boxes_lie_inside_the_image(width: int, height: int, seed: int) -> None:
    left, top, right, bottom = random_box(width, height, torch.rand(10, 4, generator=seeded(seed)))
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    for size, resize in ((96, 110), (32, 32), (224, 256)):
        left, top, right, bottom = centre_box(width, height, size, resize)
        assert left >= 0
        assert top >= 0
        assert right <= width + 1e-6
        assert bottom <= height + 1e-6
        assert right - left == pytest.approx(bottom - top)


def test_random_boxes_have_the_promised_areas_and_ratios() -> None:
    boxes = [random_box(400, 400, draws) for draws in torch.rand(4000, 10, 4, generator=seeded(0))]
    w, h = (np.array([b[k + 2] - b[k] for b in boxes]) for k in (0, 1))
    area, ratio = w * h / 160_000, w / h
    assert 0.078 < area.min() < 0.1
    assert 0.9 < area.max() <= 1
    assert 0.74 < ratio.min() < 0.77
    assert 1.3 < ratio.max() < 1.35
    assert abs(np.log(ratio).mean()) < 0.01
    # accepted are areas a <= exp(-|log r|): E a = (0.21875 - 0.0064 L) / 2 / (0.25 - 0.08 L), L = log 4/3
    assert area.mean() == pytest.approx(0.4778, abs=0.012)


@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 999))
def test_squares_span_the_shorter_side(width: int, height: int, seed: int) -> None:
    left, top, right, bottom = random_square(width, height, torch.rand(10, 4, generator=seeded(seed)))
    assert right - left == bottom - top == min(width, height)
    assert 0 <= left <= width - (right - left)
    assert 0 <= top <= height - (bottom - top)


def test_square_frames_are_random_along_the_longer_side_in_training_only(tmp_path: Path) -> None:
    file = save_picture(tmp_path / "wide.png", width=300, height=100)
    usual = Files([file], size=100)
    squared = usual.pick(torch.tensor([0])).squared()
    assert torch.equal(squared.fetch(torch.tensor([0])), usual.fetch(torch.tensor([0])))
    seen = [squared.fetch(torch.tensor([0]), seeded(seed))[0] for seed in range(6)]
    assert len({frame.sum().item() for frame in seen}) > 3
    whole = torch.from_numpy(np.array(picture(300, 100))).permute(2, 0, 1)
    for frame in seen:  # nothing is scaled
        assert any(torch.equal(frame, whole[:, :, x : x + 100]) for x in range(201))


def test_extreme_shape_falls_back_to_a_centred_box() -> None:
    assert random_box(1000, 10, torch.zeros(10, 4)) == (493, 0, 506, 10)


class Steps(Dataset[torch.Tensor]):
    """A worker that receives whole batches, as the loader does."""

    def __init__(self, files: Files) -> None:
        self.files = files

    def __len__(self) -> int:
        return 2

    def __getitem__(self, step: int) -> torch.Tensor:
        return self.files.fetch(torch.tensor([step, 1 - step]), seeded(step))


def test_files_pickle_and_decode_in_workers(tmp_path: Path) -> None:
    files = Files([save_picture(tmp_path / f"{i}.png", 120, 110, i) for i in range(2)], size=96)
    again = pickle.loads(pickle.dumps(files))
    assert torch.equal(again.fetch([1, 0]), files.fetch([1, 0]))
    parallel = list(DataLoader(Steps(files), batch_size=None, num_workers=1))
    assert all(torch.equal(batch, Steps(files)[step]) for step, batch in enumerate(parallel))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_image_in_a_loader_is_one_clean_line(tmp_path: Path, workers: int) -> None:
    paths = [save_picture(tmp_path / f"{i}.png", 30, 30, i) for i in range(6)]
    truncate(paths[4])
    stream = Stream(Files(paths, size=24), torch.zeros(6, dtype=torch.long), ("a",), "train")
    with pytest.raises(UserError) as plain:
        load_image(paths[4])
    feed = Feed("train", 2, (OfSamples(lambda x, _: x.float()),))
    loader = Loader(stream, feed, seed=0, device=torch.device("cpu"), workers=workers)
    bad_step = next(step for step in range(3) if 4 in loader.picks.batch(step))
    batches = loader.iterate(0, 3)
    for step in range(bad_step):
        assert torch.equal(next(batches).indices, loader.picks.batch(step))
    with pytest.raises(UserError) as caught:
        next(batches)
    assert str(caught.value) == str(plain.value)
    assert "\n" not in str(caught.value)


def test_trap_12_unreadable_and_truncated_images_are_named(tmp_path: Path) -> None:
    bad = (
        truncate(save_picture(tmp_path / "half.jpg", 300, 300)),
        truncate(save_picture(tmp_path / "half.png", 300, 300)),
    )
    (tmp_path / "text.png").write_text("not an image")
    (tmp_path / "void.gif").write_bytes(b"")
    for path in (*bad, tmp_path / "text.png", tmp_path / "void.gif", tmp_path / "missing.jpg"):
        for generator in (None, seeded(0)):
            with pytest.raises(UserError, match=rf"{path.name}.*(replace|remove)"):
                Files([path], size=96).fetch([0], generator)


def test_every_cut_of_a_file_gives_a_user_error_or_an_image(tmp_path: Path) -> None:
    for name in ("a.jpg", "a.png", "a.gif", "a.bmp", "a.tif", "a.webp", "a.ppm"):
        data = save_picture(tmp_path / name, 24, 24).read_bytes()
        for cut in np.linspace(0, len(data) - 1, 12).astype(int):
            (tmp_path / name).write_bytes(data[:cut] + b"\xff" * (cut % 3))
            with contextlib.suppress(UserError):  # some cuts only lose padding
                assert load_image(tmp_path / name).size == (24, 24)


def test_bad_arguments() -> None:
    with pytest.raises(UserError, match="mode"):
        Files([], size=32, mode="CMYK")
    with pytest.raises(UserError, match="resize=32"):
        Files([], size=64, resize=32)


def test_digest_survives_a_move_and_notices_a_change(tmp_path: Path) -> None:
    def stream(root: Path) -> Stream:
        return Stream(Files(images_in(root), size=32), None, (), "x")

    for name in ("a/1.png", "b/2.png"):
        save_picture(tmp_path / "here" / name)
    shutil.copytree(tmp_path / "here", tmp_path / "there" / "deep")
    digest = stream(tmp_path / "here").digest()
    assert stream(tmp_path / "there" / "deep").digest() == digest
    save_picture(tmp_path / "here" / "b/2.png", 50, 41)
    assert stream(tmp_path / "here").digest() != digest
    gone = stream(tmp_path / "here")
    (tmp_path / "here" / "a/1.png").unlink()
    with pytest.raises(UserError, match=r"1\.png.*missing"):
        gone.digest()


def test_natural_order_and_hidden_files(tmp_path: Path) -> None:
    names = ["img10.png", "img2.png", "IMG1.PNG", "img02.png", "sub/img1.png"]
    for name in names:
        save_picture(tmp_path / name)
    (tmp_path / "._img2.png").write_bytes(b"resource fork")
    (tmp_path / ".cache").mkdir()
    save_picture(tmp_path / ".cache/thumb.png")
    found = [path.relative_to(tmp_path).as_posix() for path in images_in(tmp_path)]
    assert found == ["IMG1.PNG", "img02.png", "img2.png", "img10.png", "sub/img1.png"]
    assert sorted(["b", "a10", "a9", "a09", "10", "9"], key=natural) == ["9", "10", "a09", "a9", "a10", "b"]


class Pairs(Dataset[tuple[object, int]]):
    def __init__(self, images: list[object], labels: list[int]) -> None:
        self.images, self.answers = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[object, int]:
        return self.images[index], self.answers[index]


def test_items_accept_what_datasets_give() -> None:
    array = np.array(picture(8, 6))
    tensor = torch.from_numpy(array).permute(2, 0, 1)
    kinds = [picture(8, 6), array, array.transpose(2, 0, 1), tensor, tensor / 255, tensor.double() / 255]
    images = Items(Pairs(kinds, [0] * len(kinds))).fetch(torch.arange(len(kinds)))
    assert images.shape == (len(kinds), 3, 6, 8)
    assert all(torch.equal(image, tensor) for image in images)
    grey = Items(Pairs([picture(8, 6).convert("L"), array[..., 0]], [0, 0])).fetch([0, 1])
    assert grey.shape == (2, 1, 6, 8)


def test_from_dataset_finds_labels_and_classes() -> None:
    data = Pairs([np.zeros((4, 4), np.uint8)] * 3, [2, 0, 2])
    stream = from_dataset(data, name="mine")
    assert stream.counts == [1, 0, 2]
    assert stream.classes == ("0", "1", "2")
    assert stream.name == "mine"
    data.targets = np.array([[1], [1], [0]])  # type: ignore[attr-defined]
    assert from_dataset(data).labels.tolist() == [1, 1, 0]
    data.targets = [1, 1, 0]  # type: ignore[attr-defined]
    data.classes = ["cat", "dog"]  # type: ignore[attr-defined]
    assert from_dataset(data).classes == ("cat", "dog")
    assert from_dataset(data).counts == [1, 2]
    wrapped = from_dataset(TensorDataset(torch.rand(5, 3, 4, 4), torch.tensor([0, 1, 0, 1, 1])), ["a", "b"])
    assert wrapped.counts == [2, 3]
    assert wrapped.digest() == wrapped.digest()
    with pytest.raises(UserError, match="label 1 of sample 0 is outside"):
        from_dataset(data, ["only"])


def test_bad_datasets_are_explained() -> None:
    with pytest.raises(UserError, match="map-style"):
        Items(iter([]))
    with pytest.raises(UserError, match=r"Pairs\[0\].*Normalize"):
        Items(Pairs([torch.randn(3, 4, 4)], [0])).fetch([0])
    with pytest.raises(UserError, match="labels of Pairs must be integers"):
        from_dataset(Pairs([np.zeros((4, 4), np.uint8)], ["cat"]))  # type: ignore[list-item]
    with pytest.raises(UserError, match="uint8"):
        Items(Pairs([np.zeros((4, 4, 3))], [0])).fetch([0])
    with pytest.raises(UserError, match="Resize"):
        Items(Pairs([np.zeros((4, 4), np.uint8), np.zeros((5, 4), np.uint8)], [0, 0])).fetch([0, 1])
    with pytest.raises(UserError, match=r"TensorDataset\[0\]"):
        Items(TensorDataset(torch.zeros(1, 3, 4, 4))).fetch([0])


def test_small_images_of_a_very_large_set_are_not_decoded_into_memory() -> None:
    """180,000 of 64 x 64 are over two gigabytes."""
    files = Files(["not there.png"] * 180_000, size=64)
    assert files.held() is files


def test_squares_are_taken_from_all_over_the_longer_side() -> None:
    def square(width: int, height: int, x: float, y: float) -> Any:
        return files_module.random_square(width, height, torch.tensor([[0.0, 0.0, x, y]]))

    assert square(50, 30, 0.0, 0.9) == (0, 0, 30, 30)
    assert square(50, 30, 0.999, 0.9) == (20, 0, 50, 30)
    assert square(30, 50, 0.9, 0.5) == (0, 10, 30, 40)
    assert square(30, 30, 0.999, 0.999) == (0, 0, 30, 30)


@pytest.mark.parametrize(
    ("options", "resize", "random"),
    [
        ({"size": 95}, 95, False), ({"size": 96}, 110, True), ({"size": 224}, 256, True),
        ({"size": 224, "whole": True}, 224, False), ({"size": 224, "frame": "pad"}, 224, True),
        ({"size": 224, "resize": 230}, 230, True), ({"size": 32, "resize": 40, "random_frame": True}, 40, True),
        ({"size": 224, "random_frame": False}, 256, False), ({"size": 32, "resize": 32}, 32, False),
    ],
)  # fmt: skip
def test_margin_and_random_frames_begin_at_96_pixels(options: dict[str, Any], resize: int, random: bool) -> None:
    made = Files([], **options)
    assert (made.resize, made.random_frame) == (resize, random)
    assert made.frame.resize == resize
    assert (made.cuts, made.squares, made.mode) == (Cuts(made.size, (0.08, 1.0), (3 / 4, 4 / 3)), False, "RGB")


def test_framed_files_keep_all_but_side_and_colour(tmp_path: Path) -> None:
    paths = [save_picture(tmp_path / f"{i}.png", 20, 30, i) for i in range(2)]
    made = Files(paths, size=16, names=["a", "b"], whole=True, frame="pad")
    assert made.framed(16, 3) is made
    other = made.framed(8, 1)
    assert (other.mode, other.size, other.whole, other.names, other.frame.how) == ("L", 8, True, ["a", "b"], "pad")
    assert other.paths == made.paths
    assert made.framed(16, 1).mode == "L"
    assert made.framed(8, 3).mode == "RGB"
    cuts = Cuts(16, (0.5, 0.6), (1.0, 1.5))
    boxed = made.boxed(cuts)
    assert (boxed.random_frame, boxed.cuts) == (True, cuts)
    assert (made.random_frame, made.squares, made.squared().squares) == (False, False, True)
    assert (other.name(1), other.path(1)) == ("b", str(paths[1]))


def test_small_images_are_held_unless_told_otherwise(tmp_path: Path) -> None:
    paths = [save_picture(tmp_path / "a.png", 70, 70)] * 3
    assert not Files(paths, size=64).held().decodes
    assert Files(paths, size=65).held().decodes
    assert Files(paths, size=64).held(False).decodes
    held = Files(paths, size=65, frame="pad", names=["x", "y", "z"]).held(True)
    assert (held.decodes, held.name(2), held.path(2), held.frame.how) == (False, "z", str(paths[0]), "pad")  # type: ignore[union-attr]
    assert len(Files([], size=8).held()) == 0
    many = Files(paths[:1] * 300, size=4).held()
    assert torch.equal(many.fetch(torch.tensor([299])), Files(paths, size=4).fetch([0]))


def test_typical_sides_are_medians_of_what_the_frame_fills_up_to_224() -> None:
    sizes = [(10, 20), (30, 40), (50, 60), (70, 80)]
    assert files_module.typical_size(sizes) == 30
    assert files_module.typical_size(sizes, "pad") == files_module.typical_size(sizes, "squash") == 40
    assert files_module.typical_size([(500, 300)]) == files_module.typical_size([]) == 224


def test_sizes_are_of_some_files_spread_over_all(tmp_path: Path) -> None:
    paths = [save_picture(tmp_path / f"{i}.png", 10 + i, 20) for i in range(7)]
    (tmp_path / "bad.png").write_bytes(b"no")
    assert files_module.sizes_of(paths, most=3) == [(10, 20), (12, 20), (14, 20), (16, 20)]
    assert files_module.sizes_of([tmp_path / "bad.png", *paths]) == [(10 + i, 20) for i in range(7)]


def test_how_wide_a_picture_may_be(tmp_path: Path) -> None:
    assert files_module.load_image(save_picture(tmp_path / "a.png", 100, 2)).size == (100, 2)
    with pytest.raises(UserError, match="101 x 2 pixels are too narrow"):
        files_module.load_image(save_picture(tmp_path / "b.png", 101, 2))


def test_sixteen_bits_keep_their_upper_byte_and_transparency_lies_on_white() -> None:
    deep = Image.fromarray(np.array([[0, 255, 256, 65535]], np.uint16))
    assert np.asarray(files_module.convert(deep, "L")).tolist() == [[0, 0, 1, 255]]
    half = Image.new("RGBA", (1, 1), (0, 0, 0, 51))
    assert files_module.convert(half, "RGB").getpixel((0, 0)) == (204, 204, 204)
    palette = Image.new("P", (1, 1), 0)
    palette.info["transparency"] = 0
    assert files_module.convert(palette, "L").getpixel((0, 0)) == 255
    plain = Image.new("RGB", (1, 1), (1, 2, 3))
    assert files_module.convert(plain, "RGB") is plain
    with pytest.raises(ValueError, match="mode F"):
        files_module.convert(Image.new("F", (1, 1)), "L")


def test_an_identity_tells_frames_names_and_dates(tmp_path: Path) -> None:
    paths = [save_picture(tmp_path / "x" / f"{i}.png", 20, 30, i) for i in range(2)]
    said = [part.decode().split("\0") for part in Files(paths, size=16).identity()]
    assert said[0] == ["16 16 RGB"]
    content = paths[0].read_bytes()
    assert said[1] == ["/0.png", str(len(content)), hashlib.blake2b(content, digest_size=8).hexdigest()]
    assert next(iter(Files(paths, size=16, mode="L", frame="pad").identity())) == b"16 16 Lpad"
    dated = [part.decode().split("\0") for part in Files(paths, size=16).identity(dated=True)]
    assert dated[1][2] == str(paths[0].stat().st_mtime_ns)


def test_records_are_told_apart_by_what_is_in_some_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the same key may stand another picture."""
    records = {"a": b"first", "b": b"other"}
    read = Files(["a", "b"], size=16, reader=lambda name: io.BytesIO(records[name]))
    head, *marks = read.identity()
    assert head == b"16 16 RGB"
    assert marks == [key.encode() + hashlib.blake2b(content).digest() for key, content in records.items()]
    records["b"] = b"OTHER"
    assert [*read.identity()][1:] != marks
    monkeypatch.setattr(files_module, "PROBED", 1)
    assert [*read.identity()][2] == b"b"  # of a large set not all are read
    assert read.path(0) is None


def test_a_replaced_file_of_the_same_length_is_another_one_and_a_copy_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uncompressed pictures are all of one length: swapped between classes, they were taken for the same."""
    paths = [save_picture(tmp_path / "x" / f"{i}.bmp", 120, 120, i) for i in range(4)]
    before = list(Files(paths, size=96).identity())
    shutil.copytree(tmp_path / "x", tmp_path / "y")
    assert list(Files(sorted((tmp_path / "y").iterdir()), size=96).identity()) == before
    first, second = paths[0].read_bytes(), paths[1].read_bytes()
    assert len(first) == len(second)
    paths[0].write_bytes(second)
    paths[1].write_bytes(first)
    assert list(Files(paths, size=96).identity()) != before
    monkeypatch.setattr(files_module, "PROBED", 2)  # of four: the first and the third
    assert [part.count(b"\0") and part.split(b"\0")[2] != b"" for part in Files(paths, size=96).identity()][1:] == [
        True, False, True, False,
    ]  # fmt: skip
    some = Files(paths, size=96).pick(torch.tensor([1]))
    assert (some.stored, Files(paths, size=96).held(True).stored) == (4, 0)
    monkeypatch.setattr(files_module, "PROBE", 6)
    middle = first[len(first) // 2 - 3 : len(first) // 2 + 3]
    assert files_module._probe(str(paths[1]), len(first)) == hashlib.blake2b(middle, digest_size=8).hexdigest()
