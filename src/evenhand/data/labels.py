"""``labels.csv``: what people, or an oracle, said of samples by name (docs/labelling.md), and how it moves them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from evenhand import atomic
from evenhand.data.sources.paths import existing, few, read_text
from evenhand.data.stream import Stream, Streams, join
from evenhand.errors import UserError, did_you_mean

COLUMNS = ("name", "label", "labeller", "time")
NONE = "#none"  # none of these classes


class Answer(NamedTuple):
    """A row of labels.csv."""

    name: str
    label: str
    labeller: str = ""
    time: str = ""


def read_answers(path: str | Path) -> list[Answer]:
    """All rows as they stand there."""
    path = existing(path)
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""), skipinitialspace=True)
    columns = [column for column in reader.fieldnames or () if column]
    for column in COLUMNS[:2]:
        if column not in columns:
            raise UserError(f"'{path}' has no column '{column}'; {did_you_mean(column, columns)}")
    answers = []
    try:
        for row in reader:
            if None in row:
                raise UserError(f"'{path}' line {reader.line_num} has more cells than the header; quote commas")
            cells = [(row.get(column) or "").strip() for column in COLUMNS]
            if not cells[0]:
                raise UserError(f"'{path}' line {reader.line_num} has no name; fill it in")
            answers.append(Answer(*cells))
    except csv.Error as error:
        raise UserError(f"'{path}' line {reader.line_num} is not CSV ({error}); save it again") from error
    return answers


def write_answers(path: Path, answers: Iterable[Answer]) -> None:
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(COLUMNS)
    rows.writerows(answers)
    atomic.write(path, out.getvalue())


def agreed(answers: Iterable[Answer], where: str | Path) -> dict[str, str]:
    """One label for each name that has one; two different answers are refused."""
    labels: dict[str, Answer] = {}
    for answer in answers:
        if not answer.label:
            continue
        before = labels.setdefault(answer.name, answer)
        if before.label != answer.label:
            said = " and ".join(f"'{a.label}'{f' by {a.labeller}' if a.labeller else ''}" for a in (before, answer))
            raise UserError(f"'{where}' has two answers for '{answer.name}': {said}; keep one of them")
    return {name: answer.label for name, answer in labels.items()}


def check_classes(labels: Mapping[str, str], classes: Sequence[str], where: str | Path) -> None:
    for name, label in labels.items():
        if label != NONE and label not in classes:
            raise UserError(f"'{where}': label '{label}' of '{name}' is no class; {did_you_mean(label, classes)}")


def know(streams: Streams, path: str | Path, *, pool: str = "target", known: str = "target_labelled") -> Streams:
    """The streams once the labels of a file are known: their samples move from ``pool`` to ``known``.

    Samples that are "none of these" leave the pool altogether.
    """
    whole = streams[pool]
    labels = agreed(read_answers(path), path)
    check_classes(labels, whole.classes, path)
    names = named(whole)
    if unknown := labels.keys() - set(names):
        remedy = f"names there look like '{names[0]}'" if names else f"the {pool} is empty"
        raise UserError(f"'{path}' labels samples that the {pool} does not have: {few(unknown)}; {remedy}")
    if "test" in streams and (both := labels.keys() & set(named(streams["test"]))):
        raise UserError(
            f"'{path}' labels samples of the test, such as '{min(both)}'; hold some out by target_test_share"
        )
    kept = torch.tensor([row for row, name in enumerate(names) if name not in labels], dtype=torch.long)
    if not len(kept) and pool == "target":
        raise UserError(f"'{path}' labels all {len(names)} samples of the target; leave some to adapt to")
    rows = [row for row, name in enumerate(names) if labels.get(name, NONE) != NONE]
    moved = {name: stream for name, stream in streams.items() if name != pool}
    if len(kept):
        moved[pool] = whole.subset(kept)
    if not rows:
        return moved
    truth = torch.tensor([whole.classes.index(labels[names[row]]) for row in rows])
    bought = replace(whole.subset(torch.tensor(rows)), target=truth, name=known)
    before = streams.get(known)
    moved[known] = bought if before is None else join([before, bought], known)
    return moved


def named(stream: Stream) -> list[str]:
    return [stream.samples.name(row) for row in range(len(stream))]
