"""From the [data] table of a recipe to streams and views, and, from facts alone, to the views of a finished model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from evenhand.data import bought
from evenhand.data.added import read_added
from evenhand.data.copies import copies
from evenhand.data.domains import read_domains
from evenhand.data.facts import Facts
from evenhand.data.holdout import Whole, hold_out_count, hold_out_share
from evenhand.data.labels import know
from evenhand.data.reading import read_set
from evenhand.data.settings import DataSettings, refuse_of_texts, refuse_of_vectors, refuse_without_effect
from evenhand.data.sources.frames import How
from evenhand.data.sources.tables import Table
from evenhand.data.splits import head_mid_tail, longtail_subset
from evenhand.data.stream import Stream, Streams, join
from evenhand.data.tokenising import make_vocabulary, tokenise
from evenhand.data.uneven import make_longtailed
from evenhand.data.views.images import build
from evenhand.data.views.statistics import channel_stats
from evenhand.data.views.texts import build_text_view
from evenhand.data.views.vectors import Standardise, vector_stats
from evenhand.data.views.view import View
from evenhand.data.vocabulary import Vocabulary
from evenhand.errors import UserError, users_mistake

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
Embed = Callable[[Streams, str, int], Streams]  # streams of images, network, side -> streams of its features


@dataclass(frozen=True)
class Seen:
    """How pictures became a network's input: what facts keep of it."""

    size: list[int]
    frame: How | None = None
    resize: int | None = None

    @classmethod
    def of(cls, stream: Stream) -> Seen:
        if stream.kind != "images":
            return cls([])
        size, frame = list(stream.fetch(torch.tensor([0])).shape[2:]), stream.samples.frame
        return cls(size, frame.how, frame.resize) if frame else cls(size, resize=size[-1])


@dataclass(frozen=True)
class Data:
    """Streams with the views a method trains and predicts through; a model in use has no streams.

    Texts have a vocabulary: ``data.vocabulary.encode(["a fine film"])`` gives what a method predicts on.
    """

    facts: Facts
    train_view: View
    strong_view: View
    eval_view: View
    streams: Streams = field(default_factory=dict)
    vocabulary: Vocabulary | None = None
    enlarged: int | None = None

    def see(self, x: Any) -> Any:
        """Raw samples as evaluation sees them."""
        return self.eval_view(x)

    @property
    def side(self) -> int:
        """Of images as views show them."""
        return self.enlarged or self.facts.size[-1]

    @property
    def labelled(self) -> Stream:
        """What classes are learned from: "labelled", or the "source" when adapting."""
        return self.streams["labelled" if "labelled" in self.streams else "source"]

    @property
    def classes(self) -> tuple[str, ...]:
        return self.facts.classes

    @property
    def counts(self) -> list[int]:
        return self.facts.counts

    @property
    def groups(self) -> dict[str, list[int]]:
        return self.facts.groups

    @property
    def inputs(self) -> int:
        return self.facts.inputs


def prepare_data(
    settings: DataSettings, facts: Facts | None = None, *, whole: bool = False, embed: Embed | None = None
) -> Data:
    """Read, hold out validation, make long-tailed, and choose the views.

    ``facts`` are those of an earlier run, whose statistics and words stay; ``whole`` reads images without cropping a
    margin; ``embed`` computes the features that data.embed asks for.
    """
    with users_mistake("[data]"):
        if whole and settings.enlarge is not None:
            raise UserError("data.enlarge changes views, but a generator draws images as they are stored; leave it out")
        streams, seen = _streams(_as_framed(settings, facts), whole=whole or settings.whole, embed=embed)
        return around(settings, streams, facts, seen=seen)


def around(settings: DataSettings, streams: Streams, facts: Facts | None = None, *, seen: Seen | None = None) -> Data:
    """Facts and views of streams that are read and cut already; ``seen`` is what images were before embedding."""
    with users_mistake("[data]"):
        train = streams["source" if settings.target else "labelled"]
        if facts is not None and train.classes != facts.classes:
            told = f"{len(train.classes)} classes, {', '.join(train.classes[:3])}..."
            raise UserError(f"the data have changed since the run began ({told}): restore them, or train anew")
        if train.kind == "texts":
            refuse_of_texts(settings)
            vocabulary = make_vocabulary(settings.text, streams, facts.words if facts is not None else None)
            facts = facts or _facts_of_texts(settings, streams, vocabulary)
            streams = tokenise(streams, vocabulary, translations=facts.translations)
        facts = facts or _facts_of_samples(settings, train, seen or Seen.of(train))
        return data_of(settings, *_with_added(facts, streams))


def _with_added(facts: Facts, streams: Streams) -> tuple[Facts, Streams]:
    """Added samples count in training; groups and statistics stay those of the data without them."""
    if "added" not in streams:
        return facts, streams
    train = join([streams["labelled"], streams["added"]], "labelled")
    rest = {name: stream for name, stream in streams.items() if name != "added"}
    return facts.model_copy(update={"counts": train.counts}), rest | {"labelled": train}


def data_of(settings: DataSettings, facts: Facts, streams: Streams | None = None) -> Data:
    """The views that settings and facts describe, around what streams there are."""
    streams = streams or {}
    if settings.enlarge is not None and facts.kind != "images":
        raise UserError(
            f"data.enlarge = {settings.enlarge} is for images, but the samples are {facts.kind}; leave it out"
        )
    if facts.kind == "tokens":
        text = settings.text
        seen = partial(build_text_view, length=text.length, translations=facts.translations)
        vocabulary = make_vocabulary(text, {}, facts.words)
        return Data(facts, seen(text.augment), seen(text.strong), seen([]), streams, vocabulary)
    if facts.kind == "vectors":
        view = Standardise(facts.mean, facts.std)
        return Data(facts, view, view, view, streams)
    if settings.enlarge is not None and settings.enlarge < facts.size[-1]:
        raise UserError(
            f"data.enlarge = {settings.enlarge} is less than the images' side, {facts.size[-1]}: use data.size"
        )
    side = settings.enlarge or facts.size[-1]
    shown = partial(build, size=side, mean=facts.mean, std=facts.std, enlarged=side > facts.size[-1])
    return Data(
        facts, shown(settings.augment), shown(settings.strong), shown([]), streams, enlarged=settings.enlarge
    )  # fmt: skip


def _as_framed(settings: DataSettings, facts: Facts | None) -> DataSettings:
    """Later files do not change the frame that a run has begun with."""
    if facts is None or facts.frame is None or facts.resize is None:
        return settings
    return settings.model_copy(update={"frame": facts.frame})


def _streams(settings: DataSettings, *, whole: bool, embed: Embed | None) -> tuple[Streams, Seen]:
    """All streams by their final names, as they are read, and how their images were seen."""
    adapting = bool(settings.target)
    if settings.source and not adapting:
        raise UserError("data.source names domains to adapt from; name the one to adapt to in data.target")
    if settings.added and adapting:
        raise UserError("data.added is for data of one domain; leave it out, or name it among data.source")
    if settings.pool and adapting:
        raise UserError("data.pool is for data of one domain; data.labels are then of the target: leave data.pool out")
    for key in ("target_max", "target_test_share"):
        if getattr(settings, key) and not adapting:
            raise UserError(f"data.{key} is about the domain to adapt to; name it in data.target")
    parts = read_domains(settings) if adapting else read_set(settings, whole=whole)
    seen, test, val = Seen.of(parts["train"]), parts.get("test"), parts.get("val")
    share = settings.val_share if settings.val_share is not None else 0.1 * adapting
    refuse_without_effect(settings, parts)
    if settings.added:
        parts["added"] = read_added(settings, parts["train"], whole=whole)
    if settings.pool:
        parts = bought.with_pool(parts, settings, whole=whole)
    parting = (test is None and not adapting) or (val is None and bool(settings.val_per_class or share))
    groups = copies(parts["train"]) if parting else torch.empty(0)  # of pictures, not of their features
    if settings.embed:
        if embed is None:
            raise UserError("data.embed is computed by evenhand train; embed the streams yourself, or leave it out")
        parts = embed(parts, settings.embed, settings.embed_size)
        test, val = parts.get("test"), parts.get("val")
    if settings.labels and adapting:
        parts = know(parts, settings.labels)  # after embedding: features of the whole target are kept, once
        test, val = parts.get("test"), parts.get("val")
    whole_train, seed, least = Whole(parts["train"], groups), settings.split_seed, settings.min_per_class
    if test is None and not adapting:
        whole_train, test = hold_out_share(whole_train, settings.test_share, seed, "test", least)
    if val is None and settings.val_per_class:
        whole_train, val = hold_out_count(whole_train, settings.val_per_class, seed, "val")
    elif val is None and share:
        whole_train, val = hold_out_share(whole_train, share, seed, "val", least)
    train, held = whole_train.stream, {} if val is None else {"val": val}
    train, unlabelled = make_longtailed(train, settings)
    if unlabelled is not None:
        if "unlabelled" in parts:
            raise UserError("the data bring unlabelled samples: leave out data.labelled_share and data.unlabelled_max")
        parts = {**parts, "unlabelled": unlabelled}
    if settings.test_per_class and test is not None:
        assert test.labels is not None
        counts = [settings.test_per_class] * len(test.classes)
        few = longtail_subset(test.labels, counts, settings.split_seed, test.classes)
        test = test.subset(few)
    empty = [name for name, count in zip(train.classes, train.counts, strict=True) if count == 0]
    if empty:
        raise UserError(f"no training samples of class {', '.join(empty[:3])}: add some, or remove the class")
    if settings.squares:
        train = replace(train, samples=train.samples.squared())
    first = "source" if adapting else "labelled"
    streams: Streams = {first: train.subset(torch.arange(len(train)), first)}
    streams |= {name: part for name, part in parts.items() if name.startswith("target")} | held
    if test is not None:
        streams["test"] = test
    if "unlabelled" in parts:
        streams["unlabelled"] = parts["unlabelled"].unlabelled()
    if "added" in parts:
        streams["added"] = parts["added"]
    return bought.known(streams, settings) if settings.labels and not adapting else streams, seen


def _facts_of_texts(settings: DataSettings, streams: Streams, vocabulary: Vocabulary) -> Facts:
    train: Any = streams["labelled"]
    return Facts(
        kind="tokens", classes=train.classes, counts=train.counts, inputs=vocabulary.size, words=vocabulary.words,
        translations=any(s.samples.translations is not None for s in streams.values()),  # type: ignore[attr-defined]
        groups=dict(head_mid_tail(train.counts, settings.groups)), groups_rule=settings.groups,
    )  # fmt: skip


def _facts_of_samples(settings: DataSettings, train: Stream, seen: Seen) -> Facts:
    sample = train.fetch(torch.tensor([0]))
    if train.kind == "vectors":
        refuse_of_vectors(settings)
    mean, std = _statistics(settings, train)
    if len(mean) != sample.shape[1]:
        raise UserError(f"data.normalise has {len(mean)} means for {sample.shape[1]} channel(s); give one for each")
    return Facts(
        kind=train.kind, classes=train.classes, counts=train.counts, inputs=sample.shape[1],
        size=seen.size, frame=seen.frame, resize=seen.resize, mean=list(mean), std=list(std), columns=_columns(train),
        groups=dict(head_mid_tail(train.counts, settings.groups)), groups_rule=settings.groups,
    )  # fmt: skip


def _columns(train: Stream) -> tuple[str, ...]:
    return train.samples.columns if isinstance(train.samples, Table) else ()


def _statistics(settings: DataSettings, train: Stream) -> tuple[Sequence[float], Sequence[float]]:
    if isinstance(settings.normalise, list):
        if len(settings.normalise) != 2:
            raise UserError("data.normalise is [[means], [stds]]: two lists with one number for each channel")
        return settings.normalise[0], settings.normalise[1]
    if settings.normalise == "imagenet":
        return IMAGENET
    rows = torch.arange(len(train))
    some = train.fetch(rows[:: max(1, len(train) // 5000)] if train.samples.decodes else rows)
    return vector_stats(some) if train.kind == "vectors" else channel_stats(some)
