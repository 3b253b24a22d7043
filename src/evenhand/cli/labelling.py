"""Which samples to label, answers from and to other tools, and experiments that ask an oracle."""

from __future__ import annotations

import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from evenhand.cli.common import RecipeName, Set, load, stoppable

labels_app = typer.Typer(
    help="Picks to other labelling tools, and answers back.", no_args_is_help=True, rich_markup_mode=None
)


class Why(StrEnum):
    learn = "learn"
    rare = "rare"
    suspicious = "suspicious"


def select(
    run: Annotated[Path | None, typer.Argument(help="A run's folder. Without one: a cold start, by k-means.")] = None,
    pool: Annotated[
        Path | None, typer.Option(help="Folder, CSV or .npz. Default: the run's target or unlabelled.")
    ] = None,
    budget: Annotated[int, typer.Option(min=1, help="How many to label.")] = 100,
    by: Annotated[
        str, typer.Option(help="badge (default), s3vaada, clue, margin, entropy, coreset, random, ...: see docs.")
    ] = "",
    why: Annotated[
        Why, typer.Option(help="What would teach most; likely members of rare classes; labels that are doubtful.")
    ] = Why.learn,
    labels: Annotated[Path | None, typer.Option(help="labels.csv whose samples are left out.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="picks.json is written beside it.")] = Path("picks.csv"),
    seed: Annotated[int, typer.Option(min=0, help="Of selectors that draw.")] = 0,
    alpha: Annotated[float | None, typer.Option(help="s3vaada: weight of uncertainty [0.5].")] = None,
    beta: Annotated[
        float | None, typer.Option(help="s3vaada: weight of diversity [0.3]; the rest is representativeness.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="s3vaada and vap: norm of the perturbations [5].")] = None,
    embed: Annotated[
        str, typer.Option(help="Cold start: frozen network (net:weights file), or pixels [mobilenet_v2].")
    ] = "",
    skip_unreadable: Annotated[bool, typer.Option("--skip-unreadable", help="Leave damaged files out.")] = False,
) -> None:
    """Which samples of a pool to label next -> picks.csv."""
    from evenhand.data.picks import read_facts
    from evenhand.run.picking import How
    from evenhand.run.selecting import select as choose

    asked = {"alpha": alpha, "beta": beta, "epsilon": epsilon}
    given: dict[str, Any] = {key: value for key, value in asked.items() if value is not None}
    rows = choose(
        run,
        pool,
        budget,
        out,
        by=by,
        why=why.value,
        labels=labels,
        embed=embed,
        skip_unreadable=skip_unreadable,
        how=How(seed=seed, **given),
        told=tuple(given),
    )
    if len(rows) < budget:
        print(f"only {len(rows)} of {budget}: no other label is doubtful")
    facts = read_facts(out)
    where = f"the run's {facts['part']}" if facts["part"] else str(pool)
    told = f"{len(rows)} of the {facts['pool_size']} samples of {where}"
    print(f"{out}: {told}, first {rows[0].name}" if rows else f"{out}: nothing to label in {where}")


@labels_app.command("export")
def export(
    picks: Annotated[Path, typer.Argument(help="picks.csv")],
    out: Annotated[Path, typer.Argument(help="tasks.json for Label Studio, or a .csv with an empty column label.")],
    prefix: Annotated[
        str, typer.Option(help="Before each name, where the tool serves images itself: /data/local-files/?d=pool/")
    ] = "",
) -> None:
    """Picks for another labelling tool."""
    from evenhand.data.exchange import export_picks, label_config
    from evenhand.data.picks import read_facts, read_picks

    facts = read_facts(picks)
    classes = facts.get("classes", [])
    rows = read_picks(picks)
    export_picks(rows, out, classes=classes, prefix=prefix)
    print(f"{out}: {len(rows)} samples")
    if out.suffix == ".json" and classes:
        print(label_config(classes, "text" if facts.get("kind") == "texts" else "image"))


@labels_app.command("import")
def import_(
    answers: Annotated[Path, typer.Argument(help="Label Studio's export (JSON or JSON-MIN), or a CSV.")],
    out: Annotated[Path, typer.Argument(help="labels.csv to write, or to add to.")] = Path("labels.csv"),
    picks: Annotated[Path | None, typer.Option(help="picks.csv: names and classes must be its.")] = None,
) -> None:
    """Answers from another labelling tool -> labels.csv; what is there already stays."""
    from evenhand.run.labelled import take_answers

    total, new = take_answers(answers, out, picks)
    print(f"{out}: {total} labels, {new} new")


@labels_app.command("data")
def data(
    labels: Annotated[Path, typer.Argument(help="labels.csv")],
    pool: Annotated[Path, typer.Argument(help="The pool whose samples it names: a folder, or a table of texts.")],
    out: Annotated[Path, typer.Argument(help="CSV to write.")] = Path("labelled.csv"),
) -> None:
    """A pool and its answers -> a CSV that evenhand train reads; what has no label is unlabelled there."""
    from evenhand.run.labelled import write_data

    known, left = write_data(labels, pool, out)
    print(f"{out}: {known} labelled, {left} not   {shlex.join(['evenhand', 'train', str(out)])}")


def cycles(
    name: RecipeName,
    set_: Set = None,
    seed: Annotated[int | None, typer.Option(help="Same as --set run.seed=N.")] = None,
) -> None:
    """Train, select, ask an oracle, train again: an experiment with known labels; repeat to go on."""
    from evenhand.run.cycles import run_cycles

    recipe = load(name, set_, seed=seed, resume=True)
    with stoppable():
        folder = run_cycles(recipe)
    print(f"cycles: {folder}   report: {shlex.join(['evenhand', 'report', str(folder)])}")
