"""How adaptation goes, at each evaluation: what the target's predictions look like, and how far the domains are apart.

Labels of the target are never read here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import softplus

from evenhand.data.prepared import Data
from evenhand.data.stream import Stream, Streams
from evenhand.measure.shift import (
    SCORES,
    domain_accuracy,
    effective_classes,
    largest_share,
    principal_plane,
    proxy_a_distance,
    target_entropy,
)
from evenhand.methods.protocol import Method, Recogniser

PREDICTED, COMPARED, PICTURED = 2000, 400, 300  # rows that suffice for scores, for distances, for a picture


@runtime_checkable
class Aligns(Protocol):
    """A method that brings features of two domains together."""

    discriminator: torch.nn.Module | None

    def embed(self, x: Tensor) -> Tensor:
        """(N, d) features of raw samples."""
        ...

    def tell(self, x: Tensor) -> Tensor:
        """(N,) logits of raw samples being the source's."""
        ...


def judge_target(method: Method, streams: Streams, *, batch: int) -> dict[str, float]:
    """One number per name; nothing without a target, or for a method that predicts no classes.

    Domain accuracy and distance compare the target with held-out source samples, if there are any.
    """
    if "target" not in streams or not isinstance(method, Recogniser):
        return {}
    target, source = streams["target"], streams["val" if "val" in streams else "source"]
    logits = on_some(method.predict, target, PREDICTED, batch)
    values = {name: score(logits) for name, score in SCORES.items() if len(logits) > 1}
    values["target_entropy"] = target_entropy(logits)
    values["largest_share"] = largest_share(logits)
    values["effective_classes"] = effective_classes(logits)
    values["possible_classes"] = float(min(logits.shape))
    if isinstance(method, Aligns) and min(len(source), len(target)) > 1:
        parts = [on_some(method.embed, stream, COMPARED, batch) for stream in (source, target)]
        values["a_distance"] = proxy_a_distance(*parts)
        if method.discriminator is not None:
            ours, theirs = (on_some(method.tell, stream, COMPARED, batch) for stream in (source, target))
            values["domain_accuracy"] = domain_accuracy(ours, theirs)
            values["domain_loss"] = float(softplus(-ours).mean() + softplus(theirs).mean()) / 2
    return values


def picture_domains(method: Method, data: Data, *, batch: int) -> dict[str, Any]:
    """The numbers of ``judge_target``, and the features of both domains in the plane of largest variance, with labels.

    Only ``measure`` calls this: the target's points are the test's where there is one.
    """
    found: dict[str, Any] = dict(judge_target(method, data.streams, batch=batch))
    streams = {
        "source": data.streams.get("val", data.labelled),
        "target": data.streams.get("test", data.streams["target"]),
    }
    if isinstance(method, Aligns):
        rows = {name: some_rows(stream, PICTURED) for name, stream in streams.items()}
        features = [on_some(method.embed, stream, PICTURED, batch) for stream in streams.values()]
        planes = principal_plane(torch.cat(features)).split([len(part) for part in features])
        for (name, stream), points in zip(streams.items(), planes, strict=True):
            labels = None if stream.labels is None else stream.labels[rows[name]].tolist()
            found[f"{name}_points"] = {"xy": points.tolist(), "labels": labels}
    return found


@torch.no_grad()
def on_some(function: Callable[[Tensor], Tensor], stream: Stream, most: int, batch: int) -> Tensor:
    """A function of at most ``most`` samples spread evenly over the stream, the same every time."""
    return torch.cat([function(stream.fetch(rows)).float().cpu() for rows in some_rows(stream, most).split(batch)])


def some_rows(stream: Stream, most: int) -> Tensor:
    count = min(len(stream), most)
    return torch.arange(count) * len(stream) // count
