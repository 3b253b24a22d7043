"""Answers from elsewhere become rows of ``labels.csv``, and a pool with its answers data to train on; all is checked
before anything is written."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path

from evenhand import atomic
from evenhand.data.exchange import import_answers
from evenhand.data.labels import NONE, Answer, agreed, check_classes, read_answers, write_answers
from evenhand.data.picks import read_facts, read_picks
from evenhand.data.pool import read_pool
from evenhand.data.sources.paths import few
from evenhand.errors import UserError


def take_answers(answers: Path, out: Path, picks: Path | None = None) -> tuple[int, int]:
    """Add them to ``out``; returns how many labels it has then, and how many are new.

    With ``picks``, names and classes must be its own; the path of a pick stands for its name.
    """
    new = import_answers(answers)
    if picks is not None:
        rows = read_picks(picks)
        by_path = {Path(row.path).as_posix(): row.name for row in rows if row.path}
        names = {row.name for row in rows}
        new = [answer._replace(name=by_path.get(answer.name, answer.name)) for answer in new]
        if unknown := {answer.name for answer in new} - names:
            raise UserError(f"'{answers}' answers for samples that '{picks}' does not have: {few(unknown)}")
        if classes := read_facts(picks).get("classes"):
            check_classes(agreed(new, answers), classes, answers)
    before = read_answers(out) if out.exists() else []
    known = set(before)
    fresh: list[Answer] = [answer for answer in dict.fromkeys(new) if answer not in known]
    both = [*before, *fresh]
    kept, said = agreed(before, out), agreed(new, answers)
    for name in sorted(kept.keys() & said.keys()):
        if kept[name] != said[name]:
            raise UserError(
                f"'{answers}' says '{said[name]}' of '{name}', and '{out}' says '{kept[name]}': correct one of them"
            )
    write_answers(out, both)
    total = len(kept | said)
    return total, total - len(kept)


def write_data(labels: Path, pool: Path, out: Path) -> tuple[int, int]:
    """A CSV of a whole pool to train a first model on; returns how many of its samples have a label, and how many none.

    Those are its unlabelled part; samples that are none of the classes are left out.
    """
    if out.suffix != ".csv" or out.exists():
        raise UserError(f"'{out}' {'exists already' if out.exists() else 'is no .csv'}: give another name")
    found, said = read_pool(pool), agreed(read_answers(labels), labels)
    kind, names = found.source.kind, found.names
    if kind == "vectors" or (kind == "images" and found.source.path(0) is None):
        raise UserError(f"'{pool}' has neither files nor texts: write the labels into it as its own column or y")
    if unknown := said.keys() - set(names):
        raise UserError(f"'{labels}' labels samples that '{pool}' does not have: {few(unknown)}; name their pool")
    kept = [(row, said.get(name, "")) for row, name in enumerate(names) if said.get(name) != NONE]
    known = sum(bool(label) for _, label in kept)
    if not known:
        raise UserError(f"'{labels}' gives no sample of '{pool}' a class: label some")
    table = io.StringIO()
    lines = csv.writer(table, lineterminator="\n")
    lines.writerow(("text" if kind == "texts" else "path", "label", "split"))
    for row, label in kept:
        file = found.source.path(row)
        content = found.source.text(row) if file is None else Path(os.path.relpath(file, out.parent)).as_posix()
        lines.writerow((content, label, "train" if label else "unlabelled"))
    atomic.write(out, table.getvalue())
    return known, len(kept) - known
