"""Texts as numbers: what long ones lose, which words are known, and the pieces of somebody's tokeniser."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from evenhand.data import vocabulary
from evenhand.data.vocabulary import Pieces, Words, fill


def test_long_texts_lose_their_end_or_their_middle() -> None:
    rows = [[1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5], [1, 2], []]
    assert fill(rows, 4, 5, "head").tolist() == [[1, 2, 3, 4, 5], [1, 2, 3, 4, 5], [1, 2, 0, 0, 0], [0] * 5]
    assert fill(rows, 4, 5, "ends").tolist() == [[1, 2, 3, 6, 7], [1, 2, 3, 4, 5], [1, 2, 0, 0, 0], [0] * 5]
    assert fill(rows[:1], 1, 4, "ends").tolist() == [[1, 2, 6, 7]]


def test_the_most_frequent_words_are_known_and_ties_are_alphabetical() -> None:
    known = Words.of(["b a b", "c a d"], 3, length=4, cut="ends")
    assert known.words == ("a", "b", "c")
    assert (known.size, known.length, known.cut) == (5, 4, "ends")
    assert known.encode(["A d, c", "b b b a c"]).tolist() == [[2, 1, 1, 4], [3, 3, 2, 4]]
    assert known.digest() == hashlib.sha256(b"a\nb\nc").hexdigest()[:16]
    for usual in (Words(("a",)), Words.of(["a"], 9)):
        assert (usual.length, usual.cut) == (128, "head")
        assert usual.encode(["a"]).shape == (1, 128)


class Letters:
    """A tokeniser whose pieces are letters."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __len__(self) -> int:
        return 26

    def get_vocab(self) -> dict[str, int]:
        return {"b": 1, "a": 0}

    def __call__(self, texts: list[str], *, add_special_tokens: bool, verbose: bool) -> dict[str, Any]:
        assert not add_special_tokens
        assert not verbose
        self.asked.append(len(texts))
        return {"input_ids": [[ord(letter) - 97 for letter in text] for text in texts]}


def test_pieces_are_numbered_behind_padding_and_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    letters = Letters()
    monkeypatch.setattr(vocabulary, "hf_tokenizer", {"hf:here": letters}.__getitem__)
    pieces = Pieces("hf:here", length=4, cut="ends")
    assert (pieces.size, pieces.words, pieces.cut) == (28, (), "ends")
    assert pieces.encode(["ab", "abcdef"]).tolist() == [[2, 3, 0, 0], [2, 3, 6, 7]]
    assert pieces.encode(["a"] * 1500 + ["c"])[[0, 1023, 1024, 1500], 0].tolist() == [2, 2, 2, 4]
    assert letters.asked == [2, 1024, 477]
    assert pieces.digest() == hashlib.sha256(repr([("a", 0), ("b", 1)]).encode()).hexdigest()[:16]
    usual = Pieces("hf:here")
    assert (usual.length, usual.cut) == (128, "head")
