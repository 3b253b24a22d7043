"""``phrases``: short texts on five subjects, made on the spot, for tests and first tries without a network.

Each text mixes words that any subject uses with two to four of its own.
"""

from __future__ import annotations

import torch

from evenhand.data.sources.texts import Texts
from evenhand.data.stream import Stream, Streams
from evenhand.randomness import dice

SUBJECTS = {
    "animals": "lynx otter heron fox badger swallow hare stag owl trout",
    "food": "bread soup cheese apple pepper rice butter honey onion salt",
    "music": "violin drum choir tune rhythm organ flute singer concert chord",
    "travel": "train harbour ticket map border hotel luggage ferry station road",
    "weather": "rain frost wind cloud thunder snow sunshine mist hail breeze",
}
COMMON = "the a we saw this that is was again near very old new little and with our morning evening never"
EACH = 60


def load() -> Streams:
    """Streams "train" and "test", 60 texts of every subject each."""
    return {split: _make(split) for split in ("train", "test")}


def _make(split: str) -> Stream:
    chance = dice(0, "phrases", split)
    texts = []
    for own in SUBJECTS.values():
        for _ in range(EACH):
            few, many = torch.randint(2, 5, (2,), generator=chance).tolist()
            words = [*_draw(own, few, chance), *_draw(COMMON, 2 * many, chance)]
            order = torch.randperm(len(words), generator=chance).tolist()
            texts.append(" ".join(words[i] for i in order).capitalize() + ".")
    labels = torch.arange(len(SUBJECTS)).repeat_interleave(EACH)
    return Stream(
        Texts(texts, names=[f"{split}/{i}" for i in range(len(texts))]), labels, tuple(SUBJECTS), f"phrases {split}"
    )


def _draw(listed: str, count: int, chance: torch.Generator) -> list[str]:
    words = listed.split()
    return [words[i] for i in torch.randint(len(words), (count,), generator=chance).tolist()]
