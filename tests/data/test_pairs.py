"""Class pairs: frequencies, empty classes, and the same pairs for every process and every resumption."""

from __future__ import annotations

import pickle

import pytest
import torch

from evenhand.data import ClassPairs
from evenhand.data.loader import Picks
from evenhand.data.samplers import Weighted
from evenhand.randomness import dice

P = torch.tensor([[0.1, 0.2, 0.0], [0.3, 0.0, 0.1], [0.05, 0.05, 0.2]], dtype=torch.float64)
LABELS = torch.tensor([0] * 6 + [1] * 3 + [2])
PARTNERS = torch.tensor([2, 1, 0, -1, 1, 1, 2, -1])


def test_pair_frequencies_are_the_distribution() -> None:
    """Spec 10a.13: 10^5 draws within binomial error, and samples of a class alike."""
    draws = 100_000
    first, second = ClassPairs(P, LABELS, PARTNERS, batch=draws, seed=0).batch(0).unbind(1)
    seen = torch.zeros(3, 3, dtype=torch.float64)
    seen.index_put_((LABELS[first], PARTNERS[second]), torch.ones(draws, dtype=torch.float64), accumulate=True)
    error = (P * (1 - P) / draws).sqrt()
    assert ((seen / draws - P).abs() <= 4.5 * error).all()
    within = torch.bincount(first, minlength=10)[:6] / (LABELS[first] == 0).sum()
    assert ((within - 1 / 6).abs() < 4.5 * (1 / 6 * 5 / 6 / (0.3 * draws)) ** 0.5).all()
    assert not (PARTNERS[second] < 0).any()


def test_a_class_without_samples_is_never_drawn() -> None:
    nobody = torch.tensor([0, 0, 2])  # no partner of class 1
    first, second = ClassPairs(P, LABELS, nobody, batch=20_000, seed=0).batch(3).unbind(1)
    share = float(((LABELS[first] == 1) & (nobody[second] == 0)).double().mean())
    assert share == pytest.approx(0.3 / 0.75, abs=0.02)
    only = torch.zeros(3, 3)
    only[0, 1] = 1.0  # all it asks for is empty
    first, second = ClassPairs(only, LABELS, nobody, batch=6_000, seed=0).batch(3).unbind(1)
    pairs, counts = (LABELS[first] * 3 + nobody[second]).unique(return_counts=True)
    assert pairs.tolist() == [0, 2, 3, 5, 6, 8]
    assert (counts > 800).all()


def test_pairs_are_a_function_of_seed_and_step() -> None:
    whole = ClassPairs(P, LABELS, PARTNERS, batch=8, seed=1)
    again = pickle.loads(pickle.dumps(ClassPairs(P, LABELS, PARTNERS, batch=8, seed=1)))
    assert torch.equal(whole.batch(5), again.batch(5))
    assert not torch.equal(whole.batch(5), whole.batch(6))
    assert not torch.equal(whole.batch(5), ClassPairs(P, LABELS, PARTNERS, batch=8, seed=2).batch(5))
    halves = [ClassPairs(P, LABELS, PARTNERS, batch=8, seed=1, rank=r, world=2).batch(5) for r in (0, 1)]
    assert torch.equal(torch.cat(halves), whole.batch(5))


def test_sides_feed_two_streams() -> None:
    pairs = ClassPairs(P, LABELS, PARTNERS, batch=8, seed=1, steps_per_epoch=50)
    sides: list[Picks] = [pairs.side(0), pairs.side(1)]
    assert torch.equal(torch.stack([side.batch(4) for side in sides], 1), pairs.batch(4))
    assert [side.steps_per_epoch for side in sides] == [50, 50]


def test_bad_pairs_say_what_to_do() -> None:
    for call, said in (
        (lambda: ClassPairs(P[:2], LABELS, PARTNERS, 8, 0), r"distribution of shape \(2, 3\)"),
        (lambda: ClassPairs(-P, LABELS, PARTNERS, 8, 0), "distribution must be finite and at least 0"),
        (lambda: ClassPairs(P, LABELS + 1, PARTNERS, 8, 0), r"labels must lie in 0\.\.2"),
        (lambda: ClassPairs(P, LABELS, [-1, -1], 8, 0), "partners must lie in .* not all be -1"),
        (lambda: ClassPairs(P, [], PARTNERS, 8, 0), "labels must lie"),
        (lambda: pairs_side(2), "side 2: a pair has sides 0 and 1"),
    ):
        with pytest.raises(ValueError, match=said):
            call()


def pairs_side(which: int) -> None:
    ClassPairs(P, LABELS, PARTNERS, 8, 0).side(which)


def test_pairs_are_drawn_literally() -> None:
    """A pair of classes by the distribution, then one sample of each, by their place among those of the class."""
    pairs = ClassPairs(P, LABELS, PARTNERS, batch=40, seed=3)
    chosen = Weighted(P.flatten(), 40, 3).joint(5)
    draw = torch.rand(2, 40, dtype=torch.float64, generator=dice(3, "pairs", 5))
    ours, theirs = ([(labels == k).nonzero()[:, 0] for k in range(3)] for labels in (LABELS, PARTNERS))
    want = []
    for pair, one, other in zip(chosen.tolist(), *draw.tolist(), strict=True):
        a, b = ours[pair // 3], theirs[pair % 3]
        want.append([int(a[int(one * len(a))]), int(b[int(other * len(b))])])
    assert pairs.batch(5).tolist() == want
    assert pairs.side(1).batch(5).tolist() == [b for _, b in want]
    assert pairs.both().batch(5).tolist() == [a for a, _ in want] + [b for _, b in want]
    assert [ClassPairs(P, LABELS, PARTNERS, batch=n, seed=3).steps_per_epoch for n in (3, 10, 11)] == [3, 1, 1]
    assert ClassPairs(P, LABELS, PARTNERS, batch=3, seed=3, steps_per_epoch=8).both().steps_per_epoch == 8
    half = ClassPairs(P, LABELS, PARTNERS, batch=40, seed=3, rank=1, world=2)
    assert half.batch(5).tolist() == want[20:]
    for bad in ([3, 0], [-2, 0], [-1, -1]):
        with pytest.raises(ValueError, match=r"labels must lie in 0\.\.2"):
            ClassPairs(P, bad, PARTNERS, batch=3, seed=0)
    with pytest.raises(ValueError, match="sides 0 and 1"):
        pairs.side(2)
