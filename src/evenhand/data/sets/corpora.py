"""Built-in texts: IMDb reviews and Reuters stories, each split once and for all by the rule of ``splits``.

- imdb: 50,000 reviews (Maas et al. 2011). 422 repeat another word for word and are dropped, so that none is in both
  splits. The official split is lost in the package; a fifth of the smaller class, the same of both, is the test.
- reuters: of the 21,578 stories of Reuters-21578 those with exactly one topic, the topics with at least 20 such
  stories. Dropped: stories without topic or with several, without title and body, repeated word for word, and those of
  rarer topics. The fields of the ModApte split are lost in the package; 30 % of every class are the test.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch

from evenhand.data.splits import longtail_subset

ParsedTexts = tuple[tuple[str, ...], dict[str, tuple[list[str], np.ndarray]]]  # classes; texts and labels (N,)

ENOUGH = 20  # stories that make a topic a class


def read_imdb(folder: Path) -> ParsedTexts:
    """A JSON list of {"t": review, "s": 0 or 1}."""
    reviews = json.loads((folder / "package/reviews.json").read_text(encoding="utf-8"))
    found = _distinct((review["t"].replace("<br />", " "), ("negative", "positive")[review["s"]]) for review in reviews)
    held = min(Counter(found.values()).values()) // 5
    return _split(found, ("negative", "positive"), lambda _: held)


def read_reuters(folder: Path) -> ParsedTexts:
    """JSON lists of {"title", "body", "topics", ...}, each of them missing where it is empty."""
    stories = [s for file in sorted(folder.rglob("*.json")) for s in json.loads(file.read_text(encoding="utf-8"))]
    found = _distinct(
        (f"{story.get('title', '')} {story.get('body', '')}".replace("\x03", " "), story["topics"][0])
        for story in stories
        if len(story.get("topics") or ()) == 1
    )
    counts = Counter(found.values())
    kept = {text: topic for text, topic in found.items() if counts[topic] >= ENOUGH}
    return _split(kept, tuple(sorted(set(kept.values()))), lambda n: round(0.3 * n))


def _distinct(samples: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Texts with single spaces and their label; a text with two labels has none."""
    labels: dict[str, set[str]] = {}
    for text, label in samples:
        labels.setdefault(" ".join(text.split()), set()).add(label)
    return {text: next(iter(found)) for text, found in labels.items() if text and len(found) == 1}


def _split(samples: dict[str, str], classes: tuple[str, ...], held: Callable[[int], int]) -> ParsedTexts:
    texts = list(samples)
    labels = np.array([classes.index(label) for label in samples.values()])
    counts = np.bincount(labels, minlength=len(classes)).tolist()
    test = longtail_subset(labels, [held(n) for n in counts], seed=0)
    train = torch.ones(len(texts), dtype=torch.bool)
    train[test] = False
    places = {"train": train.nonzero()[:, 0], "test": test}
    return classes, {split: ([texts[i] for i in at.tolist()], labels[at.numpy()]) for split, at in places.items()}
