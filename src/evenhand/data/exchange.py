"""Picks to other labelling tools and answers back: Label Studio's JSON, and CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from evenhand import atomic
from evenhand.data.labels import NONE, Answer, read_answers
from evenhand.data.picks import PickRow, missing_files
from evenhand.data.sources.paths import existing, few, read_text
from evenhand.errors import UserError, did_you_mean


def export_picks(rows: Sequence[PickRow], out: Path, *, classes: Sequence[str] = (), prefix: str = "") -> None:
    """``.json``: tasks for Label Studio, the model's guess as prediction; ``.csv``: ``path,label`` to be filled in.

    ``prefix`` stands before each name where the tool serves images itself, such as ``/data/local-files/?d=pool/``.
    A file that is there already is somebody's work, so it is refused.
    """
    if out.exists():
        raise UserError(f"{out} exists already, perhaps filled in: take it back by labels import, or give another name")
    if gone := missing_files(rows):
        raise UserError(f"files of {len(gone)} picks are gone: {few(gone)}; restore them, or select again")
    if out.suffix == ".json":
        atomic.write_json(out, [_task(row, classes, prefix) for row in rows])
    elif out.suffix == ".csv":
        table = io.StringIO()
        lines = csv.writer(table, lineterminator="\n")
        lines.writerow(("name", "path", "label"))
        lines.writerows((row.name, prefix + row.name if prefix else row.path, "") for row in rows)
        atomic.write(out, table.getvalue())
    else:
        raise UserError(f"'{out}': give a name that ends with .json (Label Studio) or .csv")


def _task(row: PickRow, classes: Sequence[str], prefix: str) -> dict[str, Any]:
    kind = "text" if row.text else "image"
    shown = row.text or (prefix + row.name if prefix else row.path or row.name)
    task: dict[str, Any] = {"data": {kind: shown, "name": row.name, "rank": row.rank}}
    if classes:
        task["data"]["classes"] = [{"value": name} for name in (*classes, NONE)]
    if row.guesses:
        guess, sure = row.guesses[0]
        choice = {"from_name": "label", "to_name": kind, "type": "choices", "value": {"choices": [guess]}}
        task["predictions"] = [{"model_version": "evenhand", "score": sure, "result": [choice]}]
    return task


def label_config(classes: Sequence[str], kind: str = "image") -> str:
    """The labelling interface that Label Studio asks for, for the tasks of ``export_picks``."""
    from xml.sax.saxutils import quoteattr

    show = '<Image name="image" value="$image"/>' if kind == "image" else '<Text name="text" value="$text"/>'
    choices = "".join(f"<Choice value={quoteattr(name)}/>" for name in (*classes, NONE))
    return f'<View>{show}<Choices name="label" toName="{kind}" choice="single">{choices}</Choices></View>'


def import_answers(path: Path) -> list[Answer]:
    """Answers from Label Studio's JSON or JSON-MIN export, or a CSV ``name,label`` (or ``path,label``)."""
    if existing(path).suffix == ".json":
        try:
            tasks = json.loads(read_text(path))
        except ValueError as error:
            raise UserError(f"'{path}' is not JSON ({error}); export it again from Label Studio as JSON") from error
        if not isinstance(tasks, list):
            raise UserError(f"'{path}' is no list of tasks; export it from Label Studio as JSON or JSON-MIN")
        return [answer for number, task in enumerate(tasks) for answer in _answers(task, f"'{path}' task {number}")]
    if path.suffix != ".csv":
        raise UserError(f"'{path}': give Label Studio's .json, or a .csv with name and label")
    head = next(csv.reader(io.StringIO(read_text(path))), [])
    if "name" in head:
        return read_answers(path)
    rows = csv.DictReader(io.StringIO(read_text(path), newline=""), skipinitialspace=True)
    if "path" not in head:
        raise UserError(f"'{path}' has no column 'name' (or 'path'); it has {', '.join(head) or 'none'}: rename one")
    if "label" not in head:
        raise UserError(f"'{path}' has no column 'label'; {did_you_mean('label', head)}")
    return [Answer((row["path"] or "").strip(), (row["label"] or "").strip()) for row in rows]


def _answers(task: Any, where: str) -> Iterator[Answer]:
    if not isinstance(task, dict):
        raise UserError(f"{where} is no task; export it from Label Studio as JSON or JSON-MIN")
    data = task.get("data", task)  # JSON-MIN has the data's keys in the task itself
    name = data.get("name") if isinstance(data, dict) else None
    if not isinstance(name, str) or not name:
        raise UserError(f"{where} has no data.name: it was not made by evenhand labels export")
    if "annotations" not in task:
        label = task.get("label", "")
        yield Answer(
            name,
            label if isinstance(label, str) else "",
            str(task.get("annotator", "")),
            _when(task),
        )
        return
    for said in task["annotations"]:
        if said.get("was_cancelled"):
            yield Answer(name, "", _who(said), _when(said))
            continue
        chosen = [c for part in said.get("result", ()) for c in part.get("value", {}).get("choices", ())]
        if len(chosen) > 1:
            raise UserError(f"{where}: '{name}' has several classes, {', '.join(map(str, chosen))}; let one be chosen")
        yield Answer(name, str(chosen[0]) if chosen else "", _who(said), _when(said))


def _who(said: dict[str, Any]) -> str:
    who = said.get("completed_by", "")
    return str(who.get("email", who.get("id", "")) if isinstance(who, dict) else who)


def _when(said: dict[str, Any]) -> str:
    """When it was last changed; some exports tell only when it was made."""
    return str(said.get("updated_at") or said.get("created_at") or "")
