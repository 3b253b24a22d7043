"""The section on adaptation: how the domains come together, and what goes wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from markupsafe import Markup
from pydantic import BaseModel, Field, model_validator

from evenhand.report.charts.plots import plot_curves, plot_domains
from evenhand.report.curves import run_lines
from evenhand.report.markup import joined, parts
from evenhand.report.reading import read
from evenhand.report.records import RunGroup, finite

CURVES = {
    "domain_accuracy": "domain accuracy (chance 0.5)",
    "a_distance": "A-distance (0 mixed, 2 apart)",
    "target_entropy": "target entropy (nats)",
    "largest_share": "largest class share",
    "infomax": "infomax",
    "density": "neighbourhood density",
}
OPENED = 2  # groups whose pictures are not folded away


class Points(BaseModel):
    xy: list[Annotated[list[float], Field(min_length=2, max_length=2)]] = Field(min_length=1)
    labels: list[int] | None

    @model_validator(mode="after")
    def _as_many(self) -> Points:
        if self.labels is not None and len(self.labels) != len(self.xy):
            raise ValueError(f"labels has {len(self.labels)} entries for {len(self.xy)} points")
        return self


class Domains(BaseModel):
    """What measure.json has of them."""

    source_points: Points | None = None
    target_points: Points | None = None


class Curvature(BaseModel):
    """A row of hessian.json."""

    of: str = Field(alias="class")
    checkpoint: str
    maximum: float
    trace: float


def troubles(groups: Sequence[RunGroup]) -> list[str]:
    """What is wrong with the checkpoints that were measured, each kind once."""
    told: dict[tuple[str, str], str] = {}
    for group in groups:
        for found in group.parts("adaptation"):
            numbers = {key: value for key, value in found.items() if finite(value)}
            for kind, trouble in group.task.troubles({"target": numbers}, group.records[0].method).items():
                told.setdefault((group.name, kind), f"{group.name}: {trouble}.")
    return list(told.values())


def section(groups: Sequence[RunGroup], colours: Mapping[str, str]) -> Markup:
    """Curves of every run, then a picture of both domains for each group; nothing unless a run adapts."""
    groups = [g for g in groups if g.parts("adaptation") or any("target" in r.streams for r in g.records)]
    if not groups:
        return Markup()
    panels = {title: lines for key, title in CURVES.items() if (lines := run_lines(groups, "target", key))}
    caption = "On samples of both domains: trained-on ones, or held-out source ones where the target is not trained on."
    text = parts.figure(plot_curves(panels, colours, "step"), caption) if panels else parts.missing()
    return text + joined(parts.fold(g.name, _picture(g) + _curvature(g), i < OPENED) for i, g in enumerate(groups))


def _picture(group: RunGroup) -> Markup:
    found = [part for part in group.parts("adaptation") if part.get("source_points") and part.get("target_points")]
    if not found:
        return parts.missing("Features of the two domains: not run.")
    caption = f"Features of {group.measured[0].name} along their two directions of largest variance."
    return parts.figure(plot_domains(found[0], group.classes[0]), caption)


def _curvature(group: RunGroup) -> Markup:
    """What ``evenhand hessian --whole`` found, if it was run."""
    lines = []
    for record in group.records:
        rows: list[dict[str, Any]] = read(record.folder / "hessian.json", list[Curvature], "remove it") or []
        lines += [
            f"{record.name} ({row['checkpoint']}): λ max {row['maximum']:.3g}, trace {row['trace']:.3g}"
            for row in rows
            if row["class"] == "all classes"
        ]
    told = "; ".join(lines) or "not run (evenhand hessian RUN --whole)"
    return parts.note(f"Curvature of the task loss: {told}.")
