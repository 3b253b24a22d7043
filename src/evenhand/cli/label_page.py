"""``evenhand label``: the page on which picks are labelled."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def label(
    picks: Annotated[Path, typer.Argument(help="picks.csv of evenhand select.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Default: labels.csv beside the picks.")] = None,
    pool: Annotated[Path | None, typer.Option(help="Folder of the pool, if it was moved.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 0,
    answers: Annotated[int, typer.Option(min=1, help="Answers that each sample needs, by different people.")] = 1,
    class_: Annotated[
        list[str] | None, typer.Option("--class", help="A class, repeatable, beside the model's.")
    ] = None,
    new_classes: Annotated[bool, typer.Option("--new-classes", help="Labellers may add classes.")] = False,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
) -> None:
    """Label the picked samples in the browser; every answer is saved at once, and labels.csv is written at the end."""
    from evenhand.label.serving import serve

    serve(
        picks, out or picks.with_name("labels.csv"), pool=pool, port=port, needed=answers, classes=class_ or (),
        new_classes=new_classes, browser=browser,
    )  # fmt: skip
