"""The command line. Torch is imported inside commands, so that ``--help`` answers at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evenhand.cli_data import app as data

if TYPE_CHECKING:
    from evenhand.run.recipe import Recipe

app = typer.Typer(
    help="Even-handed models from uneven data: rare classes, few labels, other domains.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(data, name="data")

Set = Annotated[list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="Override a recipe value.")]
RecipeName = Annotated[str, typer.Argument(help="One of ours, as NAME or NAME:VARIANT, or a TOML file.")]


def main() -> None:
    """Run the command line; a user's mistake is one line and exit code 2."""
    from evenhand.errors import UserError, plain_warnings

    if Path(sys.argv[0]).name == "__main__.py":  # python -m evenhand: runs and tables record what can be typed again
        sys.argv[0] = "evenhand"
    try:
        with plain_warnings():
            app()
    except UserError as error:
        print(f"evenhand: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        print(f"evenhand: {error}", file=sys.stderr)
        sys.exit(2)


@app.command("list")
def list_() -> None:
    """Methods, recipes, networks and data sets, one line each."""
    from rich.console import Console

    from evenhand.data.sets.catalogue import DATASETS
    from evenhand.methods import METHODS, method_class
    from evenhand.nets import NETS
    from evenhand.run.recipe import load_recipe, recipe_names

    out = Console()
    out.print("[bold]methods[/]")
    for name in METHODS:
        out.print(f"  {name:14} {(sys.modules[method_class(name).__module__].__doc__ or '').splitlines()[0]}")
    out.print("[bold]recipes[/]")
    for name in recipe_names():
        recipe = load_recipe(name)
        out.print(f"  {name:14} {recipe.about}", highlight=False)
        if recipe.variants:
            out.print(f"  {'':14} variants: {', '.join(recipe.variants)}", highlight=False)
    out.print("[bold]networks[/]\n  " + ", ".join(NETS), highlight=False)
    out.print("[bold]data sets[/]")
    for row in DATASETS.values():
        out.print(f"  {row.name:14} {row.about}", highlight=False)


@app.command()
def show(name: RecipeName, set_: Set = None) -> None:
    """A recipe with defaults filled in and every key explained."""
    from evenhand.run.recipe import explained, load_recipe

    print(explained(load_recipe(name, set_ or ())))


@app.command()
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
    print(f"{target}: edit it, then run: evenhand train {target}")


@app.command()
def check(name: RecipeName, set_: Set = None) -> None:
    """Types, files, class counts, and an estimate of memory and time; no training."""
    from evenhand.run.check import check_recipe
    from evenhand.run.recipe import load_recipe

    problems = check_recipe(load_recipe(name, set_ or ()))
    raise typer.Exit(2 if problems else 0)


@app.command()
def train(
    name: RecipeName,
    set_: Set = None,
    seed: Annotated[int | None, typer.Option(help="Same as --set run.seed=N.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue where the run stopped.")] = False,
) -> None:
    """Train a recipe and measure it; under torchrun, on several processes."""
    from evenhand import parallel
    from evenhand.report.reading import load_run
    from evenhand.report.terminal import print_tables
    from evenhand.run import train as run_training

    recipe = _load(name, set_, seed=seed, resume=resume)
    with _stoppable():
        folder = run_training(recipe)
    if parallel.is_writer():
        if (folder / "measure.json").exists():
            print_tables([load_run(folder)])
            print(f"run: {folder}   report: evenhand report {folder}")
        else:
            print(f"paused: {folder}   continue: evenhand train {folder} --resume")


@app.command()
def measure(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    split: Annotated[str, typer.Option(help="test or val.")] = "test",
    cas: Annotated[
        str | None,
        typer.Option(
            metavar="RECIPE", help="Of a generator: train this classifier on drawn images, test it on real ones."
        ),
    ] = None,
    cas_images: Annotated[int, typer.Option(min=1, help="Images drawn for --cas.")] = 10_000,
) -> None:
    """Per-class table, head/mid/tail and calibration of a run; or FID, precision, recall and class shares."""
    from dataclasses import replace

    from evenhand.errors import UserError
    from evenhand.report.reading import load_run
    from evenhand.report.tables import headline
    from evenhand.report.terminal import print_tables
    from evenhand.run.measuring import measure as measure_run

    if cas is not None and split != "test":
        raise UserError(f"--cas is tested on the test split: leave out --split {split}")
    result = measure_run(run, split=split)
    if cas is not None:
        from evenhand.run.samples import classifier_score

        result |= {"classifier_score": classifier_score(run, recipe=cas, count=cas_images)}
    record = replace(load_run(run), measure=result)
    print(f"{split}: {headline(record)}")
    print_tables([record])


@app.command()
def sample(
    run: Annotated[Path, typer.Argument(help="The folder of a generator's run.")],
    class_: Annotated[str | None, typer.Option("--class", help="Class name. Default: every class.")] = None,
    count: Annotated[int, typer.Option(min=1, help="Images of each class.")] = 64,
    out: Annotated[Path | None, typer.Option(help="Folder. Default: samples in the run's.")] = None,
    seed: Annotated[int, typer.Option(help="Another seed, other images.")] = 0,
) -> None:
    """Images from a trained generator, a folder for each class, with a contact sheet."""
    from evenhand.run.samples import sample_run

    folder = sample_run(run, class_, count, out, seed=seed)
    print(f"{folder}   look: {folder / 'contact-sheet.png'}")


@app.command()
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

    with _stoppable():
        run_all(
            name, seeds=seeds, first_seed=first_seed, variants=only, overrides=set_ or (), out=out, jobs=jobs,
            splits=splits,
        )  # fmt: skip


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of runs.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Default: report.html in the first folder.")] = None,
) -> None:
    """One self-contained HTML page, several runs side by side."""
    from evenhand.report.page import write_report
    from evenhand.report.reading import load_run, run_folders
    from evenhand.report.records import group_runs
    from evenhand.report.verdict import task_cautions

    folders = run_folders(runs)
    print(write_report(folders, out or runs[0] / "report.html"))
    for line in task_cautions(group_runs(map(load_run, folders))):
        print(line)


@app.command()
def hessian(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    class_: Annotated[list[str] | None, typer.Option("--class", help="Class name, repeatable. Default: all.")] = None,
    whole: Annotated[bool, typer.Option("--whole", help="One spectrum of all classes together.")] = False,
    checkpoints: Annotated[bool, typer.Option(help="Every checkpoint that run.keep_every kept.")] = False,
    steps: Annotated[int, typer.Option(min=1, help="Lanczos steps.")] = 64,
    probes: Annotated[int, typer.Option(min=1, help="Random starts.")] = 1,
    max_samples: Annotated[int, typer.Option(min=1, help="At most that many training images (of a class).")] = 512,
) -> None:
    """Curvature of each class's loss: smallest and largest eigenvalue, trace, density plots."""
    from evenhand.run.curvature import study

    how = {"steps": steps, "probes": probes, "max_samples": max_samples}
    study(run, classes=class_, whole=whole, every_checkpoint=checkpoints, **how)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for runs and report.")] = Path("runs/demo"),
    set_: Set = None,
) -> None:
    """The main job on built-in data: plain training against re-weighting and flat minima, with a report."""
    from evenhand.run.reproduce import demo as run_demo

    with _stoppable():
        run_demo(out, set_ or ())


@contextmanager
def _stoppable() -> Iterator[None]:
    """Typer would swallow what an interruption says."""
    try:
        yield
    except KeyboardInterrupt as stop:
        print(f"evenhand: stopped. {stop}", file=sys.stderr)
        raise typer.Exit(130) from stop


def _load(name: str, set_: list[str] | None, *, seed: int | None, resume: bool) -> Recipe:
    from evenhand.run.recipe import load_recipe

    overrides = list(set_ or ())
    if seed is not None:
        overrides.append(f"run.seed={seed}")
    if resume:
        overrides.append("run.resume=true")
    return load_recipe(name, overrides)
