"""What one asks of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from evenhand.cli.common import Set, stoppable

Rule = Literal["asked", "annotator"]
Features = Literal["annotator", "inception", "mobilenet_v2"]  # as in measure.judging, which imports torch


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
    features: Annotated[
        Features | None, typer.Option(help="Of a generator: compare images by these, not by its recipe's.")
    ] = None,
) -> None:
    """Per-class table, head/mid/tail and calibration of a run; or FID, precision, recall and class shares."""
    from dataclasses import replace

    from evenhand.errors import UserError
    from evenhand.report.reading import load_run
    from evenhand.report.tables import headline
    from evenhand.report.terminal import print_tables
    from evenhand.run.measuring import measure as measure_run
    from evenhand.run.measuring import measure_by

    if cas is not None and split != "test":
        raise UserError(f"--cas is tested on the test split: leave out --split {split}")
    if features is not None and (cas is not None or split != "test"):
        raise UserError("--features compares with the test split, and nothing else: leave out --split and --cas")
    result = measure_by(run, features) if features else measure_run(run, split=split)
    if cas is not None:
        from evenhand.run.samples import classifier_score

        result |= {"classifier_score": classifier_score(run, recipe=cas, count=cas_images)}
    record = replace(load_run(run), measure=result)
    print(f"{split}: {headline(record)}")
    print_tables([record])


def sample(
    run: Annotated[Path, typer.Argument(help="The folder of a generator's run.")],
    class_: Annotated[str | None, typer.Option("--class", help="Class name. Default: every class.")] = None,
    count: Annotated[int, typer.Option(min=1, help="Images of each class.")] = 64,
    out: Annotated[Path | None, typer.Option(help="Folder. Default: samples in the run's.")] = None,
    seed: Annotated[int, typer.Option(help="Another seed, other images.")] = 0,
    truncation: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Of StyleGAN2: below 1 more typical images, less varied; 0: one of each class."
        ),
    ] = None,
) -> None:
    """Images from a trained generator, a folder for each class, with a contact sheet."""
    from evenhand.run.samples import sample_run

    folder = sample_run(run, class_, count, out, seed=seed, truncation=truncation)
    print(f"{folder}   look: {folder / 'contact-sheet.png'}")


def synthetic(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished generators of the same data.")],
    recipe: Annotated[str, typer.Option(help="The classifier: one of ours, or a TOML file.")] = "synthetic",
    seeds: Annotated[int, typer.Option(min=1, help="How many.")] = 3,
    first_seed: Annotated[int, typer.Option(min=0, help="1 leaves out seed 0, on which settings were tried.")] = 0,
    labels: Annotated[Rule, typer.Option(help="Of drawn images: as asked for, or the annotator's, for all.")] = "asked",
    annotator: Annotated[
        Path | None, typer.Option(help="Run of a classifier that names them. Default: the generators' own.")
    ] = None,
    per_class: Annotated[
        int | None, typer.Option(min=1, help="Fill each class up to so many. Default: the largest class's number.")
    ] = None,
    set_: Set = None,
    out: Annotated[Path, typer.Option(help="Folder for runs and table.")] = Path("runs/synthetic"),
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time; on a CPU, one for each core.")] = 1,
) -> None:
    """Does synthetic data help? Classifiers on real images, with the usual remedies, and with generated ones.

    Repeat the same command to go on after an interruption: finished runs are kept.
    """
    from evenhand.run.synthetic import synthetic as compare

    with stoppable():
        compare(
            runs, recipe=recipe, seeds=seeds, first_seed=first_seed, labels=labels, annotator=annotator,
            per_class=per_class, overrides=set_ or (), out=out, jobs=jobs,
        )  # fmt: skip


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of runs.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Default: report.html in the first folder.")] = None,
) -> None:
    """One self-contained HTML page, several runs side by side; or the rounds of evenhand cycles."""
    from evenhand.errors import UserError
    from evenhand.report.cycles import is_experiment, write_cycles_report
    from evenhand.report.page import write_report
    from evenhand.report.reading import load_run, run_folders
    from evenhand.report.records import group_runs
    from evenhand.report.verdict import task_cautions

    given = [inside for path in runs for inside in ([path] if is_experiment(path) else sorted(path.glob("*")))]
    rounds = [folder for folder in given if is_experiment(folder)]
    if rounds:
        if len(rounds) < len(runs):
            raise UserError("folders of cycles and of single runs do not go on one page: give either")
        print(write_cycles_report(rounds, out or runs[0] / "report.html"))
        return
    folders = run_folders(runs)
    print(write_report(folders, out or runs[0] / "report.html"))
    for line in task_cautions(group_runs(map(load_run, folders))):
        print(line)


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
