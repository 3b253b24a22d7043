"""Lists and arrays wherever labels, counts, priors or scores are asked for; what is no argument says so."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from evenhand.data import longtail_counts, longtail_subset
from evenhand.measure.confusion import confusion_matrix, group_mean_recall, recalls
from evenhand.measure.detection import average_precision
from evenhand.measure.generative import fid, frechet_distance, precision_recall
from evenhand.nets.stylegan2 import Discriminator, Generator
from evenhand.pieces import selection as select
from evenhand.pieces.balance import EffectiveFrequency, balance_loss
from evenhand.pieces.cost_sensitive import hybrid_loss, kl_mask, min_recall_gain
from evenhand.pieces.domain import entropy_weights, mcc_loss, reverse_gradient
from evenhand.pieces.losses import (
    class_balanced_weights,
    deferred_weights,
    focal_loss,
    ldam_loss,
    logit_adjusted_loss,
    vs_loss,
)
from evenhand.pieces.sam import SAM
from evenhand.pieces.submodular import submodular_select, vap_score
from evenhand.pieces.twins import noise_scale, twins_loss
from evenhand.pieces.vat import adversarial_direction, vat_loss
from evenhand.run import load_recipe
from helpers import seeded

LOGITS = torch.randn(6, 3, generator=seeded(0), dtype=torch.float64)
Y = torch.tensor([0, 1, 2, 2, 1, 0])
COUNTS, PRIORS = [500, 50, 5], [0.6, 0.3, 0.1]


@pytest.mark.parametrize("kind", [list, np.array], ids=["lists", "arrays"])
@pytest.mark.parametrize(
    "loss",
    [
        lambda z, y, k: ldam_loss(z, y, k(COUNTS)),
        lambda z, y, k: vs_loss(z, y, k(COUNTS)),
        lambda z, y, k: focal_loss(z, y, weight=k(PRIORS)),
        lambda z, y, k: logit_adjusted_loss(z, y, k(PRIORS)),
    ],
)
def test_losses(loss: Callable[..., torch.Tensor], kind: Callable[[Any], Any]) -> None:
    wanted = loss(LOGITS, Y, lambda values: torch.tensor(values, dtype=torch.float64))
    torch.testing.assert_close(loss(LOGITS, kind(Y.tolist()), kind), wanted, rtol=1e-14, atol=0)


def test_floats_of_a_list_keep_their_digits() -> None:
    exact = F.cross_entropy(LOGITS + torch.tensor(PRIORS, dtype=torch.float64).log(), Y)
    torch.testing.assert_close(logit_adjusted_loss(LOGITS, Y, PRIORS), exact, rtol=1e-15, atol=0)
    p = torch.tensor(PRIORS, dtype=torch.float64)
    torch.testing.assert_close(balance_loss(p, PRIORS), p.log().sum(), rtol=1e-14, atol=0)
    assert class_balanced_weights([5.0, 50.0]).dtype == torch.float32
    assert class_balanced_weights(np.array([5.0, 50.0])).dtype == torch.float64


@pytest.mark.parametrize("kind", [np.asarray, lambda x: np.asarray(x).tolist()], ids=["arrays", "lists"])
def test_selectors(kind: Callable[[Any], Any]) -> None:
    probs, features, scores = LOGITS.softmax(1), LOGITS[:, :2] ** 2, LOGITS[:, 0]
    calls: list[Callable[[Callable[[Any], Any]], list[int]]] = [
        lambda k: select.entropy_select(k(probs), 3),
        lambda k: select.margin_select(k(probs), 3),
        lambda k: select.confidence_select(k(probs), 3),
        lambda k: select.coreset_select(k(features), 3, labelled=k(features[:1])),
        lambda k: select.badge_select(k(probs), k(features), 3, generator=seeded(1)),
        lambda k: select.aada_select(k(probs), k(scores), 3),
        lambda k: select.clue_select(k(probs), k(features), 3, temperature=1.0, generator=seeded(1)),
        lambda k: submodular_select(k(probs), k(scores.exp()), 3),
    ]
    for call in calls:
        assert call(kind) == call(lambda x: x)


def test_labels_of_generators_and_frequencies() -> None:
    generator, z = Generator(8, 3, 5, base=64, widest=8, latent=4, style=4), torch.randn(2, 4, generator=seeded(0))
    assert torch.equal(generator(z, [0, 4]), generator(z, torch.tensor([0, 4])))
    critic, x = Discriminator(8, 3, 5, base=64, widest=8), torch.randn(2, 3, 8, 8, generator=seeded(1))
    assert torch.equal(critic(x, np.array([1, 3])), critic(x, torch.tensor([1, 3])))
    seen = EffectiveFrequency(3)
    for labels in ([0, 2], np.array([2]), torch.tensor([2], dtype=torch.uint8)):
        seen.count(labels)
    assert seen.counts.tolist() == [1, 0, 3]


def test_perturbations_of_any_function() -> None:
    """A function of x is treated as the layer that computes it."""
    layer = torch.nn.Linear(6, 3, bias=False)
    x = torch.randn(4, 6, generator=seeded(2))
    for measure in (adversarial_direction, vat_loss, vap_score):
        found, wanted = (
            measure(model, x, epsilon=1.0, xi=0.1, generator=seeded(3))
            for model in (lambda x: x @ layer.weight.T, layer)
        )
        torch.testing.assert_close(found, wanted)


BACKWARDS = np.array([5, 50, 500])[::-1]  # a view that torch cannot wrap
WIDE = Y.numpy().astype(np.uint16)  # a type that torch hardly knows


@pytest.mark.parametrize(
    ("call", "plain"),
    [
        (lambda: class_balanced_weights(BACKWARDS), lambda: class_balanced_weights(np.array(COUNTS))),
        (lambda: noise_scale(BACKWARDS, 0.5, 0.9), lambda: noise_scale(COUNTS, 0.5, 0.9)),
        (lambda: vs_loss(LOGITS, WIDE, BACKWARDS), lambda: vs_loss(LOGITS, Y, COUNTS)),
        (lambda: focal_loss(LOGITS, WIDE[::-1]), lambda: focal_loss(LOGITS, Y.flip(0))),
        (lambda: confusion_matrix(WIDE[::-1], WIDE, 3), lambda: confusion_matrix(Y.flip(0), Y, 3)),
        (lambda: hybrid_loss(LOGITS, WIDE, torch.eye(3)), lambda: hybrid_loss(LOGITS, Y, torch.eye(3))),
        (
            lambda: min_recall_gain(PRIORS, np.array([1, 1, 1], np.uint16)),
            lambda: min_recall_gain(PRIORS, np.array([1, 1, 1])),
        ),
        (
            lambda: balance_loss(PRIORS, BACKWARDS),
            lambda: balance_loss(torch.as_tensor(np.array(PRIORS)), COUNTS),
        ),
        (lambda: longtail_subset(WIDE[::-1], [1, 1, 1], 0), lambda: longtail_subset(Y.flip(0), [1, 1, 1], 0)),
        (lambda: fid(LOGITS.numpy()[::-1], LOGITS[:4]), lambda: fid(LOGITS.flip(0), LOGITS[:4])),
        (
            lambda: torch.tensor(precision_recall(np.arange(6)[:, None], np.arange(1, 7)[:, None], k=1)),
            lambda: torch.tensor(precision_recall(torch.arange(6.0)[:, None], torch.arange(1.0, 7)[:, None], k=1)),
        ),
    ],
)
def test_arrays_that_torch_cannot_wrap(call: Callable[[], Any], plain: Callable[[], Any]) -> None:
    torch.testing.assert_close(call(), plain(), rtol=1e-9, atol=1e-12)


def test_seeds_of_any_integer_type() -> None:
    wanted = longtail_subset(Y, [1, 1, 1], 3)
    for seed in (np.int64(3), np.uint8(3), torch.tensor(3), np.array(3)):
        assert torch.equal(longtail_subset(Y, [1, 1, 1], seed), wanted)
    assert any(not torch.equal(longtail_subset(Y, [1, 1, 1], seed), wanted) for seed in range(8))


def test_confusion_matrices_and_groups_of_any_kind() -> None:
    C = np.array([[0.4, 0.1], [0.3, 0.2]])
    assert recalls(C).tolist() == [0.8, 0.4]
    assert group_mean_recall(C, [torch.tensor([0, 1]), np.array([1])]).tolist() == pytest.approx([0.6, 0.4])


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: ldam_loss(LOGITS, Y, COUNTS, max_margin=-1), "max_margin=-1"),
        (lambda: ldam_loss(LOGITS, Y, COUNTS, scale=0), "scale=0"),
        (lambda: focal_loss(LOGITS, Y, gamma=-1), "gamma=-1: must be at least 0"),
        (lambda: class_balanced_weights([]), r"counts of shape \(0,\)"),
        (lambda: class_balanced_weights([1, math.inf]), r"counts\[1\]=inf"),
        (lambda: deferred_weights(COUNTS, 0, 5, beta=1.5), "beta=1.5 is outside"),
        (lambda: twins_loss(LOGITS, LOGITS, off_diagonal=-1), "off_diagonal=-1"),
        (lambda: SAM(torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1), rho=math.inf), "rho=inf"),
        (lambda: reverse_gradient(LOGITS, math.nan), "coefficient=nan: must be finite"),
        (lambda: mcc_loss(LOGITS[:0]), r"logits of shape \(0, 3\): expected \(N, K\)"),
        (lambda: mcc_loss(LOGITS[0]), r"logits of shape \(3,\)"),
        (lambda: longtail_subset([0, 0, 1], [1.5, 1], 0), "counts hold 1.5: expected whole numbers"),
        (lambda: average_precision([], [], 0), "num_classes=0"),
        (
            lambda: average_precision([([[5, 5, 1, 1]], [0.5], [0])], [(np.zeros((0, 4)), [])], 1),
            r"detections\[0\] holds a box with swapped corners",
        ),
        (lambda: group_mean_recall(torch.eye(2) / 2, []), "groups is empty"),
        (lambda: EffectiveFrequency(3).load_state_dict({"counts": torch.zeros(3)}), "has no 'frequency'"),
        (lambda: frechet_distance([0.0], [[-1.0]], [0.0], [[1.0]]), "cov_a is no covariance"),
        (lambda: frechet_distance([0.0] * 2, np.eye(2), [0.0] * 2, [[1.0, 0.5], [0.0, 1.0]]), "cov_b is no covariance"),
        (lambda: Generator(8, 0, 0), "channels=0"),
        (lambda: Generator(8, 3, 0, mapping_layers=0), "0 mapping layers"),
        (lambda: Generator(8, 3, -1), "num_classes=-1"),
        (lambda: Generator(8, 3, 2, base=64, latent=4)(torch.zeros(1, 4), [2]), "labels hold 2: .* from 0 to 1"),
        (lambda: Generator(8, 3, 2, base=64, latent=4)(torch.zeros(2, 4), [1]), r"labels of shape \(1,\)"),
        (lambda: Generator(8, 3, 2, base=64, latent=4)(torch.zeros(1, 5), [1]), r"z has shape \(1, 5\)"),
        (lambda: frechet_distance([0.0] * 2, [[1.0, 5.0], [5.0, 1.0]], [0.0] * 2, np.eye(2)), "cov_a is no covariance"),
        (lambda: frechet_distance([0.0], [[1.0]], [math.nan], [[1.0]]), "mean_b holds nan or inf"),
        (lambda: longtail_subset([0.5, 1.7], [1, 1], 0), r"labels of shape \(2,\) and type torch.float32: expected"),
        (lambda: longtail_subset([[0], [1]], [1, 1], 0), r"labels of shape \(2, 1\)"),
        (lambda: longtail_subset([0, 1], [-1, 1], 0), "counts hold -1: expected whole numbers of samples, at least 0"),
        (lambda: longtail_subset([0, 1], [1, 1], 1.5), "seed 1.5 is no whole number"),
        (lambda: longtail_counts(50, 2.5, 10), r"num_classes 2.5 \(a whole number\)"),
        (lambda: longtail_counts(30, 10, 0.01), "imbalance 0.01 leaves classes empty: n_max 30 is the last class's"),
        (lambda: vs_loss(LOGITS, Y, COUNTS, tau=math.nan), "tau=nan: use a finite number"),
        (lambda: vs_loss(LOGITS, Y, COUNTS, gamma=math.inf), "gamma=inf: use a finite number"),
        (lambda: logit_adjusted_loss(LOGITS, Y, PRIORS, tau=math.inf), "tau=inf: use a finite number"),
        (lambda: entropy_weights(LOGITS[0].softmax(0)), r"probs of shape \(3,\): expected \(N, K\)"),
        (lambda: kl_mask(LOGITS[0].softmax(0), torch.eye(3), 0.1), r"probs of shape \(3,\): expected \(N, K\)"),
        (lambda: adversarial_direction(torch.nn.Identity(), LOGITS, epsilon=math.inf), "epsilon=inf"),
        (lambda: adversarial_direction(torch.nn.Identity(), LOGITS[0], epsilon=1.0), r"x of shape \(3,\)"),
        (lambda: vat_loss(lambda x: x.sum(1), LOGITS, epsilon=1.0), r"model returned shape \(6,\): expected logits"),
        (lambda: load_recipe("folder", "run.epochs=5"), "is one text: give a list"),
    ],
)
def test_what_is_no_argument_is_named(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        call()
