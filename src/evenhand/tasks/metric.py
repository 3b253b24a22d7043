"""A number that can be measured: where it stands, what it is called, which way is better."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Metric:
    """``key`` names it in ``run.select`` and ``[expect]``; ``path`` is its place in measure.json, by default the key.

    ``shown`` metrics are columns of the summary. A ``late`` one is known only when a run is measured at its end: no
    checkpoint is chosen by it. ``groups`` of classes must be told apart for it, and one of them have samples.
    """

    key: str
    name: str
    unit: str = "%"
    scale: float = 100.0
    digits: int = 1
    higher_is_better: bool = True
    shown: bool = True
    path: tuple[str, ...] = field(default=())
    late: bool = False
    groups: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.path:
            object.__setattr__(self, "path", (self.key,))
        if not self.groups and self.path[0].startswith("group_"):
            object.__setattr__(self, "groups", self.path[1:])

    @property
    def label(self) -> str:
        """``mean recall (%)``; where no unit tells what is good, an arrow does: ``FID ↓``."""
        return f"{self.name} ({self.unit})" if self.unit else f"{self.name} {'↑' if self.higher_is_better else '↓'}"

    @property
    def opening(self) -> str:
        """The name where a sentence begins; one such as mAP keeps its small letter."""
        return self.name if self.name[1:2].isupper() else self.name[0].upper() + self.name[1:]

    def said(self, value: float) -> str:
        return f"{value:.{self.digits}f}{f' {self.unit}' if self.unit else ''}"

    def better(self, value: float) -> float:
        """The value turned so that higher is better."""
        return value if self.higher_is_better else -value


def score(
    key: str, name: str = "", *, digits: int = 3, lower: bool = False, scale: float = 1.0, shown: bool = True,
    path: tuple[str, ...] = (), late: bool = False,
) -> Metric:  # fmt: skip
    """A metric without unit."""
    return Metric(key, name or key, "", scale, digits, not lower, shown, path, late)
