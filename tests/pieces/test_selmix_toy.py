"""Spec 07, section 10b: ten Gaussian classes, imbalance 100, a linear head fine-tuned for one metric or another."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from evenhand.data import longtail_counts
from evenhand.data.pairs import ClassPairs
from evenhand.measure.confusion import confusion_matrix, coverages, h_mean, mean_recall, min_recall
from evenhand.pieces.selmix import pair_gain
from evenhand.pieces.selmix_objectives import smoothed, soft_min_recall, under_coverage
from evenhand.pieces.selmix_policies import next_distribution

K, D = 10, 32
AIMS = {"mean": mean_recall, "min": soft_min_recall, "coverage": under_coverage(mean_recall)}


def drawn(counts: list[int], centres: Tensor, chance: torch.Generator) -> tuple[Tensor, Tensor]:
    y = torch.repeat_interleave(torch.arange(K), torch.tensor(counts))
    return centres[y] + torch.randn(len(y), D, generator=chance), y


@cache
def result(aim: str, policy: str) -> dict[str, float]:
    """Test metrics after 40 cycles of 25 steps from a head trained as the data are."""
    chance = torch.Generator().manual_seed(0)
    centres = 2.2 * normalize(torch.randn(K, D, generator=chance))
    x, y = drawn(longtail_counts(500, K, 100), centres, chance)
    (val_x, val_y), (test_x, test_y) = (drawn([n] * K, centres, chance) for n in (100, 300))
    head = nn.utils.skip_init(nn.Linear, D, K)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.5)
    for _ in range(200):
        optimizer.zero_grad()
        cross_entropy(head(x), y).backward()
        optimizer.step()
    optimizer, past = torch.optim.SGD(head.parameters(), lr=0.05), torch.zeros(K, K, dtype=torch.float64)
    means = torch.stack([val_x[val_y == k].mean(0) for k in range(K)])
    for cycle in range(40 if policy else 0):
        C = smoothed(confusion_matrix(head(val_x).argmax(1), val_y, K), len(val_y))
        gain = pair_gain(AIMS[aim], C, means, head.weight, bias=head.bias)
        P, past = next_distribution(policy, gain, past, scale=10.0, relative=aim != "mean")  # type: ignore[arg-type]
        pairs = ClassPairs(P, y, y, batch=64, seed=0)
        for step in range(25 * cycle, 25 * (cycle + 1)):
            i, j = pairs.batch(step).T
            keep = 0.6 + 0.4 * torch.rand(64, 1, generator=chance)
            optimizer.zero_grad()
            cross_entropy(head(keep * x[i] + (1 - keep) * x[j]), y[i]).backward()
            optimizer.step()
    C = confusion_matrix(head(test_x).argmax(1), test_y, K)
    found = {"mean": mean_recall(C), "min": min_recall(C), "h": h_mean(C), "coverage": coverages(C).min()}
    return {name: float(value) for name, value in found.items()}


def test_uniform_pairs_help_and_selmix_helps_more() -> None:
    before, even, worst = result("mean", ""), result("mean", "uniform"), result("min", "selmix")
    assert before["min"] < 0.2 < even["min"]
    assert worst["min"] > even["min"] + 0.05
    assert worst["h"] > even["h"]
    assert worst["mean"] > even["mean"] - 0.02


def test_coverage_floors_raise_the_least_coverage() -> None:
    assert result("coverage", "selmix")["coverage"] > result("mean", "uniform")["coverage"] + 0.01


def test_greedy_pairs_ruin_mean_recall() -> None:
    greedy, ours = result("mean", "greedy"), result("mean", "selmix")
    assert ours["mean"] > greedy["mean"] + 0.02
    assert greedy["min"] < 0.1 < ours["min"]
