"""DeiT's augmentation against PIL, operation by operation and as a whole."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torch import Tensor

from evenhand.data.loader import Feed, Loader
from evenhand.data.prepared import prepare_data
from evenhand.data.settings import DataSettings
from evenhand.data.views import deit, imageops, policies, smooth
from evenhand.data.views.images import build
from evenhand.errors import UserError
from helpers import save_picture, seeded

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FILL = [124, 116, 104]  # the mean colour


def photos(n: int = 6, side: int = 24, seed: int = 0) -> Tensor:
    g = seeded(seed)
    coarse = torch.nn.functional.interpolate(torch.rand(n, 3, 5, 5, generator=g), size=(side, side), mode="bilinear")
    return (255 * coarse + 8 * torch.randn(n, 3, side, side, generator=g)).clamp(0, 255).to(torch.uint8)


def pil(x: Tensor) -> Image.Image:
    return Image.fromarray(x.permute(1, 2, 0).numpy())


def tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def reference(image: Image.Image, name: str, level: float, sign: int) -> Image.Image:
    """One operation of the increasing set by PIL, level 0 to 10."""
    w, h = image.size
    bicubic: Any = {"resample": Image.Resampling.BICUBIC, "fillcolor": tuple(FILL)}
    share = level / 10
    factor = max(0.1, 1 + sign * 0.9 * share)
    match name:
        case "autocontrast":
            return ImageOps.autocontrast(image)
        case "equalize":
            return ImageOps.equalize(image)
        case "invert":
            return ImageOps.invert(image)
        case "rotate":
            return image.rotate(sign * 30 * share, **bicubic)
        case "posterize":
            return ImageOps.posterize(image, max(1, 4 - int(share * 4)))
        case "solarize":
            return ImageOps.solarize(image, 256 - min(256, int(share * 256)))
        case "solarize-add":
            add = min(128, int(share * 110))
            return image.point([min(255, i + add) if i < 128 else i for i in range(256)] * 3)
        case "colour":
            return ImageEnhance.Color(image).enhance(factor)
        case "contrast":
            return ImageEnhance.Contrast(image).enhance(factor)
        case "brightness":
            return ImageEnhance.Brightness(image).enhance(factor)
        case "sharpness":
            return ImageEnhance.Sharpness(image).enhance(factor)
        case "shear-x":
            matrix = (1, sign * 0.3 * share, 0, 0, 1, 0)
        case "shear-y":
            matrix = (1, 0, 0, sign * 0.3 * share, 1, 0)
        case "translate-x":
            matrix = (1, 0, sign * 0.45 * share * w, 0, 1, 0)
        case _:
            assert name == "translate-y"
            matrix = (1, 0, 0, 0, 1, sign * 0.45 * share * h)
    return image.transform(image.size, Image.Transform.AFFINE, matrix, **bicubic)


def alike(got: Tensor, want: Tensor) -> None:
    apart = (got.int() - want.int()).abs()
    assert (apart <= 1).float().mean() > 0.995  # PIL rounds positions to 1/65536
    assert apart.float().mean() < 0.5


def test_there_are_timms_fifteen() -> None:
    assert len(set(deit.INCREASING)) == 15
    assert "identity" not in deit.INCREASING


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("level", [0.0, 3.3, 8.6, 10.0])
@pytest.mark.parametrize("name", deit.INCREASING)
def test_each_operation_is_pils(name: str, level: float, sign: int) -> None:
    x = photos()
    value = deit.strength(name, torch.full((len(x),), level), torch.full((len(x),), sign))
    got = policies.apply(x, torch.full((len(x),), policies.NAMES.index(name)), value, FILL)
    alike(got, torch.stack([tensor(reference(pil(image), name, level, sign)) for image in x]))


def test_a_larger_magnitude_is_a_stronger_change() -> None:
    """The other set posterises and solarises less at larger magnitudes."""
    one = torch.ones(2)
    low, high = torch.tensor([2.0, 5.0]), torch.tensor([5.0, 9.0])
    for name in ("posterize", "solarize"):
        assert (deit.strength(name, low, one) > deit.strength(name, high, one)).all()
    assert deit.strength("posterize", torch.tensor([9.0]), one[:1]).item() == 1
    assert deit.strength("solarize", torch.tensor([9.0]), one[:1]).item() == 26


def test_the_whole_policy_is_the_draws_carried_out_one_by_one() -> None:
    x, draws = photos(40), 2
    got = deit.increasing_augment(x, seeded(3), fill=FILL, draws=draws)
    g = seeded(3)
    choice = torch.randint(15, (draws, 40), generator=g)
    level = (9 + 0.5 * torch.randn(draws, 40, generator=g)).clamp(0, 10)
    sign = 2 * torch.randint(2, (draws, 40), generator=g) - 1
    lucky = torch.rand(draws, 40, generator=g) < 0.5
    matching = 0
    for i, image in enumerate(x):
        want = pil(image)
        for k in range(draws):
            if lucky[k, i]:
                want = reference(want, deit.INCREASING[choice[k, i]], float(level[k, i]), int(sign[k, i]))
        matching += int(((got[i].int() - tensor(want).int()).abs() <= 2).float().mean() > 0.97)
    assert matching >= 38  # equalize after a warp may move single levels far
    same = (got == x).flatten(1).all(1).float().mean()
    assert 0.1 < same < 0.45  # a quarter draws nothing
    assert level.std() > 0.3


@pytest.mark.parametrize("key", [{"draws": 0}, {"odds": 0.0}])
def test_options_of_the_policy_are_used(key: dict[str, Any]) -> None:
    x = photos()
    assert torch.equal(deit.increasing_augment(x, seeded(), fill=FILL, **key), x)


def test_magnitude_and_spread_are_used() -> None:
    x = photos(30)
    weak, usual, wide = (
        deit.increasing_augment(x, seeded(), fill=FILL, **key) for key in ({"magnitude": 1.0}, {}, {"spread": 3.0})
    )
    assert not torch.equal(usual, wide)
    assert (weak.int() - x.int()).abs().float().mean() < (usual.int() - x.int()).abs().float().mean()


def test_bicubic_warp_of_nothing_is_the_image() -> None:
    x = photos()
    assert torch.equal(smooth.affine_bicubic(x, torch.eye(2, 3).repeat(len(x), 1, 1), FILL), x)


def test_three_augment_is_one_of_three() -> None:
    x = photos(60)
    got = deit.three_augment(x, seeded(1))
    g = seeded(1)
    which = torch.randint(3, (60, 1, 1, 1), generator=g)[:, 0, 0, 0]
    sigma = 0.1 + 1.9 * torch.rand(60, generator=g)
    assert set(which.tolist()) == {0, 1, 2}
    for image, out, kind, radius in zip(x, got, which, sigma, strict=True):
        if kind == 0:
            assert torch.equal(out, tensor(pil(image).convert("L").convert("RGB")))
        elif kind == 1:
            assert torch.equal(out, tensor(ImageOps.solarize(pil(image), 128)))
        else:  # PIL approximates the Gaussian by boxes
            near = tensor(pil(image).filter(ImageFilter.GaussianBlur(float(radius))))
            assert (out.int() - near.int()).abs()[:, 4:-4, 4:-4].float().mean() < 2.5
    assert sigma.max() > 1.8


def test_erasing_is_noise_in_a_box_of_normalised_images() -> None:
    x = torch.full((400, 3, 32, 32), 7.0)
    got = deit.erase_noise(x, seeded())
    changed = (got != 7).any(1)  # (N, H, W)
    hit = changed.flatten(1).any(1)
    assert hit.float().mean().item() == pytest.approx(0.25, abs=0.07)
    assert torch.equal(got[~hit], x[~hit])
    areas = []
    for mask in changed[hit]:
        rows, columns = mask.any(1).nonzero()[:, 0], mask.any(0).nonzero()[:, 0]
        h, w = int(rows.max() - rows.min()) + 1, int(columns.max() - columns.min()) + 1
        assert int(mask.sum()) == h * w  # one box
        assert h < 32
        assert w < 32
        areas.append(h * w / 1024)
        assert 0.25 < h / w < 4.2
    assert 0.015 < min(areas) < 0.08
    assert 0.25 < max(areas) < 0.35
    noise = got.permute(0, 2, 3, 1)[changed]
    assert noise.mean().item() == pytest.approx(0, abs=0.03)
    assert noise.std().item() == pytest.approx(1, abs=0.03)
    assert noise.abs().max() > 3.5  # not clipped at black and white
    assert torch.equal(deit.erase_noise(x, seeded(), odds=0.0), x)


def test_erasing_comes_after_normalising() -> None:
    x = photos(64)
    plain = build(["flip"], size=24, mean=MEAN, std=STD)(x, seeded())
    erased = build(["flip", "erase-noise"], size=24, mean=MEAN, std=STD)(x, seeded())
    apart = (plain != erased).flatten(1).any(1)
    assert 4 < apart.sum() < 32
    white = (1 - torch.tensor(MEAN)) / torch.tensor(STD)
    assert (erased > white.view(3, 1, 1) + 0.1).any()
    with pytest.raises(ValueError, match="erase-noise change normalised images: name them last"):
        build(["erase-noise", "flip"], size=24, mean=MEAN, std=STD)


def test_named_steps_do_what_their_names_say() -> None:
    x = photos(8)
    how: Any = {"size": 24, "mean": MEAN, "std": STD}
    for special, plain, options in (
        ("jitter-0.3", "jitter", {"jitter": (0.3, 0.3, 0.3, 0.0)}),
        ("crop-reflect", "crop", {"reflect": True}),
        ("resized-crop-bicubic", "resized-crop", {"interpolation": "bicubic"}),
    ):
        want = build([plain], **how, **options)(x, seeded())
        assert torch.equal(build([special], **how)(x, seeded()), want)
        assert not torch.equal(build([plain], **how)(x, seeded()), want)
    fill = build(["randaugment-deit"], **how).steps[0].keywords["fill"]  # type: ignore[attr-defined]
    assert fill == FILL
    assert build("deit", **how)(x, seeded()).shape == x.shape
    assert build("three-augment", **how)(x, seeded()).shape == x.shape


def test_small_images_are_enlarged_for_evaluation_as_pil_does() -> None:
    x = photos(3, 32)
    view = build([], size=56, mean=(0.0,) * 3, std=(1 / 255,) * 3, enlarged=True)
    got = view(x).round().to(torch.uint8)
    for image, out in zip(x, got, strict=True):
        large = pil(image).resize((64, 64), Image.Resampling.BICUBIC).crop((4, 4, 60, 60))
        apart = (out.int() - tensor(large).int()).abs()
        assert apart.max() <= 2  # PIL rounds between rows and columns
        assert apart.float().mean() < 0.3


def test_enlarged_training_views_end_at_the_side_asked_for() -> None:
    x = photos(4, 32)
    for names in (["crop", "flip"], ["resized-crop-bicubic", "flip"], ["crop-reflect"]):
        assert build(names, size=48, mean=MEAN, std=STD, enlarged=True)(x, seeded()).shape[-2:] == (48, 48)
    drawn = build(["resized-crop-bicubic"], size=48, mean=MEAN, std=STD, enlarged=True)
    assert len(drawn.steps) == 1  # straight from the small image


def test_data_enlarge_reaches_every_view() -> None:
    tree = {"set": "shapes", "n_max": 4, "imbalance": 2, "enlarge": 56}
    data = prepare_data(DataSettings(**tree, augment=["crop", "flip"]))
    raw = data.streams["labelled"].fetch(torch.arange(3))
    assert raw.shape[-1] == data.facts.size[-1] < 56 == data.side
    assert data.see(raw).shape[-1] == data.train_view(raw, seeded()).shape[-1] == 56
    assert prepare_data(DataSettings(**{**tree, "enlarge": None})).side == raw.shape[-1]


@pytest.mark.parametrize(
    ("tree", "how", "message"),
    [
        ({"set": "shapes", "enlarge": 8}, {}, "data.enlarge = 8 is less than the images' side"),
        ({"set": "phrases", "enlarge": 56}, {}, "the samples are tokens"),
        ({"set": "shapes", "enlarge": 56}, {"whole": True}, "a generator draws images as they are stored"),
    ],
)
def test_enlarging_what_cannot_be(tree: dict[str, Any], how: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        prepare_data(DataSettings(**tree), **how)


@pytest.mark.parametrize(("size", "side"), [(48, 64), (96, 128)])
def test_files_are_trained_on_at_the_side_they_are_enlarged_to(tmp_path: Path, size: int, side: int) -> None:
    """Boxes are cut while a file is decoded, in place of the step that would have enlarged it."""
    for split in ("train", "test"):
        for name in ("a", "b"):
            (tmp_path / split / name).mkdir(parents=True)
            for i in range(3):
                save_picture(tmp_path / split / name / f"{i}.png", 60, 90, i)
    tree = {"set": str(tmp_path), "size": size, "enlarge": side, "n_max": 3}
    for augment in (["resized-crop"], ["resized-crop-bicubic", "flip"], ["flip"]):
        data = prepare_data(DataSettings(**tree, augment=augment))
        feed = Feed("labelled", 4, (data.train_view,))
        (batch,) = Loader(data.streams, feed, seed=0, device=torch.device("cpu")).iterate(0, 1)
        assert batch.x.shape == (4, 3, side, side)
        assert data.see(data.labelled.fetch(torch.arange(1))).shape[-1] == side


def test_data_frame_reaches_training_alone(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for name in ("a", "b"):
            for i in range(2):
                save_picture(tmp_path / split / name / f"{i}.png", 300, 100, i)
    table = {"set": str(tmp_path), "size": 100, "augment": []}
    framed, usual = (prepare_data(DataSettings(**table, **more)) for more in ({"squares": True}, {}))
    rows = torch.arange(2)
    for stream, same in (("labelled", False), ("test", True)):
        parts = [data.streams[stream].fetch(rows, seeded()) for data in (framed, usual)]
        assert torch.equal(*parts) is same


def test_normalised_by_one_view_as_by_another() -> None:
    x = photos(2)
    mine = build([], size=24, mean=MEAN, std=STD)
    theirs = build([], size=24, mean=(0.4, 0.5, 0.6), std=(0.1, 0.2, 0.3))
    torch.testing.assert_close(mine.translated(mine(x), theirs), theirs(x), rtol=1e-4, atol=1e-4)
    assert not math.isclose(float(mine(x).sum()), float(theirs(x).sum()))


def test_erased_boxes_are_the_first_of_ten_that_fit_literally() -> None:
    n, h, w = 60, 20, 30
    x = torch.full((n, 1, h, w), 7.0)
    scale, ratio = (0.2, 0.9), (0.2, 3.0)
    got = deit.erase_noise(x, seeded(2), odds=0.7, scale=scale, ratio=ratio)
    g = seeded(2)
    lucky, areas, shapes = torch.rand(n, generator=g), torch.rand(n, 10, generator=g), torch.rand(n, 10, generator=g)
    places, noise = torch.rand(2, n, generator=g), torch.randn(x.shape, generator=g)
    want, missed = x.clone(), 0
    for i in range(n):
        for area, shape in zip(areas[i].tolist(), shapes[i].tolist(), strict=True):
            pixels = h * w * (0.2 + 0.7 * area)
            aspect = math.exp(math.log(0.2) + (math.log(3.0) - math.log(0.2)) * shape)
            tall, wide = round(math.sqrt(pixels * aspect)), round(math.sqrt(pixels / aspect))
            if tall < h and wide < w:
                top, left = int(places[0, i] * (h - tall + 1)), int(places[1, i] * (w - wide + 1))
                if lucky[i] < 0.7:
                    want[i, :, top : top + tall, left : left + wide] = noise[i, :, top : top + tall, left : left + wide]
                break
            missed += 1
    assert missed > 20
    assert torch.equal(got, want)
    assert torch.equal(deit.erase_noise(x, seeded(), odds=1.0, scale=(2.0, 2.0)), x)  # none fits


def test_one_of_three_literally() -> None:
    x = photos(30)
    got, g = deit.three_augment(x, seeded(4)), seeded(4)
    which = torch.randint(3, (30, 1, 1, 1), generator=g).flatten().tolist()
    sigma = 0.1 + 1.9 * torch.rand(30, generator=g)
    assert {*which} == {0, 1, 2}
    for image, out, kind, s in zip(x, got, which, sigma, strict=True):
        if kind == 0:
            assert torch.equal(out, policies_luma(image))
        elif kind == 1:
            assert torch.equal(out, torch.where(image < 128, image, 255 - image))
        else:
            assert torch.equal(out, imageops.blur(image[None], s[None])[0])


def policies_luma(image: Tensor) -> Tensor:
    return imageops.luma(image[None]).to(torch.uint8).expand(1, 3, -1, -1)[0]


@pytest.mark.parametrize(
    ("name", "level", "value"),
    [("rotate", 5, 15), ("posterize", 2, 4), ("posterize", 3, 3), ("posterize", 10, 1), ("solarize", 5, 128),
     ("solarize", 10, 0), ("solarize-add", 5, 55), ("solarize-add", 9.99, 109), ("shear-x", 10, 0.3),
     ("shear-y", 5, 0.15), ("translate-x", 10, 0.45), ("translate-y", 2, 0.09), ("colour", 5, 1.45),
     ("sharpness", 10, 1.9), ("invert", 7, 0), ("equalize", 3, 0)],
)  # fmt: skip
def test_strengths_by_hand(name: str, level: float, value: float) -> None:
    two = deit.strength(name, torch.tensor([level, level]), torch.tensor([1, -1])).tolist()
    signed = name.split("-")[0] in ("rotate", "shear", "translate")
    blended = name in ("colour", "contrast", "brightness", "sharpness")
    assert two == pytest.approx([value, -value if signed else max(0.1, 2 - value) if blended else value], abs=1e-6)
    assert deit.strength("contrast", torch.tensor([12.0]), torch.tensor([-1])).item() == pytest.approx(0.1)


def test_defaults_are_those_of_the_authors() -> None:
    def defaults(function: Any) -> dict[str, Any]:
        given = inspect.signature(function).parameters.values()
        return {p.name: p.default for p in given if p.default is not inspect.Parameter.empty}

    assert defaults(deit.increasing_augment) == {"draws": 2, "magnitude": 9.0, "spread": 0.5, "odds": 0.5}
    assert defaults(deit.erase_noise) == {"odds": 0.25, "scale": (0.02, 1 / 3), "ratio": (0.3, 1 / 0.3)}
    assert len(deit.INCREASING) == 15


def test_magnitudes_stay_between_nothing_and_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    monkeypatch.setattr(deit, "strength", lambda _, level, sign: seen.append(torch.stack([level, sign])) or level)
    monkeypatch.setattr(policies, "apply", lambda x, *_: x)
    deit.increasing_augment(photos(500), seeded(), fill=FILL, magnitude=9.5, spread=1.0)
    level, sign = seen[0]
    assert level.max() == 10
    assert level[level < 10].mean() < 9.5
    assert {*sign.flatten().tolist()} == {-1, 1}
    deit.increasing_augment(photos(500), seeded(), fill=FILL, magnitude=0.5, spread=1.0)
    assert seen[-1][0].min() == 0
