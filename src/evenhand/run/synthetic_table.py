"""What ``evenhand synthetic`` has found: rows against real images alone, and a sentence that follows from them."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, cast

from evenhand import atomic
from evenhand.report.contrast import Estimate, Values, contrasts, difference, estimate, verb
from evenhand.report.page import write_report
from evenhand.report.reading import load_run
from evenhand.report.terminal import console
from evenhand.tasks.classify import CLASSIFY

COLUMNS = ("mean_recall", "head", "mid", "tail", "min_recall")


@dataclass(frozen=True)
class Row:
    """What one classifier is trained on, and how."""

    name: str
    augmented: bool = False
    reweighted: bool = False
    drawn: str = ""  # by whom


BASE, AUGMENTED, REWEIGHTED = Row("real"), Row("augmented", augmented=True), Row("reweighted", reweighted=True)
USUAL = Row("usual", augmented=True, reweighted=True)


def drawn_file(folder: Path, generator: str, seed: int) -> Path:
    """Its images, beside a ``.json`` that tells of them."""
    return folder / "drawn" / f"{generator}-{seed}.npz"


def of_drawn(
    folder: Path, generators: Iterable[str], seeds: Iterable[int], counts: list[int], plan: dict[str, Any]
) -> list[str]:
    """How many images were drawn, and how far their labels can be trusted."""
    said, real = [], sum(counts)
    for name in generators:
        told = [json.loads(drawn_file(folder, name, seed).with_suffix(".json").read_text()) for seed in seeds]
        drawn, wanted = (fmean(sum(t[key]) for t in told) for key in ("drawn", "wanted"))
        tried = fmean(t["tried"] for t in told)
        line = f"{name}: {real:,} real and {drawn:,.0f} drawn images, labels: {plan['labels']}"
        if drawn < wanted:
            line += f"; {wanted - drawn:,.0f} more were wanted, but not found among {tried:,.0f}"
        agreed = [[share for share in t["agreement"] if share is not None] for t in told]
        if all(agreed):
            mean, worst = fmean(map(fmean, agreed)), fmean(map(min, agreed))
            line += f"; the annotator agrees with {mean:.1%} of them, in the worst class {worst:.1%}"
        said.append(f"{line}.")
    seen = (plan["labeller"] or {}).get("trained on", 0)
    if plan["labels"] == "annotator" and seen > real:
        said.append(
            f"The annotator has seen {seen:,} real images, the classifiers {real:,}: what it knows more comes in with "
            "its labels. Give one that was trained on the same images as --annotator."
        )
    return said


def conclude(
    folder: Path, rows: list[Row], runs: dict[tuple[Row, int], Path], remarks: list[str], plan: dict[str, Any]
) -> None:
    """Print the tables, and write ``table.md``, ``synthetic.json`` and ``report.html``."""
    metrics = [CLASSIFY.metric(key) for key in COLUMNS]
    found: dict[str, Values] = {}
    for row in rows:
        records = {seed: load_run(place) for (of, seed), place in runs.items() if of == row}
        values = {m.key: {seed: record.value(m) for seed, record in records.items()} for m in metrics}
        found[row.name] = cast(Values, values)
    metrics = [m for m in metrics if None not in found[BASE.name][m.key].values()]  # data.groups may have no mid
    tables = contrasts(found, metrics, BASE.name)
    said = conclusion(found, dict.fromkeys(row.drawn for row in rows if row.drawn))
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    shown = "\n".join(f"{table.caption}\n\n{table.to_markdown()}" for table in tables)
    listed = "\n".join(f"- {line}" for line in remarks)
    atomic.write(folder / "table.md", f"    {command}\n\n{shown}\n{' '.join(said)}\n\n{listed}\n")
    numbers = {
        name: {
            m.key: {
                "seeds": row[m.key],
                **estimate([*row[m.key].values()])._asdict(),
                "difference": difference(row[m.key], found[BASE.name][m.key])._asdict(),
            }
            for m in metrics
        }
        for name, row in found.items()
    }
    atomic.write_json(folder / "synthetic.json", {**plan, "rows": numbers, "conclusion": said, "remarks": remarks})
    page, say = write_report([*runs.values()], folder / "report.html"), console()
    for table in tables:
        say.print(table.to_rich())
    for line in (*remarks, *said, f"table: {folder / 'table.md'}   report: {page}"):
        say.print(line, highlight=False, soft_wrap=True)


def conclusion(found: dict[str, Values], generators: Iterable[str]) -> list[str]:
    """A sentence for each generator: what its images add to real ones, and to the usual remedies."""
    headline, key = CLASSIFY.headline.name, CLASSIFY.headline.key
    seeds = len(found[BASE.name][key])

    def gain(row: str, over: str) -> Estimate:
        return difference(found[row][key], found[over][key])

    augmented, reweighted = (gain(row.name, BASE.name) for row in (AUGMENTED, REWEIGHTED))
    told = []
    for name in generators:
        alone, beside = gain(name, BASE.name), gain(f"{name}, usual", USUAL.name)
        told.append(
            f"What {name} draws {verb(alone, seeds)}: {headline} {alone} points against real images alone, where "
            f"augmentation makes {augmented} and re-weighting {reweighted}; beside both of these it "
            f"{verb(beside, seeds)} ({beside})."
        )
    return told
