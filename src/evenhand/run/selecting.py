"""``evenhand select``: which samples of a pool, or of a run's own target, to label -> ``picks.csv``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from evenhand.data.labels import check_classes, named, read_answers
from evenhand.data.picks import GUESSES, PickRow, write_picks
from evenhand.data.stream import Stream
from evenhand.errors import UserError, users_mistake
from evenhand.pieces.batches import explained
from evenhand.pieces.doubt import rare_select, suspicious_labels
from evenhand.pieces.pool import check_budget
from evenhand.pieces.selection import coreset_select, kmeans_select, random_select
from evenhand.pieces.submodular import Pick
from evenhand.randomness import dice
from evenhand.run.looked_at import files_to_look_at, folder_of
from evenhand.run.opening import open_run
from evenhand.run.picking import How, Sight, check_selector, choose, refuse_unused
from evenhand.run.pools import Pool, as_trained, cold_features, read_pool
from evenhand.run.predicting import Model
from evenhand.run.recipe import load_recipe

Why = Literal["learn", "rare", "suspicious"]
COLD = ("kmeans", "coreset", "random")
USUAL = "badge"  # above random on two of three pairs, below on none (benchmarks/results/active.md)
EMBED = "mobilenet_v2"


def select(
    run: Path | None,
    pool: Path | None,
    budget: int,
    out: Path,
    *,
    by: str = "",
    why: Why = "learn",
    labels: Path | None = None,
    embed: str = "",
    skip_unreadable: bool = False,
    how: How | None = None,
    told: Sequence[str] = (),
) -> list[PickRow]:
    """Choose, write ``out`` and the facts beside it, and return the rows.

    ``told`` names the parts of ``how`` that a user has given, which a selector that does not heed them refuses.
    """
    how = how or How()
    if run is not None and why == "learn":
        by = by or ("s3vaada" if told else USUAL)
    refuse_unused(why if why != "learn" else by or "kmeans", told)
    if embed and (run is not None or by == "random"):
        raise UserError("--embed is what a cold start by kmeans or coreset compares images by: leave it out")
    if out.exists():
        raise UserError(f"{out} exists already: label it, or give another --out")
    if out.suffix != ".csv":
        raise UserError(f"--out {out}: give a name that ends with .csv")
    done = {answer.name for answer in read_answers(labels)} if labels is not None else set()
    if run is None:
        found, picks, about = _cold(pool, budget, by, why, done, embed, how, skip_unreadable)
        probs, classes = None, ()
    else:
        found, picks, probs, about = _warm(run, pool, budget, by, why, done, how, skip_unreadable)
        classes = tuple(about["classes"])
    files = files_to_look_at(found.source, [pick.index for pick in picks], out)
    rows = [
        _row(found, pick, rank, file, probs, classes)
        for rank, (pick, file) in enumerate(zip(picks, files, strict=True), 1)
    ]
    folder = pool if pool is not None and pool.is_dir() else folder_of(files)
    facts = {
        "pool": "" if pool is None else str(pool), "part": "", "folder": "" if folder is None else str(folder),
        "run": "" if run is None else str(run), "why": why, "seed": how.seed, "kind": found.source.kind, "classes": [],
        "picked": len(rows), "pool_size": len(found.source), **about,
    }  # fmt: skip
    # What a recipe must be told beside data.labels to train with the answers; labels of another domain it cannot use.
    if run is not None and why != "suspicious" and (pool is None or not load_recipe(run / "recipe.toml").data.target):
        facts["train_with"] = [] if pool is None else [f"data.pool={pool}"]
    write_picks(out, rows, facts)
    return rows


def _row(
    pool: Pool, pick: Pick, rank: int, file: str, probs: Tensor | None, classes: Sequence[str]
) -> PickRow:  # fmt: skip
    row, source = pick.index, pool.source
    label = pool.labels[row] if pool.labels else ""
    base = PickRow(source.name(row), rank, path=file, text=source.text(row), label=label)
    if probs is None:
        return base
    sure, which = probs[row].topk(min(GUESSES, probs.shape[1]))
    guesses = tuple((classes[k], p) for k, p in zip(which.tolist(), sure.tolist(), strict=True))
    return replace(
        base, uncertainty=pick.uncertainty, diversity=pick.diversity, representativeness=pick.representativeness,
        guesses=guesses,
    )  # fmt: skip


# with a model


def _warm(
    run: Path, pool: Path | None, budget: int, by: str, why: Why, done: set[str], how: How, skip: bool
) -> tuple[Pool, list[Pick], Tensor, dict[str, Any]]:
    model = Model(open_run(run))
    if by and why != "learn":
        raise UserError(f"--why {why} has its own order: leave out --by {by}")
    if why == "learn":
        check_selector(by)
    labelled, part = None, ""
    if pool is None:
        found, stream, labelled = _own(model, why, done)
        part = stream.name
    else:
        found = _left(read_pool(pool, model, labelled=why == "suspicious", skip_unreadable=skip), done)
        stream = Stream(as_trained(model, found.source), None, model.classes, "pool")
        if why == "suspicious":
            _refuse_trained(model, found)
    if not len(stream):
        raise UserError("the pool is empty, or all of it is labelled: bring more samples")
    stream = replace(stream, workers=model.run.recipe.run.workers)
    sight, told = Sight(model.method, stream, how, labelled), {"part": part, "classes": list(model.classes)}
    if why == "learn":
        return found, choose(sight, budget, by), sight.probs, {**told, "by": by}
    with users_mistake("select"):
        check_budget(budget, len(stream))
        if why == "rare":
            rows = rare_select(sight.probs, model.facts.counts, budget)
        else:
            check_classes(dict(zip(named(stream), found.labels, strict=True)), model.classes, "the pool")
            truth = torch.tensor([model.classes.index(label) for label in found.labels])
            rows = suspicious_labels(sight.probs, truth, budget)
        return found, explained(sight.probs, sight.uncertainty, rows), sight.probs, {**told, "by": why}


def _own(model: Model, why: Why, done: set[str]) -> tuple[Pool, Stream, Stream | None]:
    """The run's own target; or, with labels to doubt, its validation, on which it was not trained.

    What the run is tested on is never offered: a label of it could not be trained with.
    """
    streams = model.run.data().streams
    key = "val" if why == "suspicious" else "target" if "target" in streams else "unlabelled"
    if key not in streams:
        raise UserError(f"this run has no '{key}' samples to choose from: give --pool")
    stream = streams[key]
    tested = set(named(streams["test"])) if "test" in streams and key != "val" else set()
    if len(stream) and tested.issuperset(named(stream)):
        raise UserError(
            f"all {len(stream)} samples of the run's {key} are its test, too: train with data.target_test_share = 0.2, "
            "or give --pool"
        )
    labels = tuple(stream.classes[k] for k in stream.labels.tolist()) if stream.labels is not None else ()
    _check_done([*named(stream), *(name for other in streams.values() for name in named(other))], done)
    kept = [row for row, name in enumerate(named(stream)) if name not in done | tested]
    some = stream.subset(torch.tensor(kept, dtype=torch.long), key)
    looked_at = some.samples.origin or some.samples  # pictures and texts, not their features or tokens
    return Pool(looked_at, tuple(labels[row] for row in kept) if labels else ()), some, streams.get("target_labelled")


def _left(pool: Pool, done: set[str]) -> Pool:
    """What is not labelled yet."""
    _check_done(pool.names, done)
    return pool.without(done)


def _check_done(names: Sequence[str], done: set[str]) -> None:
    if done and names and done.isdisjoint(names):
        raise UserError(
            f"--labels has no effect: none of its names, such as '{min(done)}', is of the pool, where they look like "
            f"'{names[0]}'; leave it out"
        )


def _refuse_trained(model: Model, pool: Pool) -> None:
    """A model does not doubt the labels that it has learnt."""
    try:
        streams = model.run.data().streams
    except UserError:
        return  # its data are elsewhere: only whoever brings the pool can know
    trained, root = set[Path](), Path(model.run.recipe.data.set)
    for key in ("labelled", "source", "target_labelled"):
        stream = streams.get(key)
        rows = () if stream is None else range(len(stream))
        source = None if stream is None else stream.samples
        # Small images are held in memory and have no path there, but the same name.
        trained |= {Path(source.path(row) or root / source.name(row)).resolve() for row in rows if source is not None}
    mine = [Path(path).resolve() for row in range(len(pool.source)) if (path := pool.source.path(row))]
    if both := trained.intersection(mine):
        raise UserError(
            f"the model was trained on {len(both)} of these samples, such as '{min(both).name}', so it cannot doubt "
            "their labels; give a pool that it has not seen, or leave out --pool to look at its validation"
        )


# without a model


def _cold(
    pool: Path | None, budget: int, by: str, why: Why, done: set[str], embed: str, how: How, skip: bool
) -> tuple[Pool, list[Pick], dict[str, Any]]:
    if pool is None:
        raise UserError("without a run there is no pool: give --pool FOLDER, or a run's folder")
    if why != "learn":
        raise UserError(f"--why {why} asks what a model expects: give a run's folder")
    by = by or "kmeans"
    if by not in COLD:
        raise UserError(f"--by {by} needs a model: give a run's folder, or one of {', '.join(COLD)}")
    found = _left(read_pool(pool, skip_unreadable=skip), done)
    if not len(found.source):
        raise UserError("the pool is empty, or all of it is labelled: bring more samples")
    if by != "random" and found.source.kind == "texts":
        raise UserError(
            f"--by {by} has nothing to compare texts by without a model: take --by random, train, and give the run"
        )
    if embed and found.source.kind != "images":
        raise UserError(f"--embed is for images, but the pool holds {found.source.kind}: leave it out")
    chance = dice(how.seed, "select")
    with users_mistake("select"):
        check_budget(budget, len(found.source))
        if by == "random":
            rows = random_select(len(found.source), budget, generator=chance)
        else:
            x = cold_features(Stream(found.source, None, (), "pool"), embed or EMBED)
            rows = kmeans_select(x, budget, generator=chance) if by == "kmeans" else coreset_select(x, budget)
    return found, [Pick(row, 0.0, 0.0, 0.0) for row in rows], {"by": by}
