"""Long-tailed, semi-supervised and held-out splits by a stated rule, and head/mid/tail groups.

The rule. The members of a class are taken in ascending index order; the j-th has the 64-bit key
``scramble(mix(seed, purpose, class) + j)`` (splitmix64, see samplers.py), and ascending keys order the
class. A split takes from the front of that order (unlabelled data: from the back). So it depends only on
labels and seed, a smaller count gives a subset of a larger one's, and no class depends on another's count.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from evenhand.data.samplers import Labels
from evenhand.errors import did_you_mean
from evenhand.given import as_tensor, numbers
from evenhand.randomness import mix, scramble

Counts = Sequence[int] | np.ndarray | Tensor
Groups = list[tuple[str, list[int]]]


def longtail_counts(n_max: int, num_classes: int, imbalance: float, kind: str = "exp") -> list[int]:
    """Samples per class, most frequent first, from ``n_max`` down to ``n_max / imbalance``, rounded down.

    "exp": n_i = floor(n_max * imbalance ** (-i / (K - 1))); "step": the first half (of an odd K the larger)
    has n_max, the rest floor(n_max / imbalance). An imbalance below 1 inverts the profile: rarest first.

    >>> longtail_counts(5000, 10, 100)
    [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    """
    K = num_classes
    if K < 1 or int(K) != K or n_max < 1 or not 0 < imbalance < math.inf:
        raise ValueError(f"n_max {n_max}, num_classes {K} (a whole number) and imbalance {imbalance} must be positive")
    if imbalance < 1:
        if n_max * imbalance < 1 - 1e-9:
            raise ValueError(f"imbalance {imbalance:g} leaves classes empty: n_max {n_max} is the last class's count")
        return longtail_counts(n_max, K, 1 / imbalance, kind)[::-1]
    K = int(K)
    if kind == "exp":
        sizes = [n_max * imbalance ** (-i / max(K - 1, 1)) for i in range(K)]
    elif kind == "step":
        sizes = [n_max] * (K - K // 2) + [n_max / imbalance] * (K // 2)
    else:
        raise ValueError(f"kind '{kind}' of long tail is unknown; use 'exp' or 'step'")
    counts = [math.floor(size * (1 + 1e-12)) for size in sizes]  # 49.999... of rounding error is 50
    if counts[-1] < 1:
        raise ValueError(f"imbalance {imbalance:g} leaves classes empty at n_max {n_max}; use at most {n_max}")
    return counts


def unlabelled_counts(m_max: int, num_classes: int, imbalance: float, kind: str = "equal") -> list[int]:
    """Profile of unlabelled data: like the labelled ("equal"), flat ("uniform") or reversed ("inverted")."""
    ratios = {"equal": imbalance, "uniform": 1.0, "inverted": 1 / imbalance}
    if kind not in ratios:
        raise ValueError(f"kind '{kind}' of unlabelled profile is unknown; {did_you_mean(kind, ratios)}")
    return longtail_counts(m_max, num_classes, ratios[kind])


def class_order(
    order: str | Sequence[int | str],
    num_classes: int,
    classes: Sequence[str] = (),
    counts: Counts | None = None,
) -> list[int]:
    """The rank of each class in a long-tail profile, 0 = most frequent.

    ``order`` is "index", "reversed", "counts" (by the available ``counts``, largest first) or the classes
    themselves, by name or index, most frequent first. The profile of the split is then
    ``[profile[rank] for rank in class_order(...)]``.

    >>> class_order(["cat", "dog", "ant"], 3, ["ant", "cat", "dog"])
    [2, 0, 1]
    """
    if order == "index":
        listed = list(range(num_classes))
    elif order == "reversed":
        listed = list(range(num_classes))[::-1]
    elif order == "counts" and counts is not None:
        listed = _descending(counts)
    elif isinstance(order, str):
        raise ValueError(f"class order '{order}' is unknown; use 'index', 'reversed', 'counts' or a list")
    else:
        names = {name: i for i, name in enumerate(classes)}
        for name in order:
            if isinstance(name, str) and name not in names:
                raise ValueError(f"class order: no class is called '{name}'; {did_you_mean(name, names)}")
        listed = [names[c] if isinstance(c, str) else int(c) for c in order]
    if sorted(listed) != list(range(num_classes)):
        raise ValueError(f"class order must name each of the {num_classes} classes once, got {len(listed)}: {order}")
    ranks = [0] * num_classes
    for rank, k in enumerate(listed):
        ranks[k] = rank
    return ranks


def longtail_subset(labels: Labels, counts: Counts, seed: int, classes: Sequence[str] = ()) -> Tensor:
    """Indices of ``counts[k]`` samples of each class k, sorted; by the rule at the top of this file.

    ``classes`` are the names that errors use.
    """
    orders = class_orders(labels, len(counts), seed, "subset")
    return _front(orders, _enough(orders, counts, "asked for", classes))


def balanced_holdout(labels: Labels, per_class: int, seed: int, num_classes: int) -> tuple[Tensor, Tensor]:
    """(train, validation) indices, sorted and disjoint; validation has ``per_class`` samples of every class.

    Carve it from the full training set, before the long tail is cut; at least one sample per class stays.
    """
    orders = class_orders(labels, num_classes, seed, "holdout")
    _enough(orders, [per_class + 1] * num_classes, "needed (held out and one to train on)")
    return _front([o[per_class:] for o in orders]), _front(orders, [per_class] * num_classes)


def stratified_holdout(labels: Labels, share: float, seed: int, num_classes: int) -> tuple[Tensor, Tensor]:
    """(train, held-out) indices, sorted and disjoint; ``ceil(share N)`` are held out, of each class its share of them.

    Fractions of samples go to the classes with the largest ones, lowest index first. A class of one sample or two may
    have none held out, or all.
    """
    orders = class_orders(labels, num_classes, seed, "stratified")
    sizes = [len(order) for order in orders]
    total = math.ceil(share * sum(sizes) - 1e-9)
    exact = [total * size / max(1, sum(sizes)) for size in sizes]
    counts = [math.floor(n + 1e-9) for n in exact]
    by_rest = sorted(range(num_classes), key=lambda k: (-round(exact[k] - counts[k], 9), k))
    for k in by_rest[: total - sum(counts)]:
        counts[k] += 1
    return _front([o[n:] for o, n in zip(orders, counts, strict=True)]), _front(orders, counts)


def semi_supervised_split(
    labels: Labels, labelled_counts: Counts, unlabelled_counts: Counts, seed: int
) -> tuple[Tensor, Tensor]:
    """(labelled, unlabelled) indices, sorted and disjoint: the front and the back of each class's order."""
    orders = class_orders(labels, len(labelled_counts), seed, "semi")
    if len(unlabelled_counts) != len(labelled_counts):
        K, K_u = len(labelled_counts), len(unlabelled_counts)
        raise ValueError(f"{K} labelled but {K_u} unlabelled counts; give one per class")
    both = [int(n) + int(m) for n, m in zip(labelled_counts, unlabelled_counts, strict=True)]
    _enough(orders, both, "asked for (labelled and unlabelled)")
    backwards = [o.flip(0) for o in orders]
    return _front(orders, _ints(labelled_counts)), _front(backwards, _ints(unlabelled_counts))


def split_digest(indices: Labels) -> str:
    """First 16 hex digits of the sha256 of the indices as little-endian int64, in the order given."""
    array = as_tensor(indices, dtype=torch.int64).numpy()
    return hashlib.sha256(array.astype("<i8").tobytes()).hexdigest()[:16]


def head_mid_tail(counts: Counts, rule: str = "thirds") -> Groups:
    """Groups of classes in descending order of count (ties: lower index first); empty ones are left out.

    "thirds": round(K/3) / the rest / round(K/3), so 3/4/3 of 10. "3/4/3": that many classes (two numbers:
    head and tail; the papers have 36/35/29 of CIFAR-100). "shots:100,20": head has more than 100 samples,
    tail fewer than 20. "halves": for step splits, the middle of an odd K being head.

    >>> head_mid_tail([50, 5, 20], "1/1/1")
    [('head', [0]), ('mid', [2]), ('tail', [1])]
    """
    ranked, K = _descending(counts), len(counts)
    n = _ints(counts)
    try:
        if rule == "thirds":
            sizes = [round(K / 3), K - 2 * round(K / 3), round(K / 3)]
        elif rule == "halves":
            sizes = [K - K // 2, K // 2]
        elif rule.startswith("shots:"):
            many, few = (int(part) for part in rule.removeprefix("shots:").split(","))
            head, tail = sum(c > many for c in n), sum(c < few for c in n)
            sizes = [head, K - head - tail, tail]
        else:
            sizes = [int(part) for part in rule.split("/")]
    except ValueError:
        sizes = []
    if len(sizes) not in (2, 3) or sum(sizes) != K or min(sizes) < 0:
        raise ValueError(
            f"groups '{rule}' do not fit {K} classes; "
            f"use 'thirds', 'halves', 'shots:100,20' or sizes such as '3/4/3' that sum to {K}"
        )
    names = ("head", "tail") if len(sizes) == 2 else ("head", "mid", "tail")
    ends = np.cumsum(sizes).tolist()
    groups = [(name, ranked[end - size : end]) for name, size, end in zip(names, sizes, ends, strict=True)]
    return [(name, members) for name, members in groups if members]


def _ints(counts: Counts) -> list[int]:
    given = numbers(counts).tolist()
    if broken := [c for c in given if int(c) != c or c < 0]:
        raise ValueError(f"counts hold {broken[0]}: expected whole numbers of samples, at least 0")
    return [int(c) for c in given]


def _descending(counts: Counts) -> list[int]:
    n = _ints(counts)
    return sorted(range(len(n)), key=lambda k: -n[k])


def class_orders(labels: Labels, num_classes: int, seed: int, purpose: str) -> list[Tensor]:
    """Per class its sample indices in the stated order."""
    y = as_tensor(labels)
    if y.ndim != 1 or (y.is_floating_point() and len(y)):
        raise ValueError(f"labels of shape {tuple(y.shape)} and type {y.dtype}: expected (N,) class indices")
    y = y.long()
    outside = (y < 0) | (y >= num_classes)
    if outside.any():
        at = int(outside.nonzero()[0])
        raise ValueError(f"label {int(y[at])} of sample {at} is outside 0..{num_classes - 1}; renumber the labels")
    by_class = y.argsort(stable=True).split(torch.bincount(y, minlength=num_classes).tolist())
    orders = []
    for k, members in enumerate(by_class):
        keys = scramble(np.uint64(mix(seed, purpose, k)) + np.arange(len(members), dtype=np.uint64))
        orders.append(members[torch.from_numpy(keys.argsort(kind="stable"))])
    return orders


def _enough(orders: list[Tensor], counts: Counts, why: str, classes: Sequence[str] = ()) -> list[int]:
    wanted = _ints(counts)
    for k, (order, count) in enumerate(zip(orders, wanted, strict=True)):
        if not 0 <= count <= len(order):
            name = f"'{classes[k]}'" if classes else k
            raise ValueError(f"class {name} has {len(order)} samples but {count} are {why}; lower the count")
    return wanted


def _front(orders: list[Tensor], counts: list[int] | None = None) -> Tensor:
    parts = orders if counts is None else [o[:n] for o, n in zip(orders, counts, strict=True)]
    return torch.cat(parts).sort().values
