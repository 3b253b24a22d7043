"""What the commands share: overrides, the name of a recipe, an interruption that says how to go on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from evenhand.errors import Stopped

if TYPE_CHECKING:
    from evenhand.run.recipe import Recipe

Set = Annotated[list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="Override a recipe value.")]
RecipeName = Annotated[str, typer.Argument(help="One of ours, as NAME or NAME:VARIANT, or a TOML file.")]


@contextmanager
def stoppable() -> Iterator[None]:
    """Typer would swallow what an interruption says; processes that stop together leave their group together."""
    try:
        yield
    except KeyboardInterrupt as stop:
        print(f"evenhand: stopped. {stop}", file=sys.stderr)
        if isinstance(stop, Stopped):
            from evenhand import parallel

            parallel.stop()
        raise typer.Exit(130) from stop


def load(name: str, set_: list[str] | None, *, seed: int | None, resume: bool) -> Recipe:
    from evenhand.run.recipe import load_recipe

    overrides = list(set_ or ())
    if seed is not None:
        overrides.append(f"run.seed={seed}")
    if resume:
        overrides.append("run.resume=true")
    return load_recipe(name, overrides)
