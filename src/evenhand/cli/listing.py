"""``evenhand list``: what there is, by what one has to do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# The rooms of methods: what one has and wants, the recipe for data of one's own, and what names the data.
JOBS = {
    "recognise": ("labelled images, texts or tables, some classes rare", "folder", "--set data.set=photos"),
    "unlabelled": ("few labels, many samples without", "few-labels", "--set data.set=photos"),
    "adapt": ("labels in one domain, a model for another", "adapt", "--set data.set=studio --set data.target=street"),
    "generate": ("new images of every class", "generate", "--set data.set=photos"),
}
What = Annotated[str, typer.Argument(metavar="[methods|recipes|nets|data]", help="Only these, with details.")]


def list_(
    what: What = "",
    all_: Annotated[bool, typer.Option("--all", help="Everything, with details.")] = False,
) -> None:
    """What there is, job by job; details of methods, recipes, networks or data sets by name."""
    from rich.console import Console

    from evenhand.errors import UserError, did_you_mean

    parts: dict[str, Callable[[], Table]] = {"methods": _methods, "recipes": _recipes, "nets": _nets, "data": _data}
    if what and what not in parts:
        raise UserError(f"'{what}' is nothing to list; {did_you_mean(what, parts)}")
    out = Console()
    if not what and not all_:
        _jobs(out)
        print(
            "\nmore: evenhand list methods|recipes|nets|data, evenhand show NAME; start: evenhand copy folder mine.toml"
        )
        return
    for name in parts if all_ else [what]:
        if all_:
            out.print(f"[bold]{name}[/]")
        out.print(parts[name]())


def _table(*widths: int | None) -> Table:
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    for width in widths:
        table.add_column(min_width=width, overflow="fold")
    return table


def _jobs(out: Console) -> None:
    from rich.padding import Padding

    from evenhand.methods import METHODS

    known = list(_recipes_of())
    for job, (about, own, named) in JOBS.items():
        table = _table(13, None)
        table.add_row("your own data", f"evenhand train {own} {named}")
        table.add_row("methods", ", ".join(name for name in METHODS if _job(name) == job))
        table.add_row("recipes", ", ".join(name for name, of, *_ in known if of == job and name != own))
        out.print(f"[bold]{job}[/]: {about}", highlight=False)
        out.print(Padding(table, (0, 0, 0, 2)))


def _methods() -> Table:
    from rich.markup import escape

    from evenhand.methods import METHODS, method_class

    table = _table(20, 11, None)
    for name in METHODS:
        cls = method_class(name)
        about = f"{_line(cls.__doc__)}. {_line(sys.modules[cls.__module__].__doc__)}"
        table.add_row(name, _job(name), escape(about))
    return table


def _recipes() -> Table:
    from rich.markup import escape

    table = _table(17, 11, None)
    for name, job, about, variants in _recipes_of():
        table.add_row(name, job, escape(about))
        if variants:
            table.add_row("", "", f"[dim]variants: {', '.join(variants)}[/]")
    return table


def _nets() -> Table:
    from evenhand.nets import NETS, reads_text, reads_vectors

    table = _table(13, None)
    texts = [name for name in NETS if reads_text(name)]
    vectors = [name for name in NETS if reads_vectors(name)]
    table.add_row("images", ", ".join(name for name in NETS if name not in (*texts, *vectors)) + ", timm:NAME")
    table.add_row("texts", ", ".join(texts) + ", hf:FOLDER")
    table.add_row("vectors", ", ".join(vectors))
    return table


def _data() -> Table:
    from rich.markup import escape

    from evenhand.data.sets.catalogue import DATASETS
    from evenhand.data.sets.scenes import SETS

    table = _table(13, None)
    for row in DATASETS.values():
        table.add_row(row.name, escape(row.about))
    for name, scenery in SETS.items():
        table.add_row(name, escape(scenery.about))
    table.add_row("shapes", "ten drawn shapes, 32 x 32 colour, made on the spot")
    table.add_row("phrases", "short texts on five subjects, made on the spot")
    return table


def _recipes_of() -> Iterator[tuple[str, str, str, list[str]]]:
    """Name, job, what it is about, variants."""
    from evenhand.run.recipe import load_recipe, recipe_names

    for name in recipe_names():
        recipe = load_recipe(name)
        yield name, _job(recipe.method.name), recipe.about, list(recipe.variants)


def _job(method: str) -> str:
    from evenhand.methods import METHODS

    return METHODS[method].split(".")[2]


def _line(text: str | None) -> str:
    return (text or "").strip().splitlines()[0].rstrip(".")
