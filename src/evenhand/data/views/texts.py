"""Views of tokens: int64 (N, L) in and out, words first and padding after them, at least one word.

Each sample draws its own changes, on a CPU generator. Where samples carry their back-translation they are (N, 2L),
the second half being the translation; a view shows one of the two.

>>> view = build_text_view(["swap", "word-dropout"], length=6)
>>> view(torch.tensor([[7, 8, 9, 5, 0, 0]]), torch.Generator().manual_seed(1)).shape
torch.Size([1, 6])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor

from evenhand.data.views.view import View
from evenhand.data.vocabulary import PAD, UNKNOWN
from evenhand.errors import did_you_mean

Step = Callable[[Tensor, Generator], Tensor]
TRANSLATED = "back-translation"


class TextPipeline(View):
    """The original or its back-translation, then steps in order; without steps, the evaluation view."""

    def __init__(self, steps: Sequence[Step], length: int, *, translated: bool = False) -> None:
        self.steps, self.length, self.translated = tuple(steps), length, translated

    def __call__(self, x: Tensor, chance: Generator | None = None) -> Tensor:
        if x.dtype != torch.int64 or x.shape[1] not in (self.length, 2 * self.length):
            raise ValueError(
                f"samples are {x.dtype} {tuple(x.shape)}; this view takes tokens, int64 (N, {self.length}) or, with "
                f"back-translations, (N, {2 * self.length})"
            )
        original, other = x[:, : self.length], x[:, self.length :]
        if self.translated and other.shape[1]:  # a text without translation stands for itself
            original = torch.where((other != PAD).any(1, keepdim=True), other, original)
        if self.steps and chance is None:
            raise ValueError("chance is None; random steps need a torch.Generator on the CPU")
        for step in self.steps:
            assert chance is not None
            original = step(original, chance)
        return original


def build_text_view(names: Sequence[str], *, length: int, translations: bool = False) -> TextPipeline:
    """A view from step names, applied in the order given."""
    known: dict[str, Step] = {"word-dropout": word_dropout, "mask": mask, "swap": swap, "span": span}
    for name in names:
        if name not in (*known, TRANSLATED):
            raise ValueError(f"text view '{name}' is unknown; {did_you_mean(name, (*known, TRANSLATED))}")
    if TRANSLATED in names:
        if not translations:
            raise ValueError(
                f"view '{TRANSLATED}' needs texts with a column back_translation; add it or use other views"
            )
        if names[0] != TRANSLATED or names.count(TRANSLATED) > 1:
            raise ValueError(f"view '{TRANSLATED}' replaces the text, so it comes first and once; got {list(names)}")
    return TextPipeline([known[n] for n in names if n != TRANSLATED], length, translated=TRANSLATED in names)


def word_dropout(x: Tensor, generator: Generator, *, odds: float = 0.2) -> Tensor:
    """Each word is left out with probability ``odds``; the others move up."""
    drawn = _uniform(x, generator)
    return _keep(x, drawn >= odds)


def mask(x: Tensor, generator: Generator, *, odds: float = 0.15) -> Tensor:
    """Each word becomes the unknown word with probability ``odds``."""
    return torch.where((_uniform(x, generator) < odds) & (x != PAD), UNKNOWN, x)


def swap(x: Tensor, generator: Generator, *, reach: float = 3.0) -> Tensor:
    """Near words change places: position i sorts as i + U(0, reach), so none moves by ``reach`` or more."""
    place = torch.arange(x.shape[1], device=x.device) + reach * _uniform(x, generator)
    return x.gather(1, place.masked_fill(x == PAD, torch.inf).argsort(dim=1, stable=True))


def span(x: Tensor, generator: Generator, *, low: float = 0.5) -> Tensor:
    """A run of words anywhere in the text, of ``low`` to all of its length."""
    size = (x != PAD).sum(1, keepdim=True)  # (N, 1)
    share, where = torch.rand(2, len(x), 1, generator=generator).to(x.device)
    kept = (size * (low + (1 - low) * share)).ceil()
    start = ((size - kept + 1) * where).floor()
    place = torch.arange(x.shape[1], device=x.device)
    return _keep(x, (place >= start) & (place < start + kept))


def _uniform(x: Tensor, generator: Generator) -> Tensor:
    return torch.rand(x.shape, generator=generator).to(x.device)


def _keep(x: Tensor, wanted: Tensor) -> Tensor:
    """The wanted words, moved up; a text that would lose all its words keeps them."""
    wanted = wanted & (x != PAD)
    wanted = wanted | (~wanted.any(1, keepdim=True) & (x != PAD))
    order = (~wanted).to(torch.uint8).argsort(dim=1, stable=True)
    return x.masked_fill(~wanted, PAD).gather(1, order)
