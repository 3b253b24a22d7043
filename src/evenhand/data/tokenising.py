"""Streams of texts turned into streams of tokens, with a vocabulary that only training texts have shaped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from evenhand.data.sources.texts import Texts, texts_of
from evenhand.data.stream import Memory, Stream, Streams
from evenhand.data.views.texts import TextPipeline, build_text_view
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
    augment: list[str] = Field([], description="training views of texts, see docs")
    strong: list[str] = Field(["swap", "word-dropout"], description="the second, strong view of unlabelled texts")


@dataclass(frozen=True)
class Tokenised:
    """Streams of tokens (N, length), or (N, 2 length) with back-translations, and their views."""

    streams: Streams
    train_view: TextPipeline
    strong_view: TextPipeline
    eval_view: TextPipeline
    vocabulary: Vocabulary
    facts: dict[str, Any]


def tokenise(streams: Streams, settings: TextSettings, words: Sequence[str] | None = None) -> Tokenised:
    """Streams of texts as tokens; ``words`` of an earlier run replace those of the training texts."""
    texts = {name: texts_of(stream.source) for name, stream in streams.items()}
    vocabulary = _vocabulary(settings, texts, words)
    translations = any(part.translations is not None for part in texts.values())
    encoded: Streams = {}
    for name, stream in streams.items():
        tokens = vocabulary.encode(texts[name].texts)
        if translations:
            tokens = torch.cat([tokens, _second(texts[name], vocabulary)], 1)
        encoded[name] = Stream(Memory(tokens), stream.labels, stream.classes, stream.name)
    views = partial(build_text_view, length=settings.length, translations=translations)
    facts = {"vocabulary": vocabulary.size, "length": settings.length, "words": vocabulary.digest()}
    return Tokenised(encoded, views(settings.augment), views(settings.strong), views([]), vocabulary, facts)


def _vocabulary(settings: TextSettings, texts: dict[str, Texts], words: Sequence[str] | None) -> Vocabulary:
    length, cut = settings.length, settings.cut
    if settings.tokens.startswith(HF):
        return Pieces(settings.tokens, length=length, cut=cut)
    if settings.tokens != "words":
        raise UserError(f"data.text.tokens = '{settings.tokens}' is unknown; use 'words' or 'hf:FOLDER'")
    if words is not None:
        return Words(words, length=length, cut=cut)
    seen = [text for name in ("labelled", "unlabelled") if name in texts for text in texts[name].texts]
    return Words.of(seen, settings.vocabulary, length=length, cut=cut)


def _second(part: Texts, vocabulary: Vocabulary) -> Tensor:
    """The back-translations, all padding where there is none."""
    return vocabulary.encode(part.translations if part.translations is not None else [""] * len(part))
