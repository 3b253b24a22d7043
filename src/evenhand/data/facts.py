"""What a model must know of its data to be used without them; it stands in the run's folder."""

from __future__ import annotations

from pydantic import Field

from evenhand.data.sources.source import Kind
from evenhand.settings import Settings


class Facts(Settings):
    """Classes and their training counts, and how raw samples become a network's input.

    ``inputs`` is the width of a network's first layer: image channels, vector length or vocabulary size. ``size`` is
    that of images, also of those whose features (data.embed) the vectors are.
    """

    kind: Kind = "images"
    classes: tuple[str, ...]
    counts: list[int]
    groups: dict[str, list[int]] = Field({})
    groups_rule: str = ""
    inputs: int = 3
    size: list[int] = Field([])
    mean: list[float] = Field([])
    std: list[float] = Field([])
    columns: tuple[str, ...] = Field((), description="names of a table's numbers")
    words: tuple[str, ...] = ()
    translations: bool = False
