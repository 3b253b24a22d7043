"""From the [data] table of a recipe to streams and views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from evenhand.data.domains import read_domains
from evenhand.data.embed import IMAGENET, embed
from evenhand.data.loader import View
from evenhand.data.sets import catalogue, phrases, shapes
from evenhand.data.settings import DataSettings
from evenhand.data.sources import formats
from evenhand.data.sources.published import frequency_order, read_image_list
from evenhand.data.sources.texts import holds_text
from evenhand.data.splits import (
    balanced_holdout,
    class_order,
    head_mid_tail,
    longtail_counts,
    longtail_subset,
    semi_supervised_split,
    unlabelled_counts,
)
from evenhand.data.stream import Memory, Stream, Streams
from evenhand.data.tokenising import tokenise
from evenhand.data.views.images import Pipeline, build, channel_stats
from evenhand.data.views.vectors import Standardise, refuse_image_settings, vector_stats
from evenhand.data.vocabulary import Vocabulary
from evenhand.errors import UserError, users_mistake


@dataclass(frozen=True)
class Data:
    """Streams with the views a method trains and predicts through.

    channels is the width of a network's first layer: image channels, vector length or vocabulary size. Texts have a
    vocabulary: ``data.vocabulary.encode(["a fine film"])`` gives what a method predicts on.
    """

    streams: Streams
    train_view: View
    strong_view: View
    eval_view: View
    groups: dict[str, list[int]]
    groups_rule: str = ""
    channels: int = 3
    facts: dict[str, Any] = field(default_factory=dict)
    vocabulary: Vocabulary | None = None

    @property
    def labelled(self) -> Stream:
        """What classes are learned from: "labelled", or the "source" when adapting."""
        return self.streams["labelled" if "labelled" in self.streams else "source"]

    @property
    def classes(self) -> tuple[str, ...]:
        return self.labelled.classes

    @property
    def counts(self) -> list[int]:
        return self.labelled.counts


def build_data(settings: DataSettings, words: Sequence[str] | None = None) -> Data:
    """Read, hold out validation, make long-tailed, and choose the views.

    ``words`` is the vocabulary of an earlier run; otherwise it is made from the training texts.
    """
    with users_mistake("[data]"):
        return _build(settings, words)


def _build(settings: DataSettings, words: Sequence[str] | None) -> Data:
    adapting = bool(settings.target)
    if settings.source and not adapting:
        raise UserError("data.source names domains to adapt from; name the one to adapt to in data.target")
    parts = read_domains(settings) if adapting else _read(settings)
    if settings.embed:
        parts = embed(parts, settings.embed, settings.embed_size)
    train, test = parts["train"], parts.get("test")
    if test is None and not adapting:
        train, test = _hold_out(train, settings.test_share, settings.split_seed, "test")
    streams: Streams = {}
    if "val" in parts:
        streams["val"] = parts["val"]
    elif settings.val_per_class:
        assert train.labels is not None
        rest, held = balanced_holdout(train.labels, settings.val_per_class, settings.split_seed, len(train.classes))
        train, streams["val"] = train.subset(rest), train.subset(held, "val")
    elif adapting and settings.val_share:
        train, streams["val"] = _hold_out(train, settings.val_share, settings.split_seed, "val")
    train, unlabelled = make_longtailed(train, settings)
    if unlabelled is not None:
        if "unlabelled" in parts:
            raise UserError("the data bring unlabelled samples: leave out data.labelled_share and data.unlabelled_max")
        parts = {**parts, "unlabelled": unlabelled}
    if settings.test_per_class and test is not None:
        assert test.labels is not None
        kept = longtail_subset(test.labels, [settings.test_per_class] * len(test.classes), settings.split_seed)
        test = test.subset(kept)
    first = "source" if adapting else "labelled"
    targets: Streams = {name: part for name, part in parts.items() if name.startswith("target")}
    streams = {first: train.subset(torch.arange(len(train)), first), **targets, **streams}
    if test is not None:
        streams["test"] = test
    if "unlabelled" in parts:
        streams["unlabelled"] = parts["unlabelled"].unlabelled()
    empty = [name for name, count in zip(train.classes, train.counts, strict=True) if count == 0]
    if empty:
        raise UserError(f"no training samples of class {', '.join(empty[:3])}: add some, or remove the class")
    groups = dict(head_mid_tail(train.counts, settings.groups))
    if holds_text(train.source):
        for key in ("augment", "strong"):
            if getattr(settings, key) != DataSettings.model_fields[key].default:
                raise UserError(f"data.{key} is for images; the views of texts are data.text.{key}")
        seen = tokenise(streams, settings.text, words)
        views = seen.train_view, seen.strong_view, seen.eval_view
        return Data(
            seen.streams, *views, groups, settings.groups, seen.vocabulary.size, seen.facts, seen.vocabulary
        )  # fmt: skip
    sample = train.fetch(torch.tensor([0]))
    if sample.ndim == 2:
        refuse_image_settings(settings)
    mean, std = _statistics(settings, train)
    if len(mean) != sample.shape[1]:
        raise UserError(f"data.normalise has {len(mean)} means for {sample.shape[1]} channel(s); give one for each")
    facts = {"mean": list(mean), "std": list(std), "size": list(sample.shape[2:])}
    return Data(streams, *_views(settings, sample, mean, std), groups, settings.groups, sample.shape[1], facts)


def _views(
    settings: DataSettings, sample: Tensor, mean: Sequence[float], std: Sequence[float]
) -> tuple[View, View, View]:
    """How training, strong augmentation and evaluation see raw samples such as this one."""
    if sample.ndim == 2:
        view = Standardise(mean, std)
        return view, view, view
    size = sample.shape[-1]
    train, strong = (build(names, size=size, mean=mean, std=std) for names in (settings.augment, settings.strong))
    return train, strong, Pipeline([], mean, std)


def make_longtailed(train: Stream, settings: DataSettings) -> tuple[Stream, Stream | None]:
    """The training stream cut to the recipe's profile, and an unlabelled one from the rest if it is asked for."""
    s = settings
    if s.imbalance == 1 and s.n_max is None and s.unlabelled_max is None:
        return _hide_labels(train, s) if s.labelled_share < 1 else (train, None)
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
        return _hide_labels(cut, s) if s.labelled_share < 1 else (cut, None)
    labelled, unlabelled = semi_supervised_split(train.labels, counts, extra, s.split_seed)
    return train.subset(labelled), train.subset(unlabelled, "unlabelled")


def _hide_labels(train: Stream, settings: DataSettings) -> tuple[Stream, Stream]:
    """A share of every class, at least one sample of each, with labels; all the rest without."""
    assert train.labels is not None
    counts = [min(n, max(1, round(settings.labelled_share * n))) for n in train.counts]
    rest = [n - few for n, few in zip(train.counts, counts, strict=True)]
    labelled, unlabelled = semi_supervised_split(train.labels, counts, rest, settings.split_seed)
    return train.subset(labelled), train.subset(unlabelled, "unlabelled")


def _read(settings: DataSettings) -> Streams:
    mode = "L" if settings.grey else "RGB"
    if settings.set == "shapes":
        return shapes.load()
    if settings.set == "phrases":
        return phrases.load()
    if settings.set in catalogue.DATASETS:
        return catalogue.load(settings.set)
    if settings.root is not None:
        return _read_lists(settings, mode)
    parts = formats.read(settings.set, size=settings.size, mode=mode, skip_unreadable=settings.skip_unreadable)
    if "all" in parts:
        parts["train"] = parts.pop("all")
    if "train" not in parts:
        found = ", ".join(parts)
        raise UserError(f"{settings.set} has no training part (found: {found}); name one folder or split 'train'")
    return parts


def _read_lists(settings: DataSettings, mode: str) -> Streams:
    """Training and test lists whose classes may be renumbered by descending training count, both alike."""
    assert settings.root is not None
    if settings.test_list is None:
        raise UserError("an image list needs its test split too: set data.test_list")
    lists = {"train": settings.set, "test": settings.test_list}
    size, skip = settings.size or 224, settings.skip_unreadable
    parts = {
        split: read_image_list(path, settings.root, size=size, mode=mode, skip_unreadable=skip)
        for split, path in lists.items()
    }
    K = max(len(part.classes) for part in parts.values())
    new = torch.arange(K)
    if settings.by_frequency:
        assert parts["train"].labels is not None
        new = frequency_order(parts["train"].labels, K)
    names = tuple(str(old) for old in new.argsort().tolist())
    return {split: replace(part, labels=new[part.labels], classes=names, name=split) for split, part in parts.items()}


def _hold_out(train: Stream, share: float, seed: int, split: str) -> tuple[Stream, Stream]:
    """Training without a share of every class, at least one sample of each, and that share."""
    assert train.labels is not None
    if min(train.counts) < 2:
        rare = train.classes[train.counts.index(min(train.counts))]
        few = f"class '{rare}' has {min(train.counts)} sample(s)"
        raise UserError(f"{few}: too few to hold out a {split} split; add some, or bring a {split} split")
    held = longtail_subset(train.labels, [max(1, round(share * n)) for n in train.counts], seed)
    rest = torch.ones(len(train), dtype=torch.bool)
    rest[held] = False
    return train.subset(rest.nonzero()[:, 0], "train"), train.subset(held, split)


def _statistics(settings: DataSettings, train: Stream) -> tuple[Sequence[float], Sequence[float]]:
    if isinstance(settings.normalise, list):
        if len(settings.normalise) != 2:
            raise UserError("data.normalise is [[means], [stds]]: two lists with one number for each channel")
        return settings.normalise[0], settings.normalise[1]
    if settings.normalise == "imagenet":
        return IMAGENET
    some = torch.linspace(0, len(train) - 1, min(len(train), 5000)).long()
    samples = train.source.samples if isinstance(train.source, Memory) else train.fetch(some)
    return vector_stats(samples) if samples.ndim == 2 else channel_stats(samples)
