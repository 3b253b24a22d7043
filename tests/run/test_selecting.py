"""``evenhand select``: every selector over a run's own target or a pool on disk, cold starts, and users' mistakes."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image

from evenhand import cli
from evenhand.data.labels import Answer, named, write_answers
from evenhand.data.picks import PickRow, read_facts, read_picks
from evenhand.data.stream import Stream
from evenhand.errors import UserError
from evenhand.pieces import selection
from evenhand.pieces.submodular import submodular_select, vap_score
from evenhand.randomness import dice
from evenhand.run import selecting
from evenhand.run.opening import open_run
from evenhand.run.picking import SELECTORS, How, Sight, choose
from evenhand.run.predicting import Model
from evenhand.run.recipe import validate
from evenhand.run.selecting import _check_done, _own, select
from evenhand.run.training import train
from helpers import picture, save_picture, truncate

CLASSES = ("ant", "bee", "cow")
LABELS = Path(__file__).parents[1] / "contract" / "labels.csv"


def tree(folder: Path, **method: Any) -> dict[str, Any]:
    return {
        "method": {
            "name": "vaada", "batch": 16, "net": {"name": "small-cnn", "width": 4}, "bottleneck": 8, "hidden": 16,
            **method,
        },
        "data": {"set": "shapes", "target": "shapes-negative", "n_max": 6, "target_max": 60, "augment": []},
        "run": {"folder": str(folder), "steps": 4, "progress": False, "threads": 1},
    }  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(validate(tree(tmp_path_factory.mktemp("select") / "run"), "tiny"))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """<class>/*.png, 12 of each, of which the model of ``photos_run`` has seen the first 8."""
    root = tmp_path_factory.mktemp("pictures")
    for k, name in enumerate(CLASSES):
        for i in range(12):
            place = root / ("seen" if i < 8 else "pool") / name / f"{i}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            grain = np.random.default_rng(12 * k + i).normal(0, 12, (40, 40, 3))  # alike, but no copies
            shown = np.clip(np.asarray(picture(40, 40, 10 * k)) + grain, 0, 255)
            Image.fromarray(shown.astype(np.uint8)).save(place)
    return root


@pytest.fixture(scope="module")
def photos_run(pictures: Path) -> Path:
    recipe = {
        "method": {"name": "classifier", "batch": 8, "net": {"name": "small-cnn", "width": 4}},
        "data": {"set": str(pictures / "seen"), "test_share": 0.3, "val_per_class": 1, "augment": []},
        "run": {"folder": str(pictures / "run"), "steps": 120, "progress": False, "threads": 1},
    }
    return train(validate(recipe, "photos"))


def literal(by: str, sight: Sight, how: How) -> list[int]:
    """What each name must call, with its inputs written out."""
    method: Any = sight.method
    x = sight.pool.fetch(torch.arange(len(sight.pool)))
    seen = method.data.see(x)
    probs, features, n = method.predict(x).softmax(1), method.embed(x), 5
    chance = dice(how.seed, "select")
    known = method.embed(sight.labelled.fetch(torch.arange(len(sight.labelled)))) if sight.labelled else None
    vap = vap_score(method.network(), seen, generator=dice(how.seed, "vap"), starts=how.starts, epsilon=how.epsilon)
    margin = probs.topk(2).values
    ratio = (-method.tell(x)).exp() * torch.special.entr(probs).sum(1)
    return {
        "s3vaada": lambda: submodular_select(probs, vap, n, alpha=how.alpha, beta=how.beta),
        "vap": lambda: vap.argsort(descending=True)[:n].tolist(),
        "diversity": lambda: submodular_select(probs, vap, n, alpha=0, beta=1),
        "representativeness": lambda: submodular_select(probs, vap, n, alpha=0, beta=0),
        "random": lambda: torch.randperm(len(x), generator=chance)[:n].tolist(),
        "entropy": lambda: torch.special.entr(probs).sum(1).argsort(descending=True)[:n].tolist(),
        "confidence": lambda: probs.amax(1).argsort()[:n].tolist(),
        "margin": lambda: (margin[:, 0] - margin[:, 1]).argsort()[:n].tolist(),
        "coreset": lambda: selection.coreset_select(features, n, labelled=known),
        "badge": lambda: selection.badge_select(probs, features, n, generator=chance),
        "clue": lambda: selection.clue_select(probs, features, n, temperature=how.temperature, generator=chance),
        "aada": lambda: ratio.argsort(descending=True)[:n].tolist(),
        "dfal": lambda: selection.dfal_select(sight.distance, n),
        "kmeans": lambda: selection.kmeans_select(features, n, generator=chance),
    }[by]()


@pytest.mark.parametrize("by", SELECTORS)
def test_every_selector_is_what_its_name_says(by: str, run: Path) -> None:
    opened: Any = open_run(run)
    streams = opened.data().streams
    how = How(seed=3, alpha=0.4, beta=0.4, starts=2, epsilon=2.0, temperature=0.5, batch=len(streams["target"]))
    known = streams["source"].subset(torch.arange(4))
    picks = choose(Sight(opened.method, streams["target"], how, known), 5, by)
    found = [pick.index for pick in picks]
    assert found == literal(by, Sight(opened.method, streams["target"], how, known), how)
    assert len(set(found)) == 5
    assert all(0 <= term <= 1 + 1e-9 for p in picks for term in (p.uncertainty, p.diversity, p.representativeness))
    assert picks[0].representativeness > 0  # whatever picked them, all three terms are told, of the first pick, too
    assert sum(pick.diversity for pick in picks) > 0


def terms(picks: Sequence[Any]) -> list[tuple[float, float, float]]:
    """Why each was picked."""
    return [(pick.uncertainty, pick.diversity, pick.representativeness) for pick in picks]


def test_picks_of_a_runs_own_target(run: Path, tmp_path: Path) -> None:
    rows = select(run, None, 7, tmp_path / "picks.csv", how=How(starts=1))
    assert read_picks(tmp_path / "picks.csv") != []
    assert [row.rank for row in rows] == list(range(1, 8))
    target = open_run(run).data().streams["target"]
    assert {row.name for row in rows} <= set(named(target))
    facts = read_facts(tmp_path / "picks.csv")
    assert (facts["by"], facts["pool_size"], facts["picked"]) == ("badge", 60, 7)
    select(run, None, 7, tmp_path / "weighed.csv", how=How(alpha=0.4, starts=1), told=["alpha"])
    assert read_facts(tmp_path / "weighed.csv")["by"] == "s3vaada"  # which alone has weights
    assert rows[0].guesses[0][0] in facts["classes"]
    assert rows[0].guesses[0][1] >= rows[0].guesses[1][1]
    picks = choose(Sight(cast(Any, open_run(run).method), target, How(starts=1)), 7, "badge")
    assert terms(rows) == terms(picks)


def test_what_is_labelled_is_not_picked_again(run: Path, tmp_path: Path) -> None:
    first = select(run, None, 20, tmp_path / "a.csv", by="entropy")
    write_answers(tmp_path / "labels.csv", [Answer(row.name, "disc") for row in first])
    second = select(run, None, 20, tmp_path / "b.csv", by="entropy", labels=tmp_path / "labels.csv")
    assert {row.name for row in first}.isdisjoint(row.name for row in second)
    assert [row.name for row in second] == [r.name for r in select(run, None, 40, tmp_path / "c.csv", by="entropy")][
        20:
    ]


def test_a_pool_on_disk(photos_run: Path, pictures: Path, tmp_path: Path) -> None:
    rows = select(photos_run, pictures / "pool", 12, tmp_path / "picks.csv", by="margin")
    assert {row.name for row in rows} == {f"{name}/{i}.png" for name in CLASSES for i in range(8, 12)}
    assert all(Path(row.path).is_file() for row in rows)
    assert all(row.label == "" for row in rows)


def test_a_pool_is_decoded_by_as_many_processes_as_the_run_had(
    photos_run: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path(shutil.copytree(photos_run, tmp_path / "run"))
    text = (place / "recipe.toml").read_text()
    assert "workers = 2" in text
    (place / "recipe.toml").write_text(text.replace("workers = 2", "workers = 1"))
    seen: list[int] = []

    def sight(method: Any, pool: Stream, *more: Any) -> Sight:
        seen.append(pool.workers)
        return Sight(method, pool, *more)

    monkeypatch.setattr(selecting, "Sight", sight)
    both = [
        select(run, pictures / "pool", 3, tmp_path / f"{i}.csv", by="entropy")
        for i, run in enumerate((photos_run, place))
    ]
    assert seen == [2, 1]
    assert both[0] == both[1]


def test_cold_start_spreads_over_the_pool(pictures: Path, tmp_path: Path) -> None:
    """Each class is a cloud of copies: three picks by k-means, one of each; no model, so no reasons."""
    rows = select(None, pictures / "pool", 3, tmp_path / "picks.csv", embed="pixels")
    assert {row.name.split("/")[0] for row in rows} == set(CLASSES)
    assert rows[0] == PickRow(rows[0].name, 1, rows[0].path)
    assert read_facts(tmp_path / "picks.csv")["by"] == "kmeans"


def test_suspicious_labels_by_class(photos_run: Path, pictures: Path, tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    for name in CLASSES:
        for i in range(8, 12):
            (pool / name).mkdir(parents=True, exist_ok=True)
            (pool / name / f"{i}.png").write_bytes((pictures / "pool" / name / f"{i}.png").read_bytes())
    save_picture(pool / "bee" / "9.png", seed=10 * CLASSES.index("cow"))  # a cow if ever there was one
    rows = select(photos_run, pool, 5, tmp_path / "picks.csv", why="suspicious")
    assert [(row.name, row.label) for row in rows] == [("bee/9.png", "bee")]
    assert rows[0].guesses[0][0] == "cow"
    with pytest.raises(UserError, match=r"was trained on .* of these samples"):
        select(photos_run, pictures / "seen", 5, tmp_path / "other.csv", why="suspicious")
    own = select(photos_run, None, 1, tmp_path / "own.csv", why="suspicious")
    assert len(own) <= 1


def test_labels_to_doubt_are_those_of_the_samples_left(photos_run: Path) -> None:
    val = open_run(photos_run).data().streams["val"]
    names, labels = named(val), [val.classes[k] for k in val.labels.tolist()]
    place = next(row for row in range(1, len(names)) if labels[row] != labels[row - 1]) - 1
    pool, stream, _ = _own(Model(open_run(photos_run)), "suspicious", {names[place]})
    left = [row for row in range(len(names)) if row != place]
    assert (pool.names, list(pool.labels)) == ([names[row] for row in left], [labels[row] for row in left])
    assert named(stream) == pool.names


def test_rare_classes(run: Path, tmp_path: Path) -> None:
    rows = select(run, None, 5, tmp_path / "picks.csv", why="rare")
    opened: Any = open_run(run)
    target = opened.data().streams["target"]
    probs = opened.method.predict(target.fetch(torch.arange(60))).softmax(1)
    n = torch.tensor(opened.model.facts.counts).float()
    best = (probs * (n.min() / n)).sum(1).double()
    assert best[named(target).index(rows[0].name)] == pytest.approx(float(best.max()))


def said(words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "argv", ["evenhand", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    return lines[0]


MISTAKES = {
    "{run} --budget 61": "budget=61: choose between 0 and the 60 samples of the pool",
    "{run} --by nonsense": "no selector is called 'nonsense'",
    "{run} --alpha 0.9 --beta 0.9 --budget 5": "their sum at most 1",
    "{run} --why rare --by entropy": "--why rare has its own order: leave out --by entropy",
    "{photos} --pool {pool} --budget 3 --by aada": "aada needs a domain discriminator",
    "{photos} --budget 3": "this run has no 'unlabelled' samples to choose from: give --pool",
    "{photos} --pool nowhere": "'nowhere' does not exist",
    "{photos} --pool {bad} --budget 2": "1 files of the pool cannot be read: b.png; remove them, or",
    "{photos} --pool {empty}": "no images under",
    "{photos} --pool {pool} --out {pool}": "exists already",
    "--pool {pool} --by badge": "--by badge needs a model",
    "--pool {pool} --why rare": "--why rare asks what a model expects",
    "--budget 5": "without a run there is no pool",
    "{run} --by entropy --alpha 0.4": "--alpha has no effect on entropy, only on s3vaada: leave it out",
    "{run} --by diversity --epsilon 2": "--epsilon has no effect on diversity, only on s3vaada and vap",
    "{run} --why rare --beta 0.1": "--beta has no effect on rare",
    "{run} --embed pixels": "--embed is what a cold start by kmeans or coreset compares images by",
    "--pool {pool} --by random --embed pixels": "--embed is what a cold start by kmeans or coreset",
    "--pool {pool} --epsilon 2": "--epsilon has no effect on kmeans",
    "{run} --by entropy --labels {labels}": "--labels has no effect: none of its names, such as 'elsewhere.png', is of",
    "--pool {texts} --budget 1": "--by kmeans has nothing to compare texts by without a model: take --by random",
    "--pool {pool} --embed pixels --budget 500": "budget=500: choose between 0 and the 12 samples",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_mistakes_are_one_line(
    words: str, run: Path, photos_run: Path, pictures: Path, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    save_picture(tmp_path / "bad" / "a.png")
    truncate(save_picture(tmp_path / "bad" / "b.png"))
    places = {"run": run, "photos": photos_run, "pool": pictures / "pool"}
    places |= {"bad": tmp_path / "bad", "empty": tmp_path / "empty"}
    for name, text in (("labels", "name,label\nelsewhere.png,disc\n"), ("texts", "text\none film\nanother\n")):
        places[name] = tmp_path / f"{name}.csv"
        places[name].write_text(text)
    assert MISTAKES[words] in said(["select", *words.format(**places).split()], capsys, monkeypatch)
    assert not (tmp_path / "picks.csv").exists()


def test_answers_of_another_pool_are_told_how_names_look_here() -> None:
    _check_done(["a/1.png", "a/2.png"], {"a/2.png", "x.png"})
    _check_done([], {"x.png"})
    with pytest.raises(UserError, match=r"such as 'x\.png', is of the pool, where they look like 'a/1\.png'; leave it"):
        _check_done(["a/1.png", "a/2.png"], {"y.png", "x.png"})


def test_unreadable_files_can_be_skipped(photos_run: Path, tmp_path: Path) -> None:
    save_picture(tmp_path / "bad" / "a.png")
    truncate(save_picture(tmp_path / "bad" / "b.png"))
    with pytest.warns(UserWarning, match=r"b.png"):
        rows = select(photos_run, tmp_path / "bad", 1, tmp_path / "p.csv", by="entropy", skip_unreadable=True)
    assert [row.name for row in rows] == ["a.png"]


def test_the_commands_around_it(run: Path, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (
        ["select", str(run), "--budget", "3", "--by", "entropy"],
        ["labels", "export", "picks.csv", "tasks.json"],
    ):
        monkeypatch.setattr(sys, "argv", ["evenhand", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert not end.value.code
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    for task in tasks:
        task["annotations"] = [{"result": [{"value": {"choices": ["ring"]}}]}]
    (tmp_path / "back.json").write_text(json.dumps(tasks))
    monkeypatch.setattr(sys, "argv", ["evenhand", "labels", "import", "back.json", "--picks", "picks.csv"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code
    assert "labels.csv: 3 labels, 3 new" in capsys.readouterr().out
    recipe = tree(tmp_path / "second")
    recipe["data"]["labels"] = str(tmp_path / "labels.csv")
    again = train(validate(recipe, "second"))
    assert json.loads((again / "streams.json").read_text())["target_labelled"]["samples"] == 3


def test_a_pool_of_texts(tmp_path: Path) -> None:
    recipe = {
        "method": {"name": "classifier", "batch": 16, "net": {"name": "text-mean", "width": 8}},
        "data": {"set": "phrases", "n_max": 6, "test_per_class": 2},
        "run": {"folder": str(tmp_path / "run"), "steps": 2, "progress": False, "threads": 1},
    }
    run = train(validate(recipe, "texts"))
    (tmp_path / "pool.csv").write_text('text,label\n"a fine, long film",\nnothing of note,\nwords and words,\n')
    rows = select(run, tmp_path / "pool.csv", 2, tmp_path / "picks.csv", by="entropy")
    assert {row.text for row in read_picks(tmp_path / "picks.csv")} < {
        "a fine, long film", "nothing of note", "words and words"
    }  # fmt: skip
    assert len(rows) == 2
    assert read_facts(tmp_path / "picks.csv")["kind"] == "texts"
    with pytest.raises(UserError, match="inputs of texts cannot be perturbed"):
        select(run, tmp_path / "pool.csv", 2, tmp_path / "more.csv", by="s3vaada")
    assert len(select(run, tmp_path / "pool.csv", 2, tmp_path / "more.csv")) == 2  # the default suits texts, too


def test_a_cold_start_tells_of_pool_and_labels(tmp_path: Path) -> None:
    """Vectors lie in one file: they have no folder to look into, and no path."""
    chance = np.random.default_rng(0)
    clouds = [chance.normal(at, 0.1, (5, 2)) for at in (0, 9, 99)]
    np.savez(tmp_path / "pool.npz", x_unlabelled=np.concatenate(clouds))
    rows = select(None, tmp_path / "pool.npz", 3, tmp_path / "picks.csv")
    assert {int(row.name.rpartition("/")[2]) // 5 for row in rows} == {0, 1, 2}
    assert [(row.rank, row.path, row.guesses, row.uncertainty) for row in rows] == [
        (n, "", (), None) for n in (1, 2, 3)
    ]
    facts = read_facts(tmp_path / "picks.csv")
    told = {
        "pool": str(tmp_path / "pool.npz"), "run": "", "why": "learn", "by": "kmeans", "kind": "vectors", "classes": [],
        "picked": 3, "pool_size": 15, "part": "", "folder": "", "seed": 0,
    }  # fmt: skip
    assert {key: facts[key] for key in told} == told
    assert "train_with" not in facts
    write_answers(tmp_path / "labels.csv", [Answer(row.name, "a") for row in rows])
    more = select(None, tmp_path / "pool.npz", 12, tmp_path / "b.csv", by="coreset", labels=tmp_path / "labels.csv")
    assert {row.name for row in more}.isdisjoint(row.name for row in rows)
    for by in ("random", "kmeans"):
        found = []
        for n, seed in enumerate((1, 1, 2)):
            chosen = select(None, tmp_path / "pool.npz", 9, tmp_path / f"{by}{n}.csv", by=by, how=How(seed=seed))
            found.append([row.name for row in chosen])
        assert found[0] == found[1] != found[2]
    with pytest.raises(UserError, match="--embed is for images, but the pool holds vectors"):
        select(None, tmp_path / "pool.npz", 3, tmp_path / "c.csv", embed="pixels")
    with pytest.raises(UserError, match=r"give a name that ends with \.csv"):
        select(None, tmp_path / "pool.npz", 3, tmp_path / "c.txt")


def test_how_to_train_with_answers_is_told_where_it_can_be_done(
    run: Path, photos_run: Path, pictures: Path, tmp_path: Path
) -> None:
    def facts(name: str, *given: Any, **how: Any) -> Any:
        select(*given, tmp_path / name, **how)
        return read_facts(tmp_path / name)

    own = facts("a.csv", run, None, 2, by="entropy")
    assert (own["train_with"], own["part"], own["run"], own["pool"]) == ([], "target", str(run), "")
    pool = facts("b.csv", photos_run, pictures / "pool", 2, by="entropy")
    assert pool["train_with"] == [f"data.pool={pictures / 'pool'}"]
    assert (pool["folder"], pool["part"], pool["classes"]) == (str(pictures / "pool"), "", list(CLASSES))
    assert "train_with" not in facts("c.csv", run, pictures / "pool", 2, by="entropy")  # of another domain
    assert "train_with" not in facts("d.csv", photos_run, pictures / "pool", 2, why="suspicious")
