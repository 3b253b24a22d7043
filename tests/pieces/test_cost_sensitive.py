"""Gains, duals, loss and mask against literal transcriptions, the numbers of spec 06, section 10a, and its toy."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evenhand.measure.confusion import confusion_matrix, coverages, g_mean, h_mean, mean_recall, min_recall, recalls
from evenhand.pieces.cost_sensitive import (
    coverage_gain,
    hybrid_loss,
    kl_mask,
    kl_to_optimum,
    min_recall_gain,
    update_coverage_duals,
    update_min_recall_duals,
)
from evenhand.pieces.gain import Gain
from evenhand.pieces.losses import logit_adjusted_loss
from evenhand.pieces.objectives import AnyMetric, Coverage, FixedGain, MinRecall, Objective, linearised_gain
from evenhand.pieces.pseudo import confidence_mask

PRIORS = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
DUALS = torch.tensor([0.1, 0.2, 0.5], dtype=torch.float64)
POSTERIOR = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
Z = torch.tensor([[1.0, 0.0, -1.0]] * 3, dtype=torch.float64)
ALL = torch.arange(3)
HEAD_TAIL = [[0, 1], [2]]


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(found: Tensor, *wanted: float) -> None:
    torch.testing.assert_close(found.double().flatten(), tensor(*wanted), atol=1e-6, rtol=0)


def literal_loss(logits: Tensor, target: Tensor, gain: Tensor) -> Tensor:
    """One sample and one class at a time: ``-sum_i (M^T p)_i log softmax(z - log D)_i``."""
    K = len(gain)
    losses = []
    for z, t in zip(logits, target, strict=True):
        p = [float(t == i) for i in range(K)] if t.ndim == 0 else t.tolist()
        adjusted = [z[i] - math.log(gain[i, i]) for i in range(K)]
        normaliser = torch.log(sum(torch.exp(a) for a in adjusted))
        weight = [sum(p[y] * gain[y, i].item() / gain[i, i].item() for y in range(K)) for i in range(K)]
        losses.append(-sum(weight[i] * (adjusted[i] - normaliser) for i in range(K)))
    return torch.stack(losses)


def literal_divergence(probs: Tensor, gain: Tensor) -> list[float]:
    found = []
    for p in probs.tolist():
        row = gain[max(range(len(p)), key=p.__getitem__)].tolist()
        best = [r / sum(row) for r in row]
        found.append(sum(b * math.log(b / q) for b, q in zip(best, p, strict=True) if b > 0))
    return found


def structured(kind: str) -> Gain:
    return {
        "diagonal": Gain.min_recall(DUALS, PRIORS),
        "groups": Gain.min_recall([0.3, 0.7], PRIORS, HEAD_TAIL),
        "coverage": Gain.coverage(DUALS, PRIORS),
        "head-tail coverage": Gain.coverage([0.3, 0.7], PRIORS, HEAD_TAIL),
        "balanced": Gain.coverage(DUALS, PRIORS, balanced=True),
    }[kind]


KINDS = ["diagonal", "groups", "coverage", "head-tail coverage", "balanced"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("soft", [False, True])
def test_hybrid_loss_is_the_equation_in_value_and_gradient(kind: str, soft: bool) -> None:
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(7, 3, generator=rng, dtype=torch.float64)
    target = torch.randint(3, (7,), generator=rng)
    if soft:
        target = torch.randn(7, 3, generator=rng, dtype=torch.float64).softmax(1)
    gain = structured(kind)
    a, b, c = (logits.clone().requires_grad_() for _ in range(3))
    wanted = literal_loss(a, target, gain.dense())
    weight = torch.arange(1.0, 8.0, dtype=torch.float64)
    (weight * wanted).sum().backward()
    for z, form in ((b, gain), (c, gain.dense())):
        found = hybrid_loss(z, target, form)
        assert found.shape == (7,)
        torch.testing.assert_close(found, wanted)
        (weight * found).sum().backward()
        torch.testing.assert_close(z.grad, a.grad)


@pytest.mark.parametrize("kind", KINDS)
def test_mask_is_the_equation(kind: str) -> None:
    gain = structured(kind)
    probs = (2 * torch.randn(50, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)).softmax(1)
    wanted = tensor(*literal_divergence(probs, gain.dense()))
    for form in (gain, gain.dense()):
        torch.testing.assert_close(kl_to_optimum(probs, form), wanted)
        threshold = wanted.median().item() + 1e-9
        assert torch.equal(kl_mask(probs, form, threshold), wanted <= threshold)
    soft = probs.square() / probs.square().sum(1, keepdim=True)
    best = soft @ gain.dense()
    best = best / best.sum(1, keepdim=True)
    torch.testing.assert_close(kl_to_optimum(probs, gain, soft), (best * (best / probs).log()).sum(1))


def test_calibration_of_the_optimum() -> None:
    gain = coverage_gain(DUALS, PRIORS)
    best = POSTERIOR @ gain / (POSTERIOR @ gain).sum()
    close(best, 0.181818, 0.256684, 0.561497)
    z = best.log().requires_grad_()
    hybrid_loss(z[None], POSTERIOR[None], gain).sum().backward()
    close(z.grad, 0, 0, 0)


def test_numbers_of_the_coverage_example() -> None:
    gain = coverage_gain(DUALS, PRIORS)
    close(gain, 0.655556, 0.2, 0.5, 0.1, 1.311111, 0.5, 0.1, 0.2, 3.833333)
    close(gain / gain.diagonal(), 1, 0.152542, 0.130435, 0.152542, 1, 0.130435, 0.152542, 0.152542, 1)
    close(hybrid_loss(Z, ALL, gain), 0.990961, 2.425831, 4.269910)
    close(kl_to_optimum(Z.softmax(1), gain, ALL), 0.291300, 0.853225, 2.004369)
    assert kl_mask(Z.softmax(1), gain, 0.2914).tolist() == [True] * 3  # all three argmaxes are class 0
    assert not kl_mask(Z.softmax(1), gain, 0.2912).any()


def test_uniform_duals_are_logit_adjustment_and_the_identity_is_fixmatch() -> None:
    gain = min_recall_gain(torch.full((3,), 1 / 3, dtype=torch.float64), PRIORS)
    close(hybrid_loss(Z, ALL, gain), 0.187720, 1.880867, 3.979479)
    torch.testing.assert_close(hybrid_loss(Z, ALL, gain).mean(), logit_adjusted_loss(Z, ALL, PRIORS))
    eye = torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(hybrid_loss(Z, ALL, eye), F.cross_entropy(Z, ALL, reduction="none"))
    close(coverage_gain([0.0] * 3, PRIORS), *torch.diag(1 / (3 * PRIORS)).flatten().tolist())


@settings(deadline=None, max_examples=40)
@given(
    probs=st.lists(st.floats(1e-3, 1), min_size=4, max_size=4),
    diagonal=st.lists(st.floats(1e-4, 1e4), min_size=4, max_size=4),
    threshold=st.floats(1e-3, 1),
)
def test_with_a_diagonal_gain_the_mask_is_a_confidence_threshold(
    probs: list[float], diagonal: list[float], threshold: float
) -> None:
    p = tensor(*probs)[None] / sum(probs)
    if abs(p.max().item() - math.exp(-threshold)) > 1e-9:
        wanted = confidence_mask(p, math.exp(-threshold))
        assert torch.equal(kl_mask(p, torch.diag(tensor(*diagonal)), threshold), wanted)
        assert torch.equal(kl_mask(p, Gain(tensor(*diagonal)), threshold), wanted)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6), scale=st.floats(1e-6, 1e6), classes=st.integers(2, 6))
def test_loss_and_mask_ignore_the_scale_of_the_gain(seed: int, scale: float, classes: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    gain = torch.rand(classes, classes, generator=rng, dtype=torch.float64) + 0.01
    z = torch.randn(5, classes, generator=rng, dtype=torch.float64)
    y = torch.randint(classes, (5,), generator=rng)
    torch.testing.assert_close(hybrid_loss(z, y, scale * gain), hybrid_loss(z, y, gain))
    torch.testing.assert_close(kl_to_optimum(z.softmax(1), scale * gain), kl_to_optimum(z.softmax(1), gain))
    shift = torch.randn(classes, 1, generator=rng, dtype=torch.float64)
    posterior = z.softmax(1)
    assert torch.equal((posterior @ gain).argmax(1), (posterior @ (gain + shift)).argmax(1))


def test_why_confidence_fails_for_coverage() -> None:
    counts = [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    gain = coverage_gain([0.1] * 10, counts)
    best = gain / gain.sum(1, keepdim=True)
    wanted = [0.2789, 0.3635, 0.4677, 0.5818, 0.6921, 0.7860, 0.8582, 0.9093, 0.9436, 0.9651]
    torch.testing.assert_close(best.amax(1).double(), tensor(*wanted), atol=2e-4, rtol=0)
    assert confidence_mask(best, 0.95).tolist() == [False] * 9 + [True]
    assert kl_mask(best, gain, 0.05).all()


def test_no_gradient_through_target_or_gain_and_masked_samples_stay_in_the_mean() -> None:
    weak = torch.randn(4, 3, requires_grad=True)
    strong = torch.randn(4, 3, requires_grad=True)
    gain = coverage_gain(DUALS, PRIORS).requires_grad_()
    probs = weak.softmax(1)
    loss = (kl_mask(probs, gain, 0.3) * hybrid_loss(strong, probs, gain)).mean()
    loss.backward()
    assert weak.grad is None
    assert gain.grad is None
    mask = torch.tensor([True, False, False, False])
    z = torch.randn(4, 3, requires_grad=True)
    (mask * hybrid_loss(z, torch.tensor([0, 1, 2, 0]), gain)).mean().backward()
    assert not z.grad[1:].any()
    alone = z.detach()[:1].requires_grad_()
    hybrid_loss(alone, torch.tensor([0]), gain).sum().backward()
    torch.testing.assert_close(z.grad[:1], alone.grad / 4)


def test_types_follow_the_logits() -> None:
    gain = coverage_gain(DUALS, PRIORS)  # float64
    assert hybrid_loss(Z.float(), ALL, gain).dtype == torch.float32
    assert hybrid_loss(Z.bfloat16(), ALL, Gain.coverage(DUALS, PRIORS)).dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = hybrid_loss(Z.float(), Z.softmax(1), gain)
    close(found, *literal_loss(Z, Z.softmax(1), gain).tolist())


def test_exponentiated_gradient() -> None:
    close(update_min_recall_duals([0.5, 0.5], [0.9, 0.4], 0.25), 0.468791, 0.531209)
    duals = tensor(0.2, 0.3, 0.5)
    close(update_min_recall_duals(duals, tensor(0.7, 0.7, 0.7), 0.25), 0.2, 0.3, 0.5)
    history = torch.rand(20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = duals
    for r in history:
        found = update_min_recall_duals(found, r, 0.25)
    wanted = duals * torch.exp(-0.25 * history.sum(0))
    torch.testing.assert_close(found, wanted / wanted.sum())
    assert torch.equal(duals, tensor(0.2, 0.3, 0.5))  # not changed in place


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_duals_neither_underflow_nor_stick(dtype: torch.dtype) -> None:
    duals = torch.full((2,), 0.5, dtype=dtype)
    for _ in range(3000):
        duals = update_min_recall_duals(duals, [1.0, 0.0], 0.5)
    assert duals.dtype == dtype
    assert duals.min() > 0
    assert hybrid_loss(Z[:, :2].float(), ALL % 2, min_recall_gain(duals, [0.9, 0.1])).isfinite().all()
    for _ in range(80):
        duals = update_min_recall_duals(duals, [0.0, 1.0], 0.5)
    assert duals[0] > 0.99


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=8), st.floats(0, 2))
def test_duals_stay_multipliers(pairs: list[tuple[float, float]], step: float) -> None:
    old, seen = tensor(*(a + 1e-3 for a, _ in pairs)), tensor(*(b for _, b in pairs))
    new = update_min_recall_duals(old, seen, step)
    assert new.sum().item() == pytest.approx(1)
    assert (new > 0).all()
    assert (update_coverage_duals(old, seen, step, 0.9 / len(pairs)) >= 0).all()


def test_lists_keep_their_digits_and_come_back_in_torchs_type() -> None:
    duals, seen = [0.1, 0.2, 0.7], [0.3, 0.6, 0.9]
    found = update_coverage_duals(duals, seen, 0.25, [0.4, 0.5, 0.6])  # floors that cannot all be met are the caller's
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), tensor(0.125, 0.175, 0.625), rtol=0, atol=3e-8)
    exact = min_recall_gain(tensor(*duals), seen)
    assert exact.dtype == torch.float64
    torch.testing.assert_close(exact.diagonal(), tensor(*duals) * 1.8 / tensor(*seen), rtol=1e-15, atol=0)
    loss = hybrid_loss(Z, ALL.tolist(), exact.numpy())
    torch.testing.assert_close(loss, hybrid_loss(Z, ALL, exact), rtol=0, atol=0)


def test_projected_gradient() -> None:
    close(update_coverage_duals([0.1], [0.034], 0.25, 0.095), 0.11525)
    close(update_coverage_duals(torch.full((10,), 0.1), torch.full((10,), 0.095), 0.25, 0.095), *[0.1] * 10)
    close(update_coverage_duals([0.01, 1.0], [0.9, 0.1], 1.0, [0.0, 0.5]), 0.0, 1.4)
    share = tensor(0.5, 0.3, 0.2)
    close((update_coverage_duals([1.0] * 3, share, 0.25, 0.95 / 3) - 1).sum(), -0.05 * 0.25)


def test_groups_of_one_are_classes() -> None:
    singles = [[0], [1], [2]]
    assert torch.equal(min_recall_gain(DUALS, PRIORS, singles), min_recall_gain(DUALS, PRIORS))
    assert torch.equal(coverage_gain(DUALS, PRIORS, singles), coverage_gain(DUALS, PRIORS))
    close(min_recall_gain([0.4, 0.6], PRIORS, HEAD_TAIL).diagonal(), 0.2 / 0.6, 0.2 / 0.3, 0.6 / 0.1)
    close(coverage_gain([0.4, 0.6], PRIORS, HEAD_TAIL) - torch.diag(1 / (3 * PRIORS)), *[0.2, 0.2, 0.6] * 3)
    close(coverage_gain(DUALS, PRIORS, balanced=True)[2], 0.1 / 0.3, 0.2 / 0.3, 1.5 / 0.3)


C = tensor(0.25, 0.05, 0.03, 0.1, 0.2, 0.03, 0.2, 0.1, 0.04).view(3, 3)


def test_linearised_gain_finds_the_known_gains() -> None:
    close(linearised_gain(mean_recall, C, PRIORS), *torch.diag(1 / (3 * PRIORS)).flatten().tolist())
    pressed = linearised_gain(
        lambda C: mean_recall(C) + (DUALS.to(C) * coverages(C)).sum(), C / C.sum(1, True) / 3, PRIORS
    )
    balanced = coverage_gain(DUALS, PRIORS, balanced=True)
    close(pressed, *(balanced - balanced.amin(1, keepdim=True)).flatten().tolist())


@pytest.mark.parametrize("metric", [g_mean, h_mean, lambda C: C[0, 0] / (C[0].sum() + C[:, 0].sum())])
def test_linearised_gain_is_the_slope_along_any_change_of_the_classifier(metric) -> None:  # type: ignore[no-untyped-def]
    """Moving predictions within the rows changes the metric by ``sum G_ij prior_i dR_ij``."""
    gain = linearised_gain(metric, C, PRIORS, share=0.0)
    change = torch.randn(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    change = change - change.mean(1, keepdim=True)  # of the rates R: rows keep their sum
    rows, h = C.sum(1, keepdim=True), 1e-6
    slope = (metric(C + h * rows * change) - metric(C - h * rows * change)) / (2 * h)
    assert ((gain * PRIORS[:, None] * change).sum() - slope).abs() < 1e-8


def test_linearised_gain_of_a_class_without_reward_is_kept_positive() -> None:
    gain = linearised_gain(min_recall, C, PRIORS)  # only class 2, the worst, moves it
    assert gain.diagonal().argmax() == 2
    assert (gain.diagonal() > 0).all()
    absent = torch.zeros(3, 3, dtype=torch.float64)
    absent[:2, :2] = tensor(0.3, 0.2, 0.1, 0.4).view(2, 2)
    for metric in (mean_recall, h_mean, g_mean, min_recall):
        found = linearised_gain(metric, absent, PRIORS)
        assert hybrid_loss(Z, ALL, found).isfinite().all()
    perfect = torch.diag(tensor(1, 1, 1)) / 3
    q_mean = AnyMetric(lambda C: 1 - ((1 - recalls(C)).square().mean() + 1e-9).sqrt(), PRIORS)
    assert (q_mean.gain(q_mean.start(3), perfect).diagonal() > 0).all()


def test_any_metric_with_several_numbers_is_the_worst_of_them() -> None:
    own, named = AnyMetric(recalls, PRIORS), MinRecall(PRIORS)
    a, b = own.start(3), named.start(3)
    for _ in range(3):
        a, b = own.update(a, C), named.update(b, C)
    torch.testing.assert_close(a, b)
    torch.testing.assert_close(own.gain(a, C), named.gain(b, C).dense())


OBJECTIVES: dict[str, Objective] = {
    "min recall": MinRecall(PRIORS),
    "min head-tail recall": MinRecall(PRIORS, groups=HEAD_TAIL),
    "coverage": Coverage(PRIORS),
    "head-tail coverage": Coverage(PRIORS, groups=HEAD_TAIL),
    "balanced coverage": Coverage(PRIORS, balanced=True),
    "worst of several": AnyMetric(recalls, PRIORS),
    "h-mean": AnyMetric(h_mean, PRIORS),
    "fixed": FixedGain(Gain(1 / PRIORS)),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_trap_04_duals_are_plain_tensors_that_carry_on(name: str) -> None:
    objective = OBJECTIVES[name]
    duals = objective.start(3)
    steps = [duals]
    for _ in range(4):
        steps.append(objective.update(steps[-1], C))
    resumed = torch.tensor(steps[2].tolist(), dtype=duals.dtype)  # all that a checkpoint keeps
    for _ in range(2):
        resumed = objective.update(resumed, C)
    assert torch.equal(resumed, steps[4])
    if len(duals) > 1:
        assert not torch.allclose(steps[4], steps[1])  # each update starts from the last, not from 1/K
    assert hybrid_loss(Z, ALL, objective.gain(resumed, C)).isfinite().all()


def test_head_tail_objectives_see_group_means() -> None:
    duals = MinRecall(PRIORS, step=1.0, groups=HEAD_TAIL).update(tensor(0.5, 0.5), C)
    r = recalls(C)
    close(duals, *torch.softmax(-torch.stack([r[:2].mean(), r[2]]), 0).tolist())
    duals = Coverage(PRIORS, step=1.0, groups=HEAD_TAIL).update(tensor(0.5, 0.5), C)
    close(duals, 0.5 - 0.45 + 0.95 / 3, 0.5 - 0.1 + 0.95 / 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: hybrid_loss(Z, ALL, torch.diag(tensor(1, 0, 1))), r"gain\[1, 1\]=0: .*positive.*add a constant"),
        (lambda: hybrid_loss(Z, ALL, Gain(tensor(1, 1, -1))), r"gain\[2, 2\]=-1"),
        (lambda: kl_mask(Z, torch.eye(3) - 0.5, 0.1), r"gain\[0, 1\]=-0.5: must be at least 0"),
        (lambda: hybrid_loss(Z, ALL, torch.eye(4)), r"gain of shape \(4, 4\): expected \(3, 3\)"),
        (lambda: hybrid_loss(Z, ALL[:2], torch.eye(3)), r"target of shape \(2,\)"),
        (lambda: hybrid_loss(Z, ALL + 1, torch.eye(3)), "target holds 3: labels run from 0 to 2"),
        (lambda: hybrid_loss(Z[0], ALL, torch.eye(3)), r"shape \(3,\): expected \(N, K\)"),
        (lambda: kl_mask(Z, torch.eye(3), -1.0), "threshold=-1.0"),
        (lambda: min_recall_gain([0.5, 0.5], PRIORS), r"duals of shape \(2,\): expected \(3,\), one .* per class"),
        (lambda: min_recall_gain(DUALS, PRIORS, HEAD_TAIL), r"expected \(2,\), one multiplier per group"),
        (lambda: coverage_gain(DUALS, [1, 0, 2]), r"priors\[1\]=0: must be positive"),
        (lambda: coverage_gain([0.1], PRIORS, [[3]]), r"groups\[0\] holds class 3, outside 0..2"),
        (lambda: update_coverage_duals(DUALS, DUALS, math.nan, 0.1), "step=nan: must be a finite number"),
        (lambda: update_min_recall_duals(DUALS, DUALS, -0.1), "step=-0.1: must be a finite number of at least 0"),
        (lambda: min_recall_gain([-0.5, 0.5, 1.0], PRIORS), r"duals\[0\]=-0.5: a multiplier is at least 0"),
        (lambda: coverage_gain([0.5, -0.5, 1.0], PRIORS), r"duals\[1\]=-0.5: a multiplier is at least 0"),
        (lambda: update_min_recall_duals(DUALS, DUALS[:2], 0.1), r"duals \(3,\) and recalls \(2,\)"),
        (lambda: update_min_recall_duals(DUALS, [0.1, math.nan, 0.2], 0.1), r"recalls\[1\]=nan"),
        (lambda: Coverage([5, 3, 1], floor=0.2, groups=[[0, 1, 2], [0, 1, 2]]), "total coverage of 1.2: lower it"),
        (lambda: FixedGain(tensor(1, 2)), r"gain of shape \(2,\): expected \(2, 2\)"),
        (lambda: linearised_gain(lambda C: 1 - C.trace(), C, PRIORS), "rewards no class predicted right.*negate"),
        (lambda: linearised_gain(lambda C: C.trace().item(), C, PRIORS), "metric returned 0.49.*torch operations"),
        (lambda: linearised_gain(lambda C: (C - C.detach()).sqrt().sum(), C, PRIORS), r"derivative inf at C\[0, 0\]"),
        (lambda: linearised_gain(recalls, C, PRIORS), "expected one number"),
        (lambda: linearised_gain(min_recall, C, [0.5, 0.5]), r"confusion of shape \(3, 3\)"),
    ],
)  # fmt: skip
def test_mistakes_are_named(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        call()


# ---- Section 10b: five Gaussian classes in 16 dimensions, few labels, a long tail -------------------------------

K, COUNTS = 5, [200, 75, 28, 10, 4]
ONES = FixedGain(Gain(torch.ones(K)))
CONFIDENT, KL = (lambda p, _: confidence_mask(p, 0.95)), (lambda p, G: kl_mask(p, G, 0.05))
TOY = {
    "erm": (ONES, None),
    "la": (FixedGain(Gain(1 / torch.tensor(COUNTS))), None),
    "csl": (MinRecall(COUNTS), None),
    "fixmatch": (ONES, CONFIDENT),
    "csst": (MinRecall(COUNTS), KL),
    "csst, coverage, no kl": (Coverage(COUNTS), CONFIDENT),
    "csst, coverage": (Coverage(COUNTS), KL),
}


def toy(seed: int, steps: int = 300, batch: int = 32) -> dict[str, dict[str, float]]:
    """All methods of ``TOY`` at once, as slices of one stacked MLP that see the same batches."""
    rng = torch.Generator().manual_seed(seed)
    centre = 2.4 * F.normalize(torch.randn(K, 16, generator=rng))

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng)

    def draw(counts: list[int]) -> tuple[Tensor, Tensor]:
        y = torch.arange(K).repeat_interleave(torch.tensor(counts))
        return centre[y] + 0.6 * noise(len(y), 16), y

    (x, y), (u, _) = draw(COUNTS), draw([8 * n for n in COUNTS])
    (val, val_y), (test, test_y) = draw([100] * K), draw([400] * K)
    runs = len(TOY)
    shapes = [(16, 64), (1, 64), (64, K), (1, K)]
    params = [(noise(*s) * s[0] ** -0.5 * (s[0] > 1)).repeat(runs, 1, 1).requires_grad_() for s in shapes]
    average = [p.detach().clone() for p in params]
    optimizer = torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=5e-4)

    def net(x: Tensor, w: list[Tensor]) -> Tensor:
        return torch.baddbmm(w[3], torch.baddbmm(w[1], x.expand(runs, -1, -1), w[0]).relu(), w[2])

    def matrices(x: Tensor, y: Tensor) -> list[Tensor]:
        return [confusion_matrix(z.argmax(1), y, K) for z in net(x, average)]

    duals = {name: objective.start(K) for name, (objective, _) in TOY.items()}
    gains, kept = {}, dict.fromkeys(TOY, 0.0)
    for step in range(steps):
        if step % 10 == 0:
            for (name, (objective, _)), found in zip(TOY.items(), matrices(val, val_y), strict=True):
                duals[name] = objective.update(duals[name], found)
                gains[name] = objective.gain(duals[name], found).to(torch.float32)
        pick = torch.randint(len(x), (batch,), generator=rng)
        pool = u[torch.randint(len(u), (4 * batch,), generator=rng)]
        weak = pool + 0.1 * noise(*pool.shape)
        strong = (pool + 0.4 * noise(*pool.shape)) * (torch.rand(pool.shape, generator=rng) > 0.15)
        z = net(torch.cat([x[pick] + 0.1 * noise(batch, 16), strong]), params)
        with torch.no_grad():
            probs = net(weak, params).softmax(2)
        loss = torch.zeros(())
        for i, (name, (_, mask)) in enumerate(TOY.items()):
            loss = loss + hybrid_loss(z[i, :batch], y[pick], gains[name]).mean()
            if mask is not None:
                keep = mask(probs[i], gains[name])
                kept[name] += keep.double().mean().item() / steps
                loss = loss + (keep * hybrid_loss(z[i, batch:], probs[i].argmax(1), gains[name])).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch._foreach_lerp_(average, [p.detach() for p in params], 0.03)
    return {
        name: {"min": min_recall(C).item(), "coverage": coverages(C).min().item(), "kept": kept[name]}
        for name, C in zip(TOY, matrices(test, test_y), strict=True)
    }


def test_the_gaussian_toy_orders_the_methods_as_the_spec_does() -> None:
    """Means over seeds 0-3; worst recall there: erm .65, la .89, csl .91, fixmatch .52, csst .95.

    The run is shorter than the spec's, with faster rates and average. On single seeds la may pass csl.
    """
    runs = [toy(seed) for seed in range(4)]
    found = {
        name: {key: sum(run[name][key] for run in runs) / len(runs) for key in ("min", "coverage", "kept")}
        for name in TOY
    }
    worst = {name: values["min"] for name, values in found.items()}
    assert worst["erm"] + 0.1 < min(worst["la"], worst["csl"]) < worst["csst"]
    assert worst["fixmatch"] + 0.2 < worst["csst"]
    reach = {name: values["coverage"] for name, values in found.items()}
    assert max(reach["erm"], reach["fixmatch"]) < reach["csst, coverage"]
    assert found["csst, coverage, no kl"]["kept"] < found["csst, coverage"]["kept"]
