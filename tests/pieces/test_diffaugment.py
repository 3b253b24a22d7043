"""DiffAugment: each change against a per-image transcription, ranges, gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evenhand.pieces.diffaugment import POLICY, colour, cutout, diffaugment, translation
from helpers import seeded


def images(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=seeded(seed), dtype=torch.float64) * 2 - 1


def test_colour_is_the_equation_image_by_image() -> None:
    x = images(6, 3, 5, 4)
    draws = torch.rand(3, 6, generator=seeded(3)).double()
    ours = colour(x, seeded(3))
    for i in range(6):
        y = x[i] + (draws[0, i] - 0.5)
        y = (y - y.mean(0)) * (2 * draws[1, i]) + y.mean(0)
        y = (y - y.mean()) * (draws[2, i] + 0.5) + y.mean()
        torch.testing.assert_close(ours[i], y)


def test_grey_images_have_no_saturation_to_change() -> None:
    grey = images(4, 1, 6, 6)
    rgb = grey.expand(4, 3, 6, 6)
    torch.testing.assert_close(colour(rgb, seeded()), colour(grey, seeded()).expand(4, 3, 6, 6))


def shifted(image: Tensor, down: int, across: int) -> Tensor:
    _, h, w = image.shape
    framed = F.pad(image, (w, w, h, h))
    return framed[:, h - down : 2 * h - down, w - across : 2 * w - across]


@pytest.mark.parametrize(("h", "w"), [(16, 16), (28, 20)])
def test_translation_moves_whole_pixels_by_at_most_an_eighth(h: int, w: int) -> None:
    x = images(120, 2, h, w)
    moved = translation(x, seeded())
    seen = set()
    for image, result in zip(x, moved, strict=True):
        fits = [
            (down, across)
            for down in range(-(h // 8), h // 8 + 1)
            for across in range(-(w // 8), w // 8 + 1)
            if torch.equal(shifted(image, down, across), result)
        ]
        assert len(fits) == 1
        seen.add(fits[0])
    assert {down for down, _ in seen} == set(range(-(h // 8), h // 8 + 1))
    assert {across for _, across in seen} == set(range(-(w // 8), w // 8 + 1))


@settings(max_examples=40, deadline=None)
@given(h=st.integers(1, 33), w=st.integers(1, 33), seed=st.integers(0, 2**62))
def test_cutout_zeroes_one_box_of_at_most_a_quarter(h: int, w: int, seed: int) -> None:
    x = torch.ones(8, 3, h, w)
    result = cutout(x, seeded(seed))
    gone = result == 0
    assert torch.equal(result, torch.where(gone, 0.0, 1.0))
    for mask in gone:
        assert torch.equal(mask[0], mask[1])
        rows, columns = mask[0].any(1), mask[0].any(0)
        assert torch.equal(mask[0], rows[:, None] & columns)  # one full rectangle
        assert rows.sum() <= h // 2
        assert columns.sum() <= w // 2


def test_cutout_centre_is_anywhere() -> None:
    gone = cutout(torch.ones(4000, 1, 8, 8), seeded())[:, 0] == 0
    sizes = gone.any(2).sum(1)
    assert set(sizes.tolist()) == {2, 3, 4}  # centred on 0..8, cut by the border
    assert (sizes == 4).float().mean().item() == pytest.approx(5 / 9, abs=0.03)
    assert gone.float().mean(0).min() > 0.1


@pytest.mark.parametrize("change", [colour, translation, cutout, diffaugment])
@pytest.mark.parametrize("shape", [(5, 3, 12, 9), (1, 1, 8, 8)], ids=["rgb", "one_grey_image"])
@pytest.mark.usefixtures("global_randomness_untouched")
def test_shape_type_and_seed(change: Callable[..., Tensor], shape: tuple[int, ...]) -> None:
    x = images(*shape)
    assert change(x, seeded()).shape == x.shape
    assert torch.equal(change(x, seeded(1)), change(x, seeded(1)))
    for dtype in (torch.float32, torch.bfloat16):
        assert change(x.to(dtype), seeded()).dtype == dtype


@pytest.mark.parametrize("change", [colour, translation, cutout, diffaugment])
def test_gradients_of_both_orders(change: Callable[..., Tensor]) -> None:
    x = images(3, 2, 9, 8)
    assert torch.autograd.gradcheck(lambda y: change(y, seeded(2)), x.requires_grad_(), fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda y: change(y, seeded(2)), x, fast_mode=True)  # R1 goes through it


def test_every_image_has_its_own_draw() -> None:
    x = images(1, 3, 16, 16).expand(6, 3, 16, 16)
    for change in (colour, cutout):
        result = change(x, seeded())
        assert all(not torch.equal(result[0], other) for other in result[1:])
    assert len({tuple(image.flatten().tolist()) for image in translation(x, seeded())}) > 1


def test_policy_is_applied_in_order_and_checked() -> None:
    x, generator = images(3, 3, 16, 16), seeded(5)
    step_by_step = cutout(translation(colour(x, generator), generator), generator)
    assert torch.equal(diffaugment(x, seeded(5)), step_by_step)
    assert torch.equal(diffaugment(x, seeded(5), POLICY), step_by_step)
    assert torch.equal(diffaugment(x, seeded(5), ("cutout",)), cutout(x, seeded(5)))
    assert diffaugment(x, seeded(5), ()) is x
    with pytest.raises(ValueError, match="policy holds 'color': choose from colour, translation, cutout"):
        diffaugment(x, seeded(), ("color",))
    for bad in (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(3, 4, 4)):
        with pytest.raises(ValueError, match="expected float images"):
            diffaugment(bad, seeded())
