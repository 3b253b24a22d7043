"""Scenes made on the spot: emoji of four designers on photographs, and drawn shapes for tests without any file.

A scene of emoji-scenes is a photograph (128 x 128) with one to four emoji of eight kinds that photographs do not show:
smileys, shapes, clocks, hearts, players' buttons, arrows, marks of emotion and signs of the zodiac. Sides are 28 to 64
pixels, at random places, none covering more than a tenth of another; a box is tight around what is opaque. Two fifths
of the emoji are new in "test-new"; "test" shows the emoji of training. Test scenes have photographs of their own, and
the same layout in every style, so that styles differ in nothing else.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from evenhand import atomic
from evenhand.data.sets.packages import home, obtain_package
from evenhand.data.sets.shifted import PHOTOS, STYLES, _imported, _svg, common_emoji, emoji_packages, split_emoji
from evenhand.data.sets.trees import SITES, load_trees
from evenhand.data.stream import Memory, Stream, Streams
from evenhand.data.target import Boxes, Found
from evenhand.randomness import dice

KINDS = {
    "smiley": ("face-concerned", "face-neutral-skeptical", "face-smiling", "face-unwell"),
    "shape": ("geometric",),
    "clock": ("time",),
    "heart": ("heart",),
    "button": ("av-symbol",),
    "arrow": ("arrow",),
    "mark": ("emotion",),
    "zodiac": ("zodiac",),
}
SIDE, SMALLEST, LARGEST, MOST = 128, 28, 64, 4
RULE = 1  # number of the rule by which scenes are composed: another one, another file
COUNTS = {"train": 800, "val": 100, "test": 250, "test-new": 250}


class Scenery(NamedTuple):
    """A built-in set of scenes."""

    about: str
    domains: tuple[str, ...]
    load: Callable[[str, int], Streams]  # of a domain, and a seed by which it is split where it comes without a split


def load_emoji(style: str, split_seed: int = 0) -> Streams:
    """One designer's scenes, "train", "val", "test" and "test-new"; composed once, then read from one file.

    Another seed, other scenes, and other emoji are the new ones.
    """
    made = hashlib.sha256("".join(package.sha256 for package in (*emoji_packages(), PHOTOS)).encode()).hexdigest()[:8]
    kept = home() / f"emoji-scenes-{style}-{made}-{RULE}{f'-split-{split_seed}' if split_seed else ''}.safetensors"
    if not kept.exists():
        tensors = {}
        for split, (images, objects) in _compose_all(style, split_seed).items():
            tensors[f"{split}.images"] = images
            tensors[f"{split}.boxes"] = torch.cat([found.boxes for found in objects])
            tensors[f"{split}.labels"] = torch.cat([found.labels for found in objects])
            tensors[f"{split}.counts"] = torch.tensor([len(found.labels) for found in objects])
        with atomic.replacing(kept, "free space or set EVENHAND_DATA") as part:
            save_file(tensors, part)
    held, streams = load_file(kept), {}
    for split in COUNTS:
        counts = held[f"{split}.counts"].tolist()
        parts = zip(held[f"{split}.boxes"].split(counts), held[f"{split}.labels"].split(counts), strict=True)
        samples = Memory(held[f"{split}.images"], [f"{style}/{split}/{i}" for i in range(len(counts))])
        streams[split] = Stream(samples, Boxes([Found(*part) for part in parts]), tuple(KINDS), split)
    return streams


def _compose_all(style: str, split_seed: int) -> dict[str, tuple[torch.Tensor, list[Found]]]:
    from PIL import Image

    packages = emoji_packages()
    folders = [obtain_package(package) for package in packages]
    *drawn, table, rasteriser = folders
    icons = {s: json.loads(next(f.rglob("icons.json")).read_bytes()) for s, f in zip(STYLES, drawn, strict=True)}
    groups, names, labels = common_emoji(icons, drawn, table, 10)
    test, _ = split_emoji(labels, names, split_seed)
    classes = tuple(KINDS)
    kind = [next((classes.index(k) for k, parts in KINDS.items() if groups[g] in parts), -1) for g in labels]
    resvg = _imported("resvg_py", rasteriser)

    def picture(name: str) -> Any:
        png = bytes(
            resvg.svg_to_bytes(_svg(icons[style], name, LARGEST), skip_system_fonts=True, width=LARGEST, height=LARGEST)
        )
        return Image.open(io.BytesIO(png)).convert("RGBA")

    made = [(picture(name), kind[i], bool(test[i])) for i, name in enumerate(names) if kind[i] >= 0]
    files = sorted(obtain_package(PHOTOS).rglob("*.jpg"))
    photos = [Image.open(file).convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC) for file in files]
    cut = len(photos) * 4 // 5
    parts = {}
    for split, count in COUNTS.items():
        held = split.startswith("test")
        emoji = [(image, label) for image, label, new in made if new == (split == "test-new")]
        behind = photos[cut:] if held else photos[:cut]
        chance = dice(split_seed, "emoji-scenes", split, "" if held else style)
        scenes = [_compose(emoji, behind, len(classes), chance) for _ in range(count)]
        images = torch.from_numpy(np.stack([image for image, _ in scenes]).transpose(0, 3, 1, 2).copy())
        parts[split] = images, [found for _, found in scenes]
    return parts


def _compose(
    emoji: list[Any], photos: list[Any], num_classes: int, chance: torch.Generator
) -> tuple[np.ndarray, Found]:
    """Classes are drawn evenly, then an emoji of the class: the same draws whatever the style."""
    from PIL import Image

    def draw(below: int) -> int:
        return int(torch.randint(below, (), generator=chance))

    scene = photos[draw(len(photos))].copy()
    squares: list[list[float]] = []
    boxes: list[list[float]] = []
    labels: list[int] = []
    for _ in range(1 + draw(MOST)):
        label = draw(num_classes)
        same = [image for image, k in emoji if k == label]
        image, side = same[draw(len(same))], SMALLEST + draw(LARGEST - SMALLEST + 1)
        left, top = draw(SIDE - side + 1), draw(SIDE - side + 1)
        square = [float(edge) for edge in (left, top, left + side, top + side)]
        small = image.resize((side, side), Image.Resampling.BICUBIC)
        inner = small.getchannel("A").point(lambda level: 255 * (level > 127)).getbbox()
        if inner is None or any(_cover(square, other) > 0.1 for other in squares):
            continue
        scene.paste(small, (left, top), small)
        squares.append(square)
        boxes.append([float(edge + shift) for edge, shift in zip(inner, (left, top, left, top), strict=True)])
        labels.append(label)
    return np.asarray(scene), Found(torch.tensor(boxes).reshape(-1, 4), torch.tensor(labels, dtype=torch.int64))


def _cover(a: list[float], b: list[float]) -> float:
    """Share of the smaller box that both have."""
    wide, tall = (max(0.0, min(a[i + 2], b[i + 2]) - max(a[i], b[i])) for i in (0, 1))
    return wide * tall / min((box[2] - box[0]) * (box[3] - box[1]) for box in (a, b))


def load_shapes(
    domain: str, split_seed: int = 0, *, side: int = 64, counts: tuple[int, int, int] = (24, 8, 8)
) -> Streams:
    """Discs, squares and crosses on noise, two at most in an image, none in some; the second domain is the negative."""
    streams = {}
    for split, count in zip(("train", "val", "test"), counts, strict=True):
        chance = dice(split_seed, "shape-scenes", domain, split)
        images = 0.25 * torch.rand(count, 3, side, side, generator=chance)
        objects = []
        row, column = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
        for image in images:
            boxes, labels = [], []
            for half in range(2):
                if torch.rand((), generator=chance) < 0.25:
                    continue
                label, radius = (int(torch.randint(many, (), generator=chance)) for many in (3, 6))
                radius += 8
                x = side // 4 + half * side // 2
                y = radius + int(torch.randint(side - 2 * radius, (), generator=chance))
                v, u = row - y, column - x
                inside = (v.abs() <= radius) & (u.abs() <= radius)
                masks = (v**2 + u**2 <= radius**2, inside, inside & (torch.minimum(v.abs(), u.abs()) <= 3))
                image[:, masks[label]] = 0.5 + 0.5 * torch.rand(3, 1, generator=chance)
                boxes.append([x - radius, y - radius, x + radius + 1, y + radius + 1])
                labels.append(label)
            objects.append(
                Found(torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4), torch.tensor(labels, dtype=torch.int64))
            )
        if domain == "negative":
            images = 1 - images
        names = [f"{domain}/{split}/{i}" for i in range(count)]
        streams[split] = Stream(
            Memory((images * 255).byte(), names), Boxes(objects), ("disc", "square", "cross"), split
        )
    return streams


SETS = {
    "trees": Scenery("trees from the air at three sites, tiles of 200 x 200, boxes", tuple(SITES), load_trees),
    "emoji-scenes": Scenery(
        "emoji of eight kinds by four designers on photographs, 128 x 128, boxes", STYLES, load_emoji
    ),
    "shape-scenes": Scenery("shapes with boxes, drawn on the spot, for tests", ("plain", "negative"), load_shapes),
}
