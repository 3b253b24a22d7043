"""Recipes: shown, copied, checked."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from evenhand.cli.common import RecipeName, Set


def show(name: RecipeName, set_: Set = None) -> None:
    """A recipe with defaults filled in and every key explained."""
    from evenhand.run.recipe import explained, load_recipe

    print(explained(load_recipe(name, set_ or ())))


def copy(
    name: RecipeName,
    file: Annotated[Path | None, typer.Argument(help="Default: NAME.toml here.")] = None,
) -> None:
    """Copy one of our recipes to a file of your own."""
    from evenhand.errors import UserError
    from evenhand.run.recipe import recipe_text, variant_text

    base, _, variant = name.partition(":")
    target = file or Path(f"{name.replace(':', '-')}.toml")
    if target.exists():
        raise UserError(f"{target} exists already: give another file name")
    target.write_text(variant_text(base, variant) if variant else recipe_text(base))
    print(f"{target}: edit it, then run: {shlex.join(['evenhand', 'train', str(target)])}")


def check(name: RecipeName, set_: Set = None) -> None:
    """Types, files, class counts, and an estimate of memory and time; no training."""
    from evenhand.run.check import check_recipe
    from evenhand.run.recipe import load_recipe

    problems = check_recipe(load_recipe(name, set_ or ()))
    raise typer.Exit(2 if problems else 0)
