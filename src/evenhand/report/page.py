"""The report: several runs side by side on one self-contained HTML page, with the verdict first."""

from __future__ import annotations

import contextlib
import html
import json
import os
import shlex
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path

from evenhand.errors import UserError
from evenhand.report import adaptation, figures, generators, selftraining
from evenhand.report.gallery import pictures_section
from evenhand.report.records import NOT_RUN, RunGroup, RunRecord, group_runs, load_run
from evenhand.report.svg import colour
from evenhand.report.tables import Cell, Table, by_kind, difference_table, runs_table, summary_table
from evenhand.report.verdict import BADGE, cautions, verdict_html

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>evenhand report: {title}</title>
<style>{style}</style></head>
<body><header><p class="kicker">evenhand report</p><h1>{verdict}</h1>{cautions}<nav>{links}</nav></header>
<main>{sections}</main></body></html>
"""


def write_report(runs: Sequence[Path], out: Path) -> Path:
    """Read the run folders and write the page to ``out``, whole or not at all; returns ``out``."""
    if not runs:
        raise UserError("a report needs at least one run folder; give one that train wrote")
    places = [Path(run).resolve() for run in runs]
    for run, place in zip(runs, places, strict=True):
        if places.count(place) > 1:
            raise UserError(f"run folder {run} is given twice and would count as two seeds; name it once")
    text = render([load_run(run) for run in runs])
    out = Path(out)
    partial = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        partial.replace(out)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise UserError(f"the report cannot be written to {out} ({error.strerror}); choose another place") from error
    return out


def render(records: Sequence[RunRecord]) -> str:
    """The page's text; the same records give the same bytes."""
    groups = group_runs(records)
    colours = {group.name: colour(i) for i, group in enumerate(groups)}
    sections = {
        "Summary": _summary(records, groups, colours),
        **_classifiers([g for g in groups if not g.draws], colours),
        **_adaptations([g for g in groups if adaptation.adapts(g)], colours),
        **_generators([g for g in groups if g.draws], colours),
        "What differs": _differences(records),
        "Provenance": _provenance(records, groups),
    }
    return PAGE.format(
        title=html.escape(", ".join(g.name for g in groups)),
        style=files("evenhand.report").joinpath("page.css").read_text(encoding="utf-8"),
        verdict=verdict_html(groups),
        cautions=cautions(groups),
        links="".join(f'<a href="#{_anchor(title)}">{title}</a>' for title in sections),
        sections="\n".join(
            f'<section id="{_anchor(title)}"><h2>{title}</h2>\n{text}</section>' for title, text in sections.items()
        ),
    )


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def _classifiers(groups: Sequence[RunGroup], colours: dict[str, str]) -> dict[str, str]:
    if not groups:
        return {}
    return {
        "Classes": figures.classes_section(groups, colours),
        "Training curves": figures.curves_section(groups, colours),
        **selftraining.sections(groups),
        "Confusions": figures.confusions_section(groups),
        "Calibration": figures.calibration_section(groups, colours),
    }


def _adaptations(groups: Sequence[RunGroup], colours: dict[str, str]) -> dict[str, str]:
    return {"Adaptation": adaptation.adaptation_section(groups, colours)} if groups else {}


def _generators(groups: Sequence[RunGroup], colours: dict[str, str]) -> dict[str, str]:
    if not groups:
        return {}
    return {
        "Classes as drawn": generators.drawn_section(groups, colours),
        "Pictures": pictures_section(groups),
        "Generators in training": generators.curves_section(groups, colours),
    }


def _summary(records: Sequence[RunRecord], groups: Sequence[RunGroup], colours: dict[str, str]) -> str:
    text = ""
    for kind in by_kind(records):
        text += summary_table(kind).to_html(colours)
        if len(kind) > len([g for g in groups if g.draws == kind[0].draws]):
            text += figures.details("Every run on its own", runs_table(kind).to_html())
    notes = generators.basis([g for g in groups if g.draws])
    rules = sorted({str(g.measure["groups_rule"]) for g in groups if "groups_rule" in g.measure})
    notes += [f"Head, mid and tail: {'; '.join(rules)}."] if rules else []
    return text + "".join(f'<p class="note">{html.escape(note)}</p>' for note in notes)


def _differences(records: Sequence[RunRecord]) -> str:
    table = difference_table(records)
    return table.to_html() if table.rows else "<p>Nothing: there is one recipe.</p>"


def _provenance(records: Sequence[RunRecord], groups: Sequence[RunGroup]) -> str:
    report = shlex.join(["evenhand", "report", *(str(r.folder) for r in records)])
    parts = {
        "How checkpoints were chosen": _pairs((g.name, _selection(g)) for g in groups),
        "Data": _digests(records),
        "Resolved recipes": "".join(map(_recipe, groups)),
        "Environment": _environments(records),
        "Commands": f"<pre>{html.escape(chr(10).join([*_commands(records), report]))}</pre>",
    }
    return "".join(f"<h3>{title}</h3>{text}" for title, text in parts.items())


def _selection(group: RunGroup) -> str:
    if not group.measured:
        return f"measurement {NOT_RUN}"
    told = {key: html.escape(str(group.measure.get(key, "unknown"))) for key in ("select", "checkpoint", "split")}
    kind, _, metric = told["select"].partition(":")
    said = {
        "last": "the last checkpoint, nothing selected",
        "val": f"the checkpoint with the best {metric} on the validation split",
        "label-free": f"the checkpoint with the best score '{metric}', which sees no label of the target",
        "oracle": f"{BADGE} the checkpoint with the best {metric} on the data it is measured on",
    }.get(kind, told["select"])
    noun = "images drawn" if group.draws else "samples"
    samples = f", {group.measure['samples']:,} {noun}" if "samples" in group.measure else ""
    return f"{said} ({told['checkpoint']}); measured on the {told['split']} split{samples}"


def _pairs(items: Iterable[tuple[str, str]]) -> str:
    return "<dl>" + "".join(f"<dt>{html.escape(name)}</dt><dd>{text}</dd>" for name, text in items) + "</dl>"


def _who(names: Sequence[str], records: Sequence[RunRecord]) -> str:
    return "all runs" if len(names) == len(records) else ", ".join(names)


def _digests(records: Sequence[RunRecord]) -> str:
    """One row per stream and content, with the runs that used it."""
    users: dict[tuple[str, str, str], list[str]] = {}
    for record in records:
        for name, stream in record.streams.items():
            if isinstance(stream, dict) and "digest" in stream:
                samples = stream.get("samples", sum(stream.get("counts") or ()))
                users.setdefault((name, str(stream["digest"]), f"{samples:,}"), []).append(record.name)
    rows = tuple(
        (Cell(name), Cell(samples), Cell(digest), Cell(_who(names, records)))
        for (name, digest, samples), names in users.items()
    )
    columns = ("stream", "samples", "digest", "used by")
    return Table("Equal digests, equal samples", columns, rows, range(1, 2)).to_html() if rows else figures.NOTHING


def _recipe(group: RunGroup) -> str:
    first = group.records[0]
    runs = ", ".join(f"{r.name} (seed {'unknown' if r.seed is None else r.seed})" for r in group.records)
    shown = f"<pre>{html.escape(first.recipe_text)}</pre>" if first.recipe else figures.NOTHING
    note = f"Runs: {runs}. Shown: {first.name}."
    return figures.details(group.name, f'<p class="note">{html.escape(note)}</p>{shown}')


def _environments(records: Sequence[RunRecord]) -> str:
    users: dict[str, list[str]] = {}
    for record in records:
        if surroundings := {k: v for k, v in record.environment.items() if k != "command"}:
            users.setdefault(json.dumps(surroundings), []).append(record.name)
    text = ""
    for found, names in users.items():
        pairs = {k: v if isinstance(v, str) else json.dumps(v) for k, v in json.loads(found).items()}
        text += f'<p class="note">{html.escape(_who(names, records))}</p>'
        text += _pairs((k, html.escape(v)) for k, v in pairs.items())
    return text or figures.NOTHING


def _commands(records: Sequence[RunRecord]) -> list[str]:
    return list(dict.fromkeys(str(r.environment["command"]) for r in records if "command" in r.environment))
