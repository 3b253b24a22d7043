"""From strings to numbers: words of the training texts, or the tokeniser of a Hugging Face folder.

Every vocabulary numbers alike: 0 fills up short texts, 1 is an unknown (or hidden) word, its own words start at 2.

>>> words("Don't panic: it's 9.5/10!")
["don't", 'panic', ':', "it's", '9', '.', '5', '/', '10', '!']
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from evenhand.tokens import FIRST, PAD, UNKNOWN, hf_tokenizer

Cut = Literal["head", "ends"]

_WORD = re.compile(r"\w+(?:'\w+)?|[^\w\s]")


def words(text: str) -> list[str]:
    """Lower-cased words and single punctuation marks."""
    return _WORD.findall(text.lower())


class Vocabulary(Protocol):
    """What turns texts into tokens; ``words`` is what a run keeps of it, empty if a folder has it."""

    size: int
    words: tuple[str, ...]

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Tokens 0..size-1, int64 (N, length)."""
        ...

    def digest(self) -> str: ...


class Words:
    """Words by number; all others are unknown."""

    def __init__(self, known: Iterable[str], *, length: int = 128, cut: Cut = "head") -> None:
        self.words, self.length, self.cut = tuple(known), length, cut
        self.size = FIRST + len(self.words)
        self._number = {word: FIRST + i for i, word in enumerate(self.words)}

    @classmethod
    def of(cls, texts: Iterable[str], size: int, *, length: int = 128, cut: Cut = "head") -> Words:
        """The ``size`` most frequent words of the texts; ties in alphabetical order."""
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(words(text))
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(ranked[:size], length=length, cut=cut)

    def encode(self, texts: Sequence[str]) -> Tensor:
        number = self._number
        rows = ([number.get(word, UNKNOWN) for word in words(text)] for text in texts)
        return fill(rows, len(texts), self.length, self.cut)

    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.words).encode()).hexdigest()[:16]


class Pieces:
    """Word pieces of a Hugging Face tokeniser, without its marks for begin and end: the network adds them."""

    words: tuple[str, ...] = ()

    def __init__(self, name: str, *, length: int = 128, cut: Cut = "head") -> None:
        self._tokenizer = hf_tokenizer(name)
        self.length, self.cut = length, cut
        self.size = FIRST + len(self._tokenizer)

    def encode(self, texts: Sequence[str]) -> Tensor:
        return fill(self._numbers(texts), len(texts), self.length, self.cut)

    def _numbers(self, texts: Sequence[str]) -> Iterator[list[int]]:
        for start in range(0, len(texts), 1024):
            found = self._tokenizer(list(texts[start : start + 1024]), add_special_tokens=False, verbose=False)
            yield from ([FIRST + piece for piece in pieces] for pieces in found["input_ids"])

    def digest(self) -> str:
        known = sorted(self._tokenizer.get_vocab().items())
        return hashlib.sha256(repr(known).encode()).hexdigest()[:16]


def fill(rows: Iterable[list[int]], count: int, length: int, cut: Cut) -> Tensor:
    """Tokens (count, length): long texts lose their end or, with "ends", their middle; short ones are padded."""
    table = np.full((count, length), PAD, np.int64)
    for line, numbers in zip(table, rows, strict=True):
        if len(numbers) > length:
            head = length if cut == "head" else length - length // 2
            numbers = numbers[:head] + numbers[len(numbers) - (length - head) :]
        line[: len(numbers)] = numbers
    return torch.from_numpy(table)
