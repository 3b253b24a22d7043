"""Scores of generators: against literal transcriptions, known Gaussians, and what each score must not confuse."""

from __future__ import annotations

import inspect
import json
import math
import time
from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evenhand.measure import manifold
from evenhand.measure.generative import (
    class_fid,
    density_coverage,
    fid,
    frechet_distance,
    inception_score,
    kid,
    label_kl,
    measure_generator,
    precision_recall,
)

pytestmark = pytest.mark.usefixtures("global_randomness_untouched")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def uneven(n: int, d: int, seed: int) -> Tensor:
    """Correlated features whose scales span three decades, off the origin."""
    return normal(n, d, seed=seed) @ normal(d, d, seed=7) * torch.logspace(-2, 1, d) + 3


def literal_fid(a: Tensor, b: Tensor) -> float:
    x, y = a.double().numpy(), b.double().numpy()
    A, B = np.cov(x, rowvar=False), np.cov(y, rowvar=False)
    root = scipy.linalg.sqrtm(A @ B)
    return float(((x.mean(0) - y.mean(0)) ** 2).sum() + np.trace(A + B - 2 * np.real(root)))


def literal_manifold(real: Tensor, fake: Tensor, k: int) -> tuple[float, float, float, float]:
    """Spec 02 section 5, point by point."""

    def radius(points: Tensor, i: int) -> float:
        return sorted(float((points[i] - q).norm()) for j, q in enumerate(points) if j != i)[k - 1]

    real_radius = [radius(real, i) for i in range(len(real))]
    fake_radius = [radius(fake, j) for j in range(len(fake))]
    away = [[float((x - y).norm()) for y in fake] for x in real]
    N, M = range(len(real)), range(len(fake))
    return (
        sum(any(away[i][j] < real_radius[i] for i in N) for j in M) / len(fake),
        sum(any(away[i][j] < fake_radius[j] for j in M) for i in N) / len(real),
        sum(away[i][j] < real_radius[i] for i in N for j in M) / (k * len(fake)),
        sum(min(away[i]) < real_radius[i] for i in N) / len(real),
    )


def literal_mmd(x: Tensor, y: Tensor) -> float:
    """Gretton's unbiased estimate, for sets of one size."""

    def k(u: Tensor, v: Tensor) -> float:
        return float((u @ v / len(u) + 1) ** 3)

    n = len(x)
    within = sum(k(s[i], s[j]) for s in (x, y) for i, j in combinations(range(n), 2)) * 2 / (n * (n - 1))
    return within - 2 * sum(k(u, v) for u in x for v in y) / n**2


# Fréchet distance -----------------------------------------------------------------------------------------------------


def test_gaussians_in_closed_form() -> None:
    d = 6
    mean, eye = torch.linspace(-1, 2, d), torch.eye(d)
    assert frechet_distance(mean, eye, mean, eye).item() == pytest.approx(0, abs=1e-12)
    shift = frechet_distance(torch.zeros(d), eye, mean, eye).item()
    assert shift == pytest.approx(mean.double().square().sum().item())
    assert frechet_distance(mean, eye, mean, 9 * eye).item() == pytest.approx(d * (1 - 3) ** 2)
    singular = torch.diag(torch.tensor([4.0, 0, 0]))
    assert frechet_distance(torch.zeros(3), singular, np.zeros(3), np.eye(3)).item() == pytest.approx(1 + 2)


@pytest.mark.parametrize(("n", "m"), [(80, 90), (24, 25), (12, 90), (90, 12), (9, 7)])
def test_fid_is_the_textbook_formula(n: int, m: int) -> None:
    a, b = uneven(n, 24, 1), uneven(m, 24, 2)
    value = fid(a, b)
    assert value.dtype == torch.float64
    assert value.item() == pytest.approx(literal_fid(a, b), rel=1e-5)


def test_both_ways_agree_to_all_digits() -> None:
    for n, m in [(80, 90), (24, 300), (12, 12), (2, 50)]:
        a, b = uneven(n, 24, 1), uneven(m, 24, 2)
        whole = frechet_distance(a.mean(0), a.T.cov(), b.mean(0), b.T.cov()).item()
        assert fid(a, b, block=7).item() == pytest.approx(whole, rel=1e-11)


def test_float32_features_lose_nothing_to_the_arithmetic() -> None:
    a, b = (uneven(60, 16, seed).float() + 100 for seed in (1, 2))
    assert fid(a, b).item() == pytest.approx(fid(a.double(), b.double()).item(), rel=1e-12)
    assert fid(a, a).item() < 1e-9


def test_few_samples_in_many_dimensions_are_fast() -> None:
    a, b = uneven(20, 512, 1).float(), uneven(300, 512, 2).float()
    moments = [(x.mean(0), x.T.cov()) for x in (a.double(), b.double())]

    def timed(work: Callable[[], Tensor]) -> tuple[float, float]:
        started = time.perf_counter()
        return work().item(), time.perf_counter() - started

    fast, least = min((timed(lambda: fid(a, b)) for _ in range(3)), key=lambda pair: pair[1])
    slow, roots = timed(lambda: frechet_distance(*moments[0], *moments[1]))
    assert fast == pytest.approx(slow, rel=1e-9)
    assert roots > 5 * least  # measured: 450; 20 against 5000 in 2048 dimensions: 60 to 85


def test_trap_09_one_sample_gives_a_number() -> None:
    one, many = torch.zeros(1, 3), normal(50, 3)
    expected = many.mean(0).square().sum() + many.var(0).sum()
    assert fid(one, many).item() == pytest.approx(expected.item())
    assert fid(many, one).item() == pytest.approx(expected.item())
    assert fid(one, one + 2).item() == pytest.approx(12)


@st.composite
def two_sets(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    d = draw(st.integers(1, 8))
    sizes = [draw(st.integers(1, 20)) for _ in range(2)]
    scale, seed = draw(st.sampled_from([1e-3, 1.0, 1e3])), draw(st.integers(0, 999))
    a, b = (scale * normal(n, d, seed=seed + i) + i for i, n in enumerate(sizes))
    return a, b


@settings(max_examples=60, deadline=None)
@given(two_sets(), st.integers(0, 99))
def test_fid_is_a_distance_that_a_rotation_or_a_shift_leaves_alone(sets: tuple[Tensor, Tensor], seed: int) -> None:
    a, b = sets
    size = 1 + a.square().sum(1).mean().item() + b.square().sum(1).mean().item()
    value = fid(a, b).item()
    assert value >= 0
    assert fid(b, a).item() == pytest.approx(value, abs=1e-10 * size)
    assert fid(a, a).item() == pytest.approx(0, abs=1e-10 * size)
    turn = torch.linalg.qr(normal(a.shape[1], a.shape[1], seed=seed)).Q
    assert fid(a @ turn + 5, b @ turn + 5).item() == pytest.approx(value, abs=1e-9 * size)
    assert fid(a[torch.randperm(len(a), generator=torch.Generator().manual_seed(seed))], b).item() == pytest.approx(
        value, abs=1e-10 * size
    )
    assert fid(3 * a, 3 * b).item() == pytest.approx(9 * value, abs=1e-9 * size)


# per class ------------------------------------------------------------------------------------------------------------


def test_trap_09_class_fid_flags_tiny_and_missing_classes() -> None:
    real_labels = torch.tensor([0] * 120 + [1] * 20 + [2])
    fake_labels = [0] * 110 + [1] * 110 + [2] * 110 + [3] * 110
    real, fake = normal(141, 5), normal(440, 5, seed=1)
    scores = class_fid(real, fake, real_labels, fake_labels, 5)
    assert [(s.label, s.real, s.fake) for s in scores] == [
        (0, 120, 110), (1, 20, 110), (2, 1, 110), (3, 0, 110), (4, 0, 0),
    ]  # fmt: skip
    assert scores[0].flag == ""
    assert scores[1].flag == "reference: 20 samples"
    assert scores[4].flag == "reference: 0 samples, generated: 0 samples"
    assert [s.value is None for s in scores] == [False, False, False, True, True]
    assert all(math.isfinite(s.value) for s in scores if s.value is not None)
    assert scores[1].value == pytest.approx(fid(real[120:140], fake[110:220]).item())
    assert class_fid(real, fake, real_labels, fake_labels, 5, tiny=10)[1].flag == ""


# KID ------------------------------------------------------------------------------------------------------------------


def test_kid_is_the_unbiased_estimate() -> None:
    x, y = normal(9, 4), normal(9, 4, seed=1) + 0.5
    mean, std = kid(x, y, subsets=3)  # every subset is the whole set
    assert mean.item() == pytest.approx(literal_mmd(x, y))
    assert std.item() == pytest.approx(0, abs=1e-12)


def test_kid_subsets_come_from_the_generator() -> None:
    x, y = normal(60, 4), normal(80, 4, seed=1)
    draw = torch.Generator()
    values = [kid(x, y, subsets=5, subset_size=20, generator=draw.manual_seed(s)).mean.item() for s in (3, 3, 4)]
    assert values[0] == values[1] != values[2]
    assert kid(x, y, subsets=5, subset_size=20) == kid(x, y, subsets=5, subset_size=20)
    rows = torch.Generator().manual_seed(0)
    parts = [(x[torch.randperm(60, generator=rows)[:20]], y[torch.randperm(80, generator=rows)[:20]]) for _ in range(4)]
    expected = np.array([literal_mmd(*part) for part in parts])
    mean, std = kid(x, y, subsets=4, subset_size=20)
    assert (mean.item(), std.item()) == pytest.approx((expected.mean(), expected.std()))


def test_kid_of_one_distribution_is_near_zero_at_any_size() -> None:
    for size in (10, 100):
        mean, std = kid(normal(2000, 8), normal(2000, 8, seed=1), subsets=200, subset_size=size)
        assert abs(mean.item()) < 4 * std.item() / math.sqrt(200)
    far, _ = kid(normal(200, 8), normal(200, 8, seed=1) + 1, subsets=5, subset_size=100)
    assert far.item() > 1


def test_kid_of_one_sample_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 samples, got 100 of 1; add samples"):
        kid(normal(1, 3), normal(9, 3))


# precision, recall, density, coverage -----------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "block"), [(1, 5), (3, 2048), (5, 16)])
def test_manifold_scores_are_the_definitions(k: int, block: int) -> None:
    real, fake = normal(31, 3), 0.7 * normal(23, 3, seed=1) + 0.4
    expected = literal_manifold(real, fake, k)
    found = (*precision_recall(real, fake, k, block=block), *density_coverage(real, fake, k, block=block))
    assert [v.item() for v in found] == pytest.approx(expected)
    assert 0 < min(expected) < max(expected) < 2


def test_a_point_on_the_rim_of_a_ball_is_outside() -> None:
    """On a grid many distances equal a radius, also where a mean with many digits is taken off first."""
    precision, recall = precision_recall([[0.0], [1.0], [3.0]], [[2.0], [4.0], [5.0]], k=1)
    assert (precision.item(), recall.item()) == pytest.approx((2 / 3, 2 / 3))
    for seed in range(40):
        both = torch.randint(0, 6, (30, 2), generator=torch.Generator().manual_seed(seed)).double()
        real, fake = both[:17], both[17:]
        found = (*precision_recall(real, fake, 3, block=7), *density_coverage(real, fake, 3, block=7))
        assert [v.item() for v in found] == pytest.approx(literal_manifold(real, fake, 3)), seed


def test_trap_07_a_collapsed_generator_has_high_precision_and_low_recall() -> None:
    angle = torch.linspace(0, 2 * math.pi, 401)[:-1]
    circle = torch.stack([angle.cos(), angle.sin()], 1)
    collapsed = circle[100:120] + 0.001 * normal(20, 2).float()
    precision, recall = precision_recall(circle, collapsed)
    assert precision > 0.95
    assert recall < 0.1
    scattered = torch.cat([circle + 0.001, 3 * normal(400, 2).float()])
    precision, recall = precision_recall(circle, scattered)
    assert precision < 0.65
    assert recall > 0.95
    density, coverage = density_coverage(circle, collapsed)
    assert density > 0.8
    assert coverage < 0.1


def test_trap_07_one_repeated_image_reaches_nothing() -> None:
    real = normal(200, 64).float() + 1
    precision, recall = precision_recall(real, real[3].repeat(50, 1))
    assert (precision.item(), recall.item()) == (1, 0)  # balls of radius 0 hold nobody, whatever rounding says


def test_same_set_is_perfect_and_far_sets_do_not_meet() -> None:
    points = normal(80, 5)
    assert [v.item() for v in precision_recall(points, points)] == [1, 1]
    assert [v.item() for v in density_coverage(points, points)] == [1, 1]
    scores = [*precision_recall(points, points + 100), *density_coverage(points, points + 100)]
    assert [v.item() for v in scores] == [0, 0, 0, 0]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 999), st.integers(1, 4), st.sampled_from([1e-3, 1.0, 1e4]))
def test_manifold_scores_ignore_shift_scale_and_block(seed: int, k: int, scale: float) -> None:
    real, fake = normal(25, 4, seed=seed), normal(20, 4, seed=seed + 1) + 0.3
    scores = manifold.manifold_scores(real, fake, k)
    moved = manifold.manifold_scores(scale * real + 1000 * scale, scale * fake + 1000 * scale, k, block=7)
    assert [v.item() for v in moved] == pytest.approx([v.item() for v in scores])
    swapped = manifold.manifold_scores(fake, real, k)
    assert (swapped.precision, swapped.recall) == (scores.recall, scores.precision)


def test_distances_are_never_all_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = set()
    measured = manifold._squared_distances

    def watched(x: Tensor, y: Tensor) -> Tensor:
        shapes.add((len(x) <= 64, len(y) <= 64))
        return measured(x, y)

    monkeypatch.setattr(manifold, "_squared_distances", watched)
    precision_recall(normal(500, 4), normal(300, 4, seed=1), block=64)
    assert shapes == {(True, True)}


# labels and logits ----------------------------------------------------------------------------------------------------


def test_effective_number_is_the_definition_and_counts_copies() -> None:
    x = torch.randn(12, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    alike = torch.tensor([[math.exp(-float((a - b).square().sum()) / (2 * 1.5**2)) for b in x] for a in x]) / 12
    values = [v for v in np.linalg.eigvalsh(alike.numpy()) if v > 0]
    expected = math.exp(-sum(v * math.log(v) for v in values))
    assert float(manifold.effective_number(x, 1.5)) == pytest.approx(expected, rel=1e-5)
    far = 100 * torch.eye(4, dtype=torch.float64)
    assert float(manifold.effective_number(far.repeat(5, 1), 1.0)) == pytest.approx(4)
    assert float(manifold.effective_number(x[:1].repeat(9, 1), 1.0)) == pytest.approx(1)


def test_copies_of_few_digits_are_told_from_varied_ones() -> None:
    """Real handwriting, class by class: the other half of a class is healthy, noisy copies of 1 to 3 are not."""
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    images, labels = torch.from_numpy(digits.data).float(), torch.from_numpy(digits.target)
    chance = torch.Generator().manual_seed(0)
    for k in range(10):
        mine = images[labels == k]
        real, other = mine[::2], mine[1::2]
        healthy = manifold.pattern_share(real, other)
        assert healthy is not None
        assert healthy > 0.7
        for copies in (1, 2, 3):
            chosen = other[torch.randperm(len(other), generator=chance)[:copies]]
            drawn = chosen.repeat(90 // copies, 1)
            drawn = drawn + 0.3 * torch.randn(drawn.shape, generator=chance)
            collapsed = manifold.pattern_share(real, drawn)
            assert collapsed is not None
            assert collapsed < 0.5, (k, copies)


def test_pattern_share_needs_images_that_differ() -> None:
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    assert manifold.pattern_share(x, x[:9]) is None
    assert manifold.pattern_share(x[:1].repeat(20, 1), x) is None
    assert manifold.pattern_share(x, x) == pytest.approx(1, abs=0.35)


def test_label_kl() -> None:
    assert label_kl(torch.arange(10), 10).item() == pytest.approx(0, abs=1e-12)
    assert label_kl([4] * 7, 10).item() == pytest.approx(math.log(10))
    assert label_kl(np.array([0, 0, 0, 1]), 2).item() == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5))
    with pytest.raises(ValueError, match=r"integers in 0\.\.1"):
        label_kl([0, 2], 2)


def test_inception_score() -> None:
    assert inception_score(torch.eye(4))[0].item() == pytest.approx(4)
    assert inception_score(torch.full((5, 4), 0.25))[0].item() == pytest.approx(1)
    probs = normal(30, 3).softmax(1)
    terms = [p * math.log(p / m) for row in probs.tolist() for p, m in zip(row, probs.mean(0).tolist(), strict=True)]
    assert inception_score(probs)[0].item() == pytest.approx(math.exp(sum(terms) / 30))
    halves = torch.stack([inception_score(half)[0] for half in probs.chunk(2)])
    mean, std = inception_score(probs, splits=2)
    assert (mean.item(), std.item()) == pytest.approx((halves.mean().item(), halves.std(correction=0).item()))
    with pytest.raises(ValueError, match=r"take softmax\(1\)"):
        inception_score(normal(5, 3))


# everything together --------------------------------------------------------------------------------------------------


def test_measure_generator_says_what_it_measured() -> None:
    real, fake = normal(150, 6).float(), normal(130, 6, seed=1).float() + 0.2
    real_labels, fake_labels = torch.arange(150) % 3, torch.arange(130) % 3
    table = measure_generator(
        real, fake, real_labels, fake_labels, fake_logits=torch.nn.functional.one_hot(fake_labels, 3).float(),
        features="toy", resize="none", reference="toy test", k=3, subsets=4, manifold_samples=100, tiny=45,
    )  # fmt: skip
    facts = ("features", "resize", "reference", "dimensions", "real_count", "fake_count", "k", "kid_subset_size")
    assert [table[fact] for fact in facts] == ["toy", "none", "toy test", 6, 150, 130, 3, 130]
    assert (table["manifold_real_count"], table["manifold_fake_count"]) == (100, 100)
    assert table["fid"] == pytest.approx(fid(real, fake).item())
    assert table["kid"] == pytest.approx(kid(real, fake, subsets=4).mean.item())
    assert 0 < table["recall"] <= 1
    assert table["label_kl"] == pytest.approx(0, abs=1e-4)
    assert table["annotated_counts"] == [44, 43, 43]
    assert table["annotator_agreement"] == 1
    assert [score["flag"] for score in table["class_fid"]] == [f"generated: {n} samples" for n in (44, 43, 43)]
    assert table["class_fid_mean"] == pytest.approx(sum(s["value"] for s in table["class_fid"]) / 3)
    assert (table["class_fid_flagged"], table["class_fid_missing"]) == (3, 0)
    assert json.loads(json.dumps(table)) == table


def test_agreement_is_of_each_class_asked_for() -> None:
    asked, seen = torch.tensor([0, 0, 0, 1, 1, 3]), torch.tensor([0, 2, 0, 1, 1, 1])
    table = measure_generator(
        normal(8, 3), normal(6, 3, seed=1), torch.arange(8) % 4, asked, fake_logits=torch.eye(4)[seen],
        features="toy", resize="none", reference="toy", subsets=2,
    )  # fmt: skip
    assert table["annotator_agreement"] == pytest.approx(4 / 6)
    assert table["class_agreement"] == [pytest.approx(2 / 3), 1.0, None, 0.0]


def test_measure_generator_labels_unconditional_samples_by_the_annotator() -> None:
    real, fake, logits = normal(30, 4), normal(30, 4, seed=1), normal(30, 2, seed=2)
    names = {"features": "toy", "resize": "none", "reference": "toy", "subsets": 2}
    table = measure_generator(real, fake, torch.arange(30) % 2, fake_logits=logits, **names)
    assert [score["fake"] for score in table["class_fid"]] == table["annotated_counts"]
    assert not {"annotator_agreement", "class_agreement"} & set(table)
    p = logits.softmax(1)
    of_annotator = math.exp(sum(float((r * (r / p.mean(0)).log()).sum()) for r in p) / 30)
    assert table["annotator_score"] == pytest.approx(of_annotator)
    assert "inception_score" not in table  # its classes are not Inception's
    both = measure_generator(real, fake, fake_logits=logits, inception_logits=100 * torch.eye(30), **names)
    assert both["annotator_score"] == pytest.approx(of_annotator)
    assert both["inception_score"] == pytest.approx(30)
    plain = measure_generator(real, fake, **names)
    assert not {"class_fid", "label_kl", "inception_score", "annotator_score"} & set(plain)


def test_trap_09_measure_generator_with_one_sample() -> None:
    table = measure_generator(
        normal(1, 4), normal(9, 4), [0], [0] * 9, num_classes=2, features="", resize="", reference=""
    )
    assert math.isfinite(table["fid"])
    assert [table[name] for name in ("kid", "precision", "coverage")] == [None] * 3
    assert [score["value"] is None for score in table["class_fid"]] == [False, True]
    assert "NaN" not in json.dumps(table)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: fid(x, x[:, :2]), "3 and 2 dimensions: use the same extractor"),
        (lambda x: fid(x[0], x), r"features_a has shape \(3,\): expected \(N, d\)"),
        (lambda x: fid(x[:0], x), r"features_a has shape \(0, 3\)"),
        (lambda x: fid(x, x / 0), "features_b must be finite"),
        (lambda x: fid(x, x * math.nan), "features_b must be finite numbers"),
        (lambda x: precision_recall(x, x, k=9), "k is 9 for 9 real and 9 fake samples"),
        (lambda x: class_fid(x, x, [0] * 9, [0] * 8, 2), r"fake_labels has shape \(8,\): expected \(9,\)"),
        (lambda x: frechet_distance(x[0], x, x[0], x), "means and covariances have shapes"),
        (lambda x: inception_score(x.softmax(1), splits=0), "splits is 0: expected 1 to 9"),
        (lambda x: measure_generator(x, x, [0] * 9, [0] * 9, features="", resize="", reference=""), "num_classes"),
    ],
)
def test_bad_arguments_are_named(call: Callable[[Tensor], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(normal(9, 3))


def defaults(function: Callable[..., object]) -> dict[str, object]:
    given = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in given if p.default not in (inspect.Parameter.empty, None)}


def test_defaults_are_those_of_the_documentation() -> None:
    assert defaults(kid) == {"subsets": 100, "subset_size": 1000}
    assert defaults(class_fid) == {"tiny": 100}
    assert defaults(inception_score) == {"splits": 1}
    assert defaults(precision_recall) == {"k": 3, "block": 1024}
    assert defaults(density_coverage) == {"k": 5, "block": 1024}
    assert defaults(measure_generator) == {"k": 5, "manifold_samples": 10_000, "subsets": 100, "tiny": 100}
    assert defaults(manifold.pattern_share) == {"fewest": 10, "most": 100}
    assert defaults(fid) == {"block": 1024}


def test_pattern_share_literally() -> None:
    """Of as many of both as the fewer have, a hundred at most, drawn by seed 0; the width is the reals' median."""
    real, fake = normal(150, 3), 0.5 * normal(12, 3, seed=1)
    for many, few in ((real, fake), (real, normal(130, 3, seed=2))):
        n = min(len(few), 100)
        some = torch.Generator().manual_seed(0)
        ours, theirs = (x[torch.randperm(len(x), generator=some)[:n]] for x in (many, few))
        width = torch.pdist(ours).median()
        share = manifold.effective_number(theirs, width) / manifold.effective_number(ours, width)
        assert manifold.pattern_share(many, few) == pytest.approx(float(share))
    assert manifold.pattern_share(real, fake[:10]) is not None
    assert manifold.pattern_share(real, fake, fewest=13) is None
    assert manifold.pattern_share(real, real, most=20) != manifold.pattern_share(real, real)


def test_a_table_of_few_samples_has_what_they_allow() -> None:
    def table(real: int, fake: int, **options: Any) -> dict[str, Any]:
        return measure_generator(
            normal(real, 3), normal(fake, 3, seed=1), features="f", resize="r", reference="x", subsets=2, **options
        )

    assert table(1, 9)["kid"] is None
    assert table(2, 9)["kid"] is not None
    assert table(5, 9)["precision"] is None
    assert table(6, 9)["precision"] is not None
    assert table(6, 9, k=6)["precision"] is None
    assert table(1200, 1100)["kid_subset_size"] == 1000
    few = table(30, 40, manifold_samples=12, k=3)
    g = torch.Generator().manual_seed(0)
    kid(normal(30, 3), normal(40, 3, seed=1), subsets=2, generator=g)
    some = [x[torch.randperm(len(x), generator=g)[:12]] for x in (normal(30, 3), normal(40, 3, seed=1))]
    assert few["recall"] == pytest.approx(float(manifold.manifold_scores(*some, 3).recall))
    labelled = {"real_labels": torch.zeros(6).long(), "fake_labels": torch.ones(9).long(), "num_classes": 2}
    missing = table(6, 9, **labelled)
    assert (missing["class_fid_mean"], missing["class_fid_missing"], missing["class_fid_flagged"]) == (None, 2, 2)
    logits = 3 * torch.eye(4)[torch.arange(9) % 4]
    annotated = table(6, 9, inception_logits=logits, fake_logits=logits[:, :3])
    assert annotated["inception_score"] == pytest.approx(inception_score(logits.double().softmax(1))[0].item())
    assert annotated["annotator_score"] == pytest.approx(inception_score(logits[:, :3].double().softmax(1))[0].item())
