"""Commands that train."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evenhand.cli.common import RecipeName, Set, load, stoppable

if TYPE_CHECKING:
    from evenhand.run.recipe import Recipe


def train(
    name: Annotated[str, typer.Argument(help="A recipe of ours, a TOML file, or your data: a folder, CSV or .npz.")],
    set_: Set = None,
    seed: Annotated[int | None, typer.Option(help="Same as --set run.seed=N.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue where the run stopped.")] = False,
    budget: Annotated[str | None, typer.Option(help="Of data: how long it may take, such as 10m.")] = None,
    fine_tune: Annotated[bool, typer.Option("--fine-tune", help="Of photographs: tune all of the network.")] = False,
) -> None:
    """Train a recipe, or your data with one that is chosen for them, and measure it; also under torchrun."""
    from evenhand import parallel
    from evenhand.report.reading import load_run
    from evenhand.report.terminal import print_tables
    from evenhand.run import train as run_training

    recipe = _chosen(name, set_, seed, resume, budget, fine_tune)
    with stoppable():
        folder = run_training(recipe)
    if parallel.is_writer():
        if (folder / "measure.json").exists():
            print_tables([load_run(folder)])
            print(f"run: {folder}   report: {shlex.join(['evenhand', 'report', str(folder)])}")
        else:
            print(f"paused: {folder}   continue: {shlex.join(['evenhand', 'train', str(folder), '--resume'])}")
    parallel.stop()


def _chosen(
    name: str, set_: list[str] | None, seed: int | None, resume: bool, budget: str | None, fine_tune: bool
) -> Recipe:
    from evenhand.errors import UserError
    from evenhand.run.choosing import choose, is_data, seconds_of

    if not is_data(name):
        if budget is not None or fine_tune:
            raise UserError(
                f"--budget and --fine-tune are for data; '{name}' is a recipe: set run.epochs or method.net"
            )
        recipe = load(name, set_, seed=seed, resume=resume)
        if resume and not Path(recipe.run.folder).is_dir():
            raise UserError(
                f"there is no run in {recipe.run.folder} to resume: correct run.folder, or leave out --resume to begin "
                "one (--set run.resume=true does either)"
            )
        return recipe
    if resume:
        raise UserError("--resume continues a run: give its folder, as train printed it, in place of the data")
    seconds = None if budget is None else seconds_of(budget)
    return choose(name, set_ or (), budget=seconds, fine_tune=fine_tune, seed=seed or 0)


def reproduce(
    name: RecipeName,
    seeds: Annotated[int, typer.Option(min=1, help="How many.")] = 3,
    first_seed: Annotated[int, typer.Option(min=0, help="1 leaves out seed 0, on which settings were tried.")] = 0,
    only: Annotated[list[str] | None, typer.Option("--variant", help="Only these variants.")] = None,
    set_: Set = None,
    out: Annotated[Path | None, typer.Option(help="Folder for runs and report.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time; on a CPU, one for each core.")] = 1,
    splits: Annotated[
        bool | None,
        typer.Option(help="Each seed splits the data anew, or all have one split. Default: anew if they are few."),
    ] = None,
) -> None:
    """Train every variant of a recipe over several seeds, compare with [expect], write a report.

    Repeat the same command to go on after an interruption: finished runs are kept.
    """
    from evenhand.run.reproduce import reproduce as run_all

    with stoppable():
        run_all(
            name, seeds=seeds, first_seed=first_seed, variants=only, overrides=set_ or (), out=out, jobs=jobs,
            splits=splits,
        )  # fmt: skip


def demo(
    out: Annotated[Path, typer.Option(help="Folder for runs and report.")] = Path("runs/demo"),
    set_: Set = None,
) -> None:
    """The main job on built-in data: plain training against re-weighting and flat minima, with a report."""
    from evenhand.run.reproduce import demo as run_demo

    with stoppable():
        run_demo(out, set_ or ())
