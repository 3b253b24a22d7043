"""How generators are judged: by features of real and drawn images, by an annotator's labels, and class by class.

The annotator is a classifier trained on balanced real data. Its last features take Inception's place by default:
fast, and made for these classes; scores of different features do not compare, so every table names them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from statistics import fmean, median
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from evenhand.data.prepared import Data
from evenhand.data.stream import Stream
from evenhand.errors import UserError
from evenhand.measure.alarms import warn_of_absence, warn_of_collapse
from evenhand.measure.features import Embedded, Extractor, annotator, embed, fid_inception, mobilenet
from evenhand.measure.generative import fid, label_kl, measure_generator
from evenhand.measure.manifold import pattern_share
from evenhand.randomness import dice
from evenhand.settings import Settings

TRACED = 20  # classes with a line of their own in the log, the rarest first
PEERS = 100  # training images of each class to compare with where none are held out
Features = Literal["annotator", "inception", "mobilenet_v2"]
Shares = list[float | None]  # None: too few images to tell


class Measure(Settings):
    """[method.measure] of a generator."""

    features: Features = Field("annotator", description="by which images are compared")
    inception: str | None = Field(None, description="weights of the FID network; default: those evenhand data gets")
    judge_samples: int = Field(2000, gt=1, le=10**7, description="images drawn at every evaluation")
    samples: int = Field(10_000, gt=1, le=10**7, description="images drawn for the final table")
    neighbours: int = Field(5, gt=0, description="of precision, recall, density and coverage")
    alarm: float = Field(0.5, ge=0, lt=1, description="share of real images' patterns below which a class is named")


class Judge:
    """Compares drawn images, uint8 (N, C, H, W), with a stream of real ones."""

    def __init__(self, settings: Measure, data: Data, by: Any, device: torch.device) -> None:
        self.settings, self.data, self.device = settings, data, device
        if by is not None:
            same_classes(by.data, data, "annotator")
        self.annotator = None if by is None else annotated(by)
        self.traced = sorted(sorted(range(len(data.classes)), key=lambda k: data.counts[k])[:TRACED])
        self._reals: dict[str, tuple[Stream, Embedded]] = {}
        self._seen: tuple[Stream, Stream] | None = None

    @cached_property
    def extractor(self) -> Extractor:
        """Made when something is judged: who only draws need not have Inception's weights."""
        if self.settings.features == "inception":
            return fid_inception(self.settings.inception, device=self.device)
        if self.settings.features == "mobilenet_v2":
            return mobilenet(device=self.device)
        assert self.annotator is not None  # see GAN.check
        return self.annotator

    def label(self, images: Tensor, *, batch: int = 512) -> Tensor:
        """The annotator's label of each image (N,)."""
        if self.annotator is None:
            raise UserError("labels of drawn images need an annotator: set needs.annotator to a classifier's run")
        logits = embed(self.annotator, images, batch=batch).logits
        assert logits is not None
        return logits.argmax(1)

    def scalars(self, images: Tensor, labels: Tensor | None, stream: Stream, *, batch: int) -> dict[str, float]:
        """What evaluation logs; ``labels`` are those asked for, None if the annotator is to give them."""
        real, made = self._real(stream, batch), embed(self.extractor, images, batch=batch)
        distance = {"fid": float(fid(real.features, made.features))}
        return distance | self._class_scalars(made, images, labels, stream, batch)

    def watch(self, images: Tensor, labels: Tensor | None, seen: Stream, *, batch: int) -> dict[str, float]:
        """What evaluation logs without held-out images: the classes drawn, and their variety beside images ``seen``.

        No distance: training images are what a generator should not come too near to.
        """
        made = embed(self.extractor, images, batch=batch)
        return self._class_scalars(made, images, labels, self._few_seen(seen), batch)

    def _class_scalars(
        self, made: Embedded, images: Tensor, labels: Tensor | None, stream: Stream, batch: int
    ) -> dict[str, float]:
        """Shares by the annotator, if there is one; variety by the labels asked for, or else by its."""
        found: dict[str, float] = {}
        if (logits := self._annotated(made, images, batch)) is not None:
            found |= self._share_scalars(logits.argmax(1))
            labels = logits.argmax(1) if labels is None else labels
        if labels is not None:
            real = self._real(stream, batch)
            found |= self._variety_scalars(*self.variety(real.features, stream, made.features, labels))
        return found

    def _few_seen(self, stream: Stream) -> Stream:
        """At most ``PEERS`` images of each class, the same ones every time."""
        if self._seen is None or self._seen[0] is not stream:
            labels = stream.labels
            assert labels is not None
            rows = torch.randperm(len(labels), generator=dice(0, "alarm"))
            picked = [rows[labels[rows] == k][:PEERS] for k in range(len(self.data.classes))]
            self._seen = stream, stream.subset(torch.cat(picked), f"some of {stream.name}")
        return self._seen[1]

    def table(
        self, images: Tensor, labels: Tensor | None, stream: Stream, groups: dict[str, list[int]], *, batch: int
    ) -> dict[str, Any]:
        """Everything, as plain values, beside what it depends on."""
        K = len(self.data.classes)
        real, made = self._real(stream, batch), embed(self.extractor, images, batch=batch)
        features, logits = made.features, self._annotated(made, images, batch)
        found = measure_generator(
            real.features, features, stream.labels, labels, num_classes=K, fake_logits=logits,
            inception_logits=made.logits if self.settings.features == "inception" else None,
            features=self.extractor.name, resize=self.extractor.resize, k=self.settings.neighbours,
            reference=f"{stream.name}, {len(stream)} images",
        )  # fmt: skip
        found["features_digest"] = self.extractor.digest()
        if "class_fid" in found:
            found["group_fid"] = group_means([score["value"] for score in found["class_fid"]], groups)
        if "class_agreement" in found:
            found["group_agreement"] = group_means(found["class_agreement"], groups)
        named = logits.argmax(1) if labels is None and logits is not None else labels
        if named is not None:
            found["diversity"], found["patterns"] = self.variety(real.features, stream, features, named)
            found["group_patterns"] = group_means(found["patterns"], groups)
            warn_of_collapse(found["patterns"], self.data.classes, below=self.settings.alarm)
        if logits is not None:
            shares = torch.bincount(logits.argmax(1), minlength=K).double() / len(logits)
            found["class_shares"] = shares.tolist()
            found["group_shares"] = {name: float(shares[members].sum()) for name, members in groups.items()}
        return found | {"samples": len(images), "groups": groups}

    def variety(self, real: Tensor, stream: Stream, fake: Tensor, labels: Tensor) -> tuple[Shares, Shares]:
        """For each class, drawn over real: the spread of features, and the effective number of patterns.

        The spread tells how far apart the images are, not how many differ: two images drawn again and again have the
        spread of a healthy class. So collapse is judged by the patterns.
        """
        spreads: Shares = []
        patterns: Shares = []
        for k in range(len(self.data.classes)):
            theirs = fake[labels.cpu() == k]
            ours = real[stream.labels == k] if stream.labels is not None else real[:0]
            enough = min(len(ours), len(theirs)) > 1 and float(spread(ours)) > 0
            spreads.append(float(spread(theirs) / spread(ours)) if enough else None)
            patterns.append(pattern_share(ours, theirs))
        return spreads, patterns

    def _share_scalars(self, labels: Tensor) -> dict[str, float]:
        shares = torch.bincount(labels, minlength=len(self.data.classes)).double() / len(labels)
        traced = {f"share:{self.data.classes[k]}": float(shares[k]) for k in self.traced}
        warn_of_absence(shares, len(labels), self.data.classes)
        return {"label_kl": float(label_kl(labels, len(self.data.classes)))} | traced

    def _variety_scalars(self, spreads: Shares, patterns: Shares) -> dict[str, float]:
        said: dict[str, float] = {}
        for name, values in (("diversity", spreads), ("patterns", patterns)):
            if known := [value for value in values if value is not None]:
                said |= {name: median(known), f"{name}_min": min(known)}
            traced = {f"{name}:{self.data.classes[k]}": values[k] for k in self.traced}
            said |= {key: value for key, value in traced.items() if value is not None}
        if "patterns" in said:  # where nothing could be judged, that none collapsed is not known
            collapsed = warn_of_collapse(patterns, self.data.classes, below=self.settings.alarm)
            said["collapsed"] = float(len(collapsed))
        return said

    def _annotated(self, made: Embedded, images: Tensor, batch: int) -> Tensor | None:
        """The annotator's logits: only its classes are the data's, Inception's ``made`` ones are not."""
        if self.annotator is None:
            return None
        if self.extractor is self.annotator:
            return made.logits
        return embed(self.annotator, images, batch=batch).logits

    def _real(self, stream: Stream, batch: int) -> Embedded:
        """The same reals are compared with at every evaluation: embed them once."""
        kept = self._reals.get(stream.name)
        if kept is None or kept[0] is not stream:
            kept = self._reals[stream.name] = stream, embed(self.extractor, stream, batch=batch)
        return kept[1]


def spread(x: Tensor) -> Tensor:
    """Root mean square distance of pairs of rows (N, d), as ``sqrt(2 tr cov)``."""
    return (2 * x.double().var(0).sum()).sqrt()


def annotated(by: Any) -> Extractor:
    """The features and labels of a classifier of ours."""
    return annotator(by.network(), by.data.see, "annotator", logit_scale=by.logit_scale)


def same_classes(theirs: Data, data: Data, role: str) -> None:
    """A classifier used on these data's images must know their classes, channels and size."""
    facts = {
        "classes": (list(theirs.classes), list(data.classes)),
        "channels": (theirs.inputs, data.inputs),
        "image size": (theirs.facts.size, data.facts.size),
    }
    for name, (has, needed) in facts.items():
        if has != needed:
            raise UserError(
                f"needs.{role} was trained for other {name} than the data's: {_few(has)} instead of {_few(needed)}; "
                "train it on the same data"
            )


def _few(value: Any) -> str:
    return f"{value[:3]}... ({len(value)})" if isinstance(value, list) and len(value) > 3 else str(value)


def group_means(values: Sequence[float | None], groups: dict[str, list[int]]) -> dict[str, float | None]:
    """Of the classes of each group that have a value; None where none has."""
    return {name: _mean([values[k] for k in members]) for name, members in groups.items()}


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return fmean(known) if known else None
