"""How good a classifier is, class by class, on a stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evenhand import parallel
from evenhand.data.stream import Stream
from evenhand.errors import UserError
from evenhand.measure import confusion as metric
from evenhand.measure.calibration import expected_calibration_error, reliability


@dataclass(frozen=True)
class Evaluation:
    """Logits of every sample of a stream beside the truth."""

    logits: Tensor  # (N, K)
    target: Tensor  # (N,)

    @property
    def confusion(self) -> Tensor:
        return metric.confusion_matrix(self.logits.argmax(1), self.target, self.logits.shape[1])

    def scalars(self) -> dict[str, float]:
        """One number per name: what ``run.select`` can choose by."""
        C = self.confusion
        return {
            "accuracy": float(C.trace()),
            "mean_recall": float(metric.mean_recall(C)),
            "min_recall": float(metric.min_recall(C)),
            "g_mean": float(metric.g_mean(C)),
            "h_mean": float(metric.h_mean(C)),
            "min_coverage": float(metric.coverages(C).min()),
            "ece": float(expected_calibration_error(self.logits.softmax(1), self.target)),
            "loss": float(torch.nn.functional.cross_entropy(self.logits, self.target)),
        }

    def table(self, groups: dict[str, list[int]]) -> dict[str, Any]:
        """Everything the report shows, as plain values."""
        C = self.confusion
        bins = reliability(self.logits.softmax(1), self.target)
        return {
            **self.scalars(),
            "confusion": C.tolist(),
            "recall": metric.recalls(C).tolist(),
            "precision": metric.precisions(C).tolist(),
            "coverage": metric.coverages(C).tolist(),
            "groups": groups,
            "group_recall": dict(zip(groups, metric.group_mean_recall(C, list(groups.values())).tolist(), strict=True)),
            "reliability": {
                "confidence": bins.confidence.tolist(),
                "accuracy": bins.accuracy.tolist(),
                "count": bins.count.tolist(),
            },
            "samples": len(self.target),
        }


def evaluate(predict: Callable[[Tensor], Tensor], stream: Stream, *, batch: int = 512) -> Evaluation:
    """Predict a whole stream in order; several processes share the work."""
    if stream.labels is None:
        raise ValueError(f"stream '{stream.name}' has no labels to compare with")
    return Evaluation(predict_all(predict, stream, batch=batch), stream.labels)


@torch.no_grad()
def predict_all(predict: Callable[[Tensor], Tensor], stream: Stream, *, batch: int = 512) -> Tensor:
    """Logits (N, K) of a whole stream in its order, on the CPU; labels are not read."""
    mine = torch.arange(parallel.rank(), len(stream), parallel.world())
    logits = torch.cat([predict(stream.fetch(indices)).float() for indices in mine.split(batch)])
    if not torch.isfinite(logits).all():
        raise UserError(
            f"training diverged (predictions on '{stream.name}' are not finite): lower the learning rate or set a clip"
        )
    order = parallel.gather(mine.to(logits.device)).argsort()
    return parallel.gather(logits)[order].cpu()
