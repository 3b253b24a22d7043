"""The report: several runs side by side on one self-contained HTML page, with the verdict first."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from markupsafe import Markup

from evenhand import atomic
from evenhand.errors import UserError
from evenhand.report import markup
from evenhand.report.charts.svg import colour
from evenhand.report.markup import joined, parts
from evenhand.report.reading import load_run
from evenhand.report.records import RunGroup, RunRecord, apart, by_task, group_runs
from evenhand.report.tables import Cell, Table, difference_table, failures_table, notes, runs_table, summary_of
from evenhand.report.tested import tested_on
from evenhand.report.verdict import advice, cautions, verdict


def write_report(runs: Sequence[Path], out: Path) -> Path:
    """Read the run folders and write the page to ``out``, whole or not at all; returns ``out``."""
    if not runs:
        raise UserError("a report needs at least one run folder; give one that train wrote")
    places = [Path(run).resolve() for run in runs]
    for run, place in zip(runs, places, strict=True):
        if places.count(place) > 1:
            raise UserError(f"run folder {run} is given twice and would count as two seeds; name it once")
    if (out := Path(out)).is_dir():
        raise UserError(f"{out} is a folder; name a file, such as {out / 'report.html'}")
    page = render([load_run(run) for run in runs])
    atomic.write(out, page.encode(errors="replace"), "choose another place")  # others' files may hold half an emoji
    return out


def render(records: Sequence[RunRecord]) -> str:
    """The page's text; the same records give the same bytes."""
    groups, lost = apart(group_runs(records))
    colours = {group.name: colour(i) for i, group in enumerate(groups)}
    sections: dict[str, tuple[str, str]] = {}  # anchor -> title, HTML

    def add(title: str, inside: str, task: str = "") -> None:
        anchor = title.lower().replace(" ", "-")
        if inside:
            sections[f"{task}-{anchor}" if anchor in sections else anchor] = title, inside

    add("Summary", _summary(groups, colours))
    if lost:
        add("Runs that failed or did not end", parts.table(failures_table(lost)))
    for task, same in by_task(groups).items():
        for title, section in task.sections().illustrated.items():
            add(title, section(same, colours), task.name)
    differences = difference_table([r for g in groups for r in g.records])
    add("What differs", parts.table(differences) if differences.rows else parts.note("Nothing: there is one recipe."))
    add("Provenance", _provenance(records, groups))
    script, script_hash = markup.script("page.js")
    return markup.render(
        "page.html",
        script=script,
        script_hash=script_hash,
        advice=advice(groups),
        title=", ".join(g.name for g in groups),
        verdict=verdict(groups),
        cautions=cautions(groups),
        sections=[(anchor, *section) for anchor, section in sections.items()],
    )


def _summary(groups: Sequence[RunGroup], colours: Mapping[str, str]) -> Markup:
    text, told = Markup(), list[str]()
    for same in by_task(groups).values():
        runs = [record for group in same for record in group.records]
        text += parts.table(summary_of(same), colours)
        if len(runs) > len(same):
            text += parts.fold("Every run on its own", parts.table(runs_table(runs)))
        told += notes(same)
        told += filter(None, [tested_on(same)[1]])
    return text + joined(map(parts.note, dict.fromkeys(told)))


def _provenance(records: Sequence[RunRecord], groups: Sequence[RunGroup]) -> Markup:
    users: dict[str, list[str]] = {}
    commands: list[str] = []
    for record in records:
        told = {k: v if isinstance(v, str) else json.dumps(v) for k, v in record.environment.items()}
        commands.append(told.pop("command", ""))
        if told:
            users.setdefault(json.dumps(told), []).append(record.name)
    commands.append(shlex.join(["evenhand", "report", *(str(r.folder) for r in records)]))
    return markup.render(
        "provenance.html",
        groups=groups,
        digests=_digests(records),
        environments=[(_who(names, records), json.loads(found)) for found, names in users.items()],
        commands=[command for command in dict.fromkeys(commands) if command],
    )


def _who(names: Sequence[str], records: Sequence[RunRecord]) -> str:
    return "all runs" if len(names) == len(records) else ", ".join(names)


def _digests(records: Sequence[RunRecord]) -> Table:
    """One row per stream and content, with the runs that used it."""
    users: dict[tuple[str, str, str], list[str]] = {}
    for record in records:
        for name, stream in record.streams.items():
            if digest := stream.get("digest"):
                samples = stream.get("samples") or sum(stream.get("counts") or ())
                users.setdefault((name, f"{samples:,}", digest), []).append(record.name)
    rows = tuple((*map(Cell, what), Cell(_who(names, records))) for what, names in users.items())
    return Table("Equal digests, equal samples", ("stream", "samples", "digest", "used by"), rows, range(1, 2))
