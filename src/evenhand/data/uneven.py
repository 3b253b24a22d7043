"""Streams cut as a recipe asks: held-out splits, the long tail, labels hidden."""

from __future__ import annotations

from evenhand.data.settings import DataSettings
from evenhand.data.splits import (
    class_order,
    longtail_counts,
    longtail_subset,
    semi_supervised_split,
    unlabelled_counts,
)
from evenhand.data.stream import Stream
from evenhand.errors import UserError


def make_longtailed(train: Stream, settings: DataSettings) -> tuple[Stream, Stream | None]:
    """The training stream cut to the recipe's profile, and an unlabelled one from the rest if it is asked for."""
    s = settings
    if s.imbalance == 1 and s.n_max is None and s.unlabelled_max is None:
        return hide_labels(train, s) if s.labelled_share < 1 else (train, None)
    assert train.labels is not None
    K = len(train.classes)
    rank = class_order(s.order, K, train.classes)
    profile = longtail_counts(s.n_max or min(train.counts), K, s.imbalance, s.kind)
    more = unlabelled_counts(s.unlabelled_max, K, s.imbalance, s.unlabelled_kind) if s.unlabelled_max else [0] * K
    counts, extra = [profile[r] for r in rank], [more[r] for r in rank]
    for name, have, want in zip(train.classes, train.counts, map(sum, zip(counts, extra, strict=True)), strict=True):
        if want > have:
            raise UserError(f"class '{name}' has {have} samples, the profile wants {want}; lower data.n_max")
    if not s.unlabelled_max:
        cut = train.subset(longtail_subset(train.labels, counts, s.split_seed))
        return hide_labels(cut, s) if s.labelled_share < 1 else (cut, None)
    labelled, unlabelled = semi_supervised_split(train.labels, counts, extra, s.split_seed)
    return train.subset(labelled), train.subset(unlabelled, "unlabelled")


def hide_labels(train: Stream, settings: DataSettings) -> tuple[Stream, Stream]:
    """A share of every class, at least one sample of each, with labels; all the rest without."""
    assert train.labels is not None
    counts = [min(n, max(1, round(settings.labelled_share * n))) for n in train.counts]
    rest = [n - few for n, few in zip(train.counts, counts, strict=True)]
    labelled, unlabelled = semi_supervised_split(train.labels, counts, rest, settings.split_seed)
    return train.subset(labelled), train.subset(unlabelled, "unlabelled")
