"""Gradient clipping by parts of a network, each by its own norm (spec 08: features, classifier, discriminator)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from torch import nn


def clip_parts(groups: Iterable[dict[str, Any]], limit: float) -> None:
    """Shorten each part's gradient to ``limit``; an optimiser's groups with the same ``part`` are one, else each is."""
    parts: dict[Any, list[nn.Parameter]] = defaultdict(list)
    for i, group in enumerate(groups):
        parts[group.get("part", ("alone", i))] += group["params"]
    for parameters in parts.values():
        nn.utils.clip_grad_norm_(parameters, limit)
