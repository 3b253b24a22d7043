"""What comes in: streams, splits, samplers, and data sets one can fetch."""

from evenhand.data.pairs import ClassPairs
from evenhand.data.samplers import Repeated, Shuffled, Weighted, sample_weights
from evenhand.data.sets.catalogue import DATASETS, load, obtain
from evenhand.data.splits import (
    balanced_holdout,
    class_order,
    head_mid_tail,
    longtail_counts,
    longtail_subset,
    semi_supervised_split,
    split_digest,
    unlabelled_counts,
)
from evenhand.data.stream import Memory, Source, Stream, Streams

__all__ = [
    "DATASETS",
    "ClassPairs",
    "Memory",
    "Repeated",
    "Shuffled",
    "Source",
    "Stream",
    "Streams",
    "Weighted",
    "balanced_holdout",
    "class_order",
    "head_mid_tail",
    "load",
    "longtail_counts",
    "longtail_subset",
    "obtain",
    "sample_weights",
    "semi_supervised_split",
    "split_digest",
    "unlabelled_counts",
]
