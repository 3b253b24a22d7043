"""The numbers a report shows: of classifiers, of generators, and of single classes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """A number of measure.json: where it stands, what it is called, and which way is better."""

    path: tuple[str, ...]
    name: str
    unit: str = "%"
    scale: float = 100.0
    digits: int = 1
    higher_is_better: bool = True

    @property
    def label(self) -> str:
        """``mean recall (%)``; where no unit tells what is good, an arrow does: ``FID ↓``."""
        return f"{self.name} ({self.unit})" if self.unit else f"{self.name} {'↑' if self.higher_is_better else '↓'}"

    def said(self, value: float) -> str:
        return f"{value:.{self.digits}f}{f' {self.unit}' if self.unit else ''}"


def _score(*path: str, name: str = "", digits: int = 3, lower: bool = False, scale: float = 1.0) -> Metric:
    return Metric(path, name or path[-1], "", scale, digits, higher_is_better=not lower)


METRICS = (
    Metric(("accuracy",), "accuracy"),
    Metric(("mean_recall",), "mean recall"),
    Metric(("group_recall", "head"), "head recall"),
    Metric(("group_recall", "mid"), "mid recall"),
    Metric(("group_recall", "tail"), "tail recall"),
    Metric(("min_recall",), "min recall"),
    Metric(("ece",), "ECE", higher_is_better=False),
)
MEAN_RECALL, TAIL_RECALL = METRICS[1], METRICS[4]
DRAWN_METRICS = (
    _score("fid", name="FID", digits=2, lower=True),
    _score("kid", name="KID × 1000", digits=2, lower=True, scale=1000.0),
    _score("precision"),
    _score("recall"),
    _score("density"),
    _score("coverage"),
    _score("label_kl", name="label KL", lower=True),
    _score("group_fid", "head", name="head FID", digits=2, lower=True),
    _score("group_fid", "mid", name="mid FID", digits=2, lower=True),
    _score("group_fid", "tail", name="tail FID", digits=2, lower=True),
    Metric(("classifier_score", "accuracy"), "CAS"),
    Metric(("classifier_score", "min_recall"), "CAS, worst class"),
)
FID, TAIL_FID = DRAWN_METRICS[0], DRAWN_METRICS[9]
CLASS_RECALL = Metric(("recall",), "recall")
CLASS_FID = _score("class_fid", name="FID", digits=2, lower=True)
CLASS_SHARE = Metric(("class_shares",), "drawn")
CLASS_DIVERSITY = _score("diversity", digits=2)
CLASS_PATTERNS = _score("patterns", digits=2)
