"""Batched augmentation against PIL, one image at a time, and against what each step promises."""

from __future__ import annotations

import colorsys
import inspect
import math
import pickle
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps
from scipy.ndimage import gaussian_filter
from torch import Tensor

from evenhand.data.sources.frames import Cuts, Interpolation
from evenhand.data.views import imageops, policies
from evenhand.data.views import images as augment
from evenhand.data.views.fixed import is_fixed
from evenhand.data.views.images import Pipeline, build
from evenhand.data.views.statistics import channel_stats
from helpers import seeded

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
STEPS = ["crop", "flip", "centre-crop", "resized-crop", "jitter", "grayscale", "blur", "cutout", "erase",
         "randaugment", "autoaugment"]  # fmt: skip


def photos(n: int = 6, c: int = 3, h: int = 24, w: int = 24, seed: int = 0) -> Tensor:
    """Smooth shapes plus noise, of varied contrast; the last one is flat."""
    g = torch.Generator().manual_seed(seed)
    coarse = torch.nn.functional.interpolate(torch.rand(n, c, 4, 4, generator=g), size=(h, w), mode="bilinear")
    pixels = 255 * (0.15 + 0.8 * coarse * torch.rand(n, 1, 1, 1, generator=g))
    pixels += 12 * torch.randn(n, c, h, w, generator=g)
    pixels[-1] = 77
    return pixels.clamp(0, 255).to(torch.uint8)


def through_pil(x: Tensor, work: Callable[[Image.Image], Image.Image]) -> Tensor:
    done = []
    for image in x.permute(0, 2, 3, 1).numpy():
        out = np.asarray(work(Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image)))
        done.append(torch.from_numpy(out.copy()).view(*out.shape[:2], x.shape[1]).permute(2, 0, 1))
    return torch.stack(done)


def apart(a: Tensor, b: Tensor) -> int:
    assert a.shape == b.shape
    assert a.dtype == b.dtype == torch.uint8
    return int((a.int() - b.int()).abs().max())


def named(name: str, x: Tensor, value: float) -> Tensor:
    return policies.apply(x, torch.full((len(x),), policies.NAMES.index(name)), torch.full((len(x),), value))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("factor", [0.0, 0.05, 0.5, 0.95, 1.0, 1.7])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("brightness", ImageEnhance.Brightness),
        ("colour", ImageEnhance.Color),
        ("contrast", ImageEnhance.Contrast),
        ("sharpness", ImageEnhance.Sharpness),
    ],
)
def test_blends_match_pil(ours: str, theirs: type, factor: float, channels: int) -> None:
    x = photos(c=channels)
    got, want = named(ours, x, factor), through_pil(x, lambda im: theirs(im).enhance(factor))
    assert apart(got, want) <= 1
    assert (got == want).float().mean() > 0.995
    if factor == 1:
        assert torch.equal(got, x)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [16, 24, 41])
def test_look_ups_match_pil(channels: int, size: int) -> None:
    x = photos(c=channels, h=size, w=size)
    for name, value, work in (
        ("equalize", 0, ImageOps.equalize),
        ("invert", 0, ImageOps.invert),
        ("posterize", 5, lambda im: ImageOps.posterize(im, 5)),
        ("posterize", 8, lambda im: ImageOps.posterize(im, 8)),
        ("solarize", 100.5, lambda im: ImageOps.solarize(im, 100.5)),
        ("solarize", 256, lambda im: ImageOps.solarize(im, 256)),
    ):
        assert torch.equal(named(name, x, value), through_pil(x, work)), name
    # PIL scales by a rounded factor, we by the exact quotient: a level apart at most, and ours spans 0..255.
    stretched = named("autocontrast", x, 0)
    assert apart(stretched, through_pil(x, ImageOps.autocontrast)) <= 1
    assert (stretched[:-1].amax((2, 3)) == 255).all()
    assert (stretched[:-1].amin((2, 3)) == 0).all()
    assert torch.equal(stretched[-1], x[-1])


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("value", [-0.3, -0.07, 0.0, 0.13, 0.3])  # no ties between pixels
@pytest.mark.parametrize("name", policies.WARPS)
def test_warps_match_pil(name: str, value: float, channels: int) -> None:
    x = photos(c=channels, h=20, w=28)
    h, w = 20, 28
    matrix = {
        "shear-x": (1, value, 0, 0, 1, 0),
        "shear-y": (1, 0, 0, value, 1, 0),
        "translate-x": (1, 0, value * w, 0, 1, 0),
        "translate-y": (1, 0, 0, 0, 1, value * h),
    }
    if name == "rotate":
        value *= 100
        want = through_pil(x, lambda im: im.rotate(value))
    else:
        want = through_pil(x, lambda im: im.transform(im.size, Image.Transform.AFFINE, matrix[name]))
    got = named(name, x, value)
    assert (got == want).float().mean() > 0.995  # PIL rounds positions to 1/65536
    if value == 0:
        assert torch.equal(got, x)


def test_warp_fills_what_it_uncovers() -> None:
    x = torch.full((1, 3, 8, 8), 200, dtype=torch.uint8)
    matrix = torch.tensor([[[1.0, 0, 3], [0, 1, 0]]])
    moved = imageops.affine(x, matrix, fill=128)
    assert (moved[..., :5] == 200).all()
    assert (moved[..., 5:] == 128).all()


def test_luma_and_hue_match_slow_forms() -> None:
    x = photos()
    grey = through_pil(x, lambda im: im.convert("L").convert("RGB"))[:, :1]
    assert torch.equal(imageops.luma(x).to(torch.uint8), grey)
    turn = torch.tensor([-0.5, -0.2, 0.0, 0.1, 0.33, 0.5])
    got = imageops.shift_hue(x, turn)
    assert torch.equal(got[2], x[2])
    for i, j, k in [(0, 3, 4), (1, 20, 9), (3, 0, 23), (4, 11, 11), (5, 5, 5)]:
        hue, saturation, value = colorsys.rgb_to_hsv(*(x[i, :, j, k] / 255).tolist())
        want = colorsys.hsv_to_rgb((hue + float(turn[i])) % 1, saturation, value)
        assert torch.allclose(got[i, :, j, k].float(), 255 * torch.tensor(want), atol=0.51)


@pytest.mark.parametrize("size", [9, 24, 50])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_resample_matches_pil(interpolation: Interpolation, size: int) -> None:
    x = photos(h=30, w=26)
    boxes = [[0, 0, 30, 26], [3, 5, 20, 11], [29, 25, 1, 1], [10, 0, 7, 26], [1, 1, 12, 12], [0, 4, 30, 3]]
    got = imageops.resample(x, torch.tensor(boxes), size, interpolation)
    kernel = Image.Resampling[interpolation.upper()]
    for image, (top, left, height, width), mine in zip(x, boxes, got, strict=True):
        window = (left, top, left + width, top + height)
        want = through_pil(image[None], lambda im, box=window: im.crop(box).resize((size, size), kernel))[0]
        assert apart(mine, want) <= 1


def test_blur_matches_scipy_inside() -> None:
    x = photos(h=40, w=40)
    got = imageops.blur(x, torch.full((len(x),), 1.3))
    want = gaussian_filter(x.numpy().astype(float), sigma=(0, 0, 1.3, 1.3), truncate=8)
    assert np.abs(got.numpy() - want)[..., 8:-8, 8:-8].max() <= 0.51
    assert torch.equal(got[-1], x[-1])  # flat stays flat up to the border
    assert torch.equal(imageops.blur(x, torch.full((len(x),), 0.01)), x)


@pytest.mark.parametrize("reflect", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
def test_crop_takes_windows_of_the_padded_image(channels: int, reflect: bool) -> None:
    x = photos(n=40, c=channels, h=10, w=12, seed=1)
    x[-1] = torch.arange(120).view(10, 12)
    out = augment.random_crop(x, seeded(), size=9, padding=2, reflect=reflect, flip=True)
    padded = np.pad(x.numpy(), ((0, 0), (0, 0), (2, 2), (2, 2)), mode="reflect" if reflect else "constant")
    found = []
    for image, crop in zip(padded, out.numpy(), strict=True):
        places = [
            (i, j, flip)
            for i in range(6)
            for j in range(8)
            for flip in (False, True)
            if np.array_equal(image[:, i : i + 9, j : j + 9][:, :, :: -1 if flip else 1], crop)
        ]
        assert places
        found.append(places[0])
    assert len({place[:2] for place in found}) > 15  # every sample draws its own place
    assert 10 < sum(place[2] for place in found) < 30


def test_crop_without_room_is_the_image_and_too_large_is_an_error() -> None:
    x = photos()
    assert torch.equal(augment.random_crop(x, seeded(), size=24, padding=0), x)
    with pytest.raises(ValueError, match="cannot crop 40 from 24x24"):
        augment.random_crop(x, seeded(), size=40)
    with pytest.raises(ValueError, match="cannot crop 30"):
        augment.centre_crop(x, size=30)
    assert torch.equal(augment.centre_crop(x, size=20), x[..., 2:22, 2:22])


def test_grouped_policy_equals_one_sample_at_a_time() -> None:
    x = photos(n=45)
    op = torch.arange(45) % len(policies.NAMES)
    value = torch.rand(45, generator=seeded())
    value[[policies.NAMES[i] == "posterize" for i in op]] = 5
    together = policies.apply(x, op, value, fill=9)
    alone = [policies.apply(x[i : i + 1], op[i : i + 1], value[i : i + 1], fill=9) for i in range(45)]
    assert torch.equal(together, torch.cat(alone))


def recorded(monkeypatch: pytest.MonkeyPatch, policy: Callable[..., Tensor], n: int) -> tuple[Tensor, Tensor]:
    seen: list[tuple[Tensor, Tensor]] = []

    def record(x: Tensor, op: Tensor, value: Tensor, _: int = 0) -> Tensor:
        seen.append((op, value))
        return x

    monkeypatch.setattr(policies, "apply", record)
    policy(torch.zeros(n, 1, 2, 2, dtype=torch.uint8), seeded())
    ops, values = zip(*seen, strict=True)
    return torch.stack(ops), torch.stack(values)


def test_rand_augment_draws_three_of_fourteen_uniformly(monkeypatch: pytest.MonkeyPatch) -> None:
    op, value = recorded(monkeypatch, policies.rand_augment, 7000)
    assert len(op) == 3
    assert len(policies.RANDAUGMENT) == 14
    for name, (low, high) in policies.RANDAUGMENT.items():
        drawn = value[op == policies.NAMES.index(name)]
        assert abs(len(drawn) / op.numel() - 1 / 14) < 0.01, name
        assert low <= drawn.min()
        assert drawn.max() <= high
        assert abs(float(drawn.mean()) - (low + high) / 2) <= 0.05 * (high - low), name
    bits = value[op == policies.NAMES.index("posterize")].int()
    assert bits.unique().tolist() == [4, 5, 6, 7, 8]
    assert (op[0] == op[1]).float().mean() > 0.04  # with replacement: one in fourteen repeats


POLICY = {  # of AutoAugment's Table 7, operation by operation: tenths of the probability, and the level if it has one
    "translate-x": ["3 9", "5 8"], "translate-y": ["7 9", "4 3", "9 9", "7 9", "7 9"], "rotate": ["7 2"],
    "shear-y": ["5 8", "2 7"], "posterize": ["3 7"], "solarize": ["5 2", "2 8", "4 5", "8 3"],
    "colour": ["4 3", "7 7", "2 8", "9 9", "7 0"], "brightness": ["6 7", "7 9", "9 6", "1 3"],
    "contrast": ["2 6", "6 7"], "sharpness": ["8 1", "9 3", "3 9", "6 5", "2 6"], "invert": ["1", "0", "1"],
    "autocontrast": ["5", "4", "6", "8", "9", "9", "9"], "equalize": ["9", "6", "5", "3", "2", "2", "6", "6", "8"],
}  # fmt: skip


def test_the_policy_is_the_published_one() -> None:
    found: dict[str, list[str]] = {}
    for row in policies.AUTOAUGMENT_CIFAR:
        for name, odds, level in row:
            plain = name in ("invert", "autocontrast", "equalize")
            found.setdefault(name, []).append(f"{10 * odds:.0f}" if plain else f"{10 * odds:.0f} {level}")
    assert {name: sorted(rows) for name, rows in found.items()} == {k: sorted(rows) for k, rows in POLICY.items()}
    assert policies.AUTOAUGMENT_CIFAR[10] == (("colour", 0.7, 7), ("translate-x", 0.5, 8))


def test_auto_augment_follows_the_published_table(monkeypatch: pytest.MonkeyPatch) -> None:
    op, value = recorded(monkeypatch, policies.auto_augment, 20000)
    for half in range(2):
        for name in policies.NAMES:
            rows = [row[half] for row in policies.AUTOAUGMENT_CIFAR]
            odds = sum(p for op_name, p, _ in rows if op_name == name) / 25
            if name == "identity":
                odds = sum(1 - p for _, p, _ in rows) / 25
            assert abs(float((op[half] == policies.NAMES.index(name)).float().mean()) - odds) < 0.015
    moved = value[op == policies.NAMES.index("translate-x")].unique()
    assert torch.allclose(moved, torch.tensor([-9, -8, 8, 9]) / 9 * 150 / 331)
    assert policies.magnitude("posterize", 7) == 5
    assert policies.magnitude("solarize", 9) == 0
    assert policies.magnitude("colour", 9, -1) == pytest.approx(0.1)
    assert policies.magnitude("rotate", 2, -1) == pytest.approx(-20 / 3)


def test_flat_channels_and_tiny_images_survive_every_operation() -> None:
    for size in (1, 2, 3):
        x = photos(n=15, h=size, w=size)
        out = policies.apply(x, torch.arange(15), torch.full((15,), 0.5))
        assert out.shape == x.shape


def test_cutout_paints_one_grey_square() -> None:
    x = torch.zeros(400, 3, 32, 32, dtype=torch.uint8)
    out = augment.cutout(x, seeded())
    painted = out[:, 0] == 125
    assert torch.equal(painted, out[:, 1] == 123)
    assert torch.equal(painted, out[:, 2] == 114)
    assert torch.equal((out > 0).any(1), painted)
    height, width = painted.any(2).sum(1), painted.any(1).sum(1)
    assert torch.equal(painted.sum((1, 2)), height * width)  # a full box
    assert max(height.max(), width.max()) <= 17
    whole = painted[:, 1:-1, 1:-1].sum((1, 2)) == painted.sum((1, 2))
    assert (height - width).abs()[whole & (height > 0)].max() <= 1
    assert 0.15 * 32 < height.float().mean() < 0.25 * 32  # 0.25 less what the border clips
    assert set(augment.cutout(x[:, :1], seeded()).unique().tolist()) == {0, 123}


def test_erase_is_standard_normal_noise_in_a_quarter() -> None:
    x = torch.zeros(400, 3, 16, 16, dtype=torch.uint8)
    out = augment.erase(x, seeded(), mean=(0.5,) * 3, std=(0.1,) * 3)
    touched = (out > 0).flatten(1).any(1)
    assert 0.18 < touched.float().mean() < 0.32
    noise = (out[out > 0] / 255 - 0.5) / 0.1
    assert abs(float(noise.mean())) < 0.03
    assert abs(float(noise.std()) - 1) < 0.03
    area = (out > 0).any(1)[touched].float().mean((1, 2))
    assert area.min() > 0.01
    assert area.max() < 0.4


@settings(max_examples=25, deadline=None)
@given(st.integers(3, 60), st.integers(3, 60), st.integers(0, 99))
def test_boxes_lie_inside_the_image(h: int, w: int, seed: int) -> None:
    x = torch.zeros(50, 1, h, w, dtype=torch.uint8)
    top, left, height, width = augment._boxes(x, (0.08, 1.0), (3 / 4, 4 / 3), seeded(seed)).unbind(1)
    assert min(height.min(), width.min()) >= 1
    assert min(top.min(), left.min()) >= 0
    assert (top + height).max() <= h
    assert (left + width).max() <= w


def test_boxes_keep_scale_and_ratio_and_fall_back_to_the_centre() -> None:
    x = torch.zeros(1, 1, 1, 1).expand(3000, 1, 224, 224)
    _, _, height, width = augment._boxes(x, (0.08, 1.0), (3 / 4, 4 / 3), seeded()).unbind(1)
    share, ratio = height * width / 224**2, width / height
    assert 0.075 < share.min() < 0.12
    assert share.max() > 0.9
    assert 0.73 < ratio.min() < 0.77
    assert 1.3 < ratio.max() < 1.36
    assert (ratio > 1).float().mean() == pytest.approx(0.5, abs=0.03)
    narrow = augment._boxes(torch.zeros(2, 1, 4, 400), (0.9, 1.0), (3 / 4, 4 / 3), seeded())
    assert narrow.tolist() == [[0, 197, 4, 5]] * 2


def test_jitter_factors_stay_in_torchvisions_range() -> None:
    x = torch.full((3000, 3, 2, 2), 100, dtype=torch.uint8)
    bright = augment.colour_jitter(x, seeded(), amounts=(0.4, 0.0, 0.0, 0.0))[:, 0, 0, 0].int()
    assert bright.min() in (59, 60, 61)
    assert bright.max() in (139, 140)
    assert abs(float(bright.float().mean()) - 99.5) < 1
    assert torch.equal(augment.colour_jitter(x, seeded(), amounts=(0.0, 0.0, 0.9, 0.5)), x)  # grey has no colour
    assert torch.equal(augment.colour_jitter(photos(), seeded(), amounts=(0.0,) * 4), photos())
    with pytest.raises(ValueError, match="hue in"):
        augment.colour_jitter(x, seeded(), amounts=(0.4, 0.4, 0.4, 0.7))


def test_grayscale_and_flip_touch_their_share() -> None:
    x = photos(n=500)[:-1]
    grey = augment.grayscale(x, seeded())
    flat = (grey[:, 0] == grey[:, 1]).flatten(1).all(1)
    assert 0.14 < flat.float().mean() < 0.26
    assert torch.equal(grey[~flat], x[~flat])
    flipped = augment.horizontal_flip(x, seeded())
    same = (flipped == x).flatten(1).all(1)
    assert 0.42 < same.float().mean() < 0.58
    assert torch.equal(flipped[~same], x[~same].flip(-1))


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", STEPS)
def test_every_step_keeps_its_promises(name: str, channels: int, count: int) -> None:
    x = photos(n=count + 1, c=channels, h=18, w=18, seed=3)[:count]
    before = x.clone()
    pipeline = build([name], size=18, mean=MEAN[:channels], std=STD[:channels], jitter=(0.4, 0.4, 0.4, 0.1))
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    first = pipeline(x, seeded(5))
    assert torch.equal(states[0], torch.get_rng_state())
    assert np.array_equal(states[1], np.random.get_state()[1])
    assert states[2] == random.getstate()
    torch.manual_seed(1)
    assert torch.equal(first, pickle.loads(pickle.dumps(pipeline))(x, seeded(5)))
    assert torch.equal(x, before)  # the dataset is never written to
    assert first.shape == x.shape
    assert first.dtype == torch.float32
    assert first.isfinite().all()


@pytest.mark.parametrize("name", sorted(set(STEPS) - {"centre-crop"}))
def test_another_seed_gives_another_batch(name: str) -> None:
    pipeline = build([name], size=24, mean=MEAN, std=STD)
    assert not torch.equal(pipeline(photos(40), seeded(1)), pipeline(photos(40), seeded(2)))


def test_trap_16_evaluation_is_clean_of_augmentation() -> None:
    x = photos()
    mean, std = (torch.tensor(v).double().view(-1, 1, 1) for v in (MEAN, STD))
    want = (x.double() / 255 - mean) / std
    for evaluation in (build([], size=24, mean=MEAN, std=STD), build("none", size=24, mean=MEAN, std=STD)):
        assert torch.allclose(evaluation(x).double(), want, atol=1e-5)


def test_fused_crop_and_flip_draws_both() -> None:
    assert len(build(["crop", "flip"], size=24, mean=MEAN, std=STD).steps) == 1
    assert len(build("strong", size=24, mean=MEAN, std=STD).steps) == 3
    assert len(build(["flip", "cutout", "crop"], size=24, mean=MEAN, std=STD).steps) == 3
    gradient = torch.arange(24, dtype=torch.uint8).expand(200, 3, 24, 24)
    out = build("weak", size=24, mean=MEAN, std=STD)(gradient, seeded())
    falling = out[:, 0, 12, 8] > out[:, 0, 12, 15]
    assert 0.4 < falling.float().mean() < 0.6


def test_channel_stats_are_those_of_the_pixels() -> None:
    x = photos(n=50, h=17, w=13)
    mean, std = channel_stats(x)
    pixels = x.numpy().astype(float).transpose(1, 0, 2, 3).reshape(3, -1) / 255
    assert np.allclose(mean, pixels.mean(1))
    assert np.allclose(std, pixels.std(1))
    out = Pipeline([], mean, std)(x)
    assert torch.allclose(out.mean((0, 2, 3)), torch.zeros(3), atol=1e-4)
    assert torch.allclose(out.std((0, 2, 3)), torch.ones(3), atol=1e-3)
    assert channel_stats(torch.zeros(2, 1, 3, 3, dtype=torch.uint8)) == ((0.0,), (1 / 255,))


def test_mistakes_name_the_remedy() -> None:
    with pytest.raises(ValueError, match="no augmentation step 'randaugmnt'; did you mean 'randaugment'"):
        build(["crop", "randaugmnt"], size=32, mean=MEAN, std=STD)
    with pytest.raises(ValueError, match="no augmentation preset 'stong'; did you mean 'strong'"):
        build("stong", size=32, mean=MEAN, std=STD)
    weak = build("weak", size=32, mean=MEAN, std=STD)
    with pytest.raises(ValueError, match="uint8"):
        weak(torch.rand(2, 3, 32, 32), seeded())
    with pytest.raises(ValueError, match=r"\(N, 3, H, W\)"):
        weak(photos(c=1), seeded())
    with pytest.raises(ValueError, match=r"torch\.Generator"):
        weak(photos())
    with pytest.raises(ValueError, match="std above 0"):
        Pipeline([], (0.5,), (0.0,))
    with pytest.raises(ValueError, match="interpolation is 'cubic'"):
        augment.resized_crop(photos(), seeded(), size=8, interpolation="cubic")  # type: ignore[arg-type]


def step(name: str, **options: Any) -> tuple[str, dict[str, Any]]:
    """The function behind a step's name, and what it is given."""
    (only,) = build([name], size=20, mean=MEAN, std=STD, **options).steps
    return getattr(only, "func", only).__name__, getattr(only, "keywords", {})


def test_names_of_steps_mean_these_functions_with_these_options() -> None:
    boxes = {"size": 20, "scale": (0.08, 1.0), "ratio": (3 / 4, 4 / 3)}
    assert {name: step(name) for name in (*STEPS, "crop-reflect", "resized-crop-bicubic", "resize", "jitter-0.3")} == {
        "crop": ("random_crop", {"size": 20, "padding": 4, "reflect": False}),
        "flip": ("horizontal_flip", {}),
        "centre-crop": ("centre_crop", {"size": 20}),
        "resized-crop": ("resized_crop", {**boxes, "interpolation": "bilinear"}),
        "jitter": ("colour_jitter", {"amounts": (0.4, 0.4, 0.4, 0.0)}),
        "grayscale": ("grayscale", {}),
        "blur": ("gaussian_blur", {}),
        "cutout": ("cutout", {}),
        "erase": ("erase", {"mean": MEAN, "std": STD}),
        "randaugment": ("rand_augment", {}),
        "autoaugment": ("auto_augment", {}),
        "crop-reflect": ("random_crop", {"size": 20, "padding": 4, "reflect": True}),
        "resized-crop-bicubic": ("resized_crop", {**boxes, "interpolation": "bicubic"}),
        "resize": ("resize", {"size": 20}),
        "jitter-0.3": ("colour_jitter", {"amounts": (0.3, 0.3, 0.3, 0.0)}),
    }
    assert step("three-augment") == ("three_augment", {})
    assert step("randaugment-deit") == ("increasing_augment", {"fill": [125, 123, 114]})
    assert step("crop", padding=2, reflect=True)[1] == {"size": 20, "padding": 2, "reflect": True}
    assert step("crop-reflect", padding=2)[1]["padding"] == 2
    assert step("jitter", jitter=[0.1, 0.2, 0.3, 0.4])[1] == {"amounts": (0.1, 0.2, 0.3, 0.4)}
    for name in ("resized-crop", "resized-crop-bicubic"):
        assert step(name, scale=(0.5, 0.9), interpolation="bicubic")[1] == {
            "size": 20, "scale": (0.5, 0.9), "ratio": (3 / 4, 4 / 3), "interpolation": "bicubic",
        }  # fmt: skip
    white = build(["randaugment-deit"], size=20, mean=(1.2, 0.0, 0.1), std=STD).steps[0]
    assert white.keywords["fill"] == [255, 0, 26]  # type: ignore[attr-defined]


def test_presets_are_these_steps() -> None:
    assert augment.PRESETS == {
        "none": (),
        "weak": ("crop", "flip"),
        "strong": ("randaugment", "cutout", "crop", "flip"),
        "imagenet": ("resized-crop", "flip", "jitter"),
        "deit": ("resized-crop-bicubic", "flip", "randaugment-deit", "erase-noise"),
        "three-augment": ("crop-reflect", "flip", "three-augment", "jitter-0.3"),
    }
    deit = build("deit", size=20, mean=MEAN, std=STD)
    assert (len(deit.steps), [step.__name__ for step in deit.finish]) == (3, ["erase_noise"])  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="name them last"):
        build(["erase-noise", "flip"], size=20, mean=MEAN, std=STD)


def test_published_defaults_of_each_step() -> None:
    def defaults(function: Callable[..., Any]) -> dict[str, Any]:
        given = inspect.signature(function).parameters.values()
        return {p.name: p.default for p in given if p.default is not inspect.Parameter.empty}

    assert defaults(augment.random_crop) == {"padding": 4, "reflect": False, "flip": False}
    assert defaults(augment.horizontal_flip) == {"odds": 0.5}
    sizes = {"scale": (0.08, 1.0), "ratio": (3 / 4, 4 / 3), "interpolation": "bilinear"}
    assert defaults(augment.resized_crop) == sizes
    assert defaults(augment.colour_jitter) == {"amounts": (0.4, 0.4, 0.4, 0.0)}
    assert defaults(augment.grayscale) == {"odds": 0.2}
    assert defaults(augment.gaussian_blur) == {"low": 0.1, "high": 2.0}
    assert defaults(augment.cutout) == {"low": 0.0, "high": 0.5, "fill": (125, 123, 114)}
    assert defaults(augment.erase) == {"odds": 0.25, "scale": (0.02, 1 / 3), "ratio": (0.3, 1 / 0.3)}
    assert defaults(policies.rand_augment) == {"draws": 3, "fill": 0}
    assert defaults(policies.auto_augment) == {"fill": 128}
    assert defaults(policies.apply) == defaults(imageops.affine) == {"fill": 0}
    assert defaults(build) == {
        "padding": 4, "reflect": False, "jitter": (0.4, 0.4, 0.4, 0.0), "scale": (0.08, 1.0),
        "interpolation": "bilinear", "enlarged": False,
    }  # fmt: skip


def test_a_crop_before_a_flip_mirrors_and_keeps_its_options() -> None:
    (fused,) = build(["crop", "flip"], size=20, mean=MEAN, std=STD, padding=3, reflect=True).steps
    assert fused.keywords == {"size": 20, "padding": 3, "reflect": True, "flip": True}  # type: ignore[attr-defined]
    apart = build(["crop-reflect", "flip"], size=20, mean=MEAN, std=STD)
    assert len(apart.steps) == 2


def test_enlarged_images_are_resized_once() -> None:
    def sizes(names: list[str]) -> list[tuple[str, int]]:
        steps = build(names, size=56, mean=MEAN, std=STD, enlarged=True).steps
        return [(step.func.__name__, step.keywords["size"]) for step in steps if hasattr(step, "func")]  # type: ignore[attr-defined]

    assert sizes([]) == [("resize", 64), ("centre_crop", 56)]
    assert sizes(["flip"]) == [("resize", 56)]
    assert sizes(["crop"]) == [("resize", 56), ("random_crop", 56)]
    assert sizes(["resized-crop"]) == [("resized_crop", 56)]
    assert sizes(["resize"]) == [("resize", 56)]
    assert build([], size=56, mean=MEAN, std=STD).steps == ()


def test_a_pipeline_says_whether_it_reframes_mirrors_or_is_fixed() -> None:
    def told(*names: str) -> tuple[bool, bool, Any]:
        made = build(names, size=20, mean=MEAN, std=STD, scale=(0.5, 1.0))
        return made.reframes, made.mirrors, made.cuts

    box = Cuts(20, (0.5, 1.0), (3 / 4, 4 / 3))
    assert told() == told("crop") == told("jitter", "cutout") == (False, False, None)
    assert told("flip") == told("crop", "flip") == (False, True, None)
    assert told("resized-crop") == (True, False, box)
    assert told("flip", "resized-crop-bicubic") == (True, True, replace(box, interpolation="bicubic"))
    whole = build(["flip", "resized-crop", "jitter"], size=20, mean=MEAN, std=STD)
    assert whole.unboxed().steps == (whole.steps[0], whole.steps[2])
    plain = build(["flip", "jitter"], size=20, mean=MEAN, std=STD)
    assert plain.unboxed().steps == plain.steps
    assert [is_fixed(step) for step in build(["resize", "centre-crop", "crop"], size=20, mean=MEAN, std=STD).steps] == [
        True, True, False,
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"torch\.Generator"):
        Pipeline([], MEAN, STD, [lambda x, _: x])(photos())


def test_one_views_images_become_anothers() -> None:
    x, other = photos(), Pipeline([], (0.1, 0.2, 0.3), (0.5, 0.25, 0.125))
    mine = Pipeline([], MEAN, STD)
    torch.testing.assert_close(mine.translated(mine(x), other), other(x), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(mine.normalised_as(other)(x), other(x))
    torch.testing.assert_close(mine(x)[0, 1, 2, 3], (x[0, 1, 2, 3] / 255 - MEAN[1]) / STD[1])


def test_boxes_are_the_first_of_ten_draws_that_fits() -> None:
    """Literally, from the same draws: areas, shapes, then places."""
    h, w, n = 30, 50, 40
    scale, ratio = (0.3, 1.0), (0.5, 3.0)
    found = augment._boxes(torch.zeros(n, 1, h, w), scale, ratio, seeded(3))
    g = seeded(3)
    areas, shapes, places = (
        torch.rand(n, 10, generator=g),
        torch.rand(n, 10, generator=g),
        torch.rand(2, n, generator=g),
    )
    fallen = 0
    for i, box in enumerate(found.tolist()):
        for area, shape in zip(areas[i].tolist(), shapes[i].tolist(), strict=True):
            pixels = h * w * (scale[0] + (scale[1] - scale[0]) * area)
            aspect = math.exp(math.log(ratio[0]) + (math.log(ratio[1]) - math.log(ratio[0])) * shape)
            width, height = round(math.sqrt(pixels * aspect)), round(math.sqrt(pixels / aspect))
            if width <= w and height <= h:
                top, left = (int(p * (room + 1)) for p, room in zip(places[:, i], (h - height, w - width), strict=True))
                assert box == [top, left, height, width]
                break
            fallen += 1
    assert fallen > 10
    assert augment._boxes(torch.zeros(1, 1, 40, 4), (0.9, 1.0), (3 / 4, 4 / 3), seeded()).tolist() == [[17, 0, 5, 4]]
    tiny = augment._boxes(torch.zeros(200, 1, 5, 5), (0.0, 0.02), (1.0, 1.0), seeded())  # most areas round to nothing
    assert {tuple(box[2:]) for box in tiny.tolist()} == {(1.0, 1.0)}


def test_a_pixel_is_inside_a_box_by_its_centre() -> None:
    box = torch.tensor([[1.0, 2.0, 2.0, 1.0], [0.6, 0.5, 1.0, 2.0], [-1.0, 3.0, 2.0, 9.0]])
    inside = augment._inside(box, torch.zeros(3, 3, 4, 5))
    assert inside.shape == (3, 1, 4, 5)
    rows = [[1, 2], [1], [0]], [[2], [0, 1], [3, 4]]
    for mask, down, across in zip(inside[:, 0], *rows, strict=True):
        assert mask.nonzero().tolist() == [[i, j] for i in down for j in across]


def test_cutout_by_hand() -> None:
    """Half the side, then the middle's place, each uniform; the square is as high as it is wide."""
    x = torch.zeros(3, 3, 20, 30, dtype=torch.uint8)
    out = augment.cutout(x, seeded(1), low=0.2, high=0.4, fill=(7, 8, 9))
    side, y, across = torch.rand(3, 3, generator=seeded(1)).unbind(0)
    for image, s, down, right in zip(out, side.tolist(), y.tolist(), across.tolist(), strict=True):
        half, down, right = 30 * (0.2 + 0.2 * s) / 2, 20 * down, 30 * right
        for i in range(20):
            for j in range(30):
                hit = down - half <= i + 0.5 < down + half and right - half <= j + 0.5 < right + half
                assert image[:, i, j].tolist() == ([7, 8, 9] if hit else [0, 0, 0])


def test_jitter_turns_hue_both_ways_and_never_darkens_below_black() -> None:
    red = torch.tensor([200, 40, 40], dtype=torch.uint8).view(1, 3, 1, 1).expand(2000, 3, 1, 1)
    turned = augment.colour_jitter(red, seeded(), amounts=(0.0, 0.0, 0.0, 0.1))[..., 0, 0].int()
    most = round(40 + 160 * 6 * 0.1)
    assert (turned[:, 0] == 200).all()
    assert int(turned[:, 1].max()) in (most, most - 1)  # towards yellow
    assert int(turned[:, 2].max()) in (most, most - 1)  # towards magenta
    assert (turned[:, 1:].min(1).values == 40).all()
    grey = torch.full((2000, 3, 1, 1), 100, dtype=torch.uint8)
    bright = augment.colour_jitter(grey, seeded(), amounts=(1.5, 0.0, 0.0, 0.0))[:, 0, 0, 0]
    assert (int(bright.min()), int(bright.max())) == (0, 249)
    paler = augment.colour_jitter(red, seeded(), amounts=(0.0, 0.0, 0.5, 0.0))[:, 0, 0, 0].int()
    assert (int(paler.min()), int(paler.max())) == (144, 255)
    orders = {tuple(augment.colour_jitter(red[:1], seeded(s), amounts=(0.4,) * 3 + (0.1,)).flatten().tolist())
              for s in range(20)}  # fmt: skip
    assert len(orders) > 15
    with pytest.raises(ValueError, match="jitter is"):
        augment.colour_jitter(red, seeded(), amounts=(0.4, 0.4, 0.4))
    augment.colour_jitter(red[:2], seeded(), amounts=(0.0, 0.0, 0.0, 0.5))  # half a turn is the most


def test_blur_draws_sigma_between_its_ends() -> None:
    dot = torch.zeros(3000, 1, 9, 9, dtype=torch.uint8)
    dot[:, :, 4, 4] = 255
    peak = augment.gaussian_blur(dot, seeded(), low=0.5, high=1.0)[:, 0, 4, 4].int()

    def highest(sigma: float) -> float:
        return 255 / sum(math.exp(-0.5 * (i / sigma) ** 2) for i in range(-4, 5)) ** 2

    assert int(peak.max()) == pytest.approx(highest(0.5), abs=2)
    assert int(peak.min()) == pytest.approx(highest(1.0), abs=2)
    assert int(augment.gaussian_blur(dot, seeded())[:, 0, 4, 4].min()) == pytest.approx(255 / (2 * math.pi * 4), abs=2)


def test_operations_of_the_policies_by_hand() -> None:
    x = torch.tensor([0, 100, 127, 128, 200, 255], dtype=torch.uint8).view(1, 1, 1, 6)

    def done(name: str, value: float) -> list[int]:
        return named(name, x, value).flatten().tolist()

    assert done("solarize-add", 30) == [30, 130, 157, 128, 200, 255]
    assert done("solarize-add", 200) == [200, 255, 255, 128, 200, 255]
    assert done("solarize", 128) == [0, 100, 127, 127, 55, 0]
    assert done("posterize", 0) == [0] * 6
    assert done("posterize", 9.5) == x.flatten().tolist()
    assert done("posterize", 1.9) == [0, 0, 0, 128, 128, 128]
    assert done("brightness", 1.7) == [0, 170, 215, 217, 255, 255]
    assert done("identity", 3) == x.flatten().tolist()
    two = torch.tensor([[10, 20]], dtype=torch.uint8).view(1, 2, 1, 1)
    assert imageops.luma(two).tolist() == [[[[15.0]]]]  # the plain mean where there is no RGB
    grey = torch.tensor([[3, 3, 3]], dtype=torch.uint8).view(1, 3, 1, 1)
    assert torch.equal(imageops.shift_hue(grey, torch.tensor([0.3])), grey)


@pytest.mark.parametrize(
    ("turn", "want"),
    [
        (0.0, [200, 80, 20]),
        (1 / 3, [20, 200, 80]),
        (2 / 3, [80, 20, 200]),
        (0.5, [20, 140, 200]),
        (1 / 6, [140, 200, 20]),
    ],
)
def test_hue_turns_by_hand(turn: float, want: list[int]) -> None:
    x = torch.tensor([200, 80, 20], dtype=torch.uint8).view(1, 3, 1, 1)
    for shift in range(3):  # whichever channel is largest
        turned = imageops.shift_hue(x.roll(shift, 1), torch.tensor([turn])).roll(-shift, 1)
        assert turned.flatten().tolist() == pytest.approx(want, abs=1)


def test_levels_of_auto_augment_by_hand() -> None:
    assert [policies.magnitude("posterize", level) for level in (0, 9)] == [8, 4]
    assert policies.magnitude("solarize", 0) == 256
    for name, most in (("rotate", 30), ("shear-x", 0.3), ("shear-y", 0.3), ("translate-y", 150 / 331)):
        assert [policies.magnitude(name, 9, sign) for sign in (1, -1)] == pytest.approx([most, -most])
        assert policies.magnitude(name, 3) == pytest.approx(most / 3)
    assert policies.magnitude("brightness", 9) == pytest.approx(1.9)
    assert policies.magnitude("contrast", 3, -1) == pytest.approx(0.7)


LEVELS = """
invert 7 contrast 6, rotate 2 translate-x 9, sharpness 1 sharpness 3, shear-y 8 translate-y 9,
autocontrast 8 equalize 2, shear-y 7 posterize 7, colour 3 brightness 7, sharpness 9 brightness 9,
equalize 5 equalize 1, contrast 7 sharpness 5, colour 7 translate-x 8, equalize 7 autocontrast 8,
translate-y 3 sharpness 6, brightness 6 colour 8, solarize 2 invert 3, equalize 0 autocontrast 0,
equalize 8 equalize 4, colour 9 equalize 6, autocontrast 4 solarize 8, brightness 3 colour 0,
solarize 5 autocontrast 3, translate-y 9 translate-y 9, autocontrast 2 solarize 3, equalize 8 invert 3,
translate-y 9 autocontrast 1
"""


def test_levels_are_published_also_where_they_change_nothing() -> None:
    found = [" ".join(f"{name} {level}" for name, _, level in row) for row in policies.AUTOAUGMENT_CIFAR]
    assert found == [row.strip() for row in LEVELS.replace("\n", " ").split(",")]
    ends = {"0 0": 3, "0.05 0.95": 4, "4 9": 1, "-30 30": 1, "-0.3 0.3": 4, "0 256": 1}
    ranges = [f"{low:g} {high:g}" for low, high in policies.RANDAUGMENT.values()]
    assert {pair: ranges.count(pair) for pair in ranges} == ends


def test_policies_fill_what_warps_uncover_with_their_own_grey() -> None:
    x = torch.full((300, 3, 16, 16), 77, dtype=torch.uint8)

    def corners(policy: Callable[..., Tensor], **options: int) -> set[int]:
        seen: set[int] = set()
        for seed in range(3):
            seen |= {*policy(x, seeded(seed), **options)[:, 0, [0, 0, -1, -1], [0, -1, 0, -1]].flatten().tolist()}
        return seen

    assert 250 in corners(policies.rand_augment, draws=1, fill=250)
    assert 250 not in corners(policies.rand_augment, draws=1)
    assert 128 in corners(policies.auto_augment)
    assert 250 in corners(policies.auto_augment, fill=250)
