"""Answers from elsewhere become rows of ``labels.csv``, checked before anything is written."""

from __future__ import annotations

from pathlib import Path

from evenhand.data.exchange import import_answers
from evenhand.data.labels import Answer, agreed, check_classes, read_answers, write_answers
from evenhand.data.picks import read_facts, read_picks
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
