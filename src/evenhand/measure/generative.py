"""How good a generator is, from features of real images and of its own: pure functions of (N, d) matrices.

Everything is computed in float64 whatever the features are. Scores depend on the features and on the number of
samples, so ``measure_generator`` returns both beside the numbers.

>>> real = torch.randn(500, 8, generator=torch.Generator().manual_seed(0))
>>> round(float(fid(real, real + 1)), 6)  # a shift by 1 in each of 8 dimensions
8.0
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from evenhand.given import as_tensor
from evenhand.measure.frechet import fid, frechet_distance
from evenhand.measure.manifold import (
    as_features,
    density_coverage,
    manifold_scores,
    precision_recall,
    same_dimensions,
)

__all__ = [
    "KID",
    "ClassFID",
    "class_fid",
    "density_coverage",
    "fid",
    "frechet_distance",
    "inception_score",
    "kid",
    "label_kl",
    "measure_generator",
    "precision_recall",
]

TINY = 100


class KID(NamedTuple):
    """Mean and standard deviation over subsets."""

    mean: Tensor
    std: Tensor


@dataclass(frozen=True)
class ClassFID:
    """FID of one class; ``flag`` says why ``value`` is missing or not to be trusted, empty if neither."""

    label: int
    value: float | None
    real: int
    fake: int
    flag: str = ""


def class_fid(
    real: Any, fake: Any, real_labels: Any, fake_labels: Any, num_classes: int, *, tiny: int = TINY
) -> list[ClassFID]:
    """FID of each class between its real and its generated samples; under ``tiny`` samples it is flagged.

    FID falls as samples are added, so values of classes of different counts do not compare; one sample gives a
    number without a covariance, and none gives no number.
    """
    real, fake = as_features(real, "real"), as_features(fake, "fake")
    real_labels = _labels(real_labels, len(real), num_classes, "real_labels")
    fake_labels = _labels(fake_labels, len(fake), num_classes, "fake_labels")
    scores = []
    for label in range(num_classes):
        ours, theirs = real[real_labels == label], fake[fake_labels == label]
        counts = {"reference": len(ours), "generated": len(theirs)}
        flag = ", ".join(f"{name}: {n} samples" for name, n in counts.items() if n < tiny)
        value = float(fid(ours, theirs)) if min(counts.values()) else None
        scores.append(ClassFID(label, value, len(ours), len(theirs), flag))
    return scores


def kid(
    features_a: Any,
    features_b: Any,
    *,
    subsets: int = 100,
    subset_size: int = 1000,
    generator: torch.Generator | None = None,
) -> KID:
    """Squared MMD with the kernel ``(x.y / d + 1)^3``, unbiased, over random subsets drawn without replacement.

    Unlike FID its expectation does not depend on the number of samples; it may be negative. A ``subset_size`` above
    the smaller set is that set's size. Without a generator the subsets are those of seed 0.
    """
    a, b = as_features(features_a, "features_a"), as_features(features_b, "features_b")
    same_dimensions(a, b)
    size = min(subset_size, len(a), len(b))
    if size < 2 or subsets < 1:
        raise ValueError(f"kid needs subsets >= 1 of at least 2 samples, got {subsets} of {size}; add samples")
    generator = generator or torch.Generator().manual_seed(0)
    values = []
    for _ in range(subsets):
        x, y = (_some(s, size, generator).double() for s in (a, b))
        within = sum(k.sum() - k.trace() for k in (_kernel(x, x), _kernel(y, y)))
        values.append(within / (size * (size - 1)) - 2 * _kernel(x, y).mean())
    scores = torch.stack(values)
    return KID(scores.mean(), scores.std(correction=0))


def inception_score(probs: Any, *, splits: int = 1) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation over splits of ``exp E KL(p(y|x) || p(y))``; probs (N, K), rows sum to 1.

    1 where all predictions are alike, K where they are sure and even. Only with Inception's own classes is it *the*
    Inception Score.
    """
    probs = as_features(probs, "probs").double()
    if not 1 <= splits <= len(probs):
        raise ValueError(f"splits is {splits}: expected 1 to {len(probs)}, the number of samples")
    if float(probs.min()) < 0 or float((probs.sum(1) - 1).abs().max()) > 1e-3:
        raise ValueError("probs has rows that are not probabilities; take softmax(1) of the logits first")
    scores = []
    for part in probs.tensor_split(splits):
        mean = part.mean(0)
        terms = torch.xlogy(part, part) - torch.xlogy(part, mean)  # 0 where p(y|x) is 0
        scores.append(terms.sum(1).mean().exp())
    values = torch.stack(scores)
    return values.mean(), values.std(correction=0)


def label_kl(labels: Any, num_classes: int) -> Tensor:
    """``sum_k q_k log(K q_k)``: from 0, every class equally often, to log K, one class only."""
    labels = _labels(labels, len(labels), num_classes, "labels")
    shares = torch.bincount(labels, minlength=num_classes).double() / len(labels)
    return torch.xlogy(shares, num_classes * shares).sum().clamp(min=0)


def measure_generator(
    real: Any,
    fake: Any,
    real_labels: Any = None,
    fake_labels: Any = None,
    *,
    num_classes: int | None = None,
    fake_logits: Tensor | None = None,
    inception_logits: Tensor | None = None,
    features: str,
    resize: str,
    reference: str,
    k: int = 5,
    manifold_samples: int = 10_000,
    subsets: int = 100,
    tiny: int = TINY,
    generator: torch.Generator | None = None,
) -> dict[str, Any]:
    """Every score that the given sets allow, as plain values, beside what they depend on; None where impossible.

    real, fake: features (N, d), (M, d), and their labels if classes matter; ``fake_logits`` are an annotator's for
    the fakes, by which they are labelled if ``fake_labels`` is None; else the agreement is how often it sees what was
    asked for. Its Inception-like score is called ``annotator_score``; ``inception_logits`` of the fakes give *the*
    Inception score. ``features``, ``resize`` and ``reference`` say where the features come from. Precision to coverage
    use at most ``manifold_samples`` of each set, KID ``subsets``.
    """
    real, fake = as_features(real, "real"), as_features(fake, "fake")
    generator = generator or torch.Generator().manual_seed(0)
    enough = min(len(real), len(fake))
    found: dict[str, Any] = {
        "features": features,
        "dimensions": real.shape[1],
        "resize": resize,
        "reference": reference,
        "real_count": len(real),
        "fake_count": len(fake),
        "fid": float(fid(real, fake)),
        "kid_subsets": subsets,
        "kid_subset_size": min(1000, enough),
        "kid": None,
        "kid_std": None,
        "k": k,
        **dict.fromkeys(("precision", "recall", "density", "coverage")),
    }
    if enough >= 2:
        mean, std = kid(real, fake, subsets=subsets, generator=generator)
        found |= {"kid": float(mean), "kid_std": float(std)}
    some_real, some_fake = (_some(x, manifold_samples, generator) for x in (real, fake))
    found |= {"manifold_real_count": len(some_real), "manifold_fake_count": len(some_fake)}
    if min(len(some_real), len(some_fake)) > k:
        scores = manifold_scores(some_real, some_fake, k)
        found |= {name: float(value) for name, value in scores._asdict().items()}
    if inception_logits is not None:
        found["inception_score"] = float(inception_score(inception_logits.double().softmax(1))[0])
    if fake_logits is not None:
        num_classes = num_classes or fake_logits.shape[1]
        annotated = _labels(fake_logits.argmax(1), len(fake), fake_logits.shape[1], "fake_logits.argmax(1)")
        found["annotator_score"] = float(inception_score(fake_logits.double().softmax(1))[0])
        found["label_kl"] = float(label_kl(annotated, fake_logits.shape[1]))
        found["annotated_counts"] = torch.bincount(annotated, minlength=fake_logits.shape[1]).tolist()
        if fake_labels is not None:
            agree = annotated == as_tensor(fake_labels).cpu()
            found["annotator_agreement"] = float(agree.double().mean())
            found["class_agreement"] = _class_means(agree.double(), as_tensor(fake_labels).cpu(), num_classes)
        else:
            fake_labels = annotated
    if real_labels is not None and fake_labels is not None:
        if num_classes is None:
            raise ValueError("num_classes is None with labels given; say how many classes there are")
        by_class = class_fid(real, fake, real_labels, fake_labels, num_classes, tiny=tiny)
        values = [score.value for score in by_class if score.value is not None]
        found["class_fid"] = [asdict(score) for score in by_class]
        found["class_fid_mean"] = sum(values) / len(values) if values else None
        found["class_fid_missing"] = num_classes - len(values)
        found["class_fid_flagged"] = sum(bool(score.flag) for score in by_class)
    return found


def _some(x: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """``count`` rows at random, or all of them if there are fewer."""
    return x[torch.randperm(len(x), generator=generator)[:count].to(x.device)]


def _class_means(values: Tensor, labels: Tensor, num_classes: int) -> list[float | None]:
    """Of each class, None where it has no sample."""
    of_class = [values[labels == k] for k in range(num_classes)]
    return [float(own.mean()) if len(own) else None for own in of_class]


def _kernel(x: Tensor, y: Tensor) -> Tensor:
    return (x @ y.T / x.shape[1] + 1) ** 3


def _labels(labels: Any, count: int, num_classes: int, name: str) -> Tensor:
    labels = as_tensor(labels)
    if labels.ndim != 1 or len(labels) != count or not count:
        raise ValueError(f"{name} has shape {tuple(labels.shape)}: expected ({count},), one for each sample")
    if labels.is_floating_point() or int(labels.min()) < 0 or int(labels.max()) >= num_classes:
        raise ValueError(f"{name} must be integers in 0..{num_classes - 1}; check num_classes")
    return labels.long().cpu()
