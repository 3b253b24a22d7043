"""ADA: what it does to images, and how often (spec 03, 2.4 d and 3.2)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from evenhand.pieces import ada_changes
from evenhand.pieces.ada import ADA
from evenhand.pieces.ada_changes import SYM6, augmented, backwards, recoloured, recolouring, resampled
from helpers import seeded


def smooth(side: int = 16, channels: int = 3) -> Tensor:
    y, x = torch.meshgrid(torch.linspace(-1, 1, side), torch.linspace(-1, 1, side), indexing="ij")
    planes = [0.5 * x + 0.2 * y, 0.3 * torch.sin(2 * x) - 0.4 * y, 0.6 * x * y]
    return torch.stack(planes[:channels])[None].double()


def matrix(rows: list[list[float]]) -> Tensor:
    return torch.tensor([rows], dtype=torch.float64)


EYE = torch.eye(3, dtype=torch.float64)[None]


# the filter


def test_filter_is_an_orthogonal_wavelet_with_six_vanishing_moments() -> None:
    h = torch.tensor(SYM6, dtype=torch.float64)
    assert float(h.sum()) == pytest.approx(math.sqrt(2), abs=1e-9)
    for lag in range(6):
        assert float((h[2 * lag :] * h[: 12 - 2 * lag]).sum()) == pytest.approx(float(lag == 0), abs=1e-9)
    sign, k = (-1.0) ** torch.arange(12), torch.arange(12, dtype=torch.float64)
    for moment in range(6):
        assert float((sign * h * k**moment).sum()) == pytest.approx(0, abs=1e-6 * 12**moment)


def test_no_change_is_the_identity_also_at_the_borders() -> None:
    x = torch.randn(2, 3, 16, 16, generator=seeded(), dtype=torch.float64)
    torch.testing.assert_close(resampled(x, EYE.expand(2, 3, 3)), x, rtol=0, atol=1e-9)
    assert augmented(x, 0.0, seeded()) is x


# geometry


def test_flip_and_quarter_turn_are_exact_inside() -> None:
    x = smooth()
    flip = resampled(x, matrix([[-1, 0, 0], [0, 1, 0], [0, 0, 1]]))
    torch.testing.assert_close(flip[..., 3:-3, 3:-3], x.flip(3)[..., 3:-3, 3:-3], rtol=0, atol=2e-2)
    turned = resampled(x, matrix([[0, 1, 0], [-1, 0, 0], [0, 0, 1]]))
    torch.testing.assert_close(turned[..., 3:-3, 3:-3], x.rot90(-1, (2, 3))[..., 3:-3, 3:-3], rtol=0, atol=2e-2)


def written_out(x: Tensor, where: Tensor) -> Tensor:
    """Mirrored borders, zeros between pixels, the filter, bilinear look-up, the transposed filter, every second place.

    A pixel's own place in the filter is its sixth tap, going up and coming down.
    """
    side, wide, taps = x.shape[-1], 3 * x.shape[-1], torch.tensor(SYM6, dtype=torch.float64) / sum(SYM6)
    folded = torch.arange(-wide, side + wide) % (2 * side - 2)
    folded = torch.where(folded < side, folded, 2 * side - 2 - folded)
    between = x.new_zeros(*x.shape[:2], 2 * len(folded), 2 * len(folded))
    between[..., ::2, ::2] = x[..., folded[:, None], folded]
    planes = between.flatten(0, 1)[:, None]
    fine = F.conv2d(F.pad(planes, (6, 5, 6, 5)), torch.outer(2 * taps.flip(0), 2 * taps.flip(0))[None, None])
    at = torch.arange(-5, 2 * side + 5).double() / 2 - (side - 1) / 2
    grid = torch.stack([at.expand(len(at), -1), at[:, None].expand(-1, len(at)), torch.ones(len(at), len(at))], -1)
    place = torch.einsum("nij,abj->nabi", where, grid)[..., :2] + (side - 1) / 2 + wide  # pixels of the wide image
    place = (2 * place / (fine.shape[-1] - 1) * 2 - 1).repeat_interleave(x.shape[1], 0)
    seen = F.grid_sample(fine, place, mode="bilinear", align_corners=True)
    return F.conv2d(seen, torch.outer(taps, taps)[None, None], stride=2).view_as(x)


@pytest.mark.parametrize(("angle", "zoom", "across", "down"), [(0.6, 1.1, 1.3, -0.4), (-2.0, 0.7, -2.25, 3.5)])
def test_resampling_is_the_whole_pipeline(angle: float, zoom: float, across: float, down: float) -> None:
    x = torch.randn(2, 3, 16, 16, generator=seeded(), dtype=torch.float64)
    c, s = zoom * math.cos(angle), zoom * math.sin(angle)
    where = torch.cat(
        [matrix([[c, -s, across], [s, c, down], [0, 0, 1]]), matrix([[1, 0.3, 0], [0, 0.8, 1], [0, 0, 1]])]
    )
    torch.testing.assert_close(resampled(x, where), written_out(x, where), rtol=0, atol=1e-9)


def test_whole_shift_moves_pixels_and_mirrors_what_comes_in() -> None:
    x = torch.randn(1, 1, 16, 16, generator=seeded(), dtype=torch.float64)
    moved = resampled(x, matrix([[1, 0, -3], [0, 1, 2], [0, 0, 1]]))  # content moves right by 3 and up by 2
    torch.testing.assert_close(moved[..., :14, 3:], x[..., 2:, :13], rtol=0, atol=1e-9)
    torch.testing.assert_close(moved[..., :14, :3], x[..., 2:, 1:4].flip(3), rtol=0, atol=1e-9)


def test_zoom_is_about_the_centre() -> None:
    y, x = torch.meshgrid(*(torch.arange(16).double() - 7.5,) * 2, indexing="ij")
    image = torch.exp(-(x**2 + y**2) / 12)[None, None]
    wide = resampled(image, matrix([[0.5, 0, 0], [0, 0.5, 0], [0, 0, 1]]))  # twice as large
    expected = torch.exp(-(x**2 + y**2) / 48)[None, None]
    torch.testing.assert_close(wide, expected, rtol=0, atol=0.03)


def test_float32_places_are_as_good_as_float64() -> None:
    x, where = torch.randn(40, 1, 32, 32, generator=seeded(), dtype=torch.float64), backwards(40, 32, 0.9, seeded(2))
    torch.testing.assert_close(resampled(x.float(), where).double(), resampled(x, where), rtol=0, atol=2e-4)


@pytest.mark.parametrize("angle", [0.0, 0.3, -2.0])
def test_the_farthest_place_is_a_corner(angle: float) -> None:
    """Of the fine grid with the filter's reach: what lies beyond is mirrored, not black."""
    where = (rotation(torch.tensor(angle)) @ moved_by(torch.tensor(5.0), torch.tensor(-2.0)))[None].double()
    at = torch.arange(-5, 2 * 16 + 5) / 2 - 7.5
    places = [where[0] @ torch.tensor([float(x), float(y), 1]).double() for x in at for y in at]
    assert ada_changes._farthest(where, 16) == pytest.approx(float(torch.stack(places)[:, :2].abs().max()))


def test_places_are_computed_where_the_images_are() -> None:
    """Only what is drawn, (N, 3, 3), and filters of (S, S) are the CPU's."""
    sizes: list[int] = []

    class Watched(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            if isinstance(made, Tensor) and made.device.type == "cpu":
                sizes.append(made.numel())
            return made

    with Watched():
        found = augmented(torch.empty(100, 3, 8, 8, device="meta"), 0.5, seeded())
    assert found.device.type == "meta"
    assert 0 < max(sizes) <= 16 * 100


def test_drawn_geometry_is_the_papers_composition() -> None:
    """The same draws, composed forwards and inverted."""
    count, side, p = 400, 32, 0.7
    found = backwards(count, side, p, seeded(1))
    r = seeded(1)

    def draw(kind: str) -> Tensor:
        return torch.rand(count, generator=r) if kind == "u" else torch.randn(count, generator=r)

    def on(chance: float = p) -> Tensor:
        return torch.rand(count, generator=r) < chance

    turn = 1 - math.sqrt(1 - p)
    flips = (2 * draw("u")).floor() * on()
    quarters = (4 * draw("u")).floor() * on()
    ix, iy = [((draw("u") * 2 - 1) * 0.125 * side).round() for _ in range(2)]
    shifted = on()
    zoom = torch.where(on_after(draw("n"), r, count, p, keep := {}), 2 ** (0.2 * keep["value"]), 1.0)
    before = math.pi * (draw("u") * 2 - 1) * on(turn)
    stretch = torch.where(on_after(draw("n"), r, count, p, keep), 2 ** (0.2 * keep["value"]), 1.0)
    after = math.pi * (draw("u") * 2 - 1) * on(turn)
    fx, fy = [draw("n") * 0.125 * side for _ in range(2)]
    fraction = on()
    for i in range(count):
        forward = torch.diag(torch.tensor([1 - 2 * flips[i], 1.0, 1.0]))
        for step in (
            rotation(quarters[i] * math.pi / 2), moved_by(ix[i] * shifted[i], iy[i] * shifted[i]),
            torch.diag(torch.tensor([zoom[i], zoom[i], 1.0])), rotation(before[i]),
            torch.diag(torch.tensor([stretch[i], 1 / stretch[i], 1.0])), rotation(after[i]),
            moved_by(fx[i] * fraction[i], fy[i] * fraction[i]),
        ):  # fmt: skip
            forward = step @ forward
        torch.testing.assert_close(found[i] @ forward, torch.eye(3), rtol=0, atol=1e-4)


def on_after(value: Tensor, r: torch.Generator, count: int, p: float, keep: dict[str, Tensor]) -> Tensor:
    keep["value"] = value
    return torch.rand(count, generator=r) < p


def rotation(angle: Tensor) -> Tensor:
    c, s = float(angle.cos()), float(angle.sin())
    return torch.tensor([[c, -s, 0], [s, c, 0], [0, 0, 1]])


def moved_by(x: Tensor, y: Tensor) -> Tensor:
    return torch.tensor([[1, 0, float(x)], [0, 1, float(y)], [0, 0, 1]])


# colour


def test_colours_keep_what_they_should() -> None:
    """Brightness and contrast act on all channels alike; hue keeps the mean and the distance from grey; p=0 nothing."""
    torch.testing.assert_close(recolouring(3, 0.0, seeded()), torch.eye(4).expand(3, 4, 4))
    matrices = recolouring(2000, 1.0, seeded())
    grey = matrices[:, :3, :3] @ torch.ones(3)
    torch.testing.assert_close(grey, grey[:, :1].expand(-1, 3), rtol=0, atol=1e-4)  # grey stays grey
    level = grey[:, 0].abs()  # contrast; its sign is the luma flip
    assert float(level.log2().std()) == pytest.approx(0.5, rel=0.1)
    assert float((grey[:, 0] < 0).float().mean()) == pytest.approx(0.5, abs=0.05)
    red = torch.tensor([1.0, 0, 0]) - 1 / 3
    away = matrices[:, :3, :3] @ red
    torch.testing.assert_close(away.sum(1), torch.zeros(2000), rtol=0, atol=1e-4)
    saturation = away.norm(dim=1) / red.norm() / level
    assert float(saturation.log2().std()) == pytest.approx(1.0, rel=0.1)
    cosine = (away @ red) / away.norm(dim=1) / red.norm()
    assert float(cosine.mean()) == pytest.approx(0, abs=0.06)  # hue goes all round
    brightness = matrices[:, :3, 3].mean(1) / grey[:, 0]
    assert float(brightness.std()) == pytest.approx(0.2, rel=0.1)


def test_grey_images_get_the_mean_of_the_channels() -> None:
    matrices, x = recolouring(5, 1.0, seeded()), torch.rand(5, 1, 4, 4, generator=seeded(1))
    in_colour = recoloured(x.expand(-1, 3, -1, -1), matrices)
    torch.testing.assert_close(recoloured(x, matrices), in_colour.mean(1, keepdim=True))


# all of it


def test_share_of_changed_images_grows_with_p() -> None:
    x = smooth().expand(300, -1, -1, -1).float()
    changed = [
        float(((augmented(x, p, seeded()) - x).abs().amax((1, 2, 3)) > 1e-3).float().mean()) for p in (0.02, 0.5)
    ]
    assert 0.1 < changed[0] < 0.3  # of a dozen changes, each seldom
    assert changed[1] > 0.95


def test_is_differentiable_twice_and_linear() -> None:
    x = torch.randn(3, 1, 8, 8, dtype=torch.float64, generator=seeded(), requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: augmented(v, 0.8, seeded(2)).sum((1, 2, 3)), x)
    assert torch.autograd.gradgradcheck(lambda v: augmented(v, 0.8, seeded(2))[..., ::4, ::4].square().sum(), x[:1])
    a, b = torch.randn(2, 3, 1, 8, 8, dtype=torch.float64, generator=seeded(3))
    one, two, both, none = (augmented(v, 0.8, seeded(4)) for v in (a, b, a + b, torch.zeros_like(a)))
    torch.testing.assert_close(both - none, (one - none) + (two - none))


@pytest.mark.parametrize("shape", [(2, 2, 8, 8), (2, 3, 8, 4), (3, 8, 8)])
def test_other_images_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="square grey or RGB"):
        augmented(torch.zeros(shape), 0.5, seeded())


# how often


def test_p_follows_the_mean_sign_counted_in_images() -> None:
    ada = ADA(target=0.6, kimg=500)
    for _ in range(4):
        ada.observe(torch.ones(128))
    ada.adjust()
    assert ada.p == pytest.approx(0.001024)
    ada.observe(torch.tensor([1.0] * 7 + [-1.0] * 3))  # mean sign 0.4
    ada.adjust()
    assert ada.p == pytest.approx(0.001024 - 10 / 500_000)
    before = ada.p
    ada.adjust()  # nothing seen
    assert ada.p == before
    fast = ADA(target=0.6, kimg=0.001)
    fast.observe(torch.full((10,), 3.0))
    fast.adjust()
    assert fast.p == 1.0
    fast.observe(torch.full((10,), -3.0))
    fast.adjust()
    assert fast.p == 0.0


def test_a_fixed_p_stays() -> None:
    ada = ADA(kimg=0, p=0.3)
    ada.observe(torch.ones(10))
    ada.adjust()
    assert ada.p == 0.3
    assert ada.seen.tolist() == [0, 0]


def test_state_is_whole() -> None:
    ada, other = ADA(kimg=1), ADA(kimg=1)
    ada.observe(torch.ones(10))
    ada.adjust()
    ada.observe(torch.ones(10))
    other.load_state_dict(ada.state_dict())
    for each in (ada, other):
        each.adjust()
    assert ada.p == other.p == pytest.approx(0.02)
    x = smooth().float()
    ada.p = 0.7
    assert torch.equal(ada(x, seeded()), ada_changes.augmented(x, 0.7, seeded()))


def test_nonsense_is_refused() -> None:
    for wrong in ({"target": 2.0}, {"kimg": -1.0}, {"p": 1.5}):
        with pytest.raises(ValueError, match="kimg >= 0"):
            ADA(**wrong)
