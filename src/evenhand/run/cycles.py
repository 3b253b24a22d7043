"""Experiments in active adaptation: train, select, ask the oracle, train anew, until all is spent (spec 08, 2.2).

Every cycle is an ordinary run in ``cycle-0``, ``cycle-1``, ... with fresh weights of the same seed, whose recipe names
``labels-1.csv``, ...: what a person does with ``train``, ``select`` and ``label``. Each file is whole or absent, so
whatever was killed goes on when the command is repeated.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, cast

import torch

from evenhand import atomic, locks
from evenhand.data.domains import read_domains
from evenhand.data.labels import named, read_answers, write_answers
from evenhand.data.picks import GUESSES, PickRow, read_picks, write_picks
from evenhand.data.stream import Stream, Streams
from evenhand.errors import UserError, repeatable
from evenhand.measure.contact import contact_sheet
from evenhand.measure.shift import principal_plane
from evenhand.methods.protocol import Recogniser
from evenhand.pieces.batches import batch_numbers
from evenhand.pieces.submodular import Pick
from evenhand.randomness import mix
from evenhand.run.opening import open_run
from evenhand.run.oracle import Oracle
from evenhand.run.picking import How, Sight, check_selector, choose
from evenhand.run.recipe import Recipe, load_recipe
from evenhand.run.settings import Cycles
from evenhand.run.tables import differences
from evenhand.run.training import train
from evenhand.tasks.classify import some_rows

PICTURED = 400  # samples of each kind in the picture of a round
SHOWN = 48  # picks in the gallery of a round


def run_cycles(recipe: Recipe) -> Path:
    """All cycles of a recipe with a [cycles] table; returns their folder, with ``cycles.json``."""
    settings, folder = recipe.cycles, Path(recipe.run.folder)
    if settings is None or not recipe.data.target:
        missing = "[cycles] table" if settings is None else "data.target"
        raise UserError(f"this recipe has no {missing}: start from one of ours, such as active-emoji")
    if recipe.data.labels:
        raise UserError("data.labels is what cycles write themselves: leave it out")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("evenhand cycles runs in one process: leave out torchrun, or train its cycles one by one")
    check_selector(settings.by)
    with locks.held(folder, wait=False):
        _begin(folder, recipe)
        oracle = Oracle.of(recipe.data, folder / "oracle.jsonl")
        budget = settings.labels(oracle.size)
        if settings.count * budget >= oracle.size:
            raise UserError(
                f"{settings.count} rounds of {budget} labels use up the pool of {oracle.size}: lower cycles.budget"
            )
        for cycle in range(settings.count + 1):
            own = cycle_recipe(recipe, cycle)
            if not (Path(own.run.folder) / "measure.json").is_file():
                with repeatable():
                    train(own)
                if not (Path(own.run.folder) / "measure.json").is_file():
                    raise UserError(f"{own.run.folder} is paused: repeat the command to go on")
            if cycle < settings.count:
                _buy(folder, own, settings, oracle, cycle + 1, budget)
            atomic.write_json(folder / "cycles.json", _summary(folder, recipe, settings, oracle, cycle))
    return folder


def cycle_recipe(recipe: Recipe, cycle: int) -> Recipe:
    """The run of one cycle: nothing but the labels differs between them."""
    folder = Path(recipe.run.folder)
    labels = {"labels": str(folder / f"labels-{cycle}.csv")} if cycle else {}
    place = {"folder": str(folder / f"cycle-{cycle}"), "resume": True}
    return recipe.model_copy(
        update={
            "cycles": None,
            "data": recipe.data.model_copy(update=labels),
            "run": recipe.run.model_copy(update=place),
        }
    )


def _begin(folder: Path, recipe: Recipe) -> None:
    """Refuse to go on with another experiment's folder."""
    kept = folder / "cycles.toml"
    if not kept.is_file():
        atomic.write(kept, recipe.toml())
        return
    before = load_recipe(kept)
    if before.digest() != recipe.digest():
        keys = ", ".join(differences(before.essence(), recipe.essence())[:5])
        raise UserError(f"{folder} holds cycles of another recipe, which differs in {keys}: choose another run.folder")


def _buy(folder: Path, own: Recipe, settings: Cycles, oracle: Oracle, round_: int, budget: int) -> None:
    """The labels of one round: the last model picks, the oracle answers."""
    picks, labels = folder / f"picks-{round_}.csv", folder / f"labels-{round_}.csv"
    if labels.is_file():
        return
    if not picks.is_file():
        _select(own, settings, picks, round_, budget)
    before = read_answers(folder / f"labels-{round_ - 1}.csv") if round_ > 1 else []
    answers = oracle.ask([row.name for row in read_picks(picks)], round_)
    write_answers(labels, [*before, *answers])


def _select(own: Recipe, settings: Cycles, out: Path, round_: int, budget: int) -> None:
    run = open_run(own.run.folder)
    streams = run.data().streams
    how = How(
        seed=mix(own.run.seed, "cycle", round_), alpha=settings.alpha, beta=settings.beta, starts=settings.starts,
        epsilon=settings.epsilon, temperature=settings.temperature,
    )  # fmt: skip
    sight = Sight(cast(Recogniser, run.method), streams["target"], how, streams.get("target_labelled"))
    began = time.perf_counter()
    picks = choose(sight, budget, settings.by)
    seconds = time.perf_counter() - began
    rows = [_row(sight, pick, rank) for rank, pick in enumerate(picks, 1)]
    chosen = [pick.index for pick in picks]
    told = {"seconds": seconds, **batch_numbers(sight.probs, sight.uncertainty, chosen)}
    if "vap" in sight.__dict__:
        entropy = torch.special.entr(sight.probs).sum(1)
        both = torch.corrcoef(torch.stack([sight.vap.double(), entropy.double()]))
        told["vap_and_entropy"] = float(both[0, 1].nan_to_num())
    batch = {"numbers": told, "points": _points(sight, streams, chosen)}
    atomic.write_json(out.with_name(f"batch-{round_}.json"), batch)
    shown = read_domains(own.data)["target"] if own.data.embed else sight.pool  # images before any embedding
    _gallery(shown, [row.name for row in rows[:SHOWN]], out.with_suffix(".png"))
    facts = {
        "pool": own.data.target, "run": own.run.folder, "by": settings.by, "why": "learn", "seed": how.seed,
        "kind": sight.pool.kind, "classes": list(sight.pool.classes), "picked": len(rows), "pool_size": len(sight.pool),
    }  # fmt: skip
    write_picks(out, rows, facts)  # last: where it stands, all of the round does


def _row(sight: Sight, pick: Pick, rank: int) -> PickRow:
    sure, which = sight.probs[pick.index].topk(min(GUESSES, sight.probs.shape[1]))
    guesses = tuple((sight.pool.classes[k], p) for k, p in zip(which.tolist(), sure.tolist(), strict=True))
    source = sight.pool.samples
    return PickRow(
        source.name(pick.index), rank, path=source.path(pick.index) or "", uncertainty=pick.uncertainty,
        diversity=pick.diversity, representativeness=pick.representativeness, guesses=guesses,
    )  # fmt: skip


def _points(sight: Sight, streams: Streams, chosen: list[int]) -> dict[str, list[list[float]]]:
    """Source, pool, labelled and picked samples in the plane of their features' largest variance."""
    method = sight.method
    if not method.embeds:
        return {}

    def some(stream: Stream) -> torch.Tensor:
        rows = some_rows(stream, PICTURED)
        with torch.no_grad():
            return torch.cat([method.embed(stream.fetch(part)).float().cpu() for part in rows.split(256)])

    parts = {"source": some(streams["source"]), "pool": some(sight.pool)}
    if sight.labelled is not None:
        parts["labelled"] = some(sight.labelled)
    parts["picked"] = some(sight.pool.subset(torch.tensor(chosen)))
    plane = principal_plane(torch.cat(list(parts.values()))).split([len(part) for part in parts.values()])
    return {
        name: [[round(v, 4) for v in xy] for xy in points.tolist()] for name, points in zip(parts, plane, strict=True)
    }


def _gallery(pool: Stream, names: list[str], out: Path) -> None:
    """The picks as images, in their order; nothing where they are none."""
    if pool.kind != "images":
        return
    place = {name: row for row, name in enumerate(named(pool))}
    atomic.write(out, contact_sheet(pool.samples, torch.tensor([place[name] for name in names])))


def _summary(folder: Path, recipe: Recipe, settings: Cycles, oracle: Oracle, last: int) -> dict[str, Any]:
    rows = []
    for cycle in range(last + 1):
        measured = json.loads((folder / f"cycle-{cycle}" / "measure.json").read_text())
        answers = read_answers(folder / f"labels-{cycle}.csv") if cycle else []
        batch = folder / f"batch-{cycle + 1}.json"
        counts = [sum(answer.label == name for answer in answers) for name in oracle.classes]
        rows.append({
            "cycle": cycle, "labels": len(answers), "accuracy": measured["accuracy"],
            "mean_recall": measured["mean_recall"], "bought": counts,
            "also": {rule: found["accuracy"] for rule, found in measured.get("also", {}).items()},
            "batch": json.loads(batch.read_text())["numbers"] if batch.is_file() and cycle < settings.count else None,
        })  # fmt: skip
    method: Any = recipe.method
    return {
        "method": method.name, "by": settings.by, "seed": recipe.run.seed, "classes": list(oracle.classes),
        "pool": oracle.size, "budget": settings.labels(oracle.size), "count": settings.count,
        "select": recipe.run.select, "source": recipe.data.source or [recipe.data.set], "target": recipe.data.target,
        "queries": len(oracle.asked), "cycles": rows,
    }  # fmt: skip
