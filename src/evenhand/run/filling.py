"""Generated images that fill rare classes up, with labels by one rule for whatever generator drew them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from evenhand import atomic
from evenhand.errors import UserError
from evenhand.methods.protocol import Drawer

Rule = Literal["asked", "annotator"]
Labeller = Callable[[Tensor], Tensor]
TRIES = 20  # images drawn for each one wanted, before a class that the labeller does not find stays short
ROUND = 2048  # images drawn at a time


@dataclass(frozen=True)
class Filling:
    """Images, uint8 (N, C, H, W), with labels (N,); ``agreement`` (K,): share of them the labeller names alike."""

    images: Tensor
    labels: Tensor
    tried: int
    agreement: list[float | None]

    def write(self, path: Path, classes: tuple[str, ...]) -> None:
        """As an ``.npz`` that ``data.added`` reads."""
        with atomic.replacing(path) as part, part.open("wb") as file:
            np.savez(file, x=self.images.numpy(), y=self.labels.numpy(), classes=np.array(classes))


def fill(
    drawer: Drawer, wanted: list[int], rule: Rule, labeller: Labeller | None, chance: torch.Generator
) -> Filling:  # fmt: skip
    """``wanted`` images of each class: as they were asked for, or as the labeller names them."""
    if rule == "asked":
        if not drawer.labelled:
            raise UserError("an unconditional generator draws no label asked for: use --labels annotator for all")
        labels = torch.repeat_interleave(torch.arange(len(wanted)), torch.tensor(wanted))
        images = drawer.sample(len(labels), labels, chance=chance)
        return Filling(images, labels, len(images), _agreement(images, labels, labeller, len(wanted)))
    if labeller is None:
        raise UserError("--labels annotator needs one: give --annotator the run of a classifier of these classes")
    return _named(drawer, torch.tensor(wanted), labeller, chance)


def _named(drawer: Drawer, missing: Tensor, labeller: Labeller, chance: torch.Generator) -> Filling:
    """Draw, name, keep what is missing; a class that is hardly drawn stays short, for that is the generator's doing."""
    kept: list[tuple[Tensor, Tensor]] = []
    tried, most = 0, TRIES * int(missing.sum())
    while missing.any() and tried < most:
        open_ = missing.nonzero()[:, 0]
        asked = open_[torch.arange(ROUND) % len(open_)] if drawer.labelled else None
        images = drawer.sample(ROUND, asked, chance=chance)
        found = labeller(images)
        rows = torch.cat([(found == k).nonzero()[:, 0][: int(missing[k])] for k in open_.tolist()]).sort().values
        kept.append((images[rows], found[rows]))
        missing = missing - torch.bincount(found[rows], minlength=len(missing))
        tried += ROUND
    images, labels = (torch.cat(parts) for parts in zip(*kept, strict=True))
    if not len(images):
        raise UserError(f"among {tried} drawn images the annotator found none of the classes to fill: train on")
    return Filling(images, labels, tried, [None] * len(missing))


def _agreement(images: Tensor, labels: Tensor, labeller: Labeller | None, classes: int) -> list[float | None]:
    if labeller is None:
        return [None] * classes
    same = (labeller(images) == labels).double()
    return [float(same[labels == k].mean()) if (labels == k).any() else None for k in range(classes)]
