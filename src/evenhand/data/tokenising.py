"""Streams of texts turned into streams of tokens, with a vocabulary that only training texts have shaped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from pydantic import Field

from evenhand.data.sources.texts import Texts
from evenhand.data.stream import Memory, Stream, Streams
from evenhand.data.vocabulary import Cut, Pieces, Vocabulary, Words
from evenhand.errors import UserError
from evenhand.settings import Settings
from evenhand.tokens import HF


class TextSettings(Settings):
    """How texts are read and seen; images ignore it."""

    tokens: str = Field("words", description="words of the training texts, or hf:FOLDER, a Hugging Face tokeniser")
    vocabulary: int = Field(20_000, gt=0, description="the most frequent words that have a number of their own")
    length: int = Field(128, gt=0, description="tokens kept of a text")
    cut: Cut = Field("head", description="of longer texts: their beginning (head), or beginning and end (ends)")
    augment: list[str] = Field(
        [], description="training view of texts: back-translation, word-dropout, mask, swap, span"
    )
    strong: list[str] = Field(
        ["swap", "word-dropout"], description="the second, strong view of unlabelled texts: the same steps"
    )


def make_vocabulary(settings: TextSettings, streams: Streams, words: Sequence[str] | None = None) -> Vocabulary:
    """The words of the training texts, those of an earlier run, or a tokeniser's."""
    length, cut = settings.length, settings.cut
    if settings.tokens.startswith(HF):
        return Pieces(settings.tokens, length=length, cut=cut)
    if settings.tokens != "words":
        raise UserError(f"data.text.tokens = '{settings.tokens}' is unknown; use 'words' or 'hf:FOLDER'")
    if words is not None:
        return Words(words, length=length, cut=cut)
    seen = [
        text for name in ("labelled", "unlabelled", "added") if name in streams for text in _texts(streams[name]).texts
    ]
    return Words.of(seen, settings.vocabulary, length=length, cut=cut)


def tokenise(streams: Streams, vocabulary: Vocabulary, *, translations: bool) -> Streams:
    """Streams of tokens (N, length), or (N, 2 length) with back-translations, all padding where there is none."""
    encoded: Streams = {}
    for name, stream in streams.items():
        part = _texts(stream)
        tokens = vocabulary.encode(part.texts)
        if translations:
            other = part.translations if part.translations is not None else [""] * len(part)
            tokens = torch.cat([tokens, vocabulary.encode(other)], 1)
        names = [part.name(row) for row in range(len(part))]
        encoded[name] = replace(stream, samples=Memory(tokens, names, part))
    return encoded


def _texts(stream: Stream) -> Texts:
    return cast(Texts, stream.samples)
