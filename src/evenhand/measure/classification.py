"""How good a classifier is, class by class, on a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evenhand import parallel
from evenhand.data.loader import in_order
from evenhand.data.stream import Stream
from evenhand.errors import UserError
from evenhand.measure import confusion as metric
from evenhand.measure.calibration import Reliability, binned

FLOOR = 0.95  # of an even share: the least coverage that spec 06 asks of every class
Groups = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Evaluation:
    """What was said of every sample of a stream beside the truth; all numbers follow from it without the logits."""

    predicted: Tensor  # (N,)
    confidence: Tensor  # (N,) probability of the predicted class
    surprise: Tensor  # (N,) -log probability of the truth
    in_top5: Tensor  # (N,) whether the truth is among the five likeliest
    second: Tensor  # (N,) the class that came next
    second_confidence: Tensor  # (N,) its probability
    target: Tensor  # (N,)
    num_classes: int

    @classmethod
    def of(cls, logits: Tensor, target: Tensor) -> Evaluation:
        return cls._read(_said(logits, target), target, logits.shape[1])

    @classmethod
    def _read(cls, said: Tensor, target: Tensor, num_classes: int) -> Evaluation:
        predicted, confidence, surprise, in_top5, second, next_confidence = said.T.contiguous()
        found = predicted.long(), confidence, surprise, in_top5.bool(), second.long(), next_confidence
        return cls(*found, target, num_classes)

    @property
    def confusion(self) -> Tensor:
        return metric.confusion_matrix(self.predicted, self.target, self.num_classes)

    @property
    def reliability(self) -> Reliability:
        return binned(self.confidence, self.predicted == self.target)

    def scalars(self, groups: Groups | None = None) -> dict[str, float]:
        """One number per name: what ``run.select`` can choose by. Classes without a sample have no say.

        Of ``groups``, the worse of head and tail has two more. ``micro_f1`` is the accuracy: one label a sample.
        """
        C, bins = self.confusion, self.reliability
        there = C.sum(1) > 0
        recall, coverage = metric.recalls(C)[there], metric.coverages(C)[there]
        return {
            "accuracy": float(C.trace()),
            "top5": float(self.in_top5.double().mean()),
            "mean_recall": float(recall.mean()),
            "min_recall": float(recall.min()),
            "g_mean": float(recall.log().mean().exp()),  # 0 if one of them is
            "h_mean": float(1 / (1 / recall).mean()),
            "macro_f1": float(metric.f_scores(C)[there].mean()),
            "micro_f1": float(C.trace()),
            "min_coverage": float(coverage.min()),
            "coverage_violation": max(0.0, FLOOR / self.num_classes - float(coverage.min())),
            **self._worse_of_head_and_tail(C, groups or {}),
            "ece": float((bins.count * (bins.accuracy - bins.confidence).abs()).sum() / bins.count.sum()),
            "loss": float(self.surprise.double().mean()),
        }

    def group_recalls(self, groups: Groups) -> dict[str, float]:
        """Mean recall of the classes of each group, where it has a sample at all."""
        recall = _present(metric.recalls(self.confusion), metric.absent_classes(self.confusion))
        means = {name: _mean([recall[k] for k in members]) for name, members in groups.items()}
        return {name: mean for name, mean in means.items() if mean is not None}

    @staticmethod
    def _worse_of_head_and_tail(C: Tensor, groups: Groups) -> dict[str, float]:
        if not {"head", "tail"} <= groups.keys():
            return {}
        there = (C.sum(1) > 0).tolist()
        known = [[k for k in groups[name] if there[k]] for name in ("head", "tail")]
        if not any(known):
            return {}
        recall, coverage = metric.recalls(C), metric.coverages(C)
        return {
            "min_head_tail_recall": min(float(recall[members].mean()) for members in known if members),
            "min_head_tail_coverage": min(float(coverage[members].mean()) for members in known if members),
        }

    def table(self, groups: dict[str, list[int]]) -> dict[str, Any]:
        """Everything the report shows, as plain values; the confusion matrix as an array of counts (K, K)."""
        C, bins = self.confusion, self.reliability
        absent = metric.absent_classes(C)
        recall = _present(metric.recalls(C), absent)
        return {
            **self.scalars(groups),
            "absent": absent,
            "confusion": (C * len(self.target)).round().long().numpy(),
            "recall": recall,
            "precision": metric.precisions(C).tolist(),
            "coverage": metric.coverages(C).tolist(),
            "groups": groups,
            "group_recall": dict.fromkeys(groups) | self.group_recalls(groups),
            "reliability": {
                "confidence": bins.confidence.tolist(),
                "accuracy": bins.accuracy.tolist(),
                "count": bins.count.tolist(),
            },
            "samples": len(self.target),
        }


def _present(values: Tensor, absent: list[int]) -> list[float | None]:
    """By class; None for those without a sample."""
    return [None if k in absent else value for k, value in enumerate(values.tolist())]


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def evaluate(predict: Callable[[Tensor], Tensor], stream: Stream, *, batch: int = 512) -> Evaluation:
    """Predict a whole stream in order; several processes share the work, and only a batch of logits is ever held.

    Files are decoded by ``stream.workers`` processes meanwhile.
    """
    labels, said = stream.labels, []
    if labels is None:
        raise ValueError(f"stream '{stream.name}' has no labels to compare with")
    for rows, logits in _predictions(predict, stream, batch):
        trusted = logits.isfinite().all(1, keepdim=True)
        said.append(_said(logits, labels[rows].to(logits.device)).where(trusted, torch.nan))
    return Evaluation._read(_in_order(said, stream), labels, logits.shape[1])


def predict_all(predict: Callable[[Tensor], Tensor], stream: Stream, *, batch: int = 512) -> Tensor:
    """Logits (N, K) of a whole stream in its order, on the CPU; labels are not read."""
    return _in_order([logits for _, logits in _predictions(predict, stream, batch)], stream)


@torch.no_grad()
def _predictions(predict: Callable[[Tensor], Tensor], stream: Stream, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of this process's share and their logits, batch by batch."""
    mine = torch.arange(parallel.rank(), len(stream), parallel.world())
    for rows, samples in in_order(stream, mine, batch):
        yield rows, predict(samples).float()


def _in_order(parts: list[Tensor], stream: Stream) -> Tensor:
    """All processes' shares, finite and in the order of the stream, on the CPU."""
    joint, world = parallel.gather(torch.cat(parts)).cpu(), parallel.world()
    if not joint.isfinite().all():
        raise UserError(
            f"training diverged (predictions on '{stream.name}' are not finite): lower the learning rate or set a clip"
        )
    return joint[torch.cat([torch.arange(rank, len(stream), world) for rank in range(world)]).argsort()]


def _said(logits: Tensor, target: Tensor) -> Tensor:
    """(N, 6): the predicted class, its probability, -log of the truth's, whether that is among the top five, the
    class that came next, its probability."""
    predicted = logits.argmax(1)
    probabilities = logits.softmax(1)
    others = probabilities.scatter(1, predicted[:, None], -1.0)  # ties: the second is never the first again
    second = others.argmax(1)
    top = logits.topk(min(5, logits.shape[1])).indices  # (N, 5)
    in_top5 = (top == target[:, None]).any(1) | (predicted == target)  # ties may be broken in two ways
    surprise = torch.nn.functional.cross_entropy(logits, target, reduction="none")
    columns = predicted, probabilities.amax(1), surprise, in_top5, second, others.amax(1).clamp_min(0)
    return torch.stack([column.float() for column in columns], 1)
