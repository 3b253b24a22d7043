"""What a model must know of its data to be used without them; it stands in the run's folder."""

from __future__ import annotations

import math

from pydantic import Field

from evenhand.data.sources.frames import MARGIN, Frame, How
from evenhand.data.sources.source import Kind
from evenhand.settings import Settings

LARGEST = 1 << 16  # side of an image


class Facts(Settings):
    """Classes and their training counts, and how raw samples become a network's input.

    ``inputs`` is the width of a network's first layer: image channels, vector length or vocabulary size. ``size`` is
    that of images, also of those whose features (data.embed) the vectors are; ``frame`` and ``resize`` how they were
    cut out of pictures (None: they came as squares; runs older than these keys cropped).
    """

    kind: Kind = "images"
    classes: tuple[str, ...]
    counts: list[int]
    groups: dict[str, list[int]] = Field({})
    groups_rule: str = ""
    inputs: int = 3
    size: list[int] = Field([])
    frame: How | None = "crop"
    resize: int | None = None
    mean: list[float] = Field([])
    std: list[float] = Field([])
    columns: tuple[str, ...] = Field((), description="names of a table's numbers")
    words: tuple[str, ...] = ()
    translations: bool = False

    def check(self) -> None:
        """Refuse, by ``ValueError``, what no data can have: facts are read from files that others hand over."""
        if len(self.counts) != len(self.classes):
            raise ValueError(f"facts: {len(self.counts)} counts for {len(self.classes)} classes")
        sides = (2,) if self.kind == "images" else (0, 2)
        if len(self.size) not in sides or not all(0 < side <= LARGEST for side in self.size):
            raise ValueError(f"facts: size = {self.size} is not the height and width of images")
        whole = all(map(math.isfinite, self.mean)) and all(0 < deviation < math.inf for deviation in self.std)
        if len(self.mean) != len(self.std) or not whole:
            raise ValueError("facts: mean and std are not a finite mean and a positive deviation of as many inputs")
        if self.kind == "images" and len(self.mean) not in (1, self.inputs):
            raise ValueError(f"facts: {len(self.mean)} means for {self.inputs} channels")

    @property
    def framing(self) -> Frame:
        """What a picture must be cut to."""
        side = self.size[-1]
        resize = self.resize if self.resize is not None else round(side * MARGIN) if side >= 96 else side
        return Frame(side, self.frame or "crop", resize)
